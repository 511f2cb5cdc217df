"""Checks of a provider's devices and backends against the contract, in its probe and whenever they are read later."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from hotshoe_core.contract.device import Device
from hotshoe_core.errors import PluginError
from hotshoe_core.errors.text import printable, shown

__all__ = ["MAX_DEVICES", "backend_problem", "checked_devices", "memory_problem"]

MAX_DEVICES = 1024
"""The most devices that one provider may list."""

_PIB = 1 << 50


def checked_devices(listed: Any, provider: str, family: str, library: Path | None) -> list[Device]:
    """Return the devices that a provider listed for ``library``, as a list that may be empty.

    Raises PluginError if ``listed`` is not a list of valid Devices of this provider. The fields are checked again,
    because a plugin can bypass Device's constructor. Amounts of memory, which a driver may report wrongly, are checked
    for each device by ``memory_problem``.
    """
    if isinstance(listed, (str, bytes)) or not isinstance(listed, Iterable):
        raise PluginError(f"its devices() returned {_kind(listed)}; expected a list of Devices, which may be empty")
    found: dict[str, Device] = {}
    for device in listed:
        if not isinstance(device, Device):
            raise PluginError(f"its devices() listed {_kind(device)}; expected a Device")
        try:
            Device.check(device)
        except AttributeError as error:  # created without __init__, so a field is missing
            raise PluginError(f"its devices() listed a Device with missing fields: {error}") from error
        if (device.provider, device.family) != (provider, family):
            raise PluginError(
                f"its devices() listed a device {device.name!r} of provider {device.provider!r}, family "
                f"{device.family!r}; expected provider {provider!r}, family {family!r}"
            )
        if device.library not in (None, library):
            raise PluginError(
                f"its devices() listed {device.name!r} with the library {printable(str(device.library), 200)}; "
                f"expected {printable(str(library), 200)}, the library that was passed to it"
            )
        if device.name in found:
            raise PluginError(f"its devices() listed two devices {device.name!r}; names must be unique")
        found[device.name] = device
        if len(found) > MAX_DEVICES:
            raise PluginError(f"its devices() listed more than {MAX_DEVICES} devices")
    return list(found.values())


def memory_problem(device: Device) -> str | None:
    """What is wrong with the amount of memory that a device reports; None if it is possible."""
    total, free = device.memory_total, device.memory_free
    if not (0 <= total <= _PIB and 0 <= free <= _PIB):
        return f"{total} bytes of memory, {free} of them free"
    if total and free > total:
        return f"{free} free bytes of memory out of {total}"
    return None


def backend_problem(opened: object) -> str | None:
    """What is wrong with the result of a provider's ``open``; None if it is a valid Backend."""
    from hotshoe_core.contract.backend import Backend  # it imports NumPy, so not at the top

    if not isinstance(opened, Backend):
        return f"returned {_kind(opened)}; expected a hotshoe_core Backend"
    honours: object = opened.honours
    if not isinstance(honours, (frozenset, set)) or not all(isinstance(name, str) for name in honours):
        return (
            f"returned a Backend whose honours is {shown(honours)}; expected a frozenset of names of BackendParams' "
            "fields"
        )
    return None


def _kind(value: object) -> str:
    if value is None:
        return "None"
    return f"the class {value.__name__}" if isinstance(value, type) else type(value).__name__
