"""``hotshoe completion SHELL``: print a script that completes commands, options and file names in a shell."""

from __future__ import annotations

import argparse
import sys

from hotshoe.cli.parsing import CommandParser, Subparsers
from hotshoe_core.errors import MissingPackageError
from hotshoe_core.errors.install import pip_install

__all__ = ["add_parser", "run"]

_SHELLS = ("bash", "zsh", "fish", "tcsh", "powershell")
_FILES = ("model", "file", "source", "output", "imatrix", "map", "a", "b", "grammar")  # arguments that are files
_DESCRIPTION = """\
Print a script that completes commands, options and file names. To use it:

  bash        add to ~/.bashrc:   eval "$(hotshoe completion bash)"
  zsh         hotshoe completion zsh > DIR/_hotshoe, with DIR in $fpath
  fish        hotshoe completion fish > ~/.config/fish/completions/hotshoe.fish
  tcsh        hotshoe completion tcsh > FILE; add to ~/.tcshrc:  source FILE
  powershell  add to $PROFILE:
              hotshoe completion powershell | Out-String | Invoke-Expression
"""


def add_parser(commands: Subparsers[CommandParser]) -> None:
    """Add the command ``completion``."""
    parser = commands.add_parser(
        "completion",
        usage="%(prog)s SHELL",
        help="print a script that completes commands in a shell",
        description=_DESCRIPTION,
    )
    parser.add_argument("shell", metavar="SHELL", choices=_SHELLS, help=", ".join(_SHELLS))
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the script. Raises MissingPackageError if shtab is missing."""
    from hotshoe.cli import all_commands

    try:
        import shtab
    except ImportError:
        raise MissingPackageError(
            "shell completion needs the package shtab, which is not installed", hint=pip_install("hotshoe[completion]")
        ) from None
    parser, commands = all_commands()
    for command in commands.choices.values():
        for action in command._actions:
            if action.dest in _FILES:
                action.complete = shtab.FILE  # type: ignore[attr-defined]
    sys.stdout.write(shtab.complete(parser, args.shell) + "\n")
    return 0
