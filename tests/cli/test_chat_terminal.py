"""`hotshoe chat` on a terminal: a pseudo-terminal whose screen is what the program wrote."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import select
import subprocess
import sys
import time
from pathlib import Path

import pytest
from rich.console import Console

from hotshoe.cli.terminal import MarkdownWriter, split_blocks
from tests.support.scripted import make_scripted

pty = pytest.importorskip("pty", reason="needs a pseudo-terminal")
pytest.importorskip("prompt_toolkit", reason="hotshoe[chat] is not installed")
pytest.importorskip("regex", reason="hotshoe[chat] is not installed")

ROOT = Path(__file__).parents[2]
VERSE = str(ROOT / "examples" / "models" / "kjv-3m-q8_0.gguf")
CTRL_C, CTRL_D, ALT_ENTER, UP = "\x03", "\x04", "\x1b\r", "\x1b[A"


class Terminal:
    """A running `hotshoe chat`. ``text`` is what it wrote, without the codes for colours and the cursor."""

    def __init__(self, state: Path, *arguments: str, **variables: str) -> None:
        self.pid, self._file = pty.fork()
        if self.pid == 0:
            settings = {"XDG_STATE_HOME": str(state), "TERM": "xterm", "COLUMNS": "80", "LINES": "24"}
            settings |= {"PROMPT_TOOLKIT_NO_CPR": "1"} | variables
            command = [sys.executable, "-m", "hotshoe", "chat", *arguments]
            os.execve(sys.executable, command, os.environ | settings)
        self._raw = b""
        self._at = 0

    @property
    def text(self) -> str:
        return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]|\x1b[()=>][AB0]?|\r", "", self._raw.decode(errors="replace"))

    def wait_for(self, words: str) -> str:
        """Read until the words come; return what came before them, since the last call."""
        end = time.monotonic() + 30
        while words not in self.text[self._at :]:
            assert time.monotonic() < end, f"{words!r} is missing in:\n{self.text[self._at :]}"
            if select.select([self._file], [], [], 0.1)[0]:
                try:
                    self._raw += os.read(self._file, 65536)
                except OSError:
                    raise AssertionError(f"ended without {words!r}:\n{self.text}") from None
        before, found, _ = self.text[self._at :].partition(words)
        self._at += len(before + found)
        return before

    def send(self, text: str) -> None:
        os.write(self._file, text.encode())

    def leave(self) -> int:
        """Press Ctrl-D; return the exit code."""
        self.send(CTRL_D)
        end = time.monotonic() + 30
        with contextlib.suppress(OSError):  # the end of a pseudo-terminal
            while True:
                assert time.monotonic() < end, f"it does not end:\n{self.text[self._at :]}"
                if select.select([self._file], [], [], 0.1)[0]:
                    self._raw += os.read(self._file, 65536)
        _, status = os.waitpid(self.pid, 0)
        os.close(self._file)
        return os.waitstatus_to_exitcode(status)


@pytest.fixture
def agent(tmp_path: Path) -> str:
    """A model that thinks, and writes Markdown."""
    answer = [
        "<think>",
        "The answer",
        " is clear.",
        "</think>",
        "# Title",
        "\n\nSome **bold** text",
        ".\n\n",
        "- one\n",
    ]
    return str(make_scripted(tmp_path / "agent.gguf", answer, ["unused"]))


def test_markdown_thinking_history_and_several_lines(tmp_path: Path, agent: str) -> None:
    terminal = Terminal(tmp_path, agent, "--device", "cpu")
    terminal.wait_for("/help lists commands")
    terminal.wait_for(">")
    terminal.send(f"first{ALT_ENTER}second\r")
    terminal.wait_for("The answer is clear.")
    assert "<think>" not in terminal.wait_for("Title")
    assert "#" not in terminal.wait_for("Some bold text.")
    assert "*" not in terminal.wait_for("• one")
    saved = tmp_path / "saved.json"
    terminal.wait_for(">")
    terminal.send(f"/save {saved}\r")
    terminal.wait_for("saved 2 messages")
    question, answer = json.loads(saved.read_text())["messages"]
    assert question == {"role": "user", "content": "first\nsecond"}
    assert answer["content"] == "# Title\n\nSome **bold** text.\n\n- one"
    assert answer["reasoning_content"] == "The answer is clear."
    terminal.wait_for(">")
    terminal.send("/sta")
    terminal.wait_for("how fast the last answer was")  # the menu of completions
    terminal.send("\t\r")
    terminal.wait_for("tokens of the context")
    terminal.wait_for(">")
    assert terminal.leave() == 0
    history = tmp_path / "hotshoe" / "chat-history"
    assert history.stat().st_mode & 0o077 == 0
    again = Terminal(tmp_path, agent, "--device", "cpu")
    again.wait_for(">")
    again.send(f"{UP}{UP}{UP}")
    again.wait_for("second")
    again.send(CTRL_C)  # clears the line
    assert again.leave() == 0


def test_ctrl_c_stops_the_answer_and_keeps_the_conversation(tmp_path: Path) -> None:
    options = ("--chat-template", "chatml", "--temp", "0", "--ctx", "512", "--device", "cpu", "--plain")
    terminal = Terminal(tmp_path, VERSE, *options)
    terminal.wait_for(">")
    terminal.send("And the Lord said\r")
    terminal.wait_for(" LORD")  # of the answer: the prompt has "Lord"
    terminal.send(CTRL_C)
    terminal.wait_for(">")
    terminal.send(f"/save {tmp_path / 'kept.json'}\r")
    terminal.wait_for("saved 2 messages")
    messages = json.loads((tmp_path / "kept.json").read_text())["messages"]
    assert len(messages[1]["content"]) > 3
    terminal.wait_for(">")
    terminal.send(CTRL_C)
    terminal.wait_for("(/quit leaves)")
    terminal.send(f"/undo\r/save {tmp_path / 'undone.json'}\r")
    terminal.wait_for("saved 0 messages")
    terminal.wait_for(">")  # of the next line: a Ctrl-D that comes before would belong to this one
    assert terminal.leave() == 0


def test_without_prompt_toolkit_it_says_so_once_and_works(tmp_path: Path, agent: str) -> None:
    (tmp_path / "prompt_toolkit.py").write_text("raise ImportError(name='prompt_toolkit')\n")
    terminal = Terminal(tmp_path, agent, "--device", "cpu", PYTHONPATH=f"{tmp_path}{os.pathsep}{ROOT}")
    said = terminal.wait_for(">")
    assert said.count("prompt_toolkit is not installed") == 1
    assert "chat]" in said
    for _ in range(2):
        terminal.send("hello\r")
        terminal.wait_for("Some bold text.")
        assert "not installed" not in terminal.wait_for(">")
    assert terminal.leave() == 0


def test_load_edit_and_wrong_files(tmp_path: Path, agent: str) -> None:
    good, bad, worse = (tmp_path / f"{name}.json" for name in ("good", "bad", "worse"))
    worse.write_text('{"messages": [{"role": "user", "content": "a", "images": 5}]}')
    messages = [{"role": "system", "content": "be short"}, {"role": "user", "content": "the old question"}]
    good.write_text(json.dumps({"messages": messages}))
    bad.write_text('{"messages": [{"role": "user"}]}')
    lines = [f"/load {bad}", f"/load {worse}", "/" + "x" * 5000, f"/save {bad}",
             "/load nowhere.json", f"/load {good}", "/retry", "/edit", "/clear",
             f"/save {tmp_path / 'new.json'}", "/think on", "/think", "/clear now", "/cleer"]  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-m", "hotshoe", "chat", agent, "--device", "cpu"], input="\n".join(lines),
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.count("# Title") == 1  # plain text in a pipe
    assert done.stdout.count("<think>") == 1
    for words in ("messages[0] has no role or no text", "images is not a list of paths", "unknown command /xxx",
                  "is not a saved conversation", "nowhere.json",
                  "loaded 2 messages",
                  "your message was: the old question", "cannot switch thinking", "/think takes on|off",
                  "/clear takes no argument", "did you mean /clear?"):  # fmt: skip
        assert words in done.stderr, done.stderr
    assert json.loads((tmp_path / "new.json").read_text())["messages"] == messages[:1]
    assert bad.read_text() == '{"messages": [{"role": "user"}]}'


def written(*texts: str, kind: str = "content") -> str:
    """What a terminal is told."""
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=60, height=10, color_system=None)
    writer = MarkdownWriter(console)
    for text in texts:
        writer.show(kind, text)
    writer.end()
    return screen.getvalue()


def test_what_a_model_writes_cannot_move_the_cursor() -> None:
    hostile = "a\x1b]0;title\x07 b\x1b[2J c\u202e\x9b31m"
    for kind in ("content", "reasoning"):
        said = written(hostile, kind=kind)
        assert "\x1b]" not in said
        assert "\x1b[2J" not in said
        assert "\u202e" not in said
        assert r"\x1b[2J" in said


def test_html_and_addresses_are_shown() -> None:
    said = written("<div>a</div>\n\n<b>bold</b> [here](https://example.com/x)")
    assert "<div>a</div>" in said
    assert "<b>bold</b>" in said
    assert "https://example.com/x" in said
    assert "\x1b]8" not in said  # no hidden address


MARKDOWN = """# A

text

- a
- b

1. c

```py
x = 1


y
```

| a | b |
|---|---|
| 1 | 2 |

end"""


def test_blocks_are_cut_where_they_end() -> None:
    """However the text comes, its blocks are those of the whole text."""
    for step in (1, 3, 7):
        blocks, pending = [], ""
        for i in range(0, len(MARKDOWN), step):
            complete, pending = split_blocks(pending + MARKDOWN[i : i + step])
            blocks.append(complete)
        assert "".join(blocks) + pending == MARKDOWN
        assert [b for b in blocks if "```" in b] == ["```py\nx = 1\n\n\ny\n```\n\n"]
    assert split_blocks("one paragraph\nof two lines") == ("", "one paragraph\nof two lines")


def test_a_block_that_is_taller_than_the_terminal_is_whole_at_the_end() -> None:
    lines = [f"- item {i}\n" for i in range(40)]
    said = written(*lines)
    last = said[said.rindex("item 0") :]
    assert all(f"item {i}" in last for i in range(40))
