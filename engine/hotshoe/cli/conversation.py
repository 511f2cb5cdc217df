"""The conversation of `hotshoe chat`: the messages so far, and the commands that change them."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Container, Iterator
from contextlib import closing
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hotshoe.cli.generating import summary
from hotshoe.cli.options import read_text
from hotshoe.cli.terminal import Reader, Writer
from hotshoe.cli.wording import in_options
from hotshoe_core.errors import AudioError, ChatTemplateError, HotshoeError, ImageError, InputTooLongError, OptionError
from hotshoe_core.errors.text import legible

if TYPE_CHECKING:
    from hotshoe.chat.parts import Parts
    from hotshoe.chat.response import ResponseTemplate
    from hotshoe.runner.stream import Stream
    from hotshoe.runner.text import TextModel
    from hotshoe.sampling import Grammar

__all__ = ["COMMANDS", "Conversation"]

COMMANDS = {
    "/clear": ("", "forget the conversation, but not the instruction"),
    "/system": ("TEXT", "start a new conversation with this instruction"),
    "/retry": ("", "answer your last message again"),
    "/edit": ("", "take back your last message and its answer, and write it again"),
    "/undo": ("", "take back your last message and its answer"),
    "/image": ("FILE", "show this picture to the model, with your next message"),
    "/audio": ("FILE", "let the model hear this sound, with your next message"),
    "/think": ("on|off", "let the model think before it answers, or not"),
    "/save": ("FILE", "write the conversation to a JSON file"),
    "/load": ("FILE", "go on with a conversation that was saved"),
    "/stats": ("", "show how fast the last answer was, and how full the context is"),
    "/help": ("", "show this list"),
    "/quit": ("", "leave; Ctrl-D does so too"),
}
"""The commands: their arguments, and what they do."""


def _path_of(endings: str) -> re.Pattern[str]:
    """A path in a message, as terminals paste it: in quotes, or with a backslash before each space."""
    return re.compile(
        rf"""(?P<q>['"])(?P<quoted>[^'"]+\.(?:{endings}))(?P=q)"""
        rf"""|(?<!\S)(?P<plain>(?:[^\s'"\\]|\\\ )+\.(?:{endings}))(?=\s|$)""",
        re.IGNORECASE,
    )


_PICTURE, _SOUND = _path_of("png|jpe?g|webp|gif|bmp|tiff?"), _path_of("wav|flac|mp3|ogg|opus")

_ROLES = ("system", "user", "assistant", "tool")


class Conversation:
    """Reads messages, and answers them with a model."""

    def __init__(
        self,
        model: TextModel,
        system: str | None,
        sampling: dict[str, Any],
        grammar: Grammar | None = None,
        *,
        reader: Reader,
        writer: Writer,
        options: Container[str] = (),
        verbose: bool = False,
    ) -> None:
        """grammar: what restricts each answer. options: those of the command. verbose: print each answer's speed."""
        self.model = model
        self.system = system
        self.sampling = sampling
        self.grammar = grammar
        self.reader = reader
        self.writer = writer
        self.options = options
        self.verbose = verbose
        self.last = "no answer was given yet"
        self.variables: dict[str, Any] = {}
        """More variables of the chat template."""
        self.saved: Path | None = None
        self._response = _response_template(model) if writer.shows_parts else None
        self._draft = ""
        self._given: dict[str, list[str]] = {}
        """The pictures and sounds of the next message, by the name in a saved one."""
        self.start()

    def start(self) -> None:
        """Begin a new conversation."""
        self.messages: list[dict[str, Any]] = [{"role": "system", "content": self.system}] if self.system else []

    def loop(self) -> None:
        """Read and answer messages until /quit or the end of input."""
        while True:
            try:
                draft, self._draft = self._draft, ""
                text = self.reader.read(draft)
                if text is None or text == "/quit":
                    return
                if text:
                    self.take(text)
            except HotshoeError as error:  # such as a full context: after /clear the conversation can go on
                hint = f" ({error.hint})" if error.hint and error.hint not in str(error) else ""
                say("error:", legible(in_options(f"{error}{hint}", self.options)))
            except OSError as error:
                say("error:", legible(str(error)))
            except KeyboardInterrupt:
                say("\n(/quit leaves)")

    def take(self, text: str) -> None:
        """Handle one input: a command or a message."""
        command, _, argument = text.partition(" ")
        if not text.startswith("/") or _is_file(text):  # a pasted path may begin with a slash
            self.take_message(text)
            return
        if command not in COMMANDS:
            near = get_close_matches(command, COMMANDS, 1)
            hint = f"did you mean {near[0]}?" if near else "/help lists the commands"
            say(f"unknown command {legible(command)}; {hint}")
            return
        wanted = COMMANDS[command][0]
        if bool(argument.strip()) != bool(wanted):
            raise OptionError(f"{command} takes {wanted or 'no argument'}, but got {argument.strip() or 'nothing'}")
        actions: dict[str, Callable[[str], None]] = {
            "/clear": lambda _: self.start(),
            "/system": self.instruct,
            "/retry": lambda _: self.retry(),
            "/edit": lambda _: self.edit(),
            "/undo": lambda _: self.undo(),
            "/image": self.show,
            "/audio": self.play,
            "/think": self.think,
            "/save": self.save,
            "/load": self.load,
            "/stats": lambda _: say(self.last),
            "/help": lambda _: say(_help(self.reader.keys)),
        }
        actions[command](argument.strip())

    def instruct(self, text: str) -> None:
        """Start a new conversation with an instruction."""
        self.system = text
        self.start()

    def show(self, name: str) -> None:
        """Keep a picture for the next message. Raises ImageError if the model cannot read it."""
        from hotshoe.images import read_image

        if not self.model.sees:
            raise ImageError("this model reads no pictures", hint="--mmproj FILE names its encoder of pictures")
        path = Path(name).expanduser()
        picture = read_image(path)
        for note in picture.notes:
            say(f"({note})")
        self._given.setdefault("images", []).append(str(path.absolute()))
        say(f"({path.name}: {picture.width} x {picture.height}; it goes with your next message)")

    def play(self, name: str) -> None:
        """Keep a sound for the next message. Raises AudioError if the model cannot read it."""
        from hotshoe.audio import read_audio

        if not self.model.hears:
            raise AudioError("this model reads no sounds", hint="--mmproj FILE names its encoder of sounds")
        path = Path(name).expanduser()
        sound = read_audio(path)
        self._given.setdefault("audio", []).append(str(path.absolute()))
        say(f"({path.name}: {sound.seconds:.1f} s; it goes with your next message)")

    def think(self, given: str) -> None:
        """Set the chat template's variable ``enable_thinking``. Raises OptionError if the template does not have it."""
        if given not in ("on", "off"):
            raise OptionError(f"/think takes on or off, but got {given!r}")
        if "enable_thinking" not in self.model.chat_template.source:
            raise OptionError("the chat template of this model cannot switch thinking on or off")
        self.variables["enable_thinking"] = given == "on"

    def answer(self) -> None:
        """Answer the last message. If Ctrl-C comes before the first word, the message is taken back."""
        text: dict[str, str] = {"content": "", "reasoning": ""}
        try:
            stream, parts = self.begin()
            with closing(stream):
                for kind, piece in _pieces(stream, parts):
                    text[kind] += piece
                    self.writer.show(kind, piece)
        except KeyboardInterrupt:
            self.writer.end()
            if not any(text.values()):
                self._draft = self._take_back() or ""
                say("(stopped before the answer began)")
                return
        except BaseException:
            self.writer.end()
            self.messages.pop()
            raise
        else:
            self.writer.end()
        reasoning = {"reasoning_content": text["reasoning"]} if text["reasoning"] else {}
        self.messages.append({"role": "assistant", "content": text["content"]} | reasoning)
        done = stream.completion
        self.last = f"{summary(done)}; {done.n_prompt + len(done.tokens)} of {self.model.n_ctx} tokens of the context"
        if self.verbose:
            say(self.last)
        if done.finish_reason == "context":
            say("(the context is full: the answer ends here)")

    def begin(self) -> tuple[Stream, Parts | None]:
        """Start the answer. If the conversation is longer than the context, forget its oldest exchanges."""
        while True:
            try:
                return self._stream()
            except InputTooLongError:
                users = self._users()
                if len(users) < 2:
                    raise
                del self.messages[users[0] : users[1]]
                say("(the context is full: the oldest message and its answer were forgotten)")

    def _stream(self) -> tuple[Stream, Parts | None]:
        prompt = self.model.prepare_chat([_in_parts(m) for m in self.messages], **self.variables)
        parts = None
        if self._response is not None:
            from hotshoe.chat.parts import Parts
            from hotshoe.chat.response import ResponseReader

            parts = Parts(ResponseReader(self._response, prompt.text))
        return self.model.stream(prompt.items, grammar=self.grammar, skip_special=parts is None, **self.sampling), parts

    def _users(self) -> list[int]:
        return [i for i, message in enumerate(self.messages) if message["role"] == "user"]

    def _take_back(self) -> str | None:
        """Remove the last message of the user and what follows; None if there is no such message."""
        users = self._users()
        if not users:
            say("no message can be taken back: the conversation is empty")
            return None
        last = self.messages[users[-1]]
        text: str = last["content"]
        self._given = {name: last[name] for name in ("images", "audio") if name in last}
        del self.messages[users[-1] :]
        return text

    def undo(self) -> None:
        """Take back the last message and its answer."""
        self._take_back()

    def edit(self) -> None:
        """Take back the last message; the next prompt begins with its text."""
        self._draft = self._take_back() or ""

    def retry(self) -> None:
        """Answer the last message again."""
        if (text := self._take_back()) is not None:
            self.take_message(text)

    def take_message(self, text: str) -> None:
        """Answer a message of the user, even if it begins with a slash.

        The paths of pictures and sounds in it are replaced by the files, if the model reads such files.
        """
        for reads, pattern, show in ((self.model.sees, _PICTURE, self.show), (self.model.hears, _SOUND, self.play)):
            for found in pattern.finditer(text) if reads else ():
                path = found["quoted"] or found["plain"].replace("\\ ", " ")
                if _is_file(path):
                    show(path)
                    text = text.replace(found[0], "").strip()
        self.messages.append({"role": "user", "content": text, **self._given})
        self._given = {}
        self.answer()

    def save(self, name: str) -> None:
        """Write the messages to a file. Raises OptionError if the file exists and is not a saved conversation."""
        from hotshoe.atomic_file import atomic_write

        path = Path(name).expanduser()
        if path.exists() and path != self.saved:
            try:
                _read_messages(path)
            except (OptionError, UnicodeDecodeError):
                raise OptionError(f"{path} exists, and is not a saved conversation; choose another name") from None
        with atomic_write(path) as temporary:
            text = json.dumps({"messages": self.messages}, ensure_ascii=False, indent=2)
            temporary.write_text(text + "\n", encoding="utf-8")
        self.saved = path
        say(f"saved {len(self.messages)} messages: /load {path}")

    def load(self, name: str) -> None:
        """Go on with the messages of a file."""
        path = Path(name).expanduser()
        self.messages = _read_messages(path)
        first = self.messages[0] if self.messages else {"role": ""}
        self.system = first["content"] if first["role"] == "system" else None
        self.saved = path
        say(f"loaded {len(self.messages)} messages")


def _read_messages(path: Path) -> list[dict[str, Any]]:
    """The messages of a saved conversation. Raises OptionError if the file does not have the form of one."""
    expected = 'expected {"messages": [{"role": "user", "content": "…"}, …]}, as /save writes it'
    try:
        found = json.loads(read_text(path))
    except ValueError as error:
        raise OptionError(f"{path} is not JSON: {error}; {expected}") from None
    messages = found.get("messages") if isinstance(found, dict) else None
    if not isinstance(messages, list):
        raise OptionError(f"{path} has no messages; {expected}")
    for i, message in enumerate(messages):
        if not (
            isinstance(message, dict) and message.get("role") in _ROLES and isinstance(message.get("content"), str)
        ):
            raise OptionError(f"{path}: messages[{i}] has no role or no text; {expected}")
        for name in ("images", "audio"):
            given = message.get(name, [])
            if not isinstance(given, list) or not all(isinstance(each, str) for each in given):
                raise OptionError(f"{path}: messages[{i}].{name} is not a list of paths")
    return messages


def _is_file(path: str) -> bool:
    """Whether a text is the path of a file. A text may be too long for a path."""
    try:
        return Path(path).expanduser().is_file()
    except (OSError, RuntimeError):
        return False


def _in_parts(message: dict[str, Any]) -> dict[str, Any]:
    """A message with its pictures and sounds as parts of its content."""
    parts: list[dict[str, Any]] = [{"type": "image", "image": path} for path in message.get("images", [])]
    parts += [{"type": "audio", "audio": path} for path in message.get("audio", [])]
    if not parts:
        return message
    return {"role": message["role"], "content": [*parts, {"type": "text", "text": message["content"]}]}


def _response_template(model: TextModel) -> ResponseTemplate | None:
    """How to read the model's answers in parts; None if the format is unknown, or a package is missing."""
    try:
        from hotshoe.chat.responses import response_template
    except ImportError:
        return None
    try:
        return response_template(model.metadata, model.chat_template.source)
    except ChatTemplateError:
        return response_template({}, model.chat_template.source)


def _pieces(stream: Stream, parts: Parts | None) -> Iterator[tuple[str, str]]:
    """The answer as it comes: "content" or "reasoning", and a text. A call of a tool is content."""
    if parts is None:
        for piece in stream:
            yield "content", piece
        return
    from hotshoe.chat.parts import Text

    done = stream.completion
    while done.finish_reason is None:
        found = parts.feed(stream.advance())
        if done.finish_reason is not None:
            found = [*found, *parts.finish()]
        for part in found:
            if isinstance(part, Text):
                yield part.kind, part.text
            else:
                yield "content", f"\n\n```json\n{part.name}({part.arguments})\n```\n\n"


def say(*texts: str) -> None:
    """Print a remark on stderr, which is not part of an answer."""
    print(*texts, file=sys.stderr)


def _help(keys: str) -> str:
    lines = [f"{f'{name} {argument}':<15} {what}" for name, (argument, what) in COMMANDS.items()]
    return "\n".join([*lines, keys])
