"""The terminal of `hotshoe chat`: how messages are read, and how answers are shown. In a pipe all is plain text."""

from __future__ import annotations

import contextlib
import os
import re
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from hotshoe_core.errors.install import pip_install
from hotshoe_core.errors.text import legible, printable

if TYPE_CHECKING:
    from prompt_toolkit import PromptSession
    from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
    from rich.console import Console, ConsoleOptions, RenderResult
    from rich.live import Live
    from rich.markdown import Markdown

__all__ = ["Reader", "Writer", "open_reader", "open_writer"]

_SECONDS = 0.08  # between two pictures of the same unfinished block
_QUOTES = '"""'
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
_THEME = {
    "markdown.code": "bold",
    "markdown.h1": "bold",
    "markdown.h2": "bold",
    "markdown.h3": "bold",
    "markdown.item.bullet": "dim",
    "markdown.item.number": "dim",
    "markdown.block_quote": "dim",
}


class Reader(Protocol):
    """Reads messages."""

    keys: str
    """What the help says of the keys."""

    def read(self, draft: str = "") -> str | None:
        """A message of one or several lines; None at the end of input. draft: the text to begin with."""


class Writer(Protocol):
    """Shows an answer while it is written."""

    shows_parts: bool
    """Whether reasoning is told from the answer. Otherwise all is shown as the model writes it."""

    def show(self, kind: str, text: str) -> None:
        """Show more of the answer. kind: "content" or "reasoning"."""

    def end(self) -> None:
        """End the answer."""


def open_reader(commands: Mapping[str, tuple[str, str]]) -> Reader:
    """The best reader that is installed. Without a terminal, it reads lines.

    commands: names that it completes, with their arguments and what they do.
    """
    if not (sys.stdin.isatty() and sys.stdout.isatty()) or os.environ.get("TERM") == "dumb":
        return LineReader()
    try:
        import prompt_toolkit  # noqa: F401
        import regex  # noqa: F401 | it reads the parts of an answer
    except ImportError as error:
        install = pip_install("hotshoe[chat]")
        print(f"{error.name} is not installed: no history, completion or dim thinking ({install})", file=sys.stderr)
        with contextlib.suppress(ImportError):  # line editing, where the platform has it
            import readline  # noqa: F401
        return LineReader()
    return PromptReader(commands)


def open_writer(*, plain: bool = False) -> Writer:
    """The writer for stdout: Markdown on a terminal, and otherwise plain text."""
    if plain or not sys.stdout.isatty() or os.environ.get("TERM") == "dumb":
        return PlainWriter()
    from rich.console import Console
    from rich.theme import Theme

    return MarkdownWriter(Console(theme=Theme(_THEME), highlight=False))


class LineReader:
    """Reads lines. A message of several lines begins and ends with three quotes."""

    keys = f"{_QUOTES:<15} begin and end a message of several lines; Ctrl-C ends an answer"

    def read(self, draft: str = "") -> str | None:
        """A message; None at the end of input."""
        on_terminal = sys.stdin.isatty()
        if draft:
            print(f"your message was: {legible(draft)}", file=sys.stderr)
        try:
            line = input("> " if on_terminal else "")
            if not line.startswith(_QUOTES):
                return line.strip()
            lines = [line[3:]]
            while not lines[-1].endswith(_QUOTES):
                lines.append(input("… " if on_terminal else ""))
        except EOFError:
            return None
        lines[-1] = lines[-1][:-3]
        return "\n".join(lines).strip()


class PromptReader:
    """Reads with prompt_toolkit: history, completion of commands, and messages of several lines."""

    keys = (
        f"{'Alt-Enter':<15} begin a new line; {_QUOTES} begins and ends a message of several lines\n"
        f"{'Ctrl-C':<15} end an answer, or clear the line"
    )

    def __init__(self, commands: Mapping[str, tuple[str, str]]) -> None:
        self._session: PromptSession[str] = _session(commands)

    def read(self, draft: str = "") -> str | None:
        """A message; None at the end of input."""
        try:
            text: str = self._session.prompt("> ", default=draft)
        except EOFError:
            return None
        text = text.strip()
        if text.startswith(_QUOTES) and text.endswith(_QUOTES) and len(text) > 5:
            text = text[3:-3].strip()
        return text


def _session(commands: Mapping[str, tuple[str, str]]) -> PromptSession[str]:
    from prompt_toolkit import PromptSession
    from prompt_toolkit.auto_suggest import AutoSuggestFromHistory
    from prompt_toolkit.completion import Completer, Completion, PathCompleter
    from prompt_toolkit.document import Document
    from prompt_toolkit.history import FileHistory, History, InMemoryHistory

    paths = PathCompleter(expanduser=True)

    class Commands(Completer):
        def get_completions(self, document: Document, event: Any) -> Any:
            text = document.text_before_cursor
            command, space, rest = text.partition(" ")
            if space and commands.get(command, ("", ""))[0] == "FILE":
                yield from paths.get_completions(Document(rest), event)
            elif text.startswith("/") and not space:
                for name, (_, what) in commands.items():
                    if name.startswith(text):
                        yield Completion(name, -len(text), display_meta=what)

    history: History = InMemoryHistory()
    try:
        history = FileHistory(_history_file())
    except OSError as error:
        print(f"the history is not kept: {error}", file=sys.stderr)
    return PromptSession(
        history=history,
        auto_suggest=AutoSuggestFromHistory(),
        completer=Commands(),
        complete_while_typing=True,
        multiline=True,
        prompt_continuation="… ",
        key_bindings=_keys(),
    )


