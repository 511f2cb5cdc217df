"""``hotshoe quantize IN OUT --type q4_k_m``: make a smaller GGUF file."""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import TYPE_CHECKING

from hotshoe.cli.parsing import CommandParser, Subparsers
from hotshoe.cli.tables import table

if TYPE_CHECKING:
    from hotshoe.quantize import QuantizationPlan, QuantizeParams

__all__ = ["add_parser", "run"]


def add_parser(commands: Subparsers[CommandParser]) -> None:
    """Add the command ``quantize``."""
    from hotshoe.quantize import FILE_TYPES

    parser = commands.add_parser(
        "quantize",
        usage="%(prog)s [options] IN [OUT]",
        help="make a GGUF file smaller",
        description="Write a model to another GGUF file with its weights quantized, byte for byte as llama.cpp's tool "
        "does.",
    )
    parser.add_argument(
        "source", metavar="IN", type=Path, help="a GGUF file in f32, f16 or bf16; of a split model, any of its files"
    )
    parser.add_argument(
        "output",
        metavar="OUT",
        type=Path,
        nargs="?",
        help="the file to write; default: the name of IN with TYPE, in this folder",
    )
    parser.add_argument(
        "--type",
        default="q4_k_m",
        metavar="TYPE",
        help=f"the file type, a mix of block formats: {', '.join(FILE_TYPES)}; default: q4_k_m",
    )
    parser.add_argument(
        "--imatrix", type=Path, metavar="FILE", help="an importance matrix of this model, made by `hotshoe imatrix`"
    )
    parser.add_argument(
        "--output-type", metavar="TYPE", help="element type of the output matrix, which gives the logits"
    )
    parser.add_argument("--token-embedding-type", metavar="TYPE", help="element type of the token embedding")
    parser.add_argument(
        "--tensor-type",
        action="append",
        default=[],
        metavar="PATTERN=TYPE",
        help="element type of the tensors whose names match a regular expression: attn_v=q8_0. May be given several "
        "times; the first pattern that matches a name decides",
    )
    parser.add_argument("--pure", action="store_true", help="one type for all weights, instead of the mix")
    parser.add_argument("--leave-output", action="store_true", help="do not quantize the output matrix")
    parser.add_argument(
        "--allow-requantize",
        action="store_true",
        help="quantize weights that are quantized already, which loses quality",
    )
    parser.add_argument("--threads", type=int, metavar="N", help="CPU threads; default: all cores")
    parser.add_argument("--dry-run", action="store_true", help="write nothing; print old and new type of each tensor")
    parser.add_argument("--overwrite", action="store_true", help="replace OUT if it exists")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Quantize, and print path and size of the file. Raises as ``hotshoe.quantize_model`` does."""
    from hotshoe.cli import progress
    from hotshoe.quantize import plan_quantization, quantize_model
    from hotshoe_core.errors.text import format_bytes

    params = _params(args)
    if args.dry_run:
        _print(plan_quantization(args.source, args.type, params))
        return 0
    name = re.sub(r"-\d{5}-of-\d{5}$", "", args.source.stem)  # without the number of a split file
    output = args.output or Path(f"{name}-{args.type.lower()}.gguf")
    with progress.bar(f"quantizing to {args.type}") as update:
        path = quantize_model(
            args.source, output, args.type, params, n_threads=args.threads, progress=update, overwrite=args.overwrite
        )
    print(f"{path} ({format_bytes(path.stat().st_size)})")
    return 0


def _params(args: argparse.Namespace) -> QuantizeParams:
    from hotshoe.quantize import QuantizeParams
    from hotshoe_core.errors import OptionError

    pairs = []
    for given in args.tensor_type:
        pattern, equals, dtype = given.rpartition("=")
        if not (pattern and equals and dtype):
            raise OptionError(
                f"--tensor-type is {given!r}; expected PATTERN=TYPE", hint="for example --tensor-type attn_v=q8_0"
            )
        pairs.append((pattern, dtype))
    return QuantizeParams(
        imatrix=args.imatrix,
        output_type=args.output_type,
        token_embedding_type=args.token_embedding_type,
        tensor_types=tuple(pairs),
        pure=args.pure,
        leave_output=args.leave_output,
        allow_requantize=args.allow_requantize,
    )


def _print(plan: QuantizationPlan) -> None:
    """Print one line for each tensor, then the sum. A tensor that keeps its type has no new one."""
    from hotshoe_core.errors.text import format_bytes, legible

    rows = [
        (
            legible(change.name),
            " x ".join(map(str, change.shape)),
            change.old.name.lower(),
            change.new.name.lower() if change.new != change.old else "",
            format_bytes(change.nbytes_old),
            format_bytes(change.nbytes_new) if change.new != change.old else "",
            "needs an importance matrix" if change.lacks_importance else "",
        )
        for change in plan.changes
    ]
    print(*table(("tensor", "shape", "type", "new type", "size", "new size", ""), rows, "<><<>><"), sep="\n")
    print(
        f"{plan.file_type.name}: {format_bytes(plan.nbytes_old)} -> {format_bytes(plan.nbytes_new)}, "
        f"{plan.bits_per_weight:.2f} bits per weight"
    )
