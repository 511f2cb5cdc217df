"""Stage 4, rank: which device comes first, and which ones a word means. Nothing is run here."""

from __future__ import annotations

import re
from collections.abc import Sequence

from hotshoe_core.contract.device import Device, DeviceType
from hotshoe_loader.catalog import CATALOG

__all__ = ["REFERENCE", "matching", "rank"]

REFERENCE = "reference"
"""Name of the built-in provider and of its device: the last resort, and reserved."""

# An integrated GPU before the CPU: whoever installs a GPU plugin where that is the only GPU wants it used, and
# prefer="cpu" is one word where it turns out slower. Registry.why says that it shares the CPU's memory. An accelerator
# after the CPU: nothing is known of its speed, and whoever has a good one says prefer="accel".
_TYPES = (DeviceType.GPU, DeviceType.IGPU, DeviceType.CPU, DeviceType.ACCEL)

_GPUS = (DeviceType.GPU, DeviceType.IGPU)
_GIB = 1 << 30


def rank(devices: Sequence[Device], prefer: Sequence[str] = (), require: Sequence[str] = ()) -> tuple[Device, ...]:
    """Devices, best first.

    What is required, what is preferred, then by type, total memory, free memory (in whole GiB, so that a few
    bytes do not turn the order from run to run), interface and name. Memory counts for GPUs only: every CPU device
    has the machine's. A second view of one physical device (its UUID or PCI id) comes after all distinct ones of its
    type. The reference device is last, unless it was asked for.
    """
    required = {device.name for token in require for device in matching(token, devices)}
    preferred: dict[str, int] = {}
    for place, token in enumerate(prefer):
        for device in matching(token, devices):
            preferred.setdefault(device.name, place)
    twins = _twins(devices)

    def key(device: Device) -> tuple[object, ...]:
        return (
            device.name not in required,
            preferred.get(device.name, len(prefer)),
            device.provider == REFERENCE,
            _TYPES.index(device.type),
            device.name in twins,
            -device.memory_total if device.type in _GPUS else 0,
            -(device.memory_free // _GIB) if device.type in _GPUS else 0,
            _interface(device),
            _natural(device.name),
        )

    return tuple(sorted(devices, key=key))


def _interface(device: Device) -> int:
    """Place of the device's interface in the catalog: the vendor's own before a general one before unknown ones."""
    return next((place for place, entry in enumerate(CATALOG) if entry.name == _short(device)), len(CATALOG))


def _twins(devices: Sequence[Device]) -> set[str]:
    """Devices that another device, of a better interface, is too."""
    first: set[str] = set()
    twins = set()
    for device in sorted(devices, key=lambda device: (_interface(device), _natural(device.name))):
        ids = {each.lower() for each in (device.uuid, device.pci_id) if each}
        if ids & first:
            twins.add(device.name)
        first |= ids
    return twins


def _natural(name: str) -> list[tuple[int, str]]:
    """Sort key in which "cuda:2" comes before "cuda:10"."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name)]


def matching(token: str, devices: Sequence[Device]) -> list[Device]:
    """The devices a word means, in the order given: a name, a type, a backend ("cuda"), a provider, a family.

    "gpu" means integrated ones too. The reference device answers to its name only: who asks for "cpu" wants a
    CPU backend, not one a hundred times slower.
    """
    word = token.strip().lower()
    types = [entry for entry in DeviceType if entry.value == word]
    # A type means that type, whatever somebody's device is called.
    exact = [device for device in devices if device.name.lower() == word and (not types or device.type in types)]
    if exact:
        return exact
    others = [device for device in devices if device.provider != REFERENCE]
    if types:
        wanted = {*types, DeviceType.IGPU} if types == [DeviceType.GPU] else set(types)
        return [device for device in others if device.type in wanted]
    for called in (_short, _provider, _family):
        found = [device for device in others if called(device).lower() == word]
        if found:
            return found
    return []


def _short(device: Device) -> str:
    return device.name.partition(":")[0]  # "cuda" of "cuda:0"


def _provider(device: Device) -> str:
    return device.provider


def _family(device: Device) -> str:
    return device.family
