"""``hotshoe connect CLIENT``: print the settings with which a client uses a server of hotshoe, or write them."""

from __future__ import annotations

import argparse
import difflib
import json
import re
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from hotshoe.cli._clients import CLIENTS, Client, Server
from hotshoe.cli._server import add_url, ask, key_of_environment
from hotshoe.cli.options import read_text
from hotshoe.cli.parsing import CommandParser, Subparsers
from hotshoe.cli.tables import show, table, wrap
from hotshoe_core.errors import HotshoeError, OptionError, did_you_mean

__all__ = ["add_parser", "run"]

_PLACEHOLDER = "NAME"


def add_parser(commands: Subparsers[CommandParser]) -> None:
    """Add the command ``connect``."""
    parser = commands.add_parser(
        "connect",
        usage="%(prog)s [options] [CLIENT]",
        help="print what an agent, an editor or a library needs to use a server, or write it into its settings",
        description="Print what a client needs to use `hotshoe serve`. Without CLIENT, list the clients that are "
        "known. Exit code: 1 if --write wrote nothing.",
    )
    parser.add_argument("client", nargs="?", metavar="CLIENT", help="codex, claude, opencode, … ")
    add_url(parser)
    parser.add_argument(
        "--key", metavar="KEY", help="a key of --api-keys; default: HOTSHOE_API_KEY, or that none is needed"
    )
    parser.add_argument("--model", metavar="NAME", help="the model; default: the first text model of the server")
    parser.add_argument("--write", action="store_true", help="show the change of the client's settings, ask, and write")
    parser.add_argument("--yes", action="store_true", help="with --write: do not ask")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print or write the settings of a client, or list the clients."""
    if args.client is None:
        show(table(("CLIENT", "WHAT IT IS"), ((name, client.what) for name, client in CLIENTS.items()), "<<"))
        return 0
    client = CLIENTS.get(args.client)
    if client is None:
        raise OptionError(f"unknown client {args.client!r}", hint=did_you_mean(args.client, CLIENTS))
    if not re.fullmatch(r"https?://[^\s/]+/?", args.url):
        raise OptionError(f"--url is {args.url!r}; expected http://HOST:PORT, without a path")
    server = _server(args, needs_model=args.write)
    if args.write:
        return _write(args.client, client, server, ask=not args.yes)
    for line in _lines(client, server):
        print(line)
    return 0


def _server(args: argparse.Namespace, *, needs_model: bool) -> Server:
    """The server, with the model and its context as the server lists them.

    Raises OptionError if the server cannot be asked and the name of the model is needed.
    """
    url, key = args.url.rstrip("/"), args.key or key_of_environment()
    try:
        _, models = ask(url, "/v1/models", "data", "id", key)
    except HotshoeError as error:
        if args.model is None and needs_model:
            raise OptionError(error.message, hint=f"{error.hint}; or name the model: --model NAME") from None
        print(f"(the models of the server are not known: {error.message})", file=sys.stderr)
        models = []
    texts = [model for model in models if model.get("task", "text") == "text"]
    name = args.model or (texts[0]["id"] if texts else _PLACEHOLDER)
    if models and name not in [model["id"] for model in models]:
        listed = [model["id"] for model in models]
        raise OptionError(f"the server has no text model {name!r}; it has {', '.join(listed)}")
    found = next((model for model in models if model["id"] == name), {})
    return Server(url, key or "none", name, found.get("context_length"))


def _lines(client: Client, server: Server) -> Iterator[str]:
    """What to print: on stdout only what a client needs; where it belongs goes to stderr."""
    if client.path is not None and client.settings is not None:
        path = client.path()
        print(f"# {path} (--write puts it there)", file=sys.stderr)
        yield _format(path)("", client.settings(server)).rstrip("\n")
    if client.text is not None:
        yield client.text(server)
    if client.note:
        sys.stdout.flush()
        print("\n".join(wrap(client.note, "# ")), file=sys.stderr)


def _write(name: str, client: Client, server: Server, *, ask: bool) -> int:
    """Change the client's settings. Returns 1 if the answer is no."""
    from hotshoe.atomic_file import atomic_write

    if client.path is None or client.settings is None:
        raise OptionError(
            f"--write: {name} has no file of settings that could be written", hint=f"hotshoe connect {name}"
        )
    path = client.path()
    before = read_text(path) if path.exists() else ""
    after = _format(path)(before, client.settings(server))
    if after == before:
        print(f"{path} has these settings already", file=sys.stderr)
        return 0
    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), str(path), str(path), lineterm="")
    show(lines)
    if ask:
        if not sys.stdin.isatty():
            print("nothing was written: there is no terminal to ask; --yes writes", file=sys.stderr)
            return 1
        if input("write this? [y/N] ").strip().lower() not in ("y", "yes"):
            print("nothing was written", file=sys.stderr)
            return 1
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path) as temporary:
        temporary.write_text(after, encoding="utf-8")
    print(f"wrote {path}" + (f"\n{client.note}" if client.note else ""), file=sys.stderr)
    return 0


