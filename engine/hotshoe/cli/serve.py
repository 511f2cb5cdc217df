"""``hotshoe serve MODEL…``: offer models to clients of OpenAI's, Anthropic's, Ollama's or Jina's dialect."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from hotshoe.cli.options import add_backend_options, add_runner_options, load_options
from hotshoe.cli.parsing import CommandParser, Subparsers

__all__ = ["add_parser", "run"]

_PORT = 8080


def add_parser(commands: Subparsers[CommandParser]) -> None:
    """Add the command ``serve``."""
    parser = commands.add_parser(
        "serve",
        usage="%(prog)s [options] MODEL [MODEL ...]",
        help="offer models to clients: OpenAI's, Anthropic's, Ollama's and Jina's dialects",
        description="Load models and answer requests: /v1/chat/completions, /v1/completions, /v1/embeddings, "
        "/v1/responses, /v1/models, /v1/messages, /v1/rerank, and Ollama's /api. Each model has a process of its own. "
        "Only programs of this machine can ask, unless --host says otherwise.",
    )
    parser.add_argument(
        "models", nargs="+", metavar="MODEL", help="a GGUF file, or NAME=FILE; the name is otherwise the file's"
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
    group.add_argument("--strict", action="store_true", help="refuse fields that would have no effect")
    add_runner_options(parser)
    add_backend_options(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Serve until interrupted. Raises HotshoeError if a model cannot be loaded."""
    import hotshoe
    from hotshoe_core.errors import MissingPackageError
    from hotshoe_core.errors.install import pip_install

    try:
        from hotshoe.serve.front import Front
        from hotshoe.serve.server import serve
    except ImportError as error:
        raise MissingPackageError(f"hotshoe serve needs {error.name}", hint=pip_install("hotshoe[serve]")) from error
    if args.max_requests < 1:
        raise hotshoe.HotshoeError(f"--max-requests is {args.max_requests}; expected 1 or more")
    if not 0 <= args.port < 1 << 16:
        raise hotshoe.HotshoeError(f"--port is {args.port}; expected 0 to 65535")
    front = Front(
        _specs(args),
        max_jobs=args.max_requests,
        keys=_keys(args.api_keys),
        hosts=frozenset(args.allow_host),
        strict=args.strict,
    )
    return serve(front, args.host, args.port, lambda line: print(line, file=sys.stderr, flush=True))


def _specs(args: argparse.Namespace) -> list[Any]:
    """The models, with their names. Raises OptionError for a name that is given twice, and for a missing file."""
    from hotshoe.serve.processes import ModelSpec
    from hotshoe_core.errors import OptionError

    options = _prefix_options() | dict(load_options(args))
    found: dict[str, ModelSpec] = {}
    for given in args.models:
        name, equals, path = given.partition("=")
        if not equals or not name or Path(given).exists():
            name, path = Path(given).stem, given
        if not Path(path).exists():
            raise OptionError(f"{path} does not exist", hint="check the path; a name goes first: NAME=FILE")
        if name in found:
            raise OptionError(f"two models are called {name}", hint="give one of them a name: NAME=FILE")
        found[name] = ModelSpec(name, path, args.device, args.ctx, options)
    return list(found.values())


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
    lines = (line.strip() for line in path.read_text(encoding="utf-8").splitlines())
    keys = frozenset(line for line in lines if line and line[0] != "#")
    if not keys:
        raise OptionError(f"--api-keys: {path} has no key", hint="write one on each line")
    return keys
