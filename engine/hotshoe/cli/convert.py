"""``hotshoe convert``: a Hugging Face folder to a GGUF file."""

from __future__ import annotations

import argparse
from pathlib import Path

from hotshoe.cli.parsing import CommandParser, Subparsers

__all__ = ["add_parser", "run"]


def add_parser(commands: Subparsers[CommandParser]) -> None:
    """Add the command ``convert``."""
    from hotshoe.quantize import FILE_TYPES

    parser = commands.add_parser(
        "convert",
        usage="%(prog)s [options] FOLDER",
        help="convert a Hugging Face folder to a GGUF file",
        description="Convert a model folder (config.json, safetensors, tokenizer files) to one GGUF file.",
    )
    parser.add_argument("source", metavar="FOLDER", type=Path, help="the folder with config.json")
    parser.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        type=Path,
        help="the file to write; default: FOLDER-TYPE.gguf in the current folder",
    )
    parser.add_argument(
        "--type",
        default="f16",
        metavar="TYPE",
        help=f"the file type, which gives the element type of the large weights: {', '.join(FILE_TYPES)}; default: f16",
    )
    parser.add_argument(
        "--mmproj",
        action="store_true",
        help="convert the encoder of pictures or sounds, to mmproj-FOLDER-TYPE.gguf",
    )
    parser.add_argument("--overwrite", action="store_true", help="replace FILE if it exists")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Convert, and print the path and size of the file. Raises as ``hotshoe.convert.convert`` does."""
    from hotshoe.cli import progress
    from hotshoe.convert import convert
    from hotshoe_core.errors.text import format_bytes

    name = f"{'mmproj-' if args.mmproj else ''}{args.source.resolve().name}-{args.type.lower()}.gguf"
    output: Path = args.output or Path(name)
    with progress.bar(f"converting to {args.type}") as update:
        path = convert(args.source, output, args.type, projector=args.mmproj, progress=update, overwrite=args.overwrite)
    print(f"{path} ({format_bytes(path.stat().st_size)})")
    return 0
