"""A registry whose devices are those of core's fake family, for what ``load_model`` does with several devices."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import cast

from hotshoe_core import Backend, BackendParams, Device, DeviceType
from hotshoe_core.testing.fake import open_fake
from hotshoe_loader.rank import find_devices

__all__ = ["MIB", "FakeRegistry", "fake"]

MIB = 1 << 20


def fake(name: str, free: int = 1 << 30, type: DeviceType = DeviceType.GPU, *, capacity: int | None = None) -> Device:
    """A device that says ``free`` bytes are free, and has ``capacity`` of them."""
    capacity = capacity if capacity is not None else free or 1 << 40
    return Device(name, type, "fake", "fake", memory_total=capacity, memory_free=free)


class FakeRegistry:
    """What ``load_model`` asks of a Registry. opened: the devices of each backend that was opened.

    lacks: by a device's name, an op that it has not.
    """

    def __init__(self, *devices: Device, lacks: Mapping[str, str] | None = None) -> None:
        self.devices = devices
        self.lacks = lacks or {}
        self.opened: list[list[str]] = []

    def select(self, device: str | Iterable[str] | None = None) -> list[Device]:
        if device is None:
            return [self.devices[0]]
        named = [device] if isinstance(device, str) else list(device)
        return [d for name in named for token in name.split(",") for d in find_devices(token, self.devices)]

    def open(
        self,
        device: str | Iterable[str] | None = None,
        params: BackendParams | None = None,
        *,
        with_cpu: bool = False,
    ) -> Backend:
        chosen = self.select(device)
        cpus = [d for d in self.devices if d.type is DeviceType.CPU and d not in chosen]
        chosen += cpus[:1] if with_cpu and not any(d.type is DeviceType.CPU for d in chosen) else []
        self.opened.append([d.name for d in chosen])
        backend = open_fake(chosen, params)
        for name, op in self.lacks.items():
            if name in backend.libraries:
                del cast("dict[str, object]", backend.libraries[name].functions)[op]
        return backend

    def why(self, device: str | Sequence[str] | None = None) -> str:
        return f"{', '.join(d.name for d in self.select(device))}: in a test"
