"""``hotshoe rm NAME…``: delete models that hotshoe pull brought."""

from __future__ import annotations

import argparse
import sys

from hotshoe.cli.parsing import CommandParser, Subparsers
from hotshoe_core.errors.text import format_bytes

__all__ = ["add_parser", "run"]


def add_parser(commands: Subparsers[CommandParser]) -> None:
    """Add the command ``rm``."""
    parser = commands.add_parser(
        "rm",
        usage="%(prog)s [--yes] NAME [NAME ...]",
        help="delete models that hotshoe pull brought",
        description="Delete models that hotshoe pull brought, or that a client of the server created. Files of other "
        "programs are never deleted. Exit code: 0 deleted, 1 not confirmed.",
    )
    parser.add_argument("names", nargs="+", metavar="NAME", help="a name that hotshoe list shows")
    parser.add_argument("--yes", action="store_true", help="do not ask")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Delete the models, after asking."""
    from hotshoe.store import find
    from hotshoe.store.delete import delete, files_to_delete
    from hotshoe_core.errors import OptionError

    models = [find(name) for name in args.names]
    found = [(model, files_to_delete(model)) for model in models]  # all before the first one is deleted
    for model, files in found:
        size = format_bytes(sum(file.stat().st_size for file in files))
        if not args.yes:
            if not sys.stdin.isatty():
                raise OptionError(f"nobody can confirm that {model.name} ({size}) is deleted", hint="give --yes")
            if input(f"delete {model.name} ({size})? [y/N] ").strip().lower() not in ("y", "yes"):
                return 1
        delete(model)
        print(f"deleted {model.name} ({size})", file=sys.stderr)
    return 0
