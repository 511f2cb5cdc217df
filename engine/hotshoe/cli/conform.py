"""``hotshoe conform DEVICE``: is a backend right? The conformance kit on an installed device, and what it computes."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from hotshoe.cli.devices import show

if TYPE_CHECKING:
    from hotshoe_core import Backend, BackendParams, DType
    from hotshoe_loader import Registry

__all__ = ["add_parser", "run"]

_LETTERS = {"native": "n", "decomposed": "d", "no": "-", "wrong": "X"}
_LEGEND = (
    "n computed by the backend itself, d decomposed by core, - refused, X wrong; two letters: by shape or attribute"
)


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the command ``conform``."""
    parser = subparsers.add_parser(
        "conform",
        help="run the conformance kit on a device",
        description="Runs the conformance kit on a device: every op natively and decomposed against the reference, "
        "graphs, states, threads, closing. Prints what fails, and what the device does with each op and type.",
    )
    parser.add_argument("device", help="a device's name, as `hotshoe devices` lists it")
    parser.add_argument("-k", metavar="EXPRESSION", help="only tests whose names match, as pytest's -k")
    parser.add_argument("-x", action="store_true", help="stop at the first failure")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Returns 0 if all tests passed, 1 if some failed, 2 if none was chosen."""
    import hotshoe
    from hotshoe_loader import load_all

    try:
        import pytest
    except ImportError as error:
        raise hotshoe.HotshoeError("the conformance kit needs pytest", hint="pip install pytest") from error

    registry = load_all(require=args.device)
    results = _Results()
    _give(registry, args.device)
    options = ["--pyargs", "hotshoe_core.testing.on_device", "-p", "no:cacheprovider", "-c", os.devnull, "-q"]
    options += ["--no-header", "--no-summary", "--tb=no", "-p", "no:warnings"]
    options += ["-k", args.k] if args.k else []
    options += ["-x"] if args.x else []
    with contextlib.redirect_stdout(sys.stderr if args.json else sys.stdout):
        code = pytest.main(options, plugins=[results])
    if code == pytest.ExitCode.NO_TESTS_COLLECTED:
        raise hotshoe.HotshoeError(f"-k {args.k!r} chooses no test", hint="leave it out to see what there is")
    if code not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        raise hotshoe.HotshoeError(f"pytest did not come to its end (code {int(code)})", hint="see what it printed")
    with registry.open(args.device) as backend:
        matrix = _matrix(backend, results.failed)
    report = {
        "device": args.device,
        "provider": registry.select(args.device)[0].provider,
        "passed": results.n_passed,
        "skipped": results.skipped,
        "failed": results.failed,
        "ops": {op: {dtype.name: sorted(found) for dtype, found in row.items()} for op, row in matrix.items()},
    }
    if args.json:
        sys.stdout.write(json.dumps(report, indent=2) + "\n")
    else:
        show(_lines(report, matrix))
    return int(code != pytest.ExitCode.OK)


def _give(registry: Registry, device: str) -> None:
    """Have the kit open the device from here."""
    from hotshoe_core.testing import on_device

    def opener(params: BackendParams) -> Backend:
        return registry.open(device, params)

    on_device.opener = opener


class _Results:
    """A plugin of pytest that notes what became of each test."""

    def __init__(self) -> None:
        self.n_passed = 0
        self.failed: dict[str, str] = {}  # test → the last line of why
        self.skipped: dict[str, str] = {}

    def pytest_runtest_logreport(self, report: Any) -> None:
        name = report.nodeid.partition("::TestDevice::")[2] or report.nodeid
        if report.failed:
            self.failed[name] = _reason(report)
        elif report.skipped:
            self.skipped[name] = str(report.longrepr[-1] if isinstance(report.longrepr, tuple) else report.longrepr)
        elif report.when == "call":
            self.n_passed += 1


def _reason(report: Any) -> str:
    crash = getattr(report.longrepr, "reprcrash", None)
    return str(getattr(crash, "message", report.longrepr)).strip()


def _matrix(backend: Backend, failed: Mapping[str, str]) -> dict[str, dict[DType, set[str]]]:
    """What ``supports`` says, and "wrong" for each op and type of which a test failed."""
    from hotshoe_core.testing import OP_CASES
    from hotshoe_core.testing.matrix import dtype_of, outcomes

    found = outcomes(OP_CASES, backend.supports)
    matrix = {op: {dtype: {str(o) for o in words} for dtype, words in row.items()} for op, row in found.items()}
    for case in OP_CASES:
        if f"test_answer[{case.id}]" in failed or f"test_decomposed[{case.id}]" in failed:
            matrix[case.op][dtype_of(case)].add("wrong")
    return matrix


def _lines(report: Mapping[str, Any], matrix: Mapping[str, Mapping[DType, set[str]]]) -> list[str]:
    dtypes = sorted({dtype for row in matrix.values() for dtype in row}, key=lambda d: d.id)
    names = [dtype.name for dtype in dtypes]
    width = max(map(len, matrix))
    lines = ["", f"{'':{width}} " + " ".join(names)]
    for op, row in sorted(matrix.items()):
        cells = ["".join(_LETTERS[w] for w in _LETTERS if w in row.get(d, ())).ljust(len(d.name)) for d in dtypes]
        lines.append(f"{op:{width}} " + " ".join(cells).rstrip())
    lines += ["", _LEGEND, ""]
    for test, why in report["failed"].items():
        lines += [f"FAILED {test}", *(f"    {line}" for line in why.splitlines()[:12])]
    counts = f"{report['passed']} passed, {len(report['failed'])} failed, {len(report['skipped'])} refused or skipped"
    return [*lines, f"{report['device']} ({report['provider']}): {counts}"]
