"""The steps of a probe for ggml's libraries: vet and score each one, and test the devices of the best one."""

from __future__ import annotations

import os
import time
from pathlib import Path

from hotshoe_core.contract.device import Provider
from hotshoe_core.errors.install import pip_build
from hotshoe_loader.catalog import by_distribution
from hotshoe_loader.child_state import ProbeState
from hotshoe_loader.files import file_state
from hotshoe_loader.ggml.file_names import LibraryCandidate, find_libraries
from hotshoe_loader.ggml.library_abi import abi_of_core
from hotshoe_loader.ggml.native_result import GgmlLibraries, ggml_libraries
from hotshoe_loader.ggml.score import Score, choose_library, open_core, score_library
from hotshoe_loader.ggml.vet_libraries import vet_abi, vet_library
from hotshoe_loader.options import normalise
from hotshoe_loader.report import LibraryReport, ProviderReport
from hotshoe_loader.verdict import Outcome, Rejected
from hotshoe_loader.vet_files import untrusted

__all__ = ["probe_libraries"]


def probe_libraries(state: ProbeState, provider: Provider, description: object, report: ProviderReport) -> None:
    """Fill in ``report``: the library to use and the devices it shows. Raise Rejected if no library can be used.

    The libraries are the provider's own and those in the user's folders, which come first. ``description`` is what
    the provider's native() returned.
    """
    plugin = state.plugin
    native = ggml_libraries(description, plugin)
    report.native, report.core = native.name, str(native.core)
    state.policy.refuse_blocked(native.name)
    folders = [*map(Path, state.job.paths), *native.directories]
    state.folders.update({str(folder): None for folder in [*folders, native.core.parent]})
    found = find_libraries(native.name, folders)
    if not found:
        hint = plugin.pip_install("--force-reinstall")
        if native.directories and by_distribution(normalise(plugin.distribution)) is None:  # one that is being written
            hint = f"copy libggml-{native.name} into {native.directories[0]}, or {hint} if the package has it"
        raise Rejected(
            Outcome.MISSING_DEPENDENCY,
            f"libggml-{native.name} is missing in {', '.join(map(str, native.directories)) or 'no folder'}",
            hint,
        )
    problem = state.damaged.get(os.path.realpath(native.core))
    if problem is not None:
        raise untrusted(native.core, problem, plugin.pip_install("--force-reinstall"))
    vetted = {str(path): file_state(path) for path in (native.core, *(library.path for library in found))}
    state.begin(f"provider:{provider.name}", f"opening {native.core.name}")
    open_core(native, plugin)
    scores = [score for library in found if (score := _score(state, library, native, report)) is not None]
    while (best := choose_library(scores)) is not None:
        path = str(best.library.path)
        try:
            state.begin(f"library:{path}", f"calling its devices() with {best.library.name}")
            report.devices, report.dropped = state.test_devices(provider, best.library.path)
            report.files = _unchanged({name: vetted[name] for name in (report.core, path)})
        except Rejected as rejected:  # try the next best library
            scores.remove(best)
            next(library for library in report.libraries if library.path == path).rejected = rejected
        else:
            report.library = path
            return
    raise _none_usable(report.libraries, plugin.distribution)


def _unchanged(states: dict[str, tuple[int, int] | None]) -> dict[str, tuple[int, int]]:
    """The states of the files when they were vetted. Raise Rejected if a file was changed since then."""
    kept = {path: state for path, state in states.items() if state is not None and state == file_state(path)}
    for path in states.keys() - kept.keys():
        raise Rejected(
            Outcome.UNTRUSTED, f"{path} was changed during its test", "load_all(refresh=True) tests it again"
        )
    return kept


def _score(state: ProbeState, library: LibraryCandidate, native: GgmlLibraries, report: ProviderReport) -> Score | None:
    start = time.perf_counter()
    entry = LibraryReport(library.name, str(library.path))
    report.libraries.append(entry)
    score = None
    try:
        if state.job.driven_backend:  # the library has no plugin, so an allow list must name it
            state.policy.require_allowed(*library.names)
        binary = vet_library(library, state.policy, state.damaged)
        vet_abi(library, native.core, abi_of_core(native.core))
        state.begin(f"library:{library.path}", f"opening {library.path.name}")
        score = score_library(library, binary)
        entry.score = score.value
    except Rejected as rejected:
        entry.rejected = rejected
    entry.elapsed = time.perf_counter() - start
    return score


def _none_usable(libraries: list[LibraryReport], distribution: str) -> Rejected:
    """The rejection of a provider whose libraries were all rejected; a broken library decides its outcome."""
    rejections = [(library.name, library.rejected) for library in libraries if library.rejected is not None]
    why = "; ".join(f"{name}: {rejected.reason}" for name, rejected in rejections)
    broken = [rejected for _, rejected in rejections if rejected.outcome.broken]
    if broken:
        return Rejected(broken[0].outcome, f"none of its libraries can be used: {why}", broken[0].hint)
    if all(rejected.outcome is Outcome.BLOCKED for _, rejected in rejections):
        return Rejected(Outcome.BLOCKED, f"all of its libraries are blocked: {why}", rejections[0][1].hint)
    # A library that opens and finds no device lacks hardware or a driver: another build would find none either.
    opened = next((rejected for _, rejected in rejections if rejected.details.get("score", 1) > 0), None)
    hint = opened.hint if opened else f"build one for this machine: {pip_build(distribution)}"
    return Rejected(Outcome.NO_DEVICE, f"none of its libraries runs on this machine: {why}", hint)
