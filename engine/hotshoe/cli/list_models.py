"""``hotshoe list``: the models of this machine that have names."""

from __future__ import annotations

import argparse
import sys
from datetime import datetime
from typing import TYPE_CHECKING, Any

from hotshoe.cli.parsing import CommandParser, Subparsers
from hotshoe.cli.tables import show, show_json, table
from hotshoe_core.errors import HotshoeError
from hotshoe_core.errors.text import format_bytes

if TYPE_CHECKING:
    from hotshoe.store import StoredModel

__all__ = ["add_parser", "run"]

_SOURCES = {"hub": "Hugging Face's cache", "ollama": "Ollama", "lmstudio": "LM Studio", "created": "created"}


def add_parser(commands: Subparsers[CommandParser]) -> None:
    """Add the command ``list``."""
    parser = commands.add_parser(
        "list",
        usage="%(prog)s [--json]",
        help="list the models of this machine: those of hotshoe pull, Ollama and LM Studio",
        description="List the models that have names, the newest first. Every command that takes a GGUF file takes "
        "such a name too. Models of Ollama and LM Studio are read where they are.",
    )
    parser.add_argument("--json", action="store_true", help="print JSON, with the files of each model")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the list."""
    from hotshoe.store import all_models

    rows = [_row(model) for model in sorted(all_models(), key=lambda model: (-model.modified, model.name))]
    if args.json:
        show_json({"models": rows})
        return 0
    if not rows:
        print("no model yet: hotshoe pull ORG/REPO downloads one", file=sys.stderr)
        return 0
    cells = []
    for row in rows:
        what = row["architecture"] or row["error"]
        cells.append((row["name"], format_bytes(row["size"]), what, _SOURCES[row["source"]], row["modified"][:10]))
    show(table(("NAME", "SIZE", "ARCHITECTURE", "FROM", "CHANGED"), cells, "<><<<"))
    return 0


def _row(model: StoredModel) -> dict[str, Any]:
    """What the list says of a model. Reads the header of its file."""
    from hotshoe_core.gguf import GGUFFile

    architecture = error = ""
    try:
        with GGUFFile(model.path) as file:
            architecture = file.architecture
    except HotshoeError as found:
        error = found.message
    return {
        "name": model.name,
        "size": model.nbytes,
        "architecture": architecture,
        "source": model.source,
        "modified": datetime.fromtimestamp(model.modified).astimezone().isoformat(timespec="seconds"),
        "files": [str(file) for file in model.files],
        "projector": None if model.projector is None else str(model.projector),
        "error": error,
    }
