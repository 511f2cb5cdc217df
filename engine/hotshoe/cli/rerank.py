"""``hotshoe rerank MODEL QUERY DOCUMENT…``: which documents answer a query best."""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING, cast

from hotshoe.cli.generating import add_backend_options, backend_params, placement_params
from hotshoe.cli.progress import bar

if TYPE_CHECKING:
    from hotshoe.runner.reranker import RerankModel

__all__ = ["add_parser", "run"]


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the command ``rerank``."""
    parser = subparsers.add_parser(
        "rerank",
        help="rank documents by how well they answer a query",
        description="Rank documents by how well they answer a query: one JSON object a line, the best first.",
    )
    parser.add_argument("model", help="a GGUF file of a reranker (a cross-encoder)")
    parser.add_argument("query", help="what the documents are to answer")
    parser.add_argument("text", nargs="*", metavar="document", help="without any, one a line from standard input")
    parser.add_argument("--top", type=int, metavar="N", help="only the N best")
    add_backend_options(parser)
    parser.add_argument("--truncate", action="store_true", help="cut documents that are too long instead of failing")
    parser.add_argument("-v", "--verbose", action="store_true", help="say on stderr which device is used, and why")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Prints index, score and text of each document."""
    import hotshoe

    documents = args.text or [line.rstrip("\n") for line in sys.stdin]
    with bar("loading") as progress:
        loaded = hotshoe.load_model(
            args.model,
            args.device,
            params=backend_params(args),
            placement=placement_params(args),
            task="rerank",
            progress=progress,
        )
    model = cast("RerankModel", loaded)
    with model:
        if args.verbose:
            print(model.why, file=sys.stderr)
        with bar("reading") as progress:
            ranked = model.rank(args.query, documents, top_n=args.top, truncate=args.truncate, progress=progress)
    for index, score in ranked:
        row = {"index": index, "score": float(f"{score:.7g}"), "text": documents[index]}
        sys.stdout.write(json.dumps(row) + "\n")
    return 0
