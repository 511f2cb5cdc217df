"""``hotshoe chat MODEL``: a conversation in the terminal."""

from __future__ import annotations

import argparse
import contextlib
import sys
from typing import TYPE_CHECKING, Any

from hotshoe.cli.generating import add_options, load, options, summary

if TYPE_CHECKING:
    from hotshoe.runner.generation import Stream
    from hotshoe.runner.text import TextModel

__all__ = ["add_parser", "run"]

_HELP = '''/clear          forget the conversation
/system TEXT    begin a new one with this instruction
/undo           take back your last message and its answer
/again          another answer to your last message
/stats          how fast the last answer was
/quit           leave (Ctrl-D too)
"""             begin and end a message of several lines; Ctrl-C ends an answer'''


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the command ``chat``."""
    parser = subparsers.add_parser(
        "chat", help="talk with a model", description="Talk with a model in its own chat format. /help lists commands."
    )
    add_options(parser)
    parser.add_argument("--system", metavar="TEXT", help="an instruction that comes before the conversation")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Reads messages and prints answers until the end of input."""
    with contextlib.suppress(ImportError):  # line editing and history, where the platform has it
        import readline  # noqa: F401
    sampling = options(args)
    with load(args) as model:
        model.chat_template  # noqa: B018  (a model without one is refused before the first message)
        print(f"{model.why}\n/help lists commands", file=sys.stderr)
        Conversation(model, args.system, sampling).loop()
    return 0


class Conversation:
    """The messages so far, and what the commands do with them."""

    def __init__(self, model: TextModel, system: str | None, sampling: dict[str, Any]) -> None:
        self.model = model
        self.sampling = sampling
        self.last = "nothing was answered yet"
        self.start(system)

    def start(self, system: str | None) -> None:
        self.messages = [{"role": "system", "content": system}] if system else []

    def loop(self) -> None:
        """Until /quit or the end of input."""
        from hotshoe_core.errors import HotshoeError
        from hotshoe_core.errors.text import legible

        while True:
            try:
                text = _read()
                if text is None or text == "/quit":
                    return
                if text:
                    self.take(text)
            except HotshoeError as error:  # a full context, say: the conversation can go on, after /clear
                print("error:", legible(str(error)), file=sys.stderr)
            except KeyboardInterrupt:
                print("\n(/quit leaves)", file=sys.stderr)

    def take(self, text: str) -> None:
        """One line of input: a command or a message."""
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
            print(f"{command} is no command; /help lists them", file=sys.stderr)

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
        if stream.completion.finish_reason == "context":
            print("(the context is full: the answer ends here)", file=sys.stderr)

    def begin(self) -> Stream:
        """The answer's stream. When the conversation has outgrown the context, its oldest exchanges are left out."""
        from hotshoe_core.errors import InputTooLongError

        while True:
            try:
                return self.model.chat(self.messages, **self.sampling)
            except InputTooLongError:
                users = [i for i, m in enumerate(self.messages) if m["role"] == "user"]
                if len(users) < 2:
                    self.messages.pop()
                    raise
                del self.messages[users[0] : users[1]]
                print("(the context is full: your oldest message and its answer are forgotten)", file=sys.stderr)

    def take_back(self, *, keep_question: bool) -> None:
        at = max((i for i, m in enumerate(self.messages) if m["role"] == "user"), default=None)
        if at is None:
            print("there is no message to take back", file=sys.stderr)
            return
        del self.messages[at + keep_question :]
        if keep_question:
            self.answer()


def _read() -> str | None:
    """A message, perhaps of several lines; None at the end of input."""
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
