"""The command line: ``hotshoe COMMAND``. Each command is a module here with ``add_parser`` and ``run``.

Exit codes: 0 done, 1 the command's own "no" (no device, say), 2 wrong input, 130 interrupted.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import os
import sys
from collections.abc import Sequence

import hotshoe
from hotshoe_core.errors.text import legible

__all__ = ["main"]

_COMMANDS = (
    *("devices", "doctor", "run", "chat", "embed", "rerank", "bench", "convert", "inspect", "trace", "compare"),
    *("quantize", "imatrix", "plan", "conform", "new-plugin"),
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code. Errors hotshoe raises become one message, without a traceback."""
    argv = list(sys.argv[1:] if argv is None else argv)
    _open_streams()
    try:
        args = _parse(argv)
        code: int = args.run(args)
        sys.stdout.flush()  # a closed pipe shows here, not in the interpreter's last breath
        return code
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        _say("interrupted")
        return 130
    except (hotshoe.HotshoeError, OSError) as error:
        _say(f"error: {error}")
        return 2
    except UnicodeDecodeError as error:
        _say(f"error: the input is not {error.encoding} text: {error.reason} at byte {error.start}")
        return 2


def _open_streams() -> None:
    """Standard streams that are there and take every character, whoever starts the command and wherever it writes."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        stream = getattr(sys, name)
        if stream is None:  # closed: `hotshoe ... >&-`
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115  (until the end)
        elif mode == "w" and isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # é where only ASCII goes, and file names that are not UTF-8


def _say(message: str) -> None:
    """A last line, or lines, on stderr: much of it may be what others wrote."""
    with contextlib.suppress(OSError):  # a full disk: the exit code has to say it
        print("hotshoe:", legible(message), file=sys.stderr)


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
        importlib.import_module(f"hotshoe.cli.{command.replace('-', '_')}").add_parser(subparsers)
    return parser
