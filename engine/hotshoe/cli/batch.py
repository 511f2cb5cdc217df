"""``hotshoe batch IN OUT``: answer the requests of a file, with models of this machine, servers or a cluster."""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from hotshoe.cli._server import key_of_environment
from hotshoe.cli.options import add_backend_options, add_runner_options, load_options
from hotshoe.cli.parsing import CommandParser, Subparsers
from hotshoe.cli.progress import bar
from hotshoe.cli.serve import NamedModels, add_context, name_and_path

if TYPE_CHECKING:
    from hotshoe.batch.lines import BadLine, Input, Output, Reply, Request
    from hotshoe.batch.pool import Target

__all__ = ["add_parser", "run"]

_PARALLEL = 32


def add_parser(commands: Subparsers[CommandParser]) -> None:
    """Add the command ``batch``."""
    parser = commands.add_parser(
        "batch",
        usage="%(prog)s [options] IN OUT [MODEL ...]",
        help="answer the requests of a file: OpenAI's batch format, on one machine or many",
        description="Answer each line of IN, a request in OpenAI's batch format, and write the answers to OUT as they "
        "come. If OUT exists, go on: what it answers is not computed again. Exit code: 1 if OUT has an answer with an "
        "error.",
    )
    parser.add_argument("input", type=Path, metavar="IN", help="a file with one JSON object on each line")
    parser.add_argument("output", type=Path, metavar="OUT", help="the file for the answers")
    parser.add_argument(
        "models",
        nargs="*",
        metavar="MODEL",
        help="a GGUF file, NAME=FILE, or a name of hotshoe list. The requests call a model by its name; with one model "
        "they may name none",
    )
    group = parser.add_argument_group("where")
    where = group.add_mutually_exclusive_group()
    where.add_argument("--to", metavar="URL,…", help="let these servers answer; each gets a request when it is free")
    where.add_argument(
        "--ray",
        nargs="?",
        const="auto",
        metavar="ADDRESS",
        help="load the models on each node of a Ray cluster, one engine for each GPU; default: the cluster that runs "
        "here. The files are at the same paths on all nodes",
    )
    group.add_argument(
        "--key", metavar="KEY,…", help="the key of the servers, or one for each; default: HOTSHOE_API_KEY"
    )
    group.add_argument(
        "--parallel",
        type=int,
        default=_PARALLEL,
        metavar="N",
        help=f"requests at a time, for each server or engine. Default: {_PARALLEL}",
    )
    general = list(parser._actions)
    group.add_argument("--strict", action="store_true", help="refuse fields that would have no effect")
    add_context(parser.add_argument_group("memory"))
    add_runner_options(parser, context=False)
    add_backend_options(parser)
    of_models = [action for action in parser._actions if action not in general]
    parser.set_defaults(run=run, of_models=of_models, only=True, alias=[], pin=[], keep_alive=None)


def run(args: argparse.Namespace) -> int:
    """Answer the lines of IN that OUT does not answer yet. Returns 1 if OUT then has an answer with an error, else 0.

    Raises HotshoeError for options, files and models that cannot be used.
    """
    from hotshoe_core.errors import MissingPackageError, OptionError
    from hotshoe_core.errors.install import pip_install

    if args.parallel < 1:
        raise OptionError(f"--parallel is {args.parallel}; expected 1 or more")
    if bool(args.models) == (args.to is not None):
        what = "MODEL and --to are" if args.models else "neither MODEL nor --to is"
        hint = "hotshoe batch IN OUT MODEL" + (" --ray; it takes a word after it as the address" if args.ray else "")
        raise OptionError(f"{what} given; expected one of them", hint=hint)
    if args.to is None and args.key is not None:
        raise OptionError("--key has no effect without --to", hint="leave it out")
    for action in args.of_models if args.to is not None else ():
        if getattr(args, action.dest) != action.default:
            what = f"{action.option_strings[0]} has no effect with --to: the servers load their models"
            raise OptionError(what, hint="leave it out, or give it to hotshoe serve")
    try:
        from hotshoe.batch.lines import Input, Output

        targets = _targets(args)
    except ImportError as error:
        extra = "ray" if error.name == "ray" else "serve"
        raise MissingPackageError(f"hotshoe batch needs {error.name}", hint=pip_install(f"hotshoe[{extra}]")) from error
    requests = Input(args.input)
    with Output(args.output, args.input) as output:
        requests.scan()
        output.resume(requests)
        return _Run(requests, output, args.parallel).all(targets)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _targets(args: argparse.Namespace) -> Callable[[], list[Target]]:
    """Returns a function that makes the targets, once there is something for them to do. Raises OptionError."""
    if args.to is not None:
        from hotshoe.batch.remote import RemoteServer
        from hotshoe_core.errors import OptionError

        urls = [url for url in args.to.split(",") if url]
        keys = (args.key or key_of_environment()).split(",")
        if len(keys) not in (1, len(urls)):
            raise OptionError(f"--key has {len(keys)} keys for {len(urls)} servers; expected one, or one for each")
        servers = [RemoteServer(url, key) for url, key in zip(urls, keys * len(urls))]
        names = [server.name for server in servers]
        if len(set(names)) < len(names) or not names:
            raise OptionError(f"--to {args.to!r}: expected one server or more, each once")
        return lambda: [*servers]
    from hotshoe.batch.engine import Engine

    named = NamedModels(args, dict(load_options(args)))
    specs = [named.spec(*name_and_path(given)) for given in args.models]
    if args.ray is None:
        return lambda: [Engine(specs, args.memory, args.parallel, args.strict, _say)]
    import ray  # noqa: F401  (is it installed?)

    from hotshoe.batch.cluster import connect

    return lambda: [*connect(args.ray, specs, args.memory, args.parallel, args.strict, _say)]


class _Run:
    """One run: its counts, and its progress on a terminal."""

    def __init__(self, requests: Input, output: Output, parallel: int) -> None:
        self._requests, self._output, self._parallel = requests, output, parallel
        self._n, self._n_before = requests.n_lines, requests.n_done
        self._n_written = 0

    def all(self, targets: Callable[[], list[Target]]) -> int:
        """Answer all lines. Returns the exit code."""
        if self._n_before:
            _say(f"{self._n_before} of {self._n} requests are answered already")
        start = time.monotonic()
        try:
            if self._n > self._n_before:
                asyncio.run(self._answer(targets()))
        finally:
            n, seconds = self._n_before + self._n_written, time.monotonic() - start
            _say(
                f"{self._n_written} answers in {seconds:.1f} s; {n} of {self._n} requests are answered, "
                f"{self._output.n_wrong} of them with an error"
            )
            if self._output.n_wrong:
                _say(f"{self._output.path} has the errors; to have these lines answered again, delete them there")
        return 1 if self._output.n_wrong else 0

    async def _answer(self, targets: list[Target]) -> None:
        from hotshoe.batch.pool import Pool

        pool = Pool(targets, self._parallel, _say)
        try:
            await pool.start()
            with bar("answering") as self._progress:
                await pool.run(iter(self._requests), self._write)
        finally:
            await pool.stop()

    def _write(self, line: Request | BadLine, reply: Reply) -> None:
        self._output.write(line, reply)
        self._n_written += 1
        self._progress((self._n_before + self._n_written) / self._n)
