"""``hotshoe trace MODEL TEXT -o FILE``: what every node of a model's forward pass computes, in a file to compare."""

from __future__ import annotations

import argparse
from pathlib import Path

from hotshoe.cli.generating import (
    add_backend_options,
    add_runner_options,
    backend_params,
    placement_params,
    runner_params,
)
from hotshoe.cli.progress import bar

__all__ = ["add_parser", "run"]


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the command ``trace``."""
    parser = subparsers.add_parser(
        "trace",
        help="record what every node of a model computes",
        description="Record what every node of a model's forward pass over a text computes, for `hotshoe compare`.",
    )
    parser.add_argument("model", help="a GGUF file")
    parser.add_argument("text", nargs="+", help="the text; several words are joined by spaces")
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        metavar="FILE",
        required=True,
        help="statistics of each node as JSON Lines; all numbers too if the name ends in .npz",
    )
    add_backend_options(parser)
    add_runner_options(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Writes the file, and prints how many nodes it holds."""
    import hotshoe
    from hotshoe.runner.reranker import RerankModel
    from hotshoe.runner.text import TextModel
    from hotshoe_core.inspect.trace import trace
    from hotshoe_core.inspect.tracefile import read_trace

    text = " ".join(args.text)
    with bar("loading") as progress:
        model = hotshoe.load_model(
            args.model,
            args.device,
            params=backend_params(args),
            runner=runner_params(args),
            placement=placement_params(args),
            progress=progress,
        )
    with model, trace(args.output, about={**model.about, "text": text}):
        if isinstance(model, TextModel):
            with model.sequence(model.tokenizer.encode(text)) as sequence:
                # logits() refuses NaN, and a trace is to find where it began
                for _ in model.engine.all_logits(sequence):
                    pass
        elif isinstance(model, RerankModel):
            model.rank(text, [text])
        else:
            model.embed(text)
    with read_trace(args.output) as recorded:
        tokens = next((n.shape for n in recorded.nodes.values() if n.name == "tokens"), ())
        size = " x ".join(map(str, tokens))
        print(f"{args.output}: {len(recorded.nodes)} nodes of {size} tokens, on {recorded.header['device']}")
    return 0
