"""``hotshoe ps``: the models that a running server has loaded, on which device, and why."""

from __future__ import annotations

import argparse
import json
import os
import urllib.error
import urllib.request
from collections.abc import Iterator
from datetime import datetime
from typing import Any

from hotshoe.cli.parsing import CommandParser, Subparsers
from hotshoe.cli.tables import show, show_json, table, wrap
from hotshoe_core.errors import HotshoeError
from hotshoe_core.errors.text import format_bytes

__all__ = ["add_parser", "run"]

_URL = "http://127.0.0.1:8080"
_FOREVER = "9999"
_SECONDS = 30


def add_parser(commands: Subparsers[CommandParser]) -> None:
    """Add the command ``ps``."""
    parser = commands.add_parser(
        "ps",
        usage="%(prog)s [--url URL] [--json]",
        help="list what a running server has loaded, on which device and why",
        description="Ask a running `hotshoe serve` which models it has loaded, on which device and why, and which it "
        "unloaded to make room. The key, if the server wants one, is read from HOTSHOE_API_KEY.",
    )
    parser.add_argument("--url", default=_URL, metavar="URL", help=f"the address of the server. Default: {_URL}")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the list."""
    found = _ask(args.url)
    if args.json:
        show_json(found)
    else:
        show(_report(found))
    return 0


def _ask(url: str) -> dict[str, Any]:
    key = os.environ.get("HOTSHOE_API_KEY", "")
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    try:
        request = urllib.request.Request(f"{url.rstrip('/')}/api/ps", headers=headers)
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(request, timeout=_SECONDS) as answer:
            found = json.load(answer)
    except urllib.error.HTTPError as error:
        hint = "put the key into HOTSHOE_API_KEY" if error.code == 401 else "is it the address of hotshoe serve?"
        raise HotshoeError(f"{url} answered with status {error.code}", hint=hint) from None
    except (OSError, ValueError) as error:
        why = getattr(error, "reason", error)
        raise HotshoeError(
            f"no server answers at {url}: {why}", hint="start one: hotshoe serve; or give --url"
        ) from None
    if not isinstance(found, dict) or not isinstance(found.get("models"), list):
        raise HotshoeError(f"{url} did not answer with a list of models", hint="is it the address of hotshoe serve?")
    return found


def _report(found: dict[str, Any]) -> Iterator[str]:
    rows = []
    for model in found["models"]:
        until = "pinned" if model.get("pinned") else str(model["expires_at"])
        until = "another needs room" if until.startswith(_FOREVER) else until[11:19] or until
        counts = str(model["context_length"]), str(model["requests"])
        rows.append((model["name"], format_bytes(model["size"]), model["device"], *counts, until))
    if not rows:
        yield "No model is loaded."
    else:
        yield from table(("NAME", "SIZE", "DEVICE", "CONTEXT", "REQUESTS", "UNTIL"), rows, "<><>><")
    for model in found["models"]:
        yield from wrap(f"{model['name']}: {model['why']}")
    for gone in found.get("unloaded", ()):
        at = datetime.fromtimestamp(gone["at"]).strftime("%H:%M:%S")
        yield from wrap(f"{at} {gone['name']} was unloaded: {gone['why']}")
