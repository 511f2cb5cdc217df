"""Checks of ggml's libraries before they are opened: name, hash, header, ggml version. Each check raises Rejected."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from hotshoe_loader.binary import BadLibrary, Binary, read_binary
from hotshoe_loader.find import EntryPoint
from hotshoe_loader.ggml.file_names import LibraryCandidate
from hotshoe_loader.ggml.library_abi import Abi, DeclaredGgml, abi_of_core, abi_of_library, core_in
from hotshoe_loader.manifest import FILE
from hotshoe_loader.policy import Policy
from hotshoe_loader.verdict import Outcome, Rejected
from hotshoe_loader.vet_files import untrusted

__all__ = ["vet_abi", "vet_adoption", "vet_library"]


def vet_library(library: LibraryCandidate, policy: Policy, damaged: Mapping[str, str]) -> Binary:
    """Check a native library's name, header and hash. Return its header. Raise Rejected if a check fails."""
    policy.refuse_blocked(library.name, f"{library.backend}-{library.variant}", library.path.name, str(library.path))
    problem = damaged.get(os.path.realpath(library.path))
    again = "remove it, or reinstall the package that contains it"
    try:
        binary = read_binary(library.path)
    except BadLibrary as error:
        raise Rejected(Outcome.IMPORT_ERROR, str(error), again) from error
    except OSError as error:
        raise Rejected(
            Outcome.IMPORT_ERROR,
            f"{library.path} cannot be read: {error.strerror}",
            f"check its permissions: {library.path}",
        ) from error
    if not binary.fits:
        raise Rejected(Outcome.ABI_MISMATCH, f"it is {binary.misfit}", "install the build for this platform")
    if problem is not None:
        raise untrusted(library.path, problem, again)
    return binary


def vet_adoption(folder: Path, declared: DeclaredGgml | None, plugin: EntryPoint) -> None:
    """Raise Rejected if this plugin's bindings were not tested with the ggml in ``folder``."""
    core = core_in(folder)
    if core is None:
        raise Rejected(
            Outcome.MISSING_DEPENDENCY,
            f"the folder in ggml= or HOTSHOE_GGML, {str(folder)!r}, has no libggml-base, so the set is not complete",
            "name the folder that contains both libggml-base and libggml-cpu…",
        )
    abi = abi_of_core(core)
    if declared is None or declared.adopts is None:
        reason = f"it does not say which versions of ggml it can adopt; {core} is {abi or 'of unknown version'}"
        raise Rejected(Outcome.ABI_MISMATCH, reason, plugin.pip_install("--upgrade"))
    if abi is None or not (abi.matches(declared.abi) or _between(abi.version, *declared.adopts)):
        first, last = declared.adopts
        raise Rejected(
            Outcome.ABI_MISMATCH,
            f"{core} is ggml {abi or 'of unknown version'}; this plugin is built from {declared.abi} and was tested "
            f"with {first} to {last}",
            f"omit ggml= and HOTSHOE_GGML to use the plugin's own ggml, or {plugin.pip_install('--upgrade')}",
        )


def _between(version: str, first: str, last: str) -> bool:
    try:
        number, low, high = (tuple(map(int, text.split("."))) for text in (version, first, last))
    except ValueError:
        return False
    return low <= number <= high


def vet_abi(library: LibraryCandidate, core: Path, abi: Abi | None) -> None:
    """Raise Rejected if a library was built from another ggml than ``core``. abi: that of core; None if unknown."""
    if abi is None:
        return
    other = abi_of_library(library.path, core)
    if other is None:
        raise Rejected(
            Outcome.UNTRUSTED,
            f"its ggml version is unknown; {core} is ggml {abi}, and a library of another ggml crashes",
            f"put the libggml-base it was built with next to it, or a {FILE} with its version: "
            f'{{"format": 1, "ggml": {{"version": "{abi.version}"}}}}',
        )
    if not other.matches(abi):
        raise Rejected(
            Outcome.ABI_MISMATCH,
            f"it was built from ggml {other}; {core} is ggml {abi}",
            f"install its build for ggml {abi.version}",
            ggml=str(other),
            core=str(abi),
        )
