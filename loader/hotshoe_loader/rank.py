"""Stage 5, rank: the order of the devices, and the devices that a name means. Runs no plugin code."""

from __future__ import annotations

import re
from collections.abc import Sequence

from hotshoe_core.contract.device import Device, DeviceType
from hotshoe_loader.catalog import CATALOG

__all__ = ["REFERENCE", "find_devices", "find_named", "rank"]

REFERENCE = "reference"
"""The reserved name of the built-in provider and of its device, which is used if no plugin offers a device."""

# An integrated GPU comes before the CPU: a user who installs a GPU plugin wants the GPU to be used, and can set
# prefer="cpu" if it is slower. Registry.why says that it shares the CPU's memory. An accelerator comes after the CPU,
# because its speed is unknown; a user with a fast one sets prefer="accel".
_TYPE_ORDER = (DeviceType.GPU, DeviceType.IGPU, DeviceType.CPU, DeviceType.ACCEL)

_GPUS = (DeviceType.GPU, DeviceType.IGPU)
_GIB = 1 << 30


def rank(devices: Sequence[Device], prefer: Sequence[str] = (), require: Sequence[str] = ()) -> tuple[Device, ...]:
    """Sort devices, best first.

    The order: required devices, preferred devices, then by type, total memory, free memory (in whole GiB, so that a
    few bytes do not change the order between runs), interface and name. Memory counts for GPUs only, because every CPU
    device has the machine's memory. If two devices are the same hardware (by UUID or PCI id), the second one comes
    after all distinct devices of its type. The reference device is last, unless it is required or preferred.
    """
    required = {device.name for token in require for device in find_devices(token, devices)}
    preferred: dict[str, int] = {}
    for position, token in enumerate(prefer):
        for device in find_devices(token, devices):
            preferred.setdefault(device.name, position)
    duplicates = _duplicates(devices)

    def key(device: Device) -> tuple[object, ...]:
        return (
            device.name not in required,
            preferred.get(device.name, len(prefer)),
            device.provider == REFERENCE,
            _TYPE_ORDER.index(device.type),
            device.name in duplicates,
            -device.memory_total if device.type in _GPUS else 0,
            -(device.memory_free // _GIB) if device.type in _GPUS else 0,
            _interface(device),
            _natural(device.name),
        )

    return tuple(sorted(devices, key=key))


def _interface(device: Device) -> int:
    """Position of the interface in the catalog: the vendor's own, then general ones, then unknown ones."""
    return next((i for i, entry in enumerate(CATALOG) if entry.name == _backend(device)), len(CATALOG))


def _duplicates(devices: Sequence[Device]) -> set[str]:
    """The names of devices whose hardware is also offered by a device with a better interface."""
    seen: set[str] = set()
    duplicates = set()
    for device in sorted(devices, key=lambda device: (_interface(device), _natural(device.name))):
        ids = {value.lower() for value in (device.uuid, device.pci_id) if value}
        if ids & seen:
            duplicates.add(device.name)
        seen |= ids
    return duplicates


def _natural(name: str) -> list[tuple[int, str]]:
    """A sort key that puts "cuda:2" before "cuda:10"."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name)]


def find_devices(token: str, devices: Sequence[Device]) -> list[Device]:
    """The devices that a name means, in the given order: of a device, type, backend ("cuda"), provider or family.

    "gpu" includes integrated GPUs. The reference device matches its own name only, because "cpu" means a CPU plugin,
    not a backend that is a hundred times slower.
    """
    name = token.strip().lower()
    named = find_named(token, devices)
    if named:
        return named
    types = {entry for entry in DeviceType if entry.value == name}
    types |= {DeviceType.IGPU} if DeviceType.GPU in types else set()
    others = [device for device in devices if device.provider != REFERENCE]
    return [device for device in others if (device.type in types if types else device.family.lower() == name)]


def find_named(token: str, devices: Sequence[Device]) -> list[Device]:
    """The devices that have a name, or whose backend or provider has it; [] for the name of a type or family."""
    name = token.strip().lower()
    types = [entry for entry in DeviceType if entry.value == name]
    # The name of a type means that type only, even if a device of another type has the same name.
    exact = [device for device in devices if device.name.lower() == name and (not types or device.type in types)]
    if exact or types:
        return exact
    others = [device for device in devices if device.provider != REFERENCE]
    by_backend = [device for device in others if _backend(device).lower() == name]
    by_provider = [device for device in others if device.provider.lower() == name]
    return by_backend or by_provider


def _backend(device: Device) -> str:
    return device.name.partition(":")[0]  # "cuda" of "cuda:0"
