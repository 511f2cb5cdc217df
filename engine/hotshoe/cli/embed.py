"""``hotshoe embed MODEL TEXT…``: texts to vectors."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import numpy as np

from hotshoe.cli.options import add_backend_options, load_options, texts_of
from hotshoe.cli.parsing import CommandParser, Subparsers
from hotshoe.cli.progress import bar

__all__ = ["add_parser", "run"]


def add_parser(commands: Subparsers[CommandParser]) -> None:
    """Add the command ``embed``."""
    parser = commands.add_parser(
        "embed",
        usage="%(prog)s [options] MODEL [TEXT ...]",
        help="turn texts into vectors",
        description="Turn texts into vectors: one JSON object on each line, or a NumPy file.",
    )
    parser.add_argument("model", metavar="MODEL", help="a GGUF file of an embedding model")
    parser.add_argument(
        "text", nargs="*", metavar="TEXT", help="the texts; without any, each line of standard input is one"
    )
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="write float32 (n, dim) to a .npy file")
    parser.add_argument("--truncate", action="store_true", help="cut texts that are too long instead of failing")
    parser.add_argument("-v", "--verbose", action="store_true", help="print on stderr which device is used, and why")
    add_backend_options(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print or write the vectors, in the order of the texts."""
    import hotshoe

    if args.output is not None and args.output.suffix != ".npy":
        raise hotshoe.HotshoeError(f"--output {args.output}: expected a name that ends in .npy")
    texts = texts_of(args, "text")
    with bar("loading") as progress:
        model = hotshoe.load_model(
            args.model,
            args.device,
            **load_options(args),
            task="embedding",
            progress=progress,
        )
    with model:
        if args.verbose:
            print(model.why, file=sys.stderr)
        with bar("embedding") as progress:
            vectors = model.embed(texts, truncate=args.truncate, progress=progress)
    if args.output is not None:
        np.save(args.output, vectors)
        return 0
    for text, vector in zip(texts, vectors, strict=True):
        sys.stdout.write(json.dumps({"text": text, "embedding": [float(f"{x:.7g}") for x in vector]}) + "\n")
    return 0
