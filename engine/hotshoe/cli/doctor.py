"""``hotshoe doctor``: check whether the best device of this machine is used, and say what to do next."""

from __future__ import annotations

import argparse
import logging
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import hotshoe
from hotshoe.cli.devices import to_json, traceback_of
from hotshoe.cli.parsing import CommandParser, Subparsers
from hotshoe.cli.tables import show, show_json, wrap
from hotshoe_core.contract.device import Device
from hotshoe_core.errors import DeviceNotFoundError

if TYPE_CHECKING:
    from hotshoe_loader import Verdict
    from hotshoe_loader.doctor import Diagnosis, Finding

__all__ = ["add_parser", "run"]

_MARKS = {"ok": "ok", "note": "--", "todo": "!!"}


def add_parser(commands: Subparsers[CommandParser]) -> None:
    """Add the command ``doctor``."""
    parser = commands.add_parser(
        "doctor",
        usage="%(prog)s [options]",
        help="check whether the best device is used, and say what to do next",
        description="Check Python, CPU, GPUs, drivers, permissions and every installed backend, and name the next "
        "step. Exit code: 0 the best device is used, 1 something can be improved.",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("-v", "--verbose", action="store_true", help="add the tracebacks of plugins that failed")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the diagnosis. Returns 1 if there is something to do."""
    from hotshoe_loader import load_all
    from hotshoe_loader.doctor import examine
    from hotshoe_loader.machine import Machine

    # the report below says what the loader would warn of
    logging.getLogger("hotshoe.loader").addHandler(logging.NullHandler())
    devices: Sequence[Device] = ()
    notes: Sequence[str] = ()
    why = require_error = None
    try:
        registry = load_all(refresh=True)  # a remembered result may be the problem
    except DeviceNotFoundError as missing:
        require_error, verdicts = str(missing), missing.verdicts
    else:
        devices, verdicts = registry.devices, registry.verdicts
        why, notes = registry.why() if devices else None, registry.survey.notes
    diagnosis = examine(Machine(), devices, verdicts, require_error, notes)
    if args.json:
        report = {
            "hotshoe": hotshoe.__version__,
            **diagnosis.to_json(),
            "why": why,
            "devices": [to_json(device) for device in devices],
            "verdicts": [verdict.to_json() for verdict in verdicts],
        }
        show_json(report)
    else:
        show(_report(diagnosis, why, verdicts if args.verbose else ()))
    return 0 if diagnosis.healthy else 1


def _report(diagnosis: Diagnosis, why: str | None, traced: Sequence[Verdict]) -> Iterator[str]:
    yield f"hotshoe {hotshoe.__version__}"
    for finding in diagnosis.findings:
        yield from _lines(finding)
    for verdict in traced:
        lines = list(traceback_of(verdict))
        yield from ["", f"{verdict.candidate} [{verdict.origin}]:", *lines] if lines else []
    yield ""
    if why is not None:
        yield from wrap(f"Used by default: {why}")
    if diagnosis.next is None:
        yield "Healthy. There is nothing to do."
        return
    others = len(diagnosis.todo) - 1
    yield "To do next" + (f" ({others} more above):" if others else ":")
    yield f"  {diagnosis.next.fix or diagnosis.next.text}"


def _lines(finding: Finding) -> Iterator[str]:
    yield from wrap(f"{_MARKS[finding.level]}  {finding.about}: {finding.text}", "", "      ")
    if finding.fix:
        yield f"      -> {finding.fix}"  # in one line, so that a command can be copied
