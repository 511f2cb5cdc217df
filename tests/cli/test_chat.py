"""`hotshoe chat` and `run`: a chat template by name or file, grammars, and what is missing for them."""

from __future__ import annotations

import io
import json
import re
import sys
from pathlib import Path

import pytest

import hotshoe
from hotshoe.chat import ChatTemplate
from hotshoe.cli import main
from hotshoe_core.errors.install import pip_install

ROOT = Path(__file__).parents[2]
VERSE = str(ROOT / "examples" / "models" / "kjv-3m-q8_0.gguf")  # a base model: it has no chat template
ON = ("--device", "reference", "--ctx", "64")


@pytest.fixture
def prompts(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the templates made of the conversations."""
    seen: list[str] = []
    render = ChatTemplate.render

    def recorded(self: ChatTemplate, *args: object, **options: object) -> str:
        seen.append(render(self, *args, **options))  # type: ignore[arg-type]
        return seen[-1]

    monkeypatch.setattr(ChatTemplate, "render", recorded)
    return seen


def say(monkeypatch: pytest.MonkeyPatch, *lines: str) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("".join(f"{line}\n" for line in lines)))


def test_a_model_without_a_template_is_refused_with_the_option(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["chat", VERSE, *ON]) == 2
    said = capsys.readouterr().err
    assert "--chat-template NAME" in said
    assert "chatml" in said


def test_a_template_by_its_name(
    monkeypatch: pytest.MonkeyPatch, prompts: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    say(monkeypatch, "Hello", "/undo", "/what")
    assert main(["chat", VERSE, *ON, "--chat-template", "chatml", "-n", "2", "-v"]) == 0
    assert prompts == ["<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n"]
    out = capsys.readouterr()
    assert out.out.endswith("\n")
    assert "2 tokens at" in out.err
    assert "unknown command /what; /help lists the commands" in out.err


def test_a_template_from_a_file(
    monkeypatch: pytest.MonkeyPatch, prompts: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "mine.jinja"
    file.write_text("{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}me: ")
    say(monkeypatch, "Hello")
    assert main(["chat", VERSE, *ON, "--chat-template", str(file), "-n", "1", "--system", "Be short"]) == 0
    assert prompts == ["system: Be short\nuser: Hello\nme: "]
    file.write_text("{% for %}")
    assert main(["chat", VERSE, *ON, "--chat-template", str(file)]) == 2
    assert "not valid Jinja2" in capsys.readouterr().err


@pytest.mark.parametrize(("given", "words"), [("chtml", "did you mean 'chatml'?"), ("mine.jinja", "mine.jinja")])
def test_a_template_that_does_not_exist(given: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["chat", VERSE, *ON, "--chat-template", given]) == 2
    assert words in capsys.readouterr().err


SCHEMA = {"type": "object", "properties": {"n": {"type": "integer", "maximum": 9, "minimum": 1}}, "required": ["n"],
          "additionalProperties": False}  # fmt: skip
RUN = ("run", VERSE, "And God said", *ON, "-n", "60", "--seed", "1")


def test_a_schema_as_json_or_in_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("llguidance")
    file = tmp_path / "schema.json"
    file.write_text(json.dumps(SCHEMA))
    for given in (json.dumps(SCHEMA), str(file)):
        assert main([*RUN, "--json-schema", given]) == 0
        assert 1 <= json.loads(capsys.readouterr().out)["n"] <= 9
    assert main([*RUN, "--format", "json"]) == 0
    assert capsys.readouterr().out.lstrip().startswith("{")


@pytest.mark.parametrize(
    ("name", "grammar"), [("g.gbnf", 'root ::= "a" | "b"'), ("g.lark", 'start: "a" | "b"'), ("g", 'root ::= [ab]')]
)  # fmt: skip
def test_a_grammar_in_a_file(name: str, grammar: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("llguidance")
    (tmp_path / name).write_text(grammar)
    assert main([*RUN, "--grammar", str(tmp_path / name)]) == 0
    assert re.fullmatch("[ab]\n", capsys.readouterr().out)


def test_an_invalid_grammar_is_reported_with_its_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("llguidance")
    (tmp_path / "bad.gbnf").write_text('root ::= foo "a"')
    assert main([*RUN, "--grammar", str(tmp_path / "bad.gbnf")]) == 2
    assert "bad.gbnf: the GBNF grammar cannot be used: Rule 'foo' not found" in capsys.readouterr().err


def test_each_answer_begins_the_grammar_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("llguidance")
    (tmp_path / "g").write_text("root ::= [ab]")
    say(monkeypatch, "Hello", "Hello")
    assert main(["chat", VERSE, *ON, "--chat-template", "chatml", "--grammar", str(tmp_path / "g")]) == 0
    assert re.fullmatch("[ab]\n[ab]\n", capsys.readouterr().out)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--json-schema", "{"), "the JSON schema is not JSON"),
        (("--json-schema", "nothing.json"), "nothing.json"),
        (("--grammar", "nothing.gbnf"), "nothing.gbnf"),
    ],
)
def test_a_grammar_that_cannot_be_read(
    options: tuple[str, ...], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*RUN, *options]) == 2
    out = capsys.readouterr()
    assert words in out.err
    assert out.out == ""


def test_without_llguidance_the_message_names_the_extra(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "llguidance", None)
    monkeypatch.setattr(hotshoe, "load_model", None, raising=False)  # found before the model is loaded
    assert main([*RUN, "--json-schema", "{}"]) == 2
    assert pip_install("hotshoe[grammar]") in capsys.readouterr().err