def _keys() -> KeyBindings:
    """Enter sends, Alt-Enter begins a line, Ctrl-C clears the text."""
    from prompt_toolkit.key_binding import KeyBindings

    keys = KeyBindings()

    @keys.add("enter")
    @keys.add("c-j")  # Enter that was typed while an answer was written
    def _(event: KeyPressEvent) -> None:
        text = event.current_buffer.text.strip()
        is_open = text.startswith(_QUOTES) and (len(text) < 6 or not text.endswith(_QUOTES))
        event.current_buffer.insert_text("\n") if is_open else event.current_buffer.validate_and_handle()

    @keys.add("escape", "enter")
    def _(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    @keys.add("c-c")
    def _(event: KeyPressEvent) -> None:
        if event.current_buffer.text:
            event.current_buffer.reset()
        else:
            event.app.exit(exception=KeyboardInterrupt)

    return keys


def _history_file() -> Path:
    """The file of the messages that were typed, which only its owner can read. Raises OSError."""
    if sys.platform == "win32":
        root = os.environ.get("LOCALAPPDATA", "")
    elif sys.platform == "darwin":
        root = os.path.expanduser("~/Library/Application Support")
    else:
        root = os.environ.get("XDG_STATE_HOME", "")
    path = Path(root if os.path.isabs(root) else os.path.expanduser("~/.local/state"), "hotshoe", "chat-history")
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600))
    return path


class PlainWriter:
    """Writes the text as it comes."""

    shows_parts = False

    def show(self, kind: str, text: str) -> None:
        """Write more text."""
        sys.stdout.write(text)
        sys.stdout.flush()

    def end(self) -> None:
        """Write the last line break."""
        sys.stdout.write("\n")
        sys.stdout.flush()


class MarkdownWriter:
    """Shows Markdown while it is written, and reasoning dim above it.

    Blocks that are complete are printed once. Only the last block, which may still grow, is drawn again and again; if
    it is taller than the terminal, its end is shown until it is complete.
    """

    shows_parts = True

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live: Live | None = None
        self._pending = ""
        self._drawn = 0.0
        self._is_thinking = False
        self._n_blocks = 0

    def show(self, kind: str, text: str) -> None:
        """Show more text. Characters that a terminal would act on are shown as escapes."""
        from rich.text import Text

        text = _safe(text)
        if kind == "reasoning":
            self._close_block()
            self._console.print(Text(text, style="dim"), end="", soft_wrap=True)
            self._is_thinking = True
            return
        self._end_thinking()
        self._pending += text
        now = time.monotonic()
        if now - self._drawn >= _SECONDS:
            self._draw()
            self._drawn = time.monotonic()

    def end(self) -> None:
        """Print what is left, and an empty line."""
        self._end_thinking()
        self._close_block()
        self._n_blocks = 0
        self._console.print()

    def _end_thinking(self) -> None:
        if self._is_thinking:
            self._is_thinking = False
            self._console.print("\n")

    def _draw(self) -> None:
        from rich.live import Live

        complete, self._pending = split_blocks(self._pending)
        if self._live is None:
            self._live = Live(console=self._console, auto_refresh=False, transient=True)
            self._live.start()
        if complete.strip():
            self._print(complete)
        self._live.update(_Tail(markdown(self._pending), self._n_blocks > 0), refresh=True)

    def _close_block(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None
        if self._pending.strip():
            self._print(self._pending)
        self._pending, self._drawn = "", 0.0

    def _print(self, text: str) -> None:
        if self._n_blocks:
            self._console.print()
        self._console.print(markdown(text))
        self._n_blocks += 1


class _Tail:
    """The last lines of something, as many as fit on the terminal."""

    def __init__(self, content: Markdown, is_apart: bool) -> None:
        """is_apart: whether an empty line comes first."""
        self._content = content
        self._is_apart = is_apart

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from rich.segment import Segment

        lines = console.render_lines(self._content, options.update(height=None), pad=False)
        if self._is_apart:
            lines.insert(0, [])
        for line in lines[-max(1, console.height - 2) :]:
            yield from line
            yield Segment.line()


def markdown(text: str) -> Markdown:
    """Text as Markdown. HTML is shown as text, and the address of a link is written out."""
    from rich.markdown import Markdown

    found = Markdown("", code_theme="ansi_dark", hyperlinks=False)
    found.markup, found.parsed = text, _parse(text)
    return found


def split_blocks(text: str) -> tuple[str, str]:
    """The blocks of Markdown that are complete, and the last one, which may still grow."""
    starts = [token.map[0] for token in _parse(text) if token.level == 0 and token.map and token.nesting >= 0]
    if len(starts) < 2:
        return "", text
    lines = text.split("\n")
    return "\n".join(lines[: starts[-1]]) + "\n", "\n".join(lines[starts[-1] :])


def _parse(text: str) -> Any:
    from markdown_it import MarkdownIt

    return MarkdownIt("commonmark", {"html": False}).enable(["table", "strikethrough"]).parse(text)


def _safe(text: str) -> str:
    """Text whose control characters, and those that change the direction of writing, are written as escapes."""
    return _CONTROL.sub(lambda found: printable(found[0]), text)
