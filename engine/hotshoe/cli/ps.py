"""``hotshoe ps``: the models that a running server has loaded, on which device, and why."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from datetime import datetime
from typing import Any

from hotshoe.cli._server import add_url, ask, key_of_environment
from hotshoe.cli.parsing import CommandParser, Subparsers
from hotshoe.cli.tables import show, show_json, table, wrap
from hotshoe_core.errors.text import format_bytes

__all__ = ["add_parser", "run"]

_FOREVER = "9999"
_TIME = "%H:%M:%S"


def add_parser(commands: Subparsers[CommandParser]) -> None:
    """Add the command ``ps``."""
    parser = commands.add_parser(
        "ps",
        usage="%(prog)s [--url URL] [--json]",
        help="list what a running server has loaded, on which device and why",
        description="Ask a running `hotshoe serve` which models it has loaded, on which device and why, and which it "
        "unloaded to make room. The key, if the server wants one, is read from HOTSHOE_API_KEY.",
    )
    add_url(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the list."""
    found, _ = ask(args.url, "/api/ps", "models", "why", key_of_environment())
    if args.json:
        show_json(found)
    else:
        show(_report(found))
    return 0


def _report(found: dict[str, Any]) -> Iterator[str]:
    rows = []
    for model in found["models"]:
        until = "pinned" if model["pinned"] else _time_of(model["expires_at"])
        counts = str(model["context_length"]), str(model["requests"])
        rows.append((model["name"], format_bytes(model["size"]), model["device"], *counts, until))
    if not rows:
        yield "No model is loaded."
    else:
        yield from table(("NAME", "SIZE", "DEVICE", "CONTEXT", "REQUESTS", "UNTIL"), rows, "<><>><")
    for model in found["models"]:
        yield from wrap(f"{model['name']}: {model['why']}")
    for gone in found.get("unloaded", ()):
        at = datetime.fromtimestamp(gone["at"]).strftime(_TIME)
        yield from wrap(f"{at} {gone['name']} was unloaded: {gone['why']}")


def _time_of(expires_at: str) -> str:
    """When a model is unloaded, in this machine's time."""
    if expires_at.startswith(_FOREVER):
        return "another needs room"
    return datetime.fromisoformat(expires_at).astimezone().strftime(_TIME)
