"""``hotshoe run MODEL PROMPT``: continue a text."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hotshoe.cli.generating import add_options, load, read_grammar, sampling_options, summary
from hotshoe.cli.options import read_text
from hotshoe.cli.parsing import CommandParser, Subparsers

if TYPE_CHECKING:
    from hotshoe.images import Image
    from hotshoe.runner.stream import Stream
    from hotshoe.runner.text import TextModel
    from hotshoe.sampling import Grammar

__all__ = ["add_parser", "run"]


def add_parser(commands: Subparsers[CommandParser]) -> None:
    """Add the command ``run``."""
    parser = commands.add_parser(
        "run",
        usage="%(prog)s [options] MODEL [PROMPT ...]",
        help="continue a text",
        description="Continue a text, token by token. If PROMPT is missing, the text is read from standard input; "
        "its last newline is removed.",
        epilog="llama.cpp's and Ollama's names of these options work too: -n, -c, -t, -p, -s, --temp, …",
    )
    add_options(parser)
    parser.add_argument("text", nargs="*", metavar="PROMPT", help="the text; several words are joined by spaces")
    parser.add_argument("-f", "--file", type=Path, metavar="FILE", help="read the prompt from a file")
    parser.add_argument("--prompt", help=argparse.SUPPRESS)  # llama.cpp's name
    parser.add_argument(
        "--image",
        action="append",
        type=Path,
        metavar="FILE",
        help="ask about a picture: PROMPT is then a message if the model has a chat format. May be repeated",
    )
    parser.add_argument(
        "--audio",
        action="append",
        type=Path,
        metavar="FILE",
        help="ask about a sound: WAV, or any other kind if soundfile is installed. May be repeated",
    )
    parser.add_argument("-v", "--verbose", action="store_true", help="print on stderr which device ran, and how fast")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the continuation as it comes."""
    grammar = read_grammar(args)
    prompt = _prompt(args)
    with load(args) as model:
        stream = _stream(model, prompt, args.image, args.audio, grammar, sampling_options(args))
        for piece in stream:
            sys.stdout.write(piece)
            sys.stdout.flush()
        sys.stdout.write("\n")
        if args.verbose:
            print(f"{model.why}\n{summary(stream.completion)}", file=sys.stderr)
    return 0


def _stream(
    model: TextModel,
    prompt: str,
    images: list[Path] | None,
    audio: list[Path] | None,
    grammar: Grammar | None,
    options: dict[str, Any],
) -> Stream:
    """Continue the prompt. With pictures or sounds, it is a message if the model has a chat format."""
    if images is None and audio is None:
        return model.stream(prompt, grammar=grammar, **options)
    from hotshoe_core.errors import ChatTemplateError

    pictures = None if images is None else [_picture(path) for path in images]
    try:
        model.chat_template  # noqa: B018
    except ChatTemplateError:
        return model.stream(prompt, images=pictures, audio=audio, grammar=grammar, **options)
    content = [
        *({"type": "image", "image": picture} for picture in pictures or ()),
        *({"type": "audio", "audio": path} for path in audio or ()),
        {"type": "text", "text": prompt},
    ]
    return model.stream_chat([{"role": "user", "content": content}], grammar=grammar, **options)


def _picture(path: Path) -> Image:
    """Read a picture, and say on stderr what of it is not used."""
    from hotshoe.images import read_image

    picture = read_image(path)
    for note in picture.notes:
        print(f"{path}: {note}", file=sys.stderr)
    return picture


def _prompt(args: argparse.Namespace) -> str:
    """The prompt of the arguments, of a file, or of standard input."""
    texts = [" ".join(args.text)] if args.text else []
    if args.prompt is not None:
        texts.append(args.prompt)
    if len(texts) + (args.file is not None) > 1:
        from hotshoe_core.errors import OptionError

        raise OptionError("the prompt is given twice; expected one of PROMPT, -p and -f")
    if texts:
        return texts[0]
    if args.file is not None:
        return read_text(args.file).removesuffix("\n")
    if sys.stdin.isatty():
        end = "Ctrl-Z and Enter" if os.name == "nt" else "Ctrl-D"
        print(f"reading the prompt from standard input, until {end} (to talk: hotshoe chat)", file=sys.stderr)
    return sys.stdin.read().removesuffix("\n")
