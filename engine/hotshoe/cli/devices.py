"""``hotshoe devices``: list the devices of this machine, and why each backend is used or not."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from hotshoe.cli.parsing import CommandParser, Subparsers
from hotshoe.cli.tables import show, show_json, table, wrap
from hotshoe_core.contract.device import Device
from hotshoe_core.errors import DeviceNotFoundError

if TYPE_CHECKING:
    from hotshoe_loader import Verdict

__all__ = ["add_parser", "run", "to_json", "traceback_of"]

_IN_LINES = ("traceback", "output")  # details of a verdict that are lines of text


def add_parser(commands: Subparsers[CommandParser]) -> None:
    """Add the command ``devices``."""
    parser = commands.add_parser(
        "devices",
        usage="%(prog)s [options]",
        help="list devices, and show why each backend is used or not",
        description="List the compute devices of this machine, best first, and show why each installed backend is "
        "used or not. MEMORY: free of total. Exit code: 1 if there is no device.",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument(
        "-v",
        "--verbose",
        action="store_true",
        help="add files, times, and how well each library fits this CPU (its score; the highest is used)",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the report. Returns 1 if there is no device, or if the device that HOTSHOE_REQUIRE names is missing."""
    from hotshoe_loader import load_all

    devices: Sequence[Device] = ()
    why = error = None
    try:
        registry = load_all(refresh=True)  # the memory of now, and every device is tried
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


def to_json(device: Device) -> dict[str, Any]:
    """A device as values that ``json.dumps`` takes."""
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
        yield from wrap(f"Used by default: {why}")
    yield ""
    yield "Backends:"
    # The table names the libraries in use, and the verdict on a plugin says why its libraries cannot be used.
    said = "\n".join(verdict.reason for verdict in verdicts if verdict.kind == "plugin")
    for verdict in verdicts:
        is_said = verdict.outcome.usable or f"{verdict.candidate}: {verdict.reason}" in said
        if verbose or verdict.kind == "plugin" or not is_said:
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
    if verdict.hint:
        yield f"      -> {verdict.hint}"  # in one line, so that a command can be copied
    if verbose:
        if verdict.origin:
            yield from wrap(f"from {verdict.origin}", "      ")
        shown = {key: value for key, value in verdict.details.items() if key not in _IN_LINES}
        facts = [f"{key}={value}" for key, value in shown.items() if value not in (None, "")]
        yield from wrap(", ".join([f"{verdict.kind}, {verdict.elapsed * 1e3:.1f} ms", *facts]), "      ")
        yield from traceback_of(verdict)


def traceback_of(verdict: Verdict) -> Iterator[str]:
    """The traceback of the exception that rejected a plugin, or the last output of its process, if there is one."""
    for key in _IN_LINES:
        yield from (f"      | {line}" for line in verdict.details.get(key, ()))
