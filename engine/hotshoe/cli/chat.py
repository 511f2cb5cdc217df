"""``hotshoe chat MODEL``: a conversation in the terminal."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Container
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hotshoe.cli.generating import add_options, load, read_grammar, sampling_options, summary
from hotshoe.cli.options import read_text
from hotshoe.cli.parsing import CommandParser, Subparsers
from hotshoe.cli.wording import in_options

if TYPE_CHECKING:
    from hotshoe.chat import ChatTemplate
    from hotshoe.runner.stream import Stream
    from hotshoe.runner.text import TextModel
    from hotshoe.sampling import Grammar

__all__ = ["add_parser", "run"]

_HELP = '''/clear          forget the conversation
/system TEXT    start a new conversation with this instruction
/undo           take back your last message and its answer
/again          answer your last message again
/stats          show how fast the last answer was
/quit           leave (Ctrl-D too)
"""             begin and end a message of several lines; Ctrl-C ends an answer'''


def add_parser(commands: Subparsers[CommandParser]) -> None:
    """Add the command ``chat``."""
    parser = commands.add_parser(
        "chat",
        usage="%(prog)s [options] MODEL",
        help="talk with a model",
        description="Talk with a model in its own chat format. /help lists the commands of the conversation.",
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
    parser.add_argument("-v", "--verbose", action="store_true", help="print on stderr how fast each answer was")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Read messages and print answers until the end of input."""
    with contextlib.suppress(ImportError):  # line editing and history, where the platform has it
        import readline  # noqa: F401
    grammar = read_grammar(args)
    with load(args) as model:
        if args.chat_template is not None:
            model.chat_template = _template(args.chat_template, model)
        model.chat_template  # noqa: B018  (reports a missing template before the first message)
        print(f"{model.why}\n/help lists commands", file=sys.stderr)
        sampling = sampling_options(args)
        Conversation(model, args.system, sampling, grammar, options=args.options, verbose=args.verbose).loop()
    return 0


def _template(given: str, model: TextModel) -> ChatTemplate:
    """The template in a file, or of a name. Raises ChatTemplateError for an unknown name or an invalid template."""
    from hotshoe.chat import from_metadata, from_source

    path = Path(given)
    if path.suffix or path.is_file():
        return from_source(read_text(path), model.tokenizer, name=given)
    return from_metadata(model.metadata, model.tokenizer, given)


class Conversation:
    """The messages so far, and the commands that change them."""

    def __init__(
        self,
        model: TextModel,
        system: str | None,
        sampling: dict[str, Any],
        grammar: Grammar | None = None,
        *,
        options: Container[str] = (),
        verbose: bool = False,
    ) -> None:
        """grammar: what restricts each answer. options: those of the command. verbose: print each answer's speed."""
        self.model = model
        self.sampling = sampling
        self.grammar = grammar
        self.options = options
        self.verbose = verbose
        self.last = "no answer was given yet"
        self.start(system)

    def start(self, system: str | None) -> None:
        self.messages = [{"role": "system", "content": system}] if system else []

    def loop(self) -> None:
        """Read and answer messages until /quit or the end of input."""
        from hotshoe_core.errors import HotshoeError
        from hotshoe_core.errors.text import legible

        while True:
            try:
                text = _read()
                if text is None or text == "/quit":
                    return
                if text:
                    self.take(text)
            except HotshoeError as error:  # such as a full context: after /clear the conversation can go on
                print("error:", legible(in_options(str(error), self.options)), file=sys.stderr)
            except KeyboardInterrupt:
                print("\n(/quit leaves)", file=sys.stderr)

    def take(self, text: str) -> None:
        """Handle one input: a command or a message."""
        command, _, argument = text.partition(" ")
        if not text.startswith("/"):
            self.messages.append({"role": "user", "content": text})
            self.answer()
        elif command == "/help":
            print(_HELP, file=sys.stderr)
        elif command == "/clear":
            self.start(None)
        elif command == "/system":
            self.start(argument)
        elif command in ("/undo", "/again"):
            self.take_back(keep_question=command == "/again")
        elif command == "/stats":
            print(self.last, file=sys.stderr)
        else:
            print(f"unknown command {command}; /help lists the commands", file=sys.stderr)

    def answer(self) -> None:
        stream = self.begin()
        try:
            for piece in stream:
                sys.stdout.write(piece)
                sys.stdout.flush()
        except KeyboardInterrupt:
            stream.close()
        except BaseException:
            self.messages.pop()
            raise
        sys.stdout.write("\n")
        self.messages.append({"role": "assistant", "content": stream.completion.text})
        self.last = summary(stream.completion)
        if self.verbose:
            print(self.last, file=sys.stderr)
        if stream.completion.finish_reason == "context":
            print("(the context is full: the answer ends here)", file=sys.stderr)

    def begin(self) -> Stream:
        """Start the answer. If the conversation is longer than the context, forget its oldest exchanges."""
        from hotshoe_core.errors import InputTooLongError

        while True:
            try:
                return self.model.stream_chat(self.messages, grammar=self.grammar, **self.sampling)
            except InputTooLongError:
                users = [i for i, m in enumerate(self.messages) if m["role"] == "user"]
                if len(users) < 2:
                    self.messages.pop()
                    raise
                del self.messages[users[0] : users[1]]
                print("(the context is full: the oldest message and its answer were forgotten)", file=sys.stderr)

    def take_back(self, *, keep_question: bool) -> None:
        last = max((i for i, m in enumerate(self.messages) if m["role"] == "user"), default=None)
        if last is None:
            print("no message can be taken back: the conversation is empty", file=sys.stderr)
            return
        del self.messages[last + keep_question :]
        if keep_question:
            self.answer()


def _read() -> str | None:
    """A message of one or several lines; None at the end of input."""
    prompt = "> " if sys.stdin.isatty() else ""
    try:
        line = input(prompt)
        if not line.startswith('"""'):
            return line.strip()
        lines = [line[3:]]
        while not lines[-1].endswith('"""'):
            lines.append(input("… " if prompt else ""))
    except EOFError:
        return None
    lines[-1] = lines[-1][:-3]
    return "\n".join(lines).strip()
