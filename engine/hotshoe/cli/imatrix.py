"""``hotshoe imatrix MODEL --text FILE -o OUT``: how much each column of a model's matrices matters, for quantize."""

from __future__ import annotations

import argparse
from pathlib import Path

from hotshoe.cli.generating import add_backend_options, backend_params, placement_params
from hotshoe.cli.progress import bar

__all__ = ["add_parser", "run"]


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the command and its options; ``run`` is its ``args.run``."""
    parser = subparsers.add_parser(
        "imatrix",
        help="make an importance matrix for quantize",
        description="Lets a model read a text, and writes how large each input of each of its matrices was: an "
        "importance matrix for `hotshoe quantize --imatrix`, in llama.cpp's format.",
    )
    parser.add_argument("model", help="a GGUF file, best in f32, f16 or bf16")
    parser.add_argument("--text", type=Path, required=True, metavar="FILE", help="a text like those it will be used on")
    parser.add_argument("-o", "--output", type=Path, metavar="OUT", default=Path("imatrix.gguf"), help="(imatrix.gguf)")
    parser.add_argument("--chunk-size", type=int, default=512, metavar="N", help="tokens read at a time (512)")
    parser.add_argument("--chunks", type=int, metavar="N", help="at most so many chunks (default: the whole text)")
    parser.add_argument("--overwrite", action="store_true", help="replace OUT if it is there")
    add_backend_options(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Writes the file, and prints what is in it. Raises what ``hotshoe.quantize.collect_importance`` raises."""
    import hotshoe
    from hotshoe.atomic_file import check_target
    from hotshoe.loading import task_of
    from hotshoe.quantize import collect_importance
    from hotshoe.runner.params import RunnerParams

    target = check_target(args.output, args.overwrite, example="imatrix.gguf")
    text = args.text.read_text(encoding="utf-8")
    is_text = task_of(args.model) is hotshoe.Task.TEXT
    with bar("loading") as update:
        model = hotshoe.load_model(
            args.model,
            args.device,
            n_ctx=args.chunk_size if is_text else None,
            params=backend_params(args),
            runner=RunnerParams(n_batch=max(512, args.chunk_size)) if is_text else None,
            placement=placement_params(args),
            progress=update,
        )
    with model, bar("reading") as update:
        found = collect_importance(
            model, text, chunk_size=args.chunk_size, n_chunks=args.chunks, dataset=str(args.text), progress=update
        )
    found.write(target)
    print(f"{target}: {len(found.weights)} matrices, from {found.n_chunks} chunks of {found.chunk_size} tokens")
    return 0
