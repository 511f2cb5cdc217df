"""Verdicts on ggml's libraries and the user's folders, made in the user's process from the reports of probes."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from hotshoe_loader.ggml.mapped import is_mapped, other_bases
from hotshoe_loader.report import LibraryReport, ProviderReport
from hotshoe_loader.verdict import Outcome, Rejected, Verdict

__all__ = ["folder_verdicts", "library_verdicts", "refuse_other_ggml"]


def refuse_other_ggml(report: ProviderReport, adopted: str) -> dict[str, Any]:
    """Raise Rejected if this process cannot load the ``libggml-base`` that a provider's libraries need.

    adopted: the folder given by load_all(ggml=), or "". Returns details for the verdict.
    """
    # A process can hold one ggml: libraries of another one cannot join an adopted set.
    if adopted and report.core and not Path(report.core).is_relative_to(adopted):
        raise Rejected(
            Outcome.ABI_MISMATCH,
            f"its libraries need {report.core}; this process uses the ggml in {adopted}",
            "omit ggml= and HOTSHOE_GGML to use this plugin",
        )
    others = other_bases(Path(report.core)) if report.core else []
    if not others:
        return {}
    if is_mapped(Path(report.core)):  # the plugin's own base was loaded first, and its libraries bind to it
        return {"foreign": others}
    hint = "call hotshoe.load_all().open() before importing the other package (llama-cpp-python, whisper bindings, …)"
    if adopted:
        hint = "call load_all(ggml=...).open() before any other ggml is opened"
    raise Rejected(
        Outcome.ABI_MISMATCH,
        f"another ggml is already in this process: {', '.join(others)}; its libggml-base has the same name as "
        f"{report.core}, so the plugin's libraries would call the wrong one",
        f"{hint}, or use the two in separate processes",
        foreign=others,
    )


def library_verdicts(report: ProviderReport, used: bool) -> Iterator[Verdict]:
    """Verdicts on the libraries of one provider. If the provider is not used, on the rejected libraries only."""
    best = next((library for library in report.libraries if library.path == report.library), None)
    for library in report.libraries:
        details: dict[str, Any] = {"provider": report.name}
        if library.score is not None:
            details["score"] = library.score
        if library.rejected is not None:
            details |= library.rejected.details
            yield library.rejected.verdict(library.name, "library", library.path, library.elapsed, details)
        elif used and best is not None:
            outcome, reason, hint = _compared(library, best)
            yield Verdict(library.name, "library", outcome, reason, hint, library.path, library.elapsed, details)


def _compared(library: LibraryReport, best: LibraryReport) -> tuple[Outcome, str, str | None]:
    if library is best:
        only = "it is the only library" if library.score is None else f"it has the highest score: {library.score}"
        return Outcome.AVAILABLE, only, None
    if (library.name, library.score) == (best.name, best.score):
        return Outcome.SHADOWED, f"it is the same as {best.path}, which comes first", "remove one of the two"
    if library.score is None:
        return Outcome.OUTSCORED, f"it exports no score, and {best.name} comes before it", None
    return Outcome.OUTSCORED, f"its score is {library.score}; {best.name} has {best.score}", None


def folder_verdicts(folders: Mapping[Path, str], relative: Collection[str]) -> Iterator[Verdict]:
    """Verdicts on the user's folders that cannot be searched.

    folders: each with the option or software that named it. relative: the relative paths of HOTSHOE_PATH.
    """
    for entry in relative:
        reason = "HOTSHOE_PATH contains this relative path, which means another folder in each working directory"
        hint = "write it as an absolute path"
        yield Verdict(entry, "library", Outcome.UNTRUSTED, reason, hint, origin="HOTSHOE_PATH")
    for folder, origin in folders.items():
        if not folder.is_dir():
            reason = f"{origin} names this folder, which does not exist"
            yield Verdict(str(folder), "library", Outcome.NOT_INSTALLED, reason, origin=str(folder))
