"""``hotshoe rerank MODEL QUERY DOCUMENT…``: which documents answer a query best."""

from __future__ import annotations

import argparse
import json
import sys

from hotshoe.cli.options import add_backend_options, load_options, texts_of
from hotshoe.cli.parsing import CommandParser, Subparsers
from hotshoe.cli.progress import bar

__all__ = ["add_parser", "run"]


def add_parser(commands: Subparsers[CommandParser]) -> None:
    """Add the command ``rerank``."""
    parser = commands.add_parser(
        "rerank",
        usage="%(prog)s [options] MODEL QUERY [DOCUMENT ...]",
        help="rank documents by how well they answer a query",
        description="Rank documents by how well they answer a query: one JSON object on each line, the best first.",
    )
    parser.add_argument("model", metavar="MODEL", help="a GGUF file of a reranker (a cross-encoder)")
    parser.add_argument("query", metavar="QUERY", help="the question, or other text, to rank by")
    parser.add_argument(
        "text", nargs="*", metavar="DOCUMENT", help="the documents; without any, each line of standard input is one"
    )
    parser.add_argument("--top", type=int, metavar="N", help="print only the N best")
    parser.add_argument("--truncate", action="store_true", help="cut documents that are too long instead of failing")
    parser.add_argument("-v", "--verbose", action="store_true", help="print on stderr which device is used, and why")
    add_backend_options(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print index, score and text of each document."""
    import hotshoe

    documents = texts_of(args, "document")
    with bar("loading") as progress:
        model = hotshoe.load_model(
            args.model,
            args.device,
            **load_options(args),
            task="rerank",
            progress=progress,
        )
    with model:
        if args.verbose:
            print(model.why, file=sys.stderr)
        with bar("reading") as progress:
            ranked = model.rank(args.query, documents, top_n=args.top, truncate=args.truncate, progress=progress)
    for index, score in ranked:
        row = {"index": index, "score": float(f"{score:.7g}"), "text": documents[index]}
        sys.stdout.write(json.dumps(row) + "\n")
    return 0
