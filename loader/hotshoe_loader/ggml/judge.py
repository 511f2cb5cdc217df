"""Verdicts on ggml's libraries, in the user's process: by what a probe found, and by what is in it already."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hotshoe_core.contract.device import name_problem
from hotshoe_loader.catalog import known
from hotshoe_loader.ggml.mapped import foreign_bases, is_mapped
from hotshoe_loader.ggml.names import LibraryCandidate, list_libraries
from hotshoe_loader.rank import REFERENCE
from hotshoe_loader.report import LibraryReport, ProviderReport
from hotshoe_loader.verdict import Outcome, Rejected, Verdict
from hotshoe_loader.vet import Policy

__all__ = [
    "driven_verdicts",
    "folder_verdicts",
    "library_verdicts",
    "refuse_libraries",
    "refuse_other_ggml",
    "undriven_libraries",
    "undriven_verdicts",
]


def refuse_other_ggml(report: ProviderReport, adopted: str) -> dict[str, Any]:
    """Refuses a provider whose libraries cannot have the ``libggml-base`` that they need in this process.

    adopted: the folder that load_all(ggml=) names, or "". Returns details for the verdict. Raises Rejected.
    """
    # One process, one ggml: where a foreign one is adopted, libraries of another do not join it.
    if adopted and report.core and not Path(report.core).is_relative_to(adopted):
        raise Rejected(
            Outcome.ABI_MISMATCH,
            f"its libraries belong to {report.core}; this process has adopted the ggml in {adopted}",
            "leave ggml= out to use this plugin",
        )
    foreign = foreign_bases(Path(report.core)) if report.core else []
    if not foreign:
        return {}
    if is_mapped(Path(report.core)):  # theirs was first, and they bind to it
        return {"foreign": foreign}
    first = "call hotshoe.load_all().open() before importing the other package (llama-cpp-python, whisper bindings, …)"
    if adopted:
        first = "call load_all(ggml=...).open() before any other ggml is opened"
    raise Rejected(
        Outcome.ABI_MISMATCH,
        f"another ggml is in this process already: {', '.join(foreign)}; its libggml-base has the name of "
        f"{report.core}, so libraries made for that would call into it",
        f"{first}, or use the two in separate processes",
        foreign=foreign,
    )


def library_verdicts(report: ProviderReport, used: bool) -> Iterator[Verdict]:
    """Verdicts on the libraries of one provider; where it is not used, on those that are to blame."""
    best = next((each for each in report.libraries if each.path == report.library), None)
    for each in report.libraries:
        if each.rejected is not None or (used and best is not None):
            yield _verdict(each, best or each, report.name)


def _verdict(report: LibraryReport, best: LibraryReport, provider: str) -> Verdict:
    details: dict[str, Any] = {"provider": provider}
    if report.score is not None:
        details["score"] = report.score
    hint: str | None = None
    if report.rejected is not None:
        outcome, reason, hint = report.rejected.outcome, report.rejected.reason, report.rejected.hint
        details |= report.rejected.details
    elif report is best:
        outcome, reason = Outcome.AVAILABLE, "the only one"
        if report.score is not None:
            reason = f"the highest score: {report.score}"
    elif (report.name, report.score) == (best.name, best.score):
        outcome, reason = Outcome.SHADOWED, f"the same as {best.path}, which comes first"
        hint = "remove one of the two"
    elif report.score is None:
        outcome, reason = Outcome.OUTSCORED, f"it exports no score, and {best.name} comes before it"
    else:
        outcome, reason = Outcome.OUTSCORED, f"it scores {report.score}; {best.name} scores {best.score}"
    return Verdict(report.name, "library", outcome, reason, hint, report.path, report.elapsed, details)


def folder_verdicts(folders: Mapping[Path, str], relative: Collection[str]) -> Iterator[Verdict]:
    """Verdicts on the user's folders themselves.

    folders: each with what named it. relative: entries of HOTSHOE_PATH that are no absolute folders.
    """
    for entry in relative:
        reason = "HOTSHOE_PATH names it without a root, so it would mean another folder in each directory"
        hint = "write it as an absolute path"
        yield Verdict(entry, "library", Outcome.UNTRUSTED, reason, hint, origin="HOTSHOE_PATH")
    for folder, origin in folders.items():
        if not folder.is_dir():
            reason = f"{origin} names it, and there is no such folder"
            yield Verdict(str(folder), "library", Outcome.NOT_INSTALLED, reason, origin=str(folder))


# -- libraries that no plugin brings: one plugin of the family drives them all, if it is there ------------------------


def undriven_libraries(folders: Iterable[Path], backends: Collection[str]) -> dict[str, list[LibraryCandidate]]:
    """Libraries that no plugin drives, by their backend's name. backends: names of those that some provider drives."""
    found: dict[str, dict[Path, LibraryCandidate]] = {}
    for folder in folders:
        for library in list_libraries(folder):
            stem = f"{library.backend}-{library.variant}"
            if not any(stem.startswith(f"{backend}-") for backend in backends):
                found.setdefault(library.backend, {}).setdefault(library.path, library)
    return {backend: list(libraries.values()) for backend, libraries in found.items()}


