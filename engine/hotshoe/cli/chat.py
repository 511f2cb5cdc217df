"""``hotshoe chat MODEL``: a conversation in the terminal."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from hotshoe.cli.generating import add_options, load, read_grammar, sampling_options
from hotshoe.cli.options import read_text
from hotshoe.cli.parsing import CommandParser, Subparsers

if TYPE_CHECKING:
    from hotshoe.chat import ChatTemplate
    from hotshoe.runner.text import TextModel

__all__ = ["add_parser", "run"]


def add_parser(commands: Subparsers[CommandParser]) -> None:
    """Add the command ``chat``."""
    parser = commands.add_parser(
        "chat",
        usage="%(prog)s [options] MODEL",
        help="talk with a model",
        description="Talk with a model in its own chat format. /help lists the commands of the conversation. "
        "On a terminal answers are shown as formatted Markdown; in a pipe they are plain text.",
        epilog="llama.cpp's and Ollama's names of these options work too: -n, -c, -t, -s, -sys, --temp, …",
    )
    add_options(parser)
    parser.add_argument("--system", metavar="TEXT", help="an instruction that comes before the conversation")
    parser.add_argument(
        "--chat-template",
        metavar="NAME|FILE",
        help="the chat format: chatml, gemma, llama2, llama3, mistral, phi3, zephyr, the name of a template in the "
        "model file, or a Jinja2 file. Default: the template of the model file",
    )
    parser.add_argument("--plain", action="store_true", help="show answers as the model writes them, on a terminal too")
    parser.add_argument("-v", "--verbose", action="store_true", help="print on stderr how fast each answer was")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Read messages and print answers until the end of input."""
    from hotshoe.cli.conversation import COMMANDS, Conversation
    from hotshoe.cli.terminal import open_reader, open_writer

    grammar = read_grammar(args)
    with load(args) as model:
        if args.chat_template is not None:
            model.chat_template = _template(args.chat_template, model)
        model.chat_template  # noqa: B018  (reports a missing template before the first message)
        print(f"{model.why}\n/help lists commands", file=sys.stderr)
        talk = Conversation(
            model,
            args.system,
            sampling_options(args),
            grammar,
            reader=open_reader(COMMANDS),
            writer=open_writer(plain=args.plain),
            options=args.options,
            verbose=args.verbose,
        )
        talk.loop()
    return 0


def _template(given: str, model: TextModel) -> ChatTemplate:
    """The template in a file, or of a name. Raises ChatTemplateError for an unknown name or an invalid template."""
    from hotshoe.chat import from_metadata, from_source

    path = Path(given)
    if path.suffix or path.is_file():
        return from_source(read_text(path), model.tokenizer, name=given)
    return from_metadata(model.metadata, model.tokenizer, given)
