"""``hotshoe serve MODEL…``: offer models to clients of OpenAI's, Anthropic's, Ollama's or Jina's dialect."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hotshoe.cli.options import SIZE, add_backend_options, add_runner_options, load_options, read_text
from hotshoe.cli.parsing import CommandParser, Subparsers
from hotshoe_core.errors import did_you_mean
from hotshoe_core.errors.text import format_bytes

if TYPE_CHECKING:
    from hotshoe.serve.processes import ModelSpec

__all__ = ["NamedModels", "add_context", "add_parser", "name_and_path", "run"]

_PORT = 8080


def add_parser(commands: Subparsers[CommandParser]) -> None:
    """Add the command ``serve``."""
    parser = commands.add_parser(
        "serve",
        usage="%(prog)s [options] [MODEL ...]",
        help="offer models to clients: OpenAI's, Anthropic's, Ollama's and Jina's dialects",
        description="Load models and answer requests: /v1/chat/completions, /v1/completions, /v1/embeddings, "
        "/v1/responses, /v1/models, /v1/messages, /v1/rerank, and Ollama's /api. Each model has a process of its own. "
        "Only programs of this machine can ask, unless --host says otherwise.",
    )
    parser.add_argument(
        "models",
        nargs="*",
        metavar="MODEL",
        help="a GGUF file, NAME=FILE, or a name of hotshoe list; loaded at once. Other models of hotshoe list are "
        "loaded when a request names them",
    )
    group = parser.add_argument_group("server")
    group.add_argument("--host", default="127.0.0.1", metavar="ADDRESS", help="where to listen. Default: 127.0.0.1")
    group.add_argument("--port", type=int, default=_PORT, metavar="N", help=f"default: {_PORT}")
    group.add_argument(
        "--api-keys", type=Path, metavar="FILE", help="one key on each line, # for comments; other keys are refused"
    )
    group.add_argument(
        "--allow-host", action="append", default=[], metavar="NAME", help="a name by which clients call this server"
    )
    group.add_argument(
        "--max-requests", type=int, default=64, metavar="N", help="requests of a model at a time. Default: 64"
    )
    group.add_argument("--only", action="store_true", help="offer only the models that are given here")
    group.add_argument(
        "--alias", action="append", default=[], metavar="NAME=MODEL", help="another name by which clients call a model"
    )
    group.add_argument("--allow-changes", action="store_true", help="let clients pull, create and delete models")
    group.add_argument("--strict", action="store_true", help="refuse fields that would have no effect")
    memory = parser.add_argument_group("memory")
    add_context(memory)
    memory.add_argument(
        "--pin", action="append", default=[], metavar="MODEL", help="never unload this model to make room for another"
    )
    memory.add_argument(
        "--keep-alive",
        metavar="TIME",
        help="unload a model that nobody used for so long: 30s, 5m, 2h; default: when another model needs its memory",
    )
    add_runner_options(parser, context=False)
    add_backend_options(parser)
    parser.set_defaults(run=run)


def add_context(group: argparse._ArgumentGroup) -> None:
    """Add the options that say how much memory models and their contexts take."""
    group.add_argument(
        "--ctx",
        action="append",
        default=[],
        metavar="N|MODEL=N",
        help="size of the context in tokens, of all text models or of one; default: the largest that fits",
    )
    group.add_argument(
        "--memory",
        type=SIZE,
        metavar="SIZE",
        help="the computer's memory for all models together: 24GiB; default: what is free",
    )


def run(args: argparse.Namespace) -> int:
    """Serve until interrupted. Raises HotshoeError if a model cannot be loaded."""
    import hotshoe
    from hotshoe_core.errors import MissingPackageError
    from hotshoe_core.errors.install import pip_install

    try:
        from hotshoe.serve.front import Front
        from hotshoe.serve.room import Room
        from hotshoe.serve.server import serve
    except ImportError as error:
        raise MissingPackageError(f"hotshoe serve needs {error.name}", hint=pip_install("hotshoe[serve]")) from error
    if args.max_requests < 1:
        raise hotshoe.HotshoeError(f"--max-requests is {args.max_requests}; expected 1 or more")
    if not 0 <= args.port < 1 << 16:
        raise hotshoe.HotshoeError(f"--port is {args.port}; expected 0 to 65535")
    named = NamedModels(args, _prefix_options() | dict(load_options(args)))
    front = Front(
        [named.spec(*name_and_path(given)) for given in args.models],
        room=Room(args.memory),
        aliases=named.aliases,
        stored=tuple if args.only else named.stored,
        may_change=args.allow_changes,
        max_jobs=args.max_requests,
        keys=_keys(args.api_keys),
        hosts=frozenset(args.allow_host),
        strict=args.strict,
    )

    def say(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    notes = []
    if limit := named.options.get("prefix_disk"):
        kept = f"kept in {named.options['prefix_folder']}, up to {format_bytes(limit)}"
        notes.append(f"beginnings of texts are {kept}; --prefix-disk 0 writes none")
    return serve(front, args.host, args.port, say, notes)


class NamedModels:
    """The models of the command line, with what its options say of each."""

    def __init__(self, args: argparse.Namespace, options: dict[str, Any]) -> None:
        """options: keyword arguments of ``hotshoe.load_model``.

        Raises OptionError for a name that is given twice, and for an option that is invalid.
        """
        from hotshoe.serve.durations import seconds_of
        from hotshoe_core.errors import OptionError

        self.options = options
        self.device = args.device
        self.keep_alive = None if args.keep_alive is None else seconds_of("--keep-alive", args.keep_alive)
        self.aliases = dict(_pair("--alias", text) for text in args.alias)
        self.pinned = {self.aliases.get(name, name) for name in args.pin}
        self.contexts = {self.aliases.get(name, name): n for name, n in map(_context, args.ctx)}
        names = [name_and_path(given)[0] for given in args.models]
        if twice := [name for i, name in enumerate(names) if name in names[:i]]:
            raise OptionError(f"two models are called {twice[0]}", hint="give one of them a name: NAME=FILE")
        if args.only and not names:
            raise OptionError("--only offers the models that are given, and none is given", hint="name a model")
        named = {*self.aliases.values(), *self.pinned, *(name for name in self.contexts if name)}
        known = {*names, *([] if args.only else (spec.name for spec in self.stored()))}
        if unknown := sorted(named - known):
            raise OptionError(f"no model is called {unknown[0]}", hint=did_you_mean(unknown[0], known))

    def spec(self, name: str, path: str, stored: str = "") -> ModelSpec:
        """How a model is loaded. Raises OptionError for a missing file, ModelNotFoundError for an unknown name."""
        from hotshoe.serve.processes import ModelSpec
        from hotshoe.store.names import named
        from hotshoe_core.errors import OptionError

        if not stored and (model := named(path)) is not None:
            stored, path, name = model.name, str(model.path), model.name if name == path else name
        if not stored and not Path(path).exists():
            raise OptionError(f"{path} does not exist", hint="check the path; a name goes first: NAME=FILE")
        n_ctx = self.contexts.get(name, self.contexts.get(""))
        pinned = name in self.pinned
        return ModelSpec(
            name, path, self.device, n_ctx, self.options, stored, pinned, None if pinned else self.keep_alive
        )

    def stored(self) -> list[ModelSpec]:
        """The models of `hotshoe list`."""
        from hotshoe.store import all_models

        return [self.spec(model.name, str(model.path), model.name) for model in all_models()]


def name_and_path(given: str) -> tuple[str, str]:
    """Name and path of a model of the command line: NAME=FILE, a file, or a name of `hotshoe list`."""
    from hotshoe.store.names import named

    name, equals, path = given.partition("=")
    if equals and name and not Path(given).exists():
        return name, path
    stored = named(given)
    return (Path(given).stem if stored is None else stored.name), given


def _pair(option: str, text: str) -> tuple[str, str]:
    from hotshoe_core.errors import OptionError

    name, _, value = text.partition("=")
    if not name or not value:
        raise OptionError(f"{option} {text!r}: expected NAME=MODEL", hint=f"for example {option} gpt-4o=qwen3")
    return name, value


def _context(text: str) -> tuple[str, int]:
    from hotshoe_core.errors import OptionError

    name, _, n = text.rpartition("=")
    if not n.isascii() or not n.isdecimal() or not int(n):
        raise OptionError(
            f"--ctx {text!r}: expected a number of tokens, or MODEL=NUMBER", hint="for example --ctx 16384"
        )
    return name, int(n)


def _prefix_options() -> dict[str, Any]:
    """Where beginnings of texts go that the cache has no more room for, unless options say otherwise."""
    from hotshoe_loader.cache import reports_folder

    options: dict[str, Any] = {"prefix_memory": 1 << 30}
    reports = reports_folder()
    if reports is not None:
        options |= {"prefix_disk": 4 << 30, "prefix_folder": str(reports.parent / "prefixes")}
    return options


def _keys(path: Path | None) -> frozenset[str]:
    """The keys of a file. Raises OptionError if it has none."""
    from hotshoe_core.errors import OptionError

    if path is None:
        return frozenset()
    lines = (line.strip() for line in read_text(path).splitlines())
    keys = frozenset(line for line in lines if line and line[0] != "#")
    if not keys:
        raise OptionError(f"--api-keys: {path} has no key", hint="write one on each line")
    return keys
