"""What a provider lists and opens, held against the contract: in its probe, and wherever it is read or used later."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from hotshoe_core.contract.device import Device
from hotshoe_core.errors import PluginError
from hotshoe_core.errors.text import printable, shown

__all__ = ["MOST_DEVICES", "backend_problem", "checked_devices", "memory_problem"]

MOST_DEVICES = 1024
"""Of one provider."""

_PIB = 1 << 50


def checked_devices(listed: Any, provider: str, family: str, library: Path | None) -> list[Device]:
    """``listed`` as a list of this provider's own devices through ``library``, of which there may be none.

    Raises PluginError for everything else. The fields are checked anew: a plugin may have made a Device past its
    constructor. What a device's driver may report wrongly is asked by ``memory_problem``, device by device.
    """
    if isinstance(listed, (str, bytes)) or not isinstance(listed, Iterable):
        raise PluginError(
            f"its devices() returned {_kind(listed)}; expected a list of Devices, empty if there are none"
        )
    found: dict[str, Device] = {}
    for device in listed:
        if not isinstance(device, Device):
            raise PluginError(f"its devices() listed {_kind(device)} in place of a Device")
        try:
            Device.check(device)
        except AttributeError as error:  # made without __init__: a field is not there
            raise PluginError(f"its devices() listed a Device without all of its fields: {error}") from error
        if (device.provider, device.family) != (provider, family):
            raise PluginError(
                f"its devices() listed a device {device.name!r} of provider {device.provider!r}, family "
                f"{device.family!r}; expected provider {provider!r}, family {family!r}"
            )
        if device.library not in (None, library):
            raise PluginError(
                f"its devices() listed {device.name!r} with the library {printable(str(device.library), 200)}; "
                f"expected {printable(str(library), 200)}, which it was given"
            )
        if device.name in found:
            raise PluginError(f"its devices() listed two devices {device.name!r}; names are unique")
        found[device.name] = device
        if len(found) > MOST_DEVICES:
            raise PluginError(f"its devices() listed more than {MOST_DEVICES} devices")
    return list(found.values())


def memory_problem(device: Device) -> str | None:
    """What is wrong with the memory a device reports, if it is an amount that no device has."""
    total, free = device.memory_total, device.memory_free
    if not (0 <= total <= _PIB and 0 <= free <= _PIB):
        return f"{total} bytes of memory, {free} of them free"
    if total and free > total:
        return f"{free} free bytes of memory out of {total}"
    return None


def backend_problem(opened: object) -> str | None:
    """What is wrong with what a provider's ``open`` returned, if it is no Backend."""
    from hotshoe_core.contract.backend import Backend  # not before one is opened: it imports NumPy

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
