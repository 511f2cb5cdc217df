"""``hotshoe devices``: the devices of this machine, and what became of everything that could have offered one."""

from __future__ import annotations

import argparse
import json
import sys
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from hotshoe.cli.tables import table
from hotshoe_core.contract.device import Device
from hotshoe_core.errors import DeviceNotFoundError
from hotshoe_core.errors.text import printable

if TYPE_CHECKING:
    from hotshoe_loader import Verdict

__all__ = ["add_parser", "run", "show", "show_json", "to_json", "traceback_of", "wrap"]

_WIDTH = 80
_IN_LINES = ("traceback", "output")  # details of a verdict that are lines of text


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the command ``devices``."""
    parser = subparsers.add_parser(
        "devices",
        help="list compute devices and say what became of each backend",
        description="Lists the compute devices of this machine, best first, and what became of each installed backend.",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("-v", "--verbose", action="store_true", help="add files, times and scores")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Prints the report. Returns 1 if there is no device, or HOTSHOE_REQUIRE asks for one that is not there."""
    from hotshoe_loader import load_all

    devices: Sequence[Device] = ()
    why = error = None
    try:
        registry = load_all(refresh=True)  # memory as it is now, and every device tried
    except DeviceNotFoundError as missing:
        error, verdicts = str(missing), missing.verdicts
    else:
        devices, verdicts = registry.devices, registry.verdicts
        why = registry.why() if devices else None
    if args.json:
        report = {
            "devices": [to_json(device) for device in devices],
            "why": why,
            "error": error,
            "verdicts": [verdict.to_json() for verdict in verdicts],
        }
        show_json(report)
    else:
        show(_report(devices, verdicts, why, error, args.verbose))
    return 0 if devices else 1


def show(lines: Iterable[str]) -> None:
    """Prints lines, also where a driver's name holds what the terminal cannot show, or would act on."""
    encoding = sys.stdout.encoding or "utf-8"
    for line in lines:
        sys.stdout.write(printable(line).encode(encoding, "backslashreplace").decode(encoding) + "\n")


def show_json(report: dict[str, Any]) -> None:
    """Prints an object as JSON, in which nothing is raw but what every terminal can show."""
    sys.stdout.write(json.dumps(report, indent=2) + "\n")


def to_json(device: Device) -> dict[str, Any]:
    """A device as what ``json.dumps`` takes."""
    return {
        "name": device.name,
        "type": device.type.value,
        "description": device.description,
        "provider": device.provider,
        "family": device.family,
        "memory_total": device.memory_total,
        "memory_free": device.memory_free,
        "pci_id": device.pci_id,
        "uuid": device.uuid,
        "library": None if device.library is None else str(device.library),
        "properties": dict(device.properties),
    }


def _report(
    devices: Sequence[Device], verdicts: Sequence[Verdict], why: str | None, error: str | None, verbose: bool
) -> Iterator[str]:
    if error is not None:
        yield from error.splitlines()
    elif not devices:
        yield "No device can be used."
    else:
        yield from _table(devices)
        yield ""
        yield from wrap(f"Used by default: {why}", "")
    yield ""
    yield "Backends:"
    for verdict in verdicts:
        yield from _verdict(verdict, verbose)


def _table(devices: Sequence[Device]) -> Iterator[str]:
    rows = []
    for device in devices:
        library = device.library.stem if device.library else "-"
        rows.append((device.name, device.type.value, _memory(device), device.provider, library))
    head, *lines = table(("NAME", "TYPE", "MEMORY", "PROVIDER", "LIBRARY"), rows, "<<<<<")
    yield head
    for device, line in zip(devices, lines, strict=True):
        yield line
        # The description has a line of its own: some drivers' names alone fill half of the width.
        if device.description:
            yield from wrap(device.description, "    ")


def _memory(device: Device) -> str:
    if not device.memory_total:
        return "-"
    total = f"{device.memory_total / 2**30:.1f} GiB"
    return f"{device.memory_free / 2**30:.1f} of {total}" if device.memory_free else total


def _verdict(verdict: Verdict, verbose: bool) -> Iterator[str]:
    yield f"  {verdict.candidate}: {verdict.outcome.value}"
    yield from wrap(verdict.reason, "      ")
    if verdict.hint and not verdict.outcome.usable:
        yield from wrap(f"-> {verdict.hint}", "      ", "         ")
    if verbose:
        if verdict.origin:
            yield from wrap(f"from {verdict.origin}", "      ")
        shown = {key: value for key, value in verdict.details.items() if key not in _IN_LINES}
        facts = [f"{key}={value}" for key, value in shown.items() if value not in (None, "")]
        yield from wrap(", ".join([f"{verdict.kind}, {verdict.elapsed * 1e3:.1f} ms", *facts]), "      ")
        yield from traceback_of(verdict)


def traceback_of(verdict: Verdict) -> Iterator[str]:
    """The traceback of the exception a plugin was rejected for, or what its process said before it ended, if any."""
    for key in _IN_LINES:
        yield from (f"      | {line}" for line in verdict.details.get(key, ()))


def wrap(text: str, indent: str, then: str | None = None) -> list[str]:
    """Lines of at most 80 columns, the first after ``indent``, the others after ``then``."""
    # Paths and commands are copied from here: they are never broken.
    return textwrap.wrap(
        text,
        _WIDTH,
        initial_indent=indent,
        subsequent_indent=indent if then is None else then,
        break_long_words=False,
        break_on_hyphens=False,
    )
