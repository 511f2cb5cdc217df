"""The command line: ``hotshoe COMMAND``. Each command is a module here with ``add_parser`` and ``run``.

Exit codes: 0 done, 1 the command's own "no" (no device, say), 2 wrong input, 130 interrupted.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence

import hotshoe

__all__ = ["main"]

_COMMANDS = (
    *("devices", "doctor", "run", "chat", "embed", "rerank", "bench", "convert", "inspect", "trace", "compare"),
    "conform",
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code. Errors hotshoe raises become one message, without a traceback."""
    argv = list(sys.argv[1:] if argv is None else argv)
    try:
        args = _parse(argv)
        code: int = args.run(args)
        sys.stdout.flush()  # a closed pipe shows here, not in the interpreter's last breath
        return code
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        print("hotshoe: interrupted", file=sys.stderr)
        return 130
    except (hotshoe.HotshoeError, OSError) as error:
        print(f"hotshoe: error: {error}", file=sys.stderr)
        return 2


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    """As argparse does, but texts may stand before and after the options, which argparse alone refuses."""
    parser = _parser(argv)
    args, rest = parser.parse_known_args(argv)
    if rest and (not hasattr(args, "text") or any(r.startswith("-") for r in rest)):
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    if rest:
        args.text += rest
    return args


def _parser(argv: Sequence[str]) -> argparse.ArgumentParser:
    """All commands; only the one that is asked for is imported, as the others cost start-up time."""
    parser = argparse.ArgumentParser(prog="hotshoe", description="Run models on whatever compute backend is installed.")
    parser.add_argument("--version", action="version", version=f"hotshoe {hotshoe.__version__}")
    subparsers = parser.add_subparsers(metavar="COMMAND", required=True)
    named = [c for c in _COMMANDS if c in argv[:1]]
    for command in named or _COMMANDS:
        importlib.import_module(f"hotshoe.cli.{command}").add_parser(subparsers)
    return parser
