"""Open the units of a backend: the chosen devices, and the CPU for nodes that the other devices cannot run."""

from __future__ import annotations

from collections.abc import Sequence

from hotshoe_core.contract.device import BackendParams, Device, DeviceType
from hotshoe_core.errors import NativeError
from hotshoe_ggml.cpu.threads import default_threads
from hotshoe_ggml.cpu.unit import CpuUnit
from hotshoe_ggml.native import best_variant, lib, library_of
from hotshoe_ggml.native.log import raise_pending
from hotshoe_ggml.quirks.vulkan import VulkanUnit
from hotshoe_ggml.unit import Unit

__all__ = ["open_units"]

_MAX_DEVICES = 15  # besides the CPU: fewer than HOTSHOE_MAX_UNITS of hotshoe_schedule.h

_UNITS: dict[str, type[Unit]] = {"Vulkan": VulkanUnit}
"""By the name that a library registers with ggml. The CPU is a CpuUnit; all other devices are a Unit."""


def open_units(devices: Sequence[Device], params: BackendParams) -> list[Unit]:
    """One unit for each device. The CPU is the last one, whether it was chosen or not.

    Raises NativeError without a device, for more than 15 and one CPU, or if ggml does not allow ``n_threads``.
    """
    n_threads = default_threads() if params.n_threads is None else params.n_threads
    if not 1 <= n_threads <= lib().GGML_MAX_N_THREADS:
        raise NativeError(f"n_threads is {n_threads}; expected 1 to {lib().GGML_MAX_N_THREADS}")
    kinds = {device.name: _kind(device) for device in devices}
    others = [device for device in devices if kinds[device.name] is not CpuUnit]
    hosts = [device for device in devices if kinds[device.name] is CpuUnit]
    if not devices or len(others) > _MAX_DEVICES or len(hosts) > 1:
        raise NativeError(
            f"got {len(devices)} devices ({', '.join(d.name for d in devices)}); "
            f"expected at least one, and at most {_MAX_DEVICES} and one CPU"
        )
    opened: list[Unit] = []
    try:
        for device in (*others, *(hosts or [_host()])):
            opened.append(kinds.get(device.name, CpuUnit)(device, params, n_threads))
        raise_pending()
    except BaseException:
        for unit in opened:
            unit.close()
        raise
    return opened


def _kind(device: Device) -> type[Unit]:
    library = library_of(device)
    facts = library.devices()[int(device.properties["index"])]
    return CpuUnit if facts.type == lib().GGML_BACKEND_DEVICE_TYPE_CPU else _UNITS.get(library.name, Unit)


def _host() -> Device:
    """The CPU of this installation, if it is not among the chosen devices."""
    return Device("cpu", DeviceType.CPU, "ggml-cpu", "ggml", library=best_variant().path, properties={"index": 0})
