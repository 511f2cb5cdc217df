"""Opens ggml's libraries in a probe and asks each for its score; the highest is used.

Runs in a child process: what a library's constructor or its score function does there is not the user's harm.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from hotshoe_loader.binary import Binary, install_hint, unresolved
from hotshoe_loader.find import PluginCandidate
from hotshoe_loader.ggml.file_names import LibraryCandidate
from hotshoe_loader.ggml.libraries import GgmlLibraries
from hotshoe_loader.plugin_calls import guarded
from hotshoe_loader.verdict import Outcome, Rejected

__all__ = ["Score", "choose_library", "open_core", "score_library"]


class Score(NamedTuple):
    """What a library says of itself on this machine: 0 cannot run here, None where it exports no score."""

    library: LibraryCandidate
    value: int | None


def open_core(native: GgmlLibraries, plugin: PluginCandidate) -> None:
    """Opens the ``libggml-base`` that the provider's libraries bind to.

    RTLD_LOCAL is enough: a backend names the base as its dependency, and the linker takes the one already open
    by its SONAME. Global, its symbols would capture the calls of any other ggml loaded after it.
    """
    if not native.core.is_file():
        raise Rejected(
            Outcome.MISSING_DEPENDENCY,
            f"its core library {native.core} is missing: the installation is damaged",
            f"pip install --force-reinstall {plugin.distribution}",
        )
    guarded(lambda: _open(native.core), f"opening {native.core.name}", plugin, Outcome.MISSING_DEPENDENCY)


def score_library(library: LibraryCandidate, binary: Binary) -> Score:
    """Opens a library that vet let pass, and asks for its score. It stays open: a closed ggml crashes later."""
    try:
        handle = guarded(lambda: _open(library.path), "opening it", None, Outcome.IMPORT_ERROR)
    except Rejected as rejected:
        # The linker names the first one only. Its own search is the last word on each of the others.
        missing = unresolved(binary) if rejected.outcome is Outcome.MISSING_DEPENDENCY else []
        missing = [name for name in missing if not _loads(name)]
        if missing:
            hints = dict.fromkeys(install_hint(name) or f"install what brings {name}" for name in missing)
            rejected.reason = f"it needs {', '.join(missing)}, which the system's linker does not find"
            rejected.hint = "; ".join(hints)
            rejected.details["missing"] = missing
        if rejected.hint is None:
            rejected.hint = f"reinstall what brought {library.path}"
        raise
    if not hasattr(handle, "ggml_backend_init"):
        raise Rejected(
            Outcome.INCOMPATIBLE_API,
            "it is no dynamic ggml backend: it does not export ggml_backend_init",
            "it must be built with GGML_BACKEND_DL=ON",
        )
    if not hasattr(handle, "ggml_backend_score"):
        return Score(library, None)
    function = handle.ggml_backend_score
    function.restype, function.argtypes = ctypes.c_int, []
    value = int(function())
    if value <= 0:
        raise Rejected(
            Outcome.NO_DEVICE,
            f"it scores {value}: this machine lacks something it was built for",
            score=value,
        )
    disabled = _disabled(value) if library.backend == "cpu" else []
    if disabled:
        raise Rejected(
            Outcome.NO_DEVICE,
            f"it scores {value}, for the processor has {', '.join(disabled)}; the operating system does not enable it",
            "another variant is used; a virtual machine may have to be configured to pass it on",
            score=value,
        )
    return Score(library, value)


def choose_library(scores: Sequence[Score]) -> Score | None:
    """The library to use, as ggml chooses: the highest score, the first of equals.

    A library without a score counts only if none has one, and ``libggml-<name>`` itself before a variant.
    """
    scored = [score for score in scores if score.value is not None]
    if scored:
        return max(scored, key=lambda score: score.value or 0)  # max keeps the first of equals
    plain = [score for score in scores if not score.library.variant]
    return next(iter([*plain, *scores]), None)


# Bits of ggml's score on x86, less 1, of the features that need the operating system to save larger registers. ggml
# asks the processor only; where the system does not play along, the first such instruction ends the process.
_X86_STATES = {4: "avx", 5: "avx2", 7: "avx512f", 11: "amx_int8"}


def _disabled(score: int) -> list[str]:
    flags = _processor_flags()
    return [flag for bit, flag in _X86_STATES.items() if (score - 1) >> bit & 1 and flags and flag not in flags]


def _processor_flags() -> frozenset[str]:
    """Features of an x86 processor that Linux lets programs use; empty where that is not known."""
    try:
        with open("/proc/cpuinfo", encoding="ascii", errors="replace") as file:
            lines = file.read(8192).splitlines()
    except OSError:
        return frozenset()
    return frozenset(next((line for line in lines if line.startswith("flags")), "").partition(":")[2].split())


def _loads(name: str) -> bool:
    try:
        ctypes.CDLL(name)
    except OSError:
        return False
    return True


def _open(path: Path) -> ctypes.CDLL:
    if sys.platform == "win32":
        # LOAD_WITH_ALTERED_SEARCH_PATH: dependencies come from the library's own folder, not from the current one.
        return ctypes.CDLL(str(path), winmode=0x8)
    return ctypes.CDLL(str(path), mode=os.RTLD_NOW | os.RTLD_LOCAL)
