"""``hotshoe conform DEVICE``: run the conformance kit on a device, and show which ops it computes itself."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hotshoe.cli._kit import Results, run_here, run_isolated
from hotshoe.cli.options import read_by
from hotshoe.cli.parsing import CommandParser, Subparsers
from hotshoe.cli.tables import show, show_json, table
from hotshoe_core.errors import HotshoeError

if TYPE_CHECKING:
    from hotshoe_core import Backend, DType

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
    parser.add_argument(
        "--isolate",
        nargs="?",
        type=read_by(_seconds, "a number of seconds above 0"),
        const=300.0,  # a GPU may compile shaders for minutes
        metavar="SECONDS",
        help="run the tests in child processes: one that ends its process, or takes longer than this (default: 300), "
        "is a failure, and the others go on",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 < value < 1e6:
        raise ValueError
    return value


def run(args: argparse.Namespace) -> int:
    """Returns 0 if all tests passed, 1 if some failed. Raises HotshoeError if no test can run: exit code 2."""
    from hotshoe_loader import load_all

    registry = load_all(device=args.device)
    registry.select(args.device)  # raises DeviceNotFoundError with the reason, which each test would repeat
    with contextlib.redirect_stdout(sys.stderr if args.json else sys.stdout):
        if args.isolate is not None:
            results = run_isolated(args.device, args.k, first=args.x, limit=args.isolate)
        else:
            results = run_here(registry, args.device, args.k, first=args.x)
    if not results.names:
        raise HotshoeError(f"-k {args.k!r} matches no test", hint="leave it out to run all tests")
    with registry.open(args.device) as backend:
        matrix = _matrix(backend, results)
    report = {
        "device": args.device,
        "provider": registry.select(args.device)[0].provider,
        "passed": results.n_passed,
        "skipped": results.skipped,
        "failed": results.failed,
        "aborted": results.aborted,
        "causes": sorted(results.causes.values(), key=len, reverse=True),
        "ops": {op: {dtype.name: sorted(found) for dtype, found in row.items()} for op, row in matrix.items()},
    }
    if args.json:
        show_json(report)
    else:
        show(_lines(report, matrix))
    return int(bool(results.failed))


def _matrix(backend: Backend, results: Results) -> dict[str, dict[DType, set[str]]]:
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
        yield f"{'ABORTED' if first in report['aborted'] else 'FAILED'} {first}"
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
