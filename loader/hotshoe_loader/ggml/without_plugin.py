"""ggml libraries without a plugin of their own: in the user's folders or a plugin's; one plugin drives all of them."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from hotshoe_core.contract.device import name_problem
from hotshoe_core.errors.install import pip_install
from hotshoe_loader.catalog import CPU, find_entry
from hotshoe_loader.ggml.file_names import LibraryCandidate, list_libraries
from hotshoe_loader.policy import Policy
from hotshoe_loader.rank import REFERENCE
from hotshoe_loader.report import Job, ProviderReport
from hotshoe_loader.verdict import Outcome, Rejected, Verdict

__all__ = ["find_without_plugin", "jobs_without_plugin", "unusable_verdicts", "vet_without_plugin"]

MAX_BACKENDS = 64
"""The most backends without a plugin that are tested, because each takes a process of its own."""


def find_without_plugin(folders: Iterable[Path], backends: Collection[str]) -> dict[str, list[LibraryCandidate]]:
    """The libraries in ``folders`` that no provider drives, by their backend's name.

    backends: the names of the backends that some provider drives.
    """
    found: dict[str, dict[Path, LibraryCandidate]] = {}
    for folder in folders:
        for library in list_libraries(folder):
            stem = f"{library.backend}-{library.variant}"
            if not any(stem.startswith(f"{backend}-") for backend in backends):
                found.setdefault(library.backend, {}).setdefault(library.path, library)
    return {backend: list(libraries.values()) for backend, libraries in found.items()}


def vet_without_plugin(
    found: Mapping[str, Sequence[LibraryCandidate]], policy: Policy, has_driver: bool, reported: Collection[str] = ()
) -> tuple[dict[str, Sequence[LibraryCandidate]], list[Verdict]]:
    """Return the libraries that may be probed, by backend, and the verdicts on the others.

    has_driver: whether a plugin can drive them. reported: the backends whose libraries have a valid report; their
    headers are not read.
    """
    passed: dict[str, Sequence[LibraryCandidate]] = {}
    verdicts: list[Verdict] = []
    for backend, libraries in found.items():
        try:
            _vet(backend, libraries, policy)
        except Rejected as rejected:
            verdicts += unusable_verdicts(None, libraries, rejected)
            continue
        if backend in reported and len(passed) < MAX_BACKENDS:
            passed[backend] = libraries
            continue
        broken = [fault for library in libraries if (fault := _fault(library, policy)) is not None]
        if len(broken) == len(libraries):  # no process is needed to find that out
            for library, fault in zip(libraries, broken):
                verdicts += unusable_verdicts(None, [library], fault)
        elif not has_driver:
            verdicts += _verdicts_without_driver(libraries, policy)
        elif len(passed) < MAX_BACKENDS:
            passed[backend] = libraries
        else:
            verdicts += unusable_verdicts(None, libraries, _too_many(len(found)))
    return passed, verdicts


def _fault(library: LibraryCandidate, policy: Policy) -> Rejected | None:
    """Why a library cannot be used, by its name and its header; None if nothing is wrong with them."""
    from hotshoe_loader.ggml.vet_libraries import vet_library  # not needed at every start

    try:
        policy.require_allowed(*library.names)
        vet_library(library, policy, {})
    except Rejected as rejected:
        return rejected
    return None


def _too_many(n: int) -> Rejected:
    return Rejected(
        Outcome.TIMED_OUT,
        f"it was not tested: the folders contain libraries of {n} backends, and at most {MAX_BACKENDS} are tested",
        "name a folder with fewer libraries in load_all(paths=...) or HOTSHOE_PATH",
    )


def jobs_without_plugin(
    driver: Job, backends: Iterable[str], folders: Iterable[Path], patient_for: Collection[str]
) -> list[Job]:
    """One job of the driving plugin for each backend, because a library may crash its process.

    patient_for: the backends whose devices the caller named.
    """
    paths = tuple(map(str, folders))
    return [
        replace(driver, driven_backend=backend, paths=paths, patient=backend in patient_for, skip={})
        for backend in backends
    ]


def _vet(backend: str, libraries: Sequence[LibraryCandidate], policy: Policy) -> None:
    """Raise Rejected if no device may have the libraries' name, or if none of them is on the allow list.

    Libraries for the CPU come here only if their plugin is not installed.
    """
    if backend == CPU.name:
        raise Rejected(Outcome.NOT_INSTALLED, f"only {CPU.distribution} drives ggml's CPU libraries", CPU.install)
    rename = "give the file another name, such as libggml-opencl.so"
    problem = name_problem(backend) or name_problem(f"ggml-{backend}")
    if problem is not None:
        raise Rejected(Outcome.INCOMPATIBLE_API, f"its devices would be called {backend!r}: {problem}", rename)
    owner = find_entry(backend)
    if backend == REFERENCE or (owner is not None and owner.provider != f"ggml-{backend}"):
        name = "hotshoe's reference backend" if owner is None else owner.distribution
        raise Rejected(
            Outcome.SHADOWED,
            f"its devices would be called {backend!r}, which is the name of {name}",
            rename,
            conflict=["hotshoe" if owner is None else owner.distribution, str(libraries[0].path)],
        )
    refused = None
    for library in libraries:
        try:
            policy.require_allowed(*library.names)
            return
        except Rejected as rejected:
            refused = rejected
    if refused is not None:
        raise refused


def unusable_verdicts(
    report: ProviderReport | None, libraries: Sequence[LibraryCandidate], rejected: Rejected
) -> Iterator[Verdict]:
    """Verdicts on libraries that cannot be used.

    report: their probe, with a rejection for some of them; None if they were not probed. rejected: used for each
    library without its own rejection.
    """
    tested = {library.path: library for library in report.libraries} if report else {}
    for library in libraries:
        result = tested.get(str(library.path))
        why = result.rejected if result and result.rejected else rejected
        elapsed = result.elapsed if result else 0.0
        yield why.verdict(library.name, "library", str(library.path), elapsed, {"backend": library.backend})


def _verdicts_without_driver(libraries: Iterable[LibraryCandidate], policy: Policy) -> Iterator[Verdict]:
    """Verdicts on libraries that no installed plugin can drive: another fault of the library comes first."""
    for library in libraries:
        start = time.perf_counter()
        why = _fault(library, policy) or Rejected(
            Outcome.NOT_INSTALLED,
            f"no usable plugin can drive ggml's {library.backend!r} backend",
            f"{pip_install(CPU.distribution)}, which drives libraries of any name",
        )
        elapsed = time.perf_counter() - start
        yield why.verdict(library.name, "library", str(library.path), elapsed, {"backend": library.backend})
