"""The command line: ``hotshoe COMMAND``. Each command is a module of this package with ``add_parser`` and ``run``.

Exit codes: 0 done; 1 the answer is no (no device, it does not fit, traces differ); 2 wrong input; 130 interrupted.
Results go to stdout, remarks to stderr.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import logging
import os
import sys
import traceback
from collections.abc import Sequence

import hotshoe
from hotshoe.cli.parsing import COMMAND_HINTS, CommandParser, Subparsers, parse_command
from hotshoe.cli.wording import in_options
from hotshoe_core.errors import ModelError, did_you_mean
from hotshoe_core.errors.text import legible, shown

__all__ = ["all_commands", "main"]

DEBUG = "HOTSHOE_DEBUG"
"""This environment variable, if it is not empty, makes errors print the traceback too."""

_COMMANDS = (
    *("run", "chat", "serve", "batch", "connect", "embed", "rerank", "pull", "list", "rm", "ps"),
    *("devices", "doctor", "plan", "bench"),
    *("inspect", "convert", "quantize", "imatrix", "trace", "compare", "conform", "new-plugin", "completion"),
)
_MODULES = {"list": "list_models"}
"""Commands whose modules cannot have their names: in this package, ``list`` is Python's."""
_EPILOG = "`hotshoe COMMAND --help` explains a command. The first one to try: hotshoe run MODEL.gguf 'Once upon a time'"


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code. Print errors that hotshoe raises as one message, without traceback."""
    argv = list(sys.argv[1:] if argv is None else argv)
    _open_streams()
    args = argparse.Namespace()
    try:
        args = _parse(argv)
        code = _run(args)
        sys.stdout.flush()  # reports a closed pipe now, and not when the interpreter ends
        return code
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        _say("interrupted")
        return 130
    except hotshoe.HotshoeError as error:
        options = getattr(args, "options", ())
        hint = "" if error.hint is None else f"\n  hint: {in_options(error.hint, options)}"
        _say(f"{_traceback(error)}error: {in_options(error.message, options)}{hint}{_place(error)}")
        return 2
    except OSError as error:
        missing = isinstance(error, FileNotFoundError) and error.filename is not None
        text = f"{error.filename!r} does not exist; check the path" if missing else error
        _say(f"{_traceback(error)}error: {text}")
        _drop_output()
        return 2
    except UnicodeDecodeError as error:
        _say(f"{_traceback(error)}error: the input is not {error.encoding} text: {error.reason} at byte {error.start}")
        return 2


def _traceback(error: BaseException) -> str:
    return "".join(traceback.format_exception(error)) if os.environ.get(DEBUG) else ""


def _place(error: BaseException) -> str:
    """The line of a model family's author that led to the error, if it is not hotshoe's own family."""
    from hotshoe.families import author_line

    line = author_line(error)
    return "" if line is None else f"\n  at: {line}; {DEBUG}=1 shows the whole traceback"


def _run(args: argparse.Namespace) -> int:
    """Run the parsed command. Raises ModelError if code of a plugin or of a model family ends the program."""
    formatter = logging.Formatter()
    formatter.formatMessage = lambda record: in_options(record.message, getattr(args, "options", ()))  # type: ignore[method-assign]
    handler = logging.lastResort  # prints warnings on stderr
    before = None if handler is None else handler.formatter
    if handler is not None:
        handler.setFormatter(formatter)
    try:
        code: int = args.run(args)
        return code
    except SystemExit as error:
        from hotshoe.families import place_of

        raise ModelError(
            f"the command was ended by sys.exit({shown(error.code)}) in {place_of(error, 'its own code')}",
            hint="no code that a model or a plugin runs may do this: report it to its authors",
        ) from None
    finally:
        if handler is not None:
            handler.setFormatter(before)


def _drop_output() -> None:
    """Lose what cannot be written: otherwise the interpreter tries again at its end, and changes the exit code."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _open_streams() -> None:
    """Replace closed standard streams, and let output take every character, whatever its encoding."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        stream = getattr(sys, name)
        if stream is None:  # closed: `hotshoe ... >&-`
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115  (until the end)
        elif mode == "w" and isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # é in an ASCII terminal; file names that are not UTF-8


def _say(message: str) -> None:
    """Print the last message on stderr. Parts of it may come from files and drivers."""
    with contextlib.suppress(OSError):  # on a full disk the exit code has to say it
        print("hotshoe:", legible(message), file=sys.stderr)


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    """Import and parse only the command that is named: importing the others costs start-up time."""
    if argv and argv[0] in _COMMANDS:
        _, commands = _parser()
        _add(commands, argv[0])
        args = parse_command(commands.choices[argv[0]], argv[1:])
        args.options = commands.choices[argv[0]]._option_string_actions.keys()
        return args
    if argv and not argv[0].startswith("-"):
        hint = COMMAND_HINTS.get(argv[0]) or did_you_mean(argv[0], _COMMANDS)
        if argv[0].endswith(".gguf"):
            hint = f"did you mean 'hotshoe run {shown(argv[0])[1:-1]}'?"
        _parser()[0].error(f"unknown command {shown(argv[0])}\n  hint: {hint}")
    parser, _ = all_commands()
    if argv and argv[0].partition("=")[0] not in parser._option_string_actions:
        parser.error(f"unknown option {shown(argv[0])}\n  hint: options stand after the command; see hotshoe --help")
    if not argv:
        parser.print_help(sys.stderr)
        parser.exit(2)
    return parser.parse_args(argv)  # --help, --version, or an error


def all_commands() -> tuple[CommandParser, Subparsers[CommandParser]]:
    """The parser with every command, and the object that holds the commands' own parsers."""
    parser, commands = _parser()
    for command in _COMMANDS:
        _add(commands, command)
    return parser, commands


def _parser() -> tuple[CommandParser, Subparsers[CommandParser]]:
    parser = CommandParser(
        prog="hotshoe",
        usage="%(prog)s COMMAND [arguments]",
        description="Run models on whatever compute backend is installed.",
        epilog=_EPILOG,
    )
    parser.add_argument("--version", action="version", version=f"hotshoe {hotshoe.__version__}")
    return parser, parser.add_subparsers(title="commands", metavar="COMMAND", required=True, prog="hotshoe")


def _add(commands: Subparsers[CommandParser], name: str) -> None:
    module = _MODULES.get(name, name.replace("-", "_"))
    importlib.import_module(f"hotshoe.cli.{module}").add_parser(commands)