def refuse_libraries(backend: str, libraries: Sequence[LibraryCandidate], policy: Policy) -> None:
    """Raises Rejected for libraries whose name no device may have, or that an allow list leaves out, all of them."""
    problem = name_problem(backend) or name_problem(f"ggml-{backend}")
    if problem is not None:
        raise Rejected(
            Outcome.INCOMPATIBLE_API,
            f"its devices would be called {backend!r}: {problem}",
            "give the file another name, as in libggml-opencl.so",
        )
    owner = known(backend)
    if backend == REFERENCE or (owner is not None and owner.provider != f"ggml-{backend}"):
        whose = "hotshoe's own last resort" if owner is None else owner.distribution
        raise Rejected(
            Outcome.SHADOWED,
            f"its devices would be called {backend!r}, which is the name of {whose}",
            "give the file another name, as in libggml-opencl.so",
            conflict=["hotshoe" if owner is None else owner.distribution, str(libraries[0].path)],
        )
    refused = None
    for library in libraries:
        try:
            policy.admit(library.backend, library.name, library.path.name, str(library.path))
            return
        except Rejected as rejected:
            refused = rejected
    if refused is not None:
        raise refused


def driven_verdicts(
    report: ProviderReport | None, libraries: Sequence[LibraryCandidate], rejected: Rejected
) -> Iterator[Verdict]:
    """Verdicts on libraries that a plugin tried to drive in vain: each by its own fault, else by that of all."""
    tried = {each.path: each for each in report.libraries} if report else {}
    for library in libraries:
        each = tried.get(str(library.path))
        why = each.rejected if each and each.rejected else rejected
        details = {**why.details, "backend": library.backend}
        elapsed = each.elapsed if each else 0.0
        yield Verdict(library.name, "library", why.outcome, why.reason, why.hint, str(library.path), elapsed, details)


def undriven_verdicts(libraries: Iterable[LibraryCandidate], policy: Policy) -> Iterator[Verdict]:
    """Verdicts on libraries for which no plugin is there: what is wrong with them anyway, or that."""
    from hotshoe_loader.ggml.vet import admit_library, vet_library  # not at every start

    for library in libraries:
        start = time.perf_counter()
        why = Rejected(
            Outcome.NOT_INSTALLED,
            f"no usable plugin drives ggml's {library.backend!r} backend",
            "pip install hotshoe-ggml-cpu, which drives libraries of any name",
        )
        try:
            admit_library(library, policy)
            vet_library(library, policy, {})
        except Rejected as rejected:
            why = rejected
        details = {**why.details, "backend": library.backend}
        elapsed = time.perf_counter() - start
        yield Verdict(library.name, "library", why.outcome, why.reason, why.hint, str(library.path), elapsed, details)
