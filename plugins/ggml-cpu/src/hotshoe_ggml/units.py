"""The units of a backend: the devices chosen, and the CPU, on which whatever they cannot do runs."""

from __future__ import annotations

from collections.abc import Sequence

from hotshoe_core.contract.device import BackendParams, Device, DeviceType
from hotshoe_core.errors import NativeError
from hotshoe_ggml._native import best_variant, lib, library_of
from hotshoe_ggml.cpu.unit import CpuUnit
from hotshoe_ggml.unit import Unit

__all__ = ["open_units"]

_MOST = 15  # ggml's scheduler aborts on 16


def open_units(devices: Sequence[Device], params: BackendParams, n_threads: int) -> list[Unit]:
    """One for each device, and the CPU last, as ggml's scheduler wants it; among the devices or not.

    Raises NativeError for more than it takes, or none.
    """
    kinds = {device.name: _kind(device) for device in devices}
    others = [device for device in devices if kinds[device.name] is not CpuUnit]
    hosts = [device for device in devices if kinds[device.name] is CpuUnit]
    if not devices or len(others) >= _MOST or len(hosts) > 1:
        raise NativeError(
            f"got {len(devices)} devices ({', '.join(d.name for d in devices)}); "
            f"expected 1 to {_MOST}, of which one may be a CPU"
        )
    opened: list[Unit] = []
    try:
        for device in (*others, *(hosts or [_host()])):
            opened.append(kinds.get(device.name, CpuUnit)(device, params, n_threads))
    except BaseException:
        for unit in opened:
            unit.close()
        raise
    return opened


def _kind(device: Device) -> type[Unit]:
    facts = library_of(device).devices()[int(device.properties["index"])]
    return CpuUnit if facts.type == lib().GGML_BACKEND_DEVICE_TYPE_CPU else Unit


def _host() -> Device:
    """The CPU of this installation, which nobody chose."""
    return Device("cpu", DeviceType.CPU, "ggml-cpu", "ggml", library=best_variant().path, properties={"index": 0})
