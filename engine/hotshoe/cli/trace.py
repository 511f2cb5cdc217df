"""``hotshoe trace MODEL TEXT -o FILE``: record the result of every node of a forward pass."""

from __future__ import annotations

import argparse
from pathlib import Path

from hotshoe.cli.options import add_backend_options, add_runner_options, load_options
from hotshoe.cli.parsing import CommandParser, Subparsers
from hotshoe.cli.progress import bar

__all__ = ["add_parser", "run"]


def add_parser(commands: Subparsers[CommandParser]) -> None:
    """Add the command ``trace``."""
    parser = commands.add_parser(
        "trace",
        usage="%(prog)s [options] MODEL TEXT ... -o FILE",
        help="record the result of every node of a model",
        description="Run a model on a text, and write the result of every node of its graph, for `hotshoe compare`.",
    )
    parser.add_argument("model", metavar="MODEL", help="a GGUF file")
    parser.add_argument("text", nargs="+", metavar="TEXT", help="the text; several words are joined by spaces")
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        metavar="FILE",
        required=True,
        help="the file to write: statistics of each node as JSON Lines; with all numbers if its name ends in .npz",
    )
    add_runner_options(parser, context=False, sequences=False, drafts=False)
    add_backend_options(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Write the file, and print how many nodes it holds."""
    import hotshoe
    from hotshoe.runner.reranker import RerankModel
    from hotshoe.runner.text import TextModel
    from hotshoe_core.errors import BackendError
    from hotshoe_core.inspect.trace import trace
    from hotshoe_core.inspect.tracefile import read_trace

    text = " ".join(args.text)
    with bar("loading") as progress:
        model = hotshoe.load_model(
            args.model,
            args.device,
            **load_options(args),
            progress=progress,
        )
    with model, trace(args.output, about={**model.about, "text": text}):
        if isinstance(model, TextModel):
            try:
                model.logits(model.tokenizer.encode(text))
            except BackendError:  # NaN or infinity: the trace shows where it begins
                if not args.output.stat().st_size:  # the error came before the nodes were recorded
                    raise
        elif isinstance(model, RerankModel):
            model.rank(text, [text])
        else:
            model.embed(text)
    with read_trace(args.output) as recorded:
        tokens = next((n.shape for n in recorded.nodes.values() if n.name == "tokens"), ())
        size = " x ".join(map(str, tokens))
        print(f"{args.output}: {len(recorded.nodes)} nodes of {size} tokens, on {recorded.header['device']}")
    return 0
