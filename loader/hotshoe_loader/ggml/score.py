"""Opens ggml's libraries, asks each for its score, and chooses the one with the highest score.

Libraries are opened and scored in the child process of a probe, where a crash of their code does not matter. Only
``open_core`` also runs in the user's process.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from hotshoe_loader.binary import Binary, install_hint, unresolved
from hotshoe_loader.find import EntryPoint
from hotshoe_loader.ggml.file_names import LibraryCandidate
from hotshoe_loader.ggml.native_result import GgmlLibraries
from hotshoe_loader.plugin_calls import guarded
from hotshoe_loader.verdict import Outcome, Rejected

__all__ = ["Score", "choose_library", "open_core", "score_library"]


_PREFIXES = {"vulkan": "vk", "hip": "cuda", "musa": "cuda"}  # of functions; the last two are ggml's code for CUDA


class Score(NamedTuple):
    """A library with its own score for this machine."""

    library: LibraryCandidate
    value: int | None
    """None if the library exports no score. A library that cannot run here scores 0."""


def open_core(native: GgmlLibraries, plugin: EntryPoint) -> None:
    """Open the ``libggml-base`` that a provider's libraries need. Raise Rejected if that fails.

    It is opened with RTLD_LOCAL. A backend names the base as its dependency, and the linker finds the open one by its
    SONAME. With RTLD_GLOBAL its symbols would capture the calls of every other ggml that is loaded later.
    """
    if not native.core.is_file():
        raise Rejected(
            Outcome.MISSING_DEPENDENCY,
            f"its core library {native.core} is missing: the installation is damaged",
            plugin.pip_install("--force-reinstall"),
        )
    guarded(lambda: _open(native.core), f"opening {native.core.name}", plugin, Outcome.MISSING_DEPENDENCY)


def score_library(library: LibraryCandidate, binary: Binary) -> Score:
    """Open a vetted library and ask for its score. Raise Rejected if that fails or if it cannot run here.

    The library stays open, because ggml may crash after it was closed.
    """
    try:
        handle = guarded(lambda: _open(library.path), "opening it", None, Outcome.IMPORT_ERROR)
    except Rejected as rejected:
        # The linker names only the first missing library. So search the others, and let the linker try each result.
        missing = unresolved(binary) if rejected.outcome is Outcome.MISSING_DEPENDENCY else []
        missing = [name for name in missing if not _can_load(name)]
        if missing:
            hints = dict.fromkeys(install_hint(name) or f"install the package that contains {name}" for name in missing)
            rejected.reason = f"it needs {', '.join(missing)}, which the system's linker cannot find"
            rejected.hint = "; ".join(hints)
            rejected.details["missing"] = missing
        if rejected.hint is None:
            rejected.hint = f"reinstall the package that contains {library.path}"
        raise
    # if it was built to be linked, without GGML_BACKEND_DL, as in wheels of llama-cpp-python
    linked = f"ggml_backend_{_PREFIXES.get(library.backend, library.backend)}_reg"
    if not any(hasattr(handle, name) for name in ("ggml_backend_init", linked)):
        raise Rejected(
            Outcome.INCOMPATIBLE_API,
            f"it is not a ggml backend: it does not export ggml_backend_init or {linked}",
            "build it with GGML_BACKEND_DL=ON",
        )
    if not hasattr(handle, "ggml_backend_score"):
        return Score(library, None)
    function = handle.ggml_backend_score
    function.restype, function.argtypes = ctypes.c_int, []
    value = int(function())
    if value <= 0:
        raise Rejected(
            Outcome.NO_DEVICE,
            f"its score is {value}: this machine lacks a feature that it needs",
            score=value,
        )
    disabled = _disabled(value) if library.backend == "cpu" else []
    if disabled:
        raise Rejected(
            Outcome.NO_DEVICE,
            f"its score is {value}, but the operating system does not enable {', '.join(disabled)}, which it needs",
            "another variant is used; in a virtual machine, enable the feature in its configuration",
            score=value,
        )
    return Score(library, value)


def choose_library(scores: Sequence[Score]) -> Score | None:
    """Choose a library by ggml's rule: the highest score; of equal scores the first. None if ``scores`` is empty.

    A library without a score counts only if no library has one; then ``libggml-<name>`` comes before its variants.
    """
    scored = [score for score in scores if score.value is not None]
    if scored:
        return max(scored, key=lambda score: score.value or 0)  # max returns the first of equal scores
    plain = [score for score in scores if not score.library.variant]
    return next(iter([*plain, *scores]), None)


# Bits of (ggml's score on x86) - 1 for features whose larger registers the operating system must save. ggml asks only
# the processor. If the operating system does not enable the feature, the first such instruction ends the process.
_X86_STATES = {4: "avx", 5: "avx2", 7: "avx512f", 11: "amx_int8"}


def _disabled(score: int) -> list[str]:
    flags = _processor_flags()
    return [flag for bit, flag in _X86_STATES.items() if (score - 1) >> bit & 1 and flags and flag not in flags]


def _processor_flags() -> frozenset[str]:
    """The features of an x86 processor that Linux enables for programs; empty if unknown."""
    try:
        with open("/proc/cpuinfo", encoding="ascii", errors="replace") as file:
            lines = file.read(8192).splitlines()
    except OSError:
        return frozenset()
    return frozenset(next((line for line in lines if line.startswith("flags")), "").partition(":")[2].split())


def _can_load(name: str) -> bool:
    try:
        ctypes.CDLL(name)
    except OSError:
        return False
    return True


def _open(path: Path) -> ctypes.CDLL:
    if sys.platform == "win32":
        # LOAD_WITH_ALTERED_SEARCH_PATH: search dependencies in the library's own folder, not in the current directory.
        return ctypes.CDLL(str(path), winmode=0x8)
    return ctypes.CDLL(str(path), mode=os.RTLD_NOW | os.RTLD_LOCAL)
