"""``hotshoe pull ORG/REPO[:QUANT]``: download a model from the hub."""

from __future__ import annotations

import argparse
import sys

from hotshoe.cli.parsing import CommandParser, Subparsers
from hotshoe.cli.progress import bar

__all__ = ["add_parser", "run"]


def add_parser(commands: Subparsers[CommandParser]) -> None:
    """Add the command ``pull``."""
    parser = commands.add_parser(
        "pull",
        usage="%(prog)s NAME",
        help="download a model from the hub: ORG/REPO or ORG/REPO:QUANT",
        description="Download the GGUF files of a model into Hugging Face's cache, unless they are there, and compare "
        "them with their hashes. An interrupted download goes on where it ended. Needs hotshoe[hub]. HF_TOKEN, "
        "HF_HOME, HF_ENDPOINT and HF_HUB_OFFLINE mean what they mean for huggingface_hub.",
    )
    parser.add_argument(
        "name", metavar="NAME", help="ORG/REPO:Q4_K_M, ORG/REPO:FILE.gguf, or ORG/REPO for the usual quantization"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Download the model; print its name."""
    from hotshoe.store.download import RemoteFile, pull

    there: dict[str, tuple[int, int]] = {}
    with bar("downloading") as show:

        def progress(file: RemoteFile, n: int) -> None:
            there[file.name] = n, file.size
            show(sum(n for n, _ in there.values()) / max(1, sum(size for _, size in there.values())))

        model = pull(args.name, say=lambda line: print(line, file=sys.stderr), progress=progress)
    print(model.name)
    return 0
