"""Stage 2, vet: what may be used, before its code runs. Each check raises Rejected, or returns."""

from __future__ import annotations

import platform
import struct
import sys
from collections.abc import Iterable
from typing import Any

from hotshoe_core.device import API_VERSION, Device
from hotshoe_loader.catalog import by_distribution
from hotshoe_loader.find import LibraryCandidate, PluginCandidate
from hotshoe_loader.options import normalise
from hotshoe_loader.verdict import Outcome, Rejected

__all__ = ["Blocklist", "vet_library", "vet_plugin", "vet_provider"]


class Blocklist:
    """The names a user blocked, and which of them met something: a block that blocks nothing is worth a word."""

    def __init__(self, names: Iterable[str]) -> None:
        self._names = frozenset(normalise(name) for name in names)
        self._met: set[str] = set()

    def hit(self, *names: str) -> str | None:
        """The first of ``names`` that is blocked."""
        for name in names:
            if name and normalise(name) in self._names:
                self._met.add(normalise(name))
                return name
        return None

    def refuse(self, *names: str) -> None:
        """Raises Rejected if one of ``names`` is blocked."""
        name = self.hit(*names)
        if name is not None:
            raise Rejected(
                Outcome.BLOCKED,
                f"{name!r} is blocked by block= or HOTSHOE_BLOCK",
                f"take {name!r} out of block= or HOTSHOE_BLOCK to use it",
            )

    def device(self, device: Device) -> bool:
        """Whether one device is blocked, by its name, its library's ("vulkan" of "vulkan:0") or its type."""
        return self.hit(device.name, device.name.partition(":")[0], device.type.value) is not None

    @property
    def unmet(self) -> list[str]:
        return sorted(self._names - self._met)


def vet_plugin(plugin: PluginCandidate, block: Blocklist) -> None:
    """Checks that need the entry point's metadata only."""
    published = by_distribution(normalise(plugin.distribution))
    block.refuse(plugin.name, plugin.distribution, published.name if published else "")
    if plugin.shadowed_by is not None:
        raise Rejected(
            Outcome.SHADOWED,
            f"this copy, in {plugin.location}, comes after {plugin.shadowed_by} in sys.path, which is the one imported",
            f"remove one of the two: pip uninstall {plugin.distribution}",
        )
    if plugin.problem is not None:
        raise Rejected(Outcome.IMPORT_ERROR, plugin.problem, f"pip install --force-reinstall {plugin.distribution}")


def vet_provider(provider: Any, plugin: PluginCandidate, block: Blocklist) -> None:
    """Checks what a hook returned against the Provider contract, before any of its methods is called."""
    kind = type(provider).__name__
    for attribute, wanted in (("name", str), ("family", str), ("api_version", int)):
        value = getattr(provider, attribute, None)
        if not isinstance(value, wanted) or value == "":
            raise _no_provider(
                f"{kind}.{attribute} must be a {wanted.__name__}" + (", and not empty" if wanted is str else ""),
                "it is missing" if value is None else f"it is {value!r}",
                plugin,
            )
    if provider.api_version != API_VERSION:
        older = provider.api_version < API_VERSION
        what = plugin.distribution if older else "hotshoe"
        raise Rejected(
            Outcome.INCOMPATIBLE_API,
            f"it is written for version {provider.api_version} of the plugin contract; this hotshoe has {API_VERSION}",
            f"pip install --upgrade {what}",
            api_version=provider.api_version,
        )
    for method in ("native", "devices", "open"):
        if not callable(getattr(provider, method, None)):
            raise _no_provider(f"{kind} must have a method {method}()", "it has none", plugin)
    block.refuse(provider.name, provider.family)


def _no_provider(expected: str, found: str, plugin: PluginCandidate) -> Rejected:
    return Rejected(
        Outcome.INCOMPATIBLE_API,
        f"it returned something that is no Provider: {expected}; {found}",
        f"report it to the authors of {plugin.distribution}; the contract is hotshoe_core.device.Provider",
    )


def vet_library(library: LibraryCandidate, block: Blocklist) -> None:
    """Checks a native library by its name and its first bytes."""
    block.refuse(library.name, f"{library.backend}-{library.variant}", library.path.name, str(library.path))
    path = library.path
    # A FIFO or a device would hang or run dry the read below.
    if not path.is_file():
        raise Rejected(Outcome.IMPORT_ERROR, f"{path} is not a file", "remove it, or reinstall what brought it")
    try:
        with open(path, "rb") as file:
            head = file.read(4096)
    except OSError as error:
        raise Rejected(
            Outcome.IMPORT_ERROR, f"{path} cannot be read: {error.strerror}", f"check its permissions: {path}"
        ) from error
    found = _format(head)
    if found is None:
        raise Rejected(
            Outcome.IMPORT_ERROR,
            f"it is no shared library: it starts with {head[:8]!r}, which is not ELF, Mach-O or PE",
            "remove it, or reinstall what brought it",
        )
    container, machine = found
    wanted = {"win32": "PE", "darwin": "Mach-O"}.get(sys.platform, "ELF")
    ours = _MACHINES.get(platform.machine().lower())
    if container != wanted or (machine is not None and ours is not None and machine != ours):
        raise Rejected(
            Outcome.ABI_MISMATCH,
            f"it is built for {machine or 'another machine'} ({container}); this is {ours or platform.machine()} "
            f"({wanted})",
            "install the build for this platform",
        )


_MACHINES = {"x86_64": "x86_64", "amd64": "x86_64", "aarch64": "arm64", "arm64": "arm64"}
_ELF = {62: "x86_64", 183: "arm64", 3: "x86 (32 bits)", 40: "arm (32 bits)", 243: "riscv", 21: "ppc64", 22: "s390x"}
_MACH_O = {0x01000007: "x86_64", 0x0100000C: "arm64"}
_PE = {0x8664: "x86_64", 0xAA64: "arm64", 0x014C: "x86 (32 bits)"}


def _format(head: bytes) -> tuple[str, str | None] | None:
    """Container and machine of a library by its first bytes; the machine is None where a file holds several."""
    if head[:4] == b"\x7fELF" and len(head) >= 20:
        order = "<" if head[5] == 1 else ">"
        number = struct.unpack_from(f"{order}H", head, 18)[0]
        return "ELF", _ELF.get(number, f"machine {number}")
    if head[:4] == b"\xcf\xfa\xed\xfe" and len(head) >= 8:
        number = struct.unpack_from("<I", head, 4)[0]
        return "Mach-O", _MACH_O.get(number, f"cpu type {number}")
    if head[:4] == b"\xca\xfe\xba\xbe":
        return "Mach-O", None
    if head[:2] == b"MZ" and len(head) >= 64:
        offset = struct.unpack_from("<I", head, 60)[0]
        if head[offset : offset + 4] == b"PE\0\0" and len(head) >= offset + 6:
            number = struct.unpack_from("<H", head, offset + 4)[0]
            return "PE", _PE.get(number, f"machine {number:#x}")
    return None
