"""Verdicts on ggml's libraries, in the user's process: by what a probe found, and by what is in it already."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from hotshoe_loader.catalog import known
from hotshoe_loader.ggml.mapped import foreign_bases, is_mapped
from hotshoe_loader.ggml.names import LibraryCandidate, list_libraries
from hotshoe_loader.report import LibraryReport, ProviderReport
from hotshoe_loader.verdict import Outcome, Rejected, Verdict
from hotshoe_loader.vet import Policy

__all__ = ["library_verdicts", "refuse_other_ggml", "undriven_libraries"]


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


def undriven_libraries(
    folders: Mapping[Path, str], relative: Collection[str], backends: Collection[str], policy: Policy
) -> Iterator[Verdict]:
    """Verdicts on the user's folders themselves, and on libraries in them that no installed plugin drives.

    folders: each with what named it. relative: entries of HOTSHOE_PATH that are no absolute folders. backends: names
    of those that some provider drives.
    """
    for entry in relative:
        reason = "HOTSHOE_PATH names it without a root, so it would mean another folder in each directory"
        hint = "write it as an absolute path"
        yield Verdict(entry, "library", Outcome.UNTRUSTED, reason, hint, origin="HOTSHOE_PATH")
    for folder, origin in folders.items():
        if not folder.is_dir():
            reason = f"{origin} names it, and there is no such folder"
            yield Verdict(str(folder), "library", Outcome.NOT_INSTALLED, reason, origin=str(folder))
        for library in list_libraries(folder):
            stem = f"{library.backend}-{library.variant}"
            if not any(stem.startswith(f"{backend}-") for backend in backends):
                yield _undriven(library, policy)


def _undriven(library: LibraryCandidate, policy: Policy) -> Verdict:
    from hotshoe_loader.ggml.vet import vet_library  # not at every start

    start = time.perf_counter()
    published = known(library.backend)
    why = Rejected(
        Outcome.NOT_INSTALLED,
        f"no usable plugin drives ggml's {library.backend!r} backend",
        published.install if published else f"install a plugin whose libraries are named {library.backend!r}",
    )
    try:
        policy.admit(library.backend, library.name, library.path.name, str(library.path))
        vet_library(library, policy, {})
    except Rejected as rejected:
        why = rejected
    details = {"backend": library.backend, **why.details}
    elapsed = time.perf_counter() - start
    return Verdict(library.name, "library", why.outcome, why.reason, why.hint, str(library.path), elapsed, details)
