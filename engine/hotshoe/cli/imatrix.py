"""``hotshoe imatrix MODEL --text FILE``: measure how much each column of each matrix matters, for quantize."""

from __future__ import annotations

import argparse
from pathlib import Path

from hotshoe.cli.options import add_backend_options, load_options, read_text
from hotshoe.cli.parsing import CommandParser, Subparsers
from hotshoe.cli.progress import bar

__all__ = ["add_parser", "run"]


def add_parser(commands: Subparsers[CommandParser]) -> None:
    """Add the command ``imatrix``."""
    parser = commands.add_parser(
        "imatrix",
        usage="%(prog)s [options] MODEL --text FILE",
        help="make an importance matrix for quantize",
        description="Run a model on a text, and measure which columns of its matrices matter most: an importance "
        "matrix for `hotshoe quantize --imatrix`, in llama.cpp's format.",
    )
    parser.add_argument("model", metavar="MODEL", help="a GGUF file, preferably in f32, f16 or bf16")
    parser.add_argument(
        "--text", type=Path, required=True, metavar="FILE", help="a text similar to those that the model will read"
    )
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        metavar="OUT",
        default=Path("imatrix.gguf"),
        help="the file to write; default: imatrix.gguf",
    )
    parser.add_argument("--chunk-size", type=int, default=512, metavar="N", help="tokens of a chunk; default: 512")
    parser.add_argument("--chunks", type=int, metavar="N", help="read at most N chunks; default: the whole text")
    parser.add_argument("--overwrite", action="store_true", help="replace OUT if it exists")
    add_backend_options(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Write the file, and print what it holds. Raises as ``hotshoe.quantize.collect_importance`` does."""
    import hotshoe
    from hotshoe.atomic_file import check_target
    from hotshoe.loading import task_of
    from hotshoe.quantize import collect_importance

    target = check_target(args.output, args.overwrite, example="imatrix.gguf")
    text = read_text(args.text)
    is_text = task_of(args.model) is hotshoe.Task.TEXT
    options = load_options(args)
    if is_text:
        options["n_batch"] = max(512, args.chunk_size)
    with bar("loading") as update:
        model = hotshoe.load_model(
            args.model,
            args.device,
            n_ctx=args.chunk_size if is_text else None,
            **options,
            progress=update,
        )
    with model, bar("reading") as update:
        found = collect_importance(
            model, text, chunk_size=args.chunk_size, n_chunks=args.chunks, dataset=str(args.text), progress=update
        )
    found.write(target)
    print(f"{target}: {len(found.weights)} matrices, from {found.n_chunks} chunks of {found.chunk_size} tokens")
    return 0
