"""Ask a running `hotshoe serve`, for the commands that need to know what it has: `ps` and `connect`."""

from __future__ import annotations

import json
import os
from typing import Any

from hotshoe.cli.parsing import CommandParser
from hotshoe_core.errors import HotshoeError

__all__ = ["add_url", "ask", "key_of_environment"]

_URL = "http://127.0.0.1:8080"
_KEY = "HOTSHOE_API_KEY"
_SECONDS = 10


def add_url(parser: CommandParser) -> None:
    """Add the option ``--url``."""
    parser.add_argument("--url", default=_URL, metavar="URL", help=f"the address of the server. Default: {_URL}")


def key_of_environment() -> str:
    """The server's key in the variable HOTSHOE_API_KEY; "" if it is not set."""
    return os.environ.get(_KEY, "")


def ask(url: str, path: str, name: str, field: str, key: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The answer of a server, and the list that it has under ``name``: objects with a text under ``field``.

    No proxy is asked: the server is on this machine or near it. Raises HotshoeError if there is no such answer.
    """
    import urllib.error
    import urllib.request

    headers = {"Authorization": f"Bearer {key}"} if key else {}
    try:
        request = urllib.request.Request(f"{url.rstrip('/')}{path}", headers=headers)
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(request, timeout=_SECONDS) as answer:
            found = json.load(answer)
    except urllib.error.HTTPError as error:
        hint = f"put the key into {_KEY}" if error.code == 401 else "is it the address of hotshoe serve?"
        raise HotshoeError(f"{url} answered with status {error.code}", hint=hint) from None
    except (OSError, ValueError) as error:
        why = getattr(error, "reason", error)
        raise HotshoeError(
            f"no server answers at {url}: {why}", hint="start one: hotshoe serve; or give --url"
        ) from None
    listed = found.get(name) if isinstance(found, dict) else None
    if not isinstance(listed, list) or not all(isinstance(e, dict) and isinstance(e.get(field), str) for e in listed):
        raise HotshoeError(
            f"{url} did not answer with a list of models, each with {field!r}",
            hint="is it the address of hotshoe serve?",
        )
    return found, listed
