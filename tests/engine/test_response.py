"""Answers read in parts. Oracles: transformers' parser of response templates, and what published templates write."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("regex", reason="hotshoe[serve] is not installed")

from hotshoe.chat import ChatTemplate
from hotshoe.chat.response import ResponseReader, ResponseTemplate
from hotshoe.chat.responses import FORMATS, response_template
from hotshoe_core.errors import ChatTemplateError

TEMPLATES = sorted((Path(__file__).parents[1] / "data" / "chat_templates").glob("*.jinja"))
TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "The weather of a city",
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string"}, "days": {"type": "integer"}, "exact": {"type": "boolean"},
                    "tags": {"type": "array", "items": {"type": "string"}},
                },
            },
        },
    }
]  # fmt: skip
USER = [{"role": "user", "content": "Hi"}]
WRITES_PYTHON = ("ByteDance-Seed-OSS", "openbmb-MiniCPM5-1B")  # lists as Python writes them, which is not JSON
NO_LINES = ("LFM2.5-8B-A1B", "openbmb-MiniCPM5-1B")
ONE_CALL = ("openai-gpt-oss-120b", "meta-llama-Llama-3.1-8B-Instruct")


def call(**arguments: Any) -> dict[str, Any]:
    return {"id": "call12345", "type": "function", "function": {"name": "get_weather", "arguments": arguments}}


MESSAGES: dict[str, dict[str, Any]] = {
    "text": {"content": "Hello there,\n\nyou."},
    "call": {"content": "", "tool_calls": [call(city="Paris", days=3)]},
    "text and call": {"content": "Let me see.", "tool_calls": [call(city='Par"is\n</x> é 東', days=3, exact=True)]},
    "calls": {"content": "Let me see.", "tool_calls": [call(city="Rome", tags=["a", "b"]), call(city="007")]},
    "no arguments": {"content": "", "tool_calls": [call()]},
    "thought": {"content": "It rains.", "reasoning_content": "Hmm."},
    "thought and call": {"content": "So:", "reasoning_content": "Hmm.\nYes.", "tool_calls": [call(city="Oslo")]},
}


def written(path: Path, message: dict[str, Any]) -> tuple[str, str, str]:
    """The source of a template, the prompt, and what the template writes for an answer."""
    source = path.read_text(encoding="utf-8")
    template = ChatTemplate(source, "<s>", "</s>")
    prompt = template.render(USER, TOOLS)
    try:
        whole = template.render([*USER, {"role": "assistant", **message}], TOOLS, False)
    except ChatTemplateError as error:
        pytest.skip(f"the template cannot write it: {error.message[:60]}")
    if "r7b" in path.stem:  # it writes the beginning of the next answer, also if it is not asked to
        whole = whole[: whole.rindex("<|END_OF_TURN_TOKEN|>")]
    if "\\n" in str(calls_of(message)) and path.stem in NO_LINES:
        pytest.skip("the format has no line ends in arguments")
    if whole.startswith(prompt):
        return source, prompt, whole[len(prompt) :]
    anchors = [match.end() for match in response(source).anchor.pattern.finditer(prompt)]
    assert whole.startswith(prompt[: anchors[-1]])
    return source, prompt[: anchors[-1]], whole[anchors[-1] :]


def response(source: str) -> ResponseTemplate:
    found = response_template({}, source)
    assert found is not None
    return found


def read(template: ResponseTemplate, prompt: str, *pieces: str) -> dict[str, Any]:
    reader = ResponseReader(template, prompt, TOOLS)
    for piece in pieces:
        reader.feed(piece)
    reader.finish()
    return reader.message


def calls_of(message: dict[str, Any]) -> list[tuple[str, Any]]:
    calls = [c for entry in message.get("tool_calls", []) for c in (entry if isinstance(entry, list) else [entry])]
    return [(c["function"]["name"], c["function"]["arguments"]) for c in calls]


@pytest.mark.parametrize("name", MESSAGES)
@pytest.mark.parametrize("path", TEMPLATES, ids=lambda p: p.stem)
def test_what_a_template_writes_is_read_back(path: Path, name: str) -> None:
    message = MESSAGES[name]
    source, prompt, text = written(path, message)
    found = read(response(source), prompt, text)
    expected = calls_of(message)
    if path.stem in WRITES_PYTHON:
        expected = [(f, {k: str(v) if isinstance(v, list) else v for k, v in args.items()}) for f, args in expected]
        found_calls = [(f, {k: v for k, v in args.items() if k != "exact"}) for f, args in calls_of(found)]
        expected = [(f, {k: v for k, v in args.items() if k != "exact"}) for f, args in expected]
        assert found_calls == expected
    elif path.stem in ONE_CALL:
        assert calls_of(found) == expected[:1]
    else:
        assert calls_of(found) == expected
    if message["content"] in text and path.stem != "openai-gpt-oss-120b":  # which writes some of it as reasoning
        assert found.get("content", "") == message["content"]
    thought = message.get("reasoning_content", "")
    if thought and thought in text:
        assert found["reasoning_content"] == thought


@pytest.mark.parametrize("name", MESSAGES)
@pytest.mark.parametrize("path", TEMPLATES, ids=lambda p: p.stem)
def test_where_a_text_is_cut_makes_no_difference(path: Path, name: str) -> None:
    source, prompt, text = written(path, MESSAGES[name])
    template = response(source)
    whole = read(template, prompt, text)
    assert read(template, prompt, *text) == whole
    for i in range(1, len(text), 7):
        assert read(template, prompt, text[:i], text[i:]) == whole
        read(template, prompt, text[:i])  # the model stopped here: no error


@pytest.mark.parametrize("name", MESSAGES)
@pytest.mark.parametrize("path", TEMPLATES, ids=lambda p: p.stem)
def test_transformers_reads_the_same(path: Path, name: str) -> None:
    parsing = pytest.importorskip("transformers.utils.chat_parsing")
    source, prompt, text = written(path, MESSAGES[name])
    spec = next(f for f in FORMATS if all(mark in source for mark in f.marks)).template()
    assert read(response(source), prompt, text) == parsing.parse_response(text, spec, prefix=prompt, tools=TOOLS)


HERMES = ResponseTemplate.from_json(next(f for f in FORMATS if f.name == "hermes").template())
PROMPT = "<|im_start|>assistant\n"


@pytest.mark.parametrize(
    "text",
    [
        '<tool_call>{"name": "f", "arguments": {</tool_call>',
        "<tool_call>nothing</tool_call>",
        '<tool_call>{"nome": "f"}</tool_call>',
        '<tool_call>{"name": "f", "arguments": {"x": NaN}}</tool_call>',
        '<tool_call>{"name": "f", "arguments":',
        f"<tool_call>{'[' * 5000}</tool_call>",
    ],
)
def test_what_cannot_be_read_is_content_as_it_was_written(text: str) -> None:
    found = read(HERMES, PROMPT, "Well. ", text)
    assert "tool_calls" not in found
    assert found["content"] == f"Well.\n{text}"
    assert read(HERMES, PROMPT, *f"Well. {text}") == found


def test_arguments_get_the_types_of_the_schema_where_they_have_one() -> None:
    xml = ResponseTemplate.from_json(next(f for f in FORMATS if f.name == "xml").template())
    text = "<tool_call>\n<function=get_weather>\n" + "".join(
        f"<parameter={name}>\n{value}\n</parameter>\n"
        for name, value in {"city": "12", "days": "3.0", "exact": "True", "tags": '["x"]', "other": "5"}.items()
    )
    [(_, arguments)] = calls_of(read(xml, PROMPT, f"{text}</function>\n</tool_call>"))
    assert arguments == {"city": "12", "days": 3, "exact": True, "tags": ["x"], "other": "5"}
    wrong = text.replace("3.0", "three").replace('["x"]', "x")
    [(_, arguments)] = calls_of(read(xml, PROMPT, f"{wrong}</function>\n</tool_call>"))
    assert (arguments["days"], arguments["tags"]) == ("three", "x"), "what does not fit stays a text"


def test_a_file_may_carry_its_own() -> None:
    spec = {"start_anchor": "A:", "fields": {"tool_calls": {"open": "<<", "close": ">>", "content": "json",
            "repeats": True}, "content": {"content": "text"}}}  # fmt: skip
    found = response_template({"tokenizer.response_template": json.dumps(spec)}, "<tool_call>")
    assert found is not None
    assert read(found, "Q A:", 'x <<{"a": 1}>>')["tool_calls"] == [{"a": 1}]
    assert response_template({}, "{{ messages }}") is None


@pytest.mark.parametrize("format", FORMATS, ids=lambda f: f.name)
def test_white_space_without_end_is_read(format: Any) -> None:
    template = ResponseTemplate.from_json(format.template())
    assert read(template, PROMPT, "a", *"\n" * 1000, "b")["content"].split() == ["a", "b"]
    assert read(template, PROMPT, "a" + "\n" * 5000 + "b")["content"].split() == ["a", "b"]


@pytest.mark.parametrize("change", [{}, {"open": "<T>", "content": "json", "close_pattern": "(?:a|a)+b"},
                                    {"open_pattern": "(?:a|a)+b"}])  # fmt: skip
def test_a_pattern_that_takes_too_long_leaves_the_rest_as_content(
    change: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hotshoe.chat.response._TIMEOUT", 0.05)
    spec: dict[str, Any] = {"start_anchor": "A:", "fields": {"content": {}}}
    if change:
        spec["fields"]["x"] = change
    else:
        spec = {"start_anchor_pattern": "(?:a|a)+b", "fields": {"content": {}}}
    found = read(ResponseTemplate.from_json(spec), f"{'a' * 60}c A:", f"<T>{'a' * 60}c", " more")
    assert found["content"].replace("\n", "").endswith(f"{'a' * 60}c more")
    assert "x" not in found


TAGS = {"open": "x", "content": "xml-inline"}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"fields": {}}, "no object 'fields'"),
        ({"start_anchor": None}, "no start_anchor"),
        ({"more": 1}, "unknown key 'more'"),
        ({"version": 2}, "version is 2"),
        ({"fields": {"a": {}, "b": {}}}, "a and b have no 'open'"),
        ({"fields": {"a": {"open": "x", "open_pattern": "y"}}}, "both open and open_pattern"),
        ({"fields": {"a": {"open_pattern": "("}}}, "not a regular expression"),
        ({"fields": {"a": {"open_pattern": "(?P<x>.)"}}}, "goes nowhere"),
        ({"fields": {"a": {"open": "x", "content": "yaml"}}}, "content is 'yaml'"),
        ({"fields": {"a": {"open": "x", "transform": "a {content}"}}}, "mixes a placeholder"),
        ({"fields": {"a": {"open": []}}}, "not a text, or a list of texts"),
        ({"fields": {"a": {"open": "x", "join": "y"}}}, "'join' needs"),
        ({"fields": {"a": {"open": "x", "content": []}}}, "content is"),
        ({"fields": {"a": {"open": "x", "content_args": []}}}, "content_args is not an object"),
        ({"fields": {"a": {"open": "x", "content": "xml-inline"}}}, "tag_pattern is not a regular expression"),
        ({"fields": {"a": TAGS | {"content_args": {"tag_pattern": "<a>(.*?)</a>"}}}}, "no group 'key'"),
        ({"fields": {"a": {"open": "x", "content_args": {"value_parser": "json"}}}}, "value_parser is not an object"),
        ({"fields": {"a": {"open": "x", "content_args": {"value_parser": {"name": "yaml"}}}}}, "content is 'yaml'"),
        ({"fields": {"a": {"open": "x", "content_args": {"line_sep": 5}}}}, "line_sep is 5; expected a text"),
        ({"fields": {"a": {"open": "x", "content_args": {"kv_sep": ""}}}}, "kv_sep is ''; expected a text"),
        ({"fields": {"a": {"open": "x", "content_args": {"string_delims": ["a"]}}}}, "string_delims"),
    ],
)
def test_a_template_that_is_not_valid(change: dict[str, Any], words: str) -> None:
    spec = {"start_anchor": "A:", "fields": {"content": {}}} | change
    with pytest.raises(ChatTemplateError, match=words):
        ResponseTemplate.from_json(spec)


@pytest.mark.parametrize("format", FORMATS, ids=lambda f: f.name)
def test_every_format_is_a_valid_template_that_transformers_takes(format: Any) -> None:
    parsing = pytest.importorskip("transformers.utils.chat_parsing")
    ResponseTemplate.from_json(format.template())
    parsing.ResponseParser(format.template(), prefix="")
