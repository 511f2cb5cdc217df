"""``hotshoe conform DEVICE``: run the conformance kit on a device, and show which ops it computes itself."""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hotshoe.cli.parsing import CommandParser, Subparsers
from hotshoe.cli.tables import show, show_json, table

if TYPE_CHECKING:
    from hotshoe_core import Backend, BackendParams, DType
    from hotshoe_loader import Registry

__all__ = ["add_parser", "run"]

_WIDTH = 80
_LETTERS = {"native": "n", "decomposed": "d", "no": "-", "wrong": "X"}
_LEGEND = (
    "n: computed by the backend itself, d: decomposed by core, -: refused, X: wrong.",
    "Several letters: it depends on shape or attributes. No letter: not tested.",
)
_MAX_CAUSES, _MAX_LINES = 20, 12


def add_parser(commands: Subparsers[CommandParser]) -> None:
    """Add the command ``conform``."""
    parser = commands.add_parser(
        "conform",
        usage="%(prog)s [options] DEVICE",
        help="run the conformance kit on a device",
        description="Run the conformance kit on a device: compare every op, native and decomposed, with the reference; "
        "test graphs, states, threads and closing. Print what failed, and how the device computes each op and type. "
        "Exit code: 0 all tests passed, 1 some failed, 2 the device is unknown, or -k matches no test.",
    )
    parser.add_argument("device", metavar="DEVICE", help="a device's name, as `hotshoe devices` lists it")
    parser.add_argument("-k", metavar="EXPRESSION", help="run only tests whose names match, as with pytest")
    parser.add_argument("-x", action="store_true", help="stop at the first failure")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Returns 0 if all tests passed, 1 if some failed. Raises HotshoeError if no test can run: exit code 2."""
    import hotshoe
    from hotshoe_loader import load_all

    try:
        import pytest
    except ImportError as error:
        raise hotshoe.HotshoeError("the conformance kit needs pytest", hint="pip install pytest") from error

    registry = load_all(device=args.device)
    registry.select(args.device)  # raises DeviceNotFoundError with the reason, which each test would repeat
    results = _Results()
    _give(registry, args.device)
    options = ["--pyargs", "hotshoe_core.testing.on_device", "-p", "no:cacheprovider", "-c", os.devnull, "-q"]
    options += ["--no-header", "--no-summary", "--tb=no", "-p", "no:warnings"]
    options += ["--noconftest"]  # those of the current folder are for other tests
    options += ["-k", args.k] if args.k else []
    options += ["-x"] if args.x else []
    with contextlib.redirect_stdout(sys.stderr if args.json else sys.stdout):
        code = pytest.main(options, plugins=[results])
    if code == pytest.ExitCode.NO_TESTS_COLLECTED:
        raise hotshoe.HotshoeError(f"-k {args.k!r} matches no test", hint="leave it out to run all tests")
    if code not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        raise hotshoe.HotshoeError(
            f"pytest failed with exit code {int(code)}", hint="the output of pytest above names the cause"
        )
    with registry.open(args.device) as backend:
        matrix = _matrix(backend, results)
    report = {
        "device": args.device,
        "provider": registry.select(args.device)[0].provider,
        "passed": results.n_passed,
        "skipped": results.skipped,
        "failed": results.failed,
        "causes": sorted(results.causes.values(), key=len, reverse=True),
        "ops": {op: {dtype.name: sorted(found) for dtype, found in row.items()} for op, row in matrix.items()},
    }
    if args.json:
        show_json(report)
    else:
        show(_lines(report, matrix))
    return int(code != pytest.ExitCode.OK)


def _give(registry: Registry, device: str) -> None:
    """Make the kit open the device through this registry."""
    from hotshoe_core.testing import on_device

    def opener(params: BackendParams) -> Backend:
        return registry.open(device, params)

    on_device.opener = opener


class _Results:
    """A pytest plugin that records the outcome of each test."""

    def __init__(self) -> None:
        self.n_passed = 0
        self.names: set[str] = set()
        self.failed: dict[str, str] = {}  # test → its last line
        self.causes: dict[str, list[str]] = {}  # the tests that failed for one cause
        self.skipped: dict[str, str] = {}

    def pytest_runtest_logreport(self, report: Any) -> None:
        name = report.nodeid.partition("::TestDevice::")[2] or report.nodeid
        self.names.add(name)
        if report.failed:
            self.failed[name] = _reason(report)
            self.causes.setdefault(_cause(name, report), []).append(name)
        elif report.skipped:
            self.skipped[name] = str(report.longrepr[-1] if isinstance(report.longrepr, tuple) else report.longrepr)
        elif report.when == "call":
            self.n_passed += 1


def _reason(report: Any) -> str:
    crash = getattr(report.longrepr, "reprcrash", None)
    return str(getattr(crash, "message", report.longrepr)).strip()


def _cause(name: str, report: Any) -> str:
    """Equal for tests that fail for the same cause: wrong numbers of one op, or one error raised at one place."""
    crash = getattr(report.longrepr, "reprcrash", None)
    if crash is None:
        return _reason(report)
    if Path(crash.path).name == "kit.py":
        return (name.partition("[")[2] or name).split()[0]
    line, *_ = _reason(report).splitlines() or [""]
    return f"{crash.path}:{crash.lineno}: {re.sub('[^A-Za-z]+', ' ', line)}"


def _matrix(backend: Backend, results: _Results) -> dict[str, dict[DType, set[str]]]:
    """How the backend computes each tested op (or every op, if no op was tested), with "wrong" where a test failed."""
    from hotshoe_core.testing import OP_CASES
    from hotshoe_core.testing.matrix import dtype_of, outcomes

    names = {case.id: {f"test_answer[{case.id}]", f"test_decomposed[{case.id}]"} for case in OP_CASES}
    tested = {case.op for case in OP_CASES if names[case.id] & results.names}
    found = outcomes((case for case in OP_CASES if case.op in tested or not tested), backend.supports)
    matrix = {op: {dtype: {str(o) for o in seen} for dtype, seen in row.items()} for op, row in found.items()}
    for case in OP_CASES:
        if names[case.id] & results.failed.keys():
            matrix[case.op][dtype_of(case)].add("wrong")
    return matrix


def _lines(report: Mapping[str, Any], matrix: Mapping[str, Mapping[DType, set[str]]]) -> Iterator[str]:
    dtypes = sorted({dtype for row in matrix.values() for dtype in row}, key=lambda d: (d.is_quantized, d.id))
    for quantized in (False, True):
        yield from _tables(matrix, [d for d in dtypes if d.is_quantized == quantized])
    yield from ("", *_LEGEND, "")
    for first, *others in report["causes"][:_MAX_CAUSES]:
        yield f"FAILED {first}"
        yield from (f"    {line}" for line in report["failed"][first].splitlines()[:_MAX_LINES])
        if others:
            yield f"    the same cause in {len(others)} more: {others[-1]}{', …' if others[1:] else ''}"
    if len(report["causes"]) > _MAX_CAUSES:
        more = len(report["causes"]) - _MAX_CAUSES
        yield f"… and {more} more causes: -k selects tests, -x stops at the first, --json prints all"
    outcomes = [set().union(*row.values()) for row in matrix.values()]
    native = sum("native" in found for found in outcomes)
    decomposed = sum("native" not in found and "decomposed" in found for found in outcomes)
    yield f"ops: {native} native, {decomposed} decomposed, {len(outcomes) - native - decomposed} refused"
    counts = f"{report['passed']} passed, {len(report['failed'])} failed, {len(report['skipped'])} refused or skipped"
    yield f"{report['device']} ({report['provider']}): {counts}"


def _tables(matrix: Mapping[str, Mapping[DType, set[str]]], dtypes: Sequence[DType]) -> Iterator[str]:
    """Tables with a row for each op and a column for each type, as many columns as fit in 80 characters."""
    rows = {
        op: {d: "".join(letter for word, letter in _LETTERS.items() if word in row[d]) for d in dtypes if d in row}
        for op, row in sorted(matrix.items())
    }
    rows = {op: row for op, row in rows.items() if row}
    rest = list(dtypes)
    while rest:
        columns: list[DType] = []
        free = _WIDTH - max(map(len, rows))
        while rest:
            free -= 1 + max(len(rest[0].name), *(len(row.get(rest[0], "")) for row in rows.values()))
            if columns and free < 0:
                break
            columns.append(rest.pop(0))
        shown = {op: row for op, row in rows.items() if not row.keys().isdisjoint(columns)}
        lines = [(op, *(row.get(d, "") for d in columns)) for op, row in shown.items()]
        yield ""
        yield from table(("", *(d.name for d in columns)), lines, "<" * (1 + len(columns)), gap=1)