def _format(path: Path) -> Callable[[str, dict[str, Any]], str]:
    """The function that puts settings into the text of a file. It raises OptionError for a file that it cannot read."""

    def changed(text: str, settings: dict[str, Any]) -> str:
        try:
            return _FORMATS[path.suffix](text, settings)
        except ValueError as error:
            raise OptionError(
                f"{path} cannot be changed: {error}", hint="add the lines by hand: the command without --write"
            ) from None

    return changed


def _in_json(text: str, settings: dict[str, Any]) -> str:
    found = json.loads(text) if text.strip() else {}  # comments, which some editors allow, are an error
    if not isinstance(found, dict):
        raise ValueError("it is not a JSON object")
    return json.dumps(_merged(found, settings), indent=2, ensure_ascii=False) + "\n"


def _merged(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """The settings with the new ones. Objects are merged; other values are replaced."""
    found = dict(old)
    for name, value in new.items():
        earlier = old.get(name)
        found[name] = _merged(earlier, value) if isinstance(earlier, dict) and isinstance(value, dict) else value
    return found


def _in_toml(text: str, settings: dict[str, Any]) -> str:
    """Replace keys before the first table, and whole tables of two levels. All other lines stay as they are."""
    before = tomllib.loads(text)
    lines = text.splitlines()
    tables = {f"[{a}.{b}]": values for a, group in settings.items() if isinstance(group, dict)
              for b, values in group.items()}  # fmt: skip
    plain = {name: value for name, value in settings.items() if not isinstance(value, dict)}
    start = next((i for i, line in enumerate(lines) if line.lstrip().startswith("[")), len(lines))
    head = [line for line in lines[:start] if line.partition("=")[0].strip() not in plain]
    body, skips = [], False
    for line in lines[start:]:
        if line.lstrip().startswith("["):
            skips = line.strip() in tables
        if not skips:
            body.append(line)
    found = [f"{name} = {_toml(value)}" for name, value in plain.items()] + head
    while body and not body[-1].strip():
        body.pop()
    for name, values in tables.items():
        body += ["", name, *(f"{key} = {_toml(value)}" for key, value in values.items())]
    after = "\n".join([*found, *body]).strip("\n") + "\n"
    for name, values in settings.items():
        if isinstance(values, dict) and isinstance(before.get(name), dict):
            before[name] = {key: value for key, value in before[name].items() if key not in values}
    if tomllib.loads(after) != _merged(before, settings):  # such as a table in one line
        raise ValueError("its form is not known")
    return after


def _toml(value: str | int) -> str:
    return json.dumps(value, ensure_ascii=False)


def _in_yaml(text: str, settings: dict[str, Any]) -> str:
    """Replace lines ``key: value`` of the first level. JSON values are YAML too."""
    if text.strip() and _is_list(settings):
        raise ValueError("it exists, and entries of a list cannot be added to it")
    lines = [line for line in text.splitlines() if line.partition(":")[0] not in settings]
    head = [] if lines or not _is_list(settings) else ["name: hotshoe", "version: 0.0.1", "schema: v1"]
    return "\n".join([*lines, *head, *_yaml(settings)]) + "\n"


def _is_list(settings: dict[str, Any]) -> bool:
    return any(isinstance(value, list) for value in settings.values())


def _yaml(settings: dict[str, Any]) -> Iterator[str]:
    for name, value in settings.items():
        if not isinstance(value, list):
            yield f"{name}: {json.dumps(value, ensure_ascii=False)}"
            continue
        yield f"{name}:"
        for entry in value:
            for i, (key, item) in enumerate(entry.items()):
                yield f"{'    ' if i else '  - '}{key}: {json.dumps(item, ensure_ascii=False)}"


_FORMATS = {".json": _in_json, ".toml": _in_toml, ".yml": _in_yaml, ".yaml": _in_yaml}
