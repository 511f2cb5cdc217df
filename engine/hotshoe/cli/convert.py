"""``hotshoe convert``: a Hugging Face folder to a GGUF file."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    # argparse has no public name for what add_subparsers returns
    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]

__all__ = ["add_parser", "run"]


def add_parser(subparsers: Subparsers) -> None:
    """Adds the command and its options; ``run`` is its ``args.run``."""
    from hotshoe.quantize import FILE_TYPES

    parser = subparsers.add_parser(
        "convert",
        help="convert a Hugging Face folder to a GGUF file",
        description="Converts a model folder (config.json, safetensors, tokenizer files) to one GGUF file.",
    )
    parser.add_argument("source", metavar="SOURCE", type=Path, help="the folder with config.json")
    parser.add_argument(
        "-o", "--output", metavar="FILE", type=Path, help="the file to write (default: SOURCE-TYPE.gguf, here)"
    )
    parser.add_argument(
        "--type", default="f16", metavar="TYPE", help=f"what the large weights become: {', '.join(FILE_TYPES)} (f16)"
    )
    parser.add_argument("--overwrite", action="store_true", help="replace FILE if it is there")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Converts, and prints the path and size of the file. Raises what ``hotshoe.convert.convert`` raises."""
    from hotshoe.cli import progress
    from hotshoe.convert import convert
    from hotshoe_core.errors.text import format_bytes

    output: Path = args.output or Path(f"{args.source.resolve().name}-{args.type.lower()}.gguf")
    with progress.bar(f"converting to {args.type}") as update:
        path = convert(args.source, output, args.type, progress=update, overwrite=args.overwrite)
    print(f"{path} ({format_bytes(path.stat().st_size)})")
    return 0
