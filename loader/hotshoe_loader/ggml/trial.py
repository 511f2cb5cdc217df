"""One provider's ggml libraries, in the child process of its probe: each is vetted and scored, the best is used."""

from __future__ import annotations

import os
import time
from pathlib import Path

from hotshoe_core.contract.device import Provider
from hotshoe_loader.files import file_state
from hotshoe_loader.ggml.cores import abi_of_core
from hotshoe_loader.ggml.libraries import GgmlLibraries, ggml_libraries
from hotshoe_loader.ggml.names import LibraryCandidate, find_libraries
from hotshoe_loader.ggml.score import Score, choose_library, open_core, score_library
from hotshoe_loader.ggml.vet import admit_library, vet_abi, vet_library
from hotshoe_loader.report import LibraryReport, ProviderReport
from hotshoe_loader.steps import Steps
from hotshoe_loader.verdict import Outcome, Rejected
from hotshoe_loader.vet_files import untrusted

__all__ = ["try_libraries"]


def try_libraries(steps: Steps, provider: Provider, described: object, report: ProviderReport) -> None:
    """Fills in ``report``: the library to use, among the provider's own and those in the user's folders, which come
    first, and the devices it shows. Raises Rejected if none can be used.
    """
    plugin = steps.plugin
    native = ggml_libraries(described, plugin)
    report.native, report.core = native.name, str(native.core)
    steps.policy.refuse(native.name)
    folders = [*map(Path, steps.job.paths), *native.directories]
    steps.folders.update({str(folder): None for folder in [*folders, native.core.parent]})
    found = find_libraries(native.name, folders)
    if not found:
        raise Rejected(
            Outcome.MISSING_DEPENDENCY,
            f"there is no libggml-{native.name} in {', '.join(map(str, native.directories)) or 'no folder'}",
            f"pip install --force-reinstall {plugin.distribution}",
        )
    problem = steps.damaged.get(os.path.realpath(native.core))
    if problem is not None:
        raise untrusted(native.core, problem, f"pip install --force-reinstall {plugin.distribution}")
    states = {str(path): file_state(path) for path in (native.core, *(each.path for each in found))}
    steps.begin(f"provider:{provider.name}", f"opening {native.core.name}")
    open_core(native, plugin)
    scores = [score for each in found if (score := _score(steps, each, native, report)) is not None]
    while (best := choose_library(scores)) is not None:
        path = str(best.library.path)
        try:
            steps.begin(f"library:{path}", f"its devices() through {best.library.name}")
            report.devices, report.dropped = steps.try_devices(provider, best.library.path)
            report.files = _unchanged({each: states[each] for each in (report.core, path)})
        except Rejected as rejected:  # the next best may do
            scores.remove(best)
            next(each for each in report.libraries if each.path == path).rejected = rejected
        else:
            report.library = path
            return
    raise _none_usable(report.libraries, plugin.distribution)


def _unchanged(states: dict[str, tuple[int, int] | None]) -> dict[str, tuple[int, int]]:
    """The files' states as when they were vetted. Raises Rejected for one that was replaced since."""
    kept = {path: state for path, state in states.items() if state is not None and state == file_state(path)}
    for path in states.keys() - kept.keys():
        raise Rejected(
            Outcome.UNTRUSTED, f"{path} was changed while it was tested", "load_all(refresh=True) tests it anew"
        )
    return kept


def _score(steps: Steps, library: LibraryCandidate, native: GgmlLibraries, report: ProviderReport) -> Score | None:
    start = time.perf_counter()
    entry = LibraryReport(library.name, str(library.path))
    report.libraries.append(entry)
    score = None
    try:
        if steps.job.drives:  # no plugin's, so that an allow list must name it by itself
            admit_library(library, steps.policy)
        binary = vet_library(library, steps.policy, steps.damaged)
        vet_abi(library, native.core, abi_of_core(native.core))
        steps.begin(f"library:{library.path}", f"opening {library.path.name}")
        score = score_library(library, binary)
        entry.score = score.value
    except Rejected as rejected:
        entry.rejected = rejected
    entry.elapsed = time.perf_counter() - start
    return score


def _none_usable(libraries: list[LibraryReport], distribution: str) -> Rejected:
    """The provider's own rejection when all of its libraries were rejected: by the most telling of their outcomes."""
    rejections = [(each.name, each.rejected) for each in libraries if each.rejected is not None]
    why = "; ".join(f"{name}: {rejected.reason}" for name, rejected in rejections)
    broken = [rejected for _, rejected in rejections if rejected.outcome.broken]
    if broken:
        return Rejected(broken[0].outcome, f"none of its libraries can be used: {why}", broken[0].hint)
    if all(rejected.outcome is Outcome.BLOCKED for _, rejected in rejections):
        return Rejected(Outcome.BLOCKED, f"all of its libraries are blocked: {why}", rejections[0][1].hint)
    return Rejected(
        Outcome.NO_DEVICE,
        f"none of its libraries runs on this machine: {why}",
        f"build one that does: pip install --no-binary {distribution} {distribution}",
    )
