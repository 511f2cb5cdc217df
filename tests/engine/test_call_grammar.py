"""Calls that a grammar binds: a random model, random schemas, and every format that is known."""

from __future__ import annotations

import random
import re
from typing import Any

import pytest

from hotshoe.chat.call_grammar import call_grammar
from hotshoe.chat.response import ResponseReader, ResponseTemplate
from hotshoe.chat.responses import FORMATS
from hotshoe.sampling import Grammar, GrammarVocabulary
from hotshoe_core.errors import GrammarError

jsonschema = pytest.importorskip("jsonschema")
pytest.importorskip("llguidance")

SPECIAL = (
    *("<tool_call>", "</tool_call>", "<think>", "</think>", "<|channel|>", "<|message|>", "<|start|>", "<|constrain|>"),
    *("<|tool_call>", "<tool_call|>", "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"),
    *("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", "<|open|>", "<|close|>", "<|sep|>"),
    *(
        "<｜tool▁calls▁begin｜>",
        "<｜tool▁call▁begin｜>",
        "<｜tool▁sep｜>",
        "<｜tool▁call▁end｜>",
        "[TOOL_CALLS]",
        "[ARGS]",
    ),
    *("<minimax:tool_call>", "</minimax:tool_call>", "<|START_ACTION|>", "<|END_ACTION|>", "<|tool_call_start|>"),
    *("<|tool_call_end|>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>", "<|python_tag|>", "[THINK]"),
    *("[/THINK]", "<|START_THINKING|>", "<|END_THINKING|>", "<|tool_call:begin|>", "<|tool_call:name|>"),
    *("<|tool_call:args|>", "<|tool_call:end|>", "<|tool_calls|>"),
)
STOPS = ("<|im_end|>", "<|call|>", "<|end|>", "</s>", "<|eot_id|>", "<|eom_id|>")
EXPRESSIVE = [f.name for f in FORMATS if f.calls is not None]


class Vocabulary:
    """A tokenizer of bytes and special tokens."""

    def __init__(self) -> None:
        names = list(dict.fromkeys([*SPECIAL, *STOPS]))
        self.pieces = [bytes([i]) for i in range(256)] + [name.encode() for name in names]
        self.ids = {name: 256 + i for i, name in enumerate(names)}
        self.stop_ids = frozenset(self.ids[name] for name in STOPS)
        self._split = re.compile("|".join(map(re.escape, sorted(names, key=len, reverse=True))))

    def encode(self, text: str, add_special: bool = True) -> list[int]:
        found, start = [], 0
        for match in self._split.finditer(text):
            found += [*text[start : match.start()].encode(), self.ids[match[0]]]
            start = match.end()
        return [*found, *text[start:].encode()]

    def decode(self, ids: list[int], skip_special: bool = True) -> str:
        return b"".join(self.pieces[i] for i in ids if i < 256 or not skip_special).decode("latin-1")

    def piece(self, id: int) -> bytes:
        return self.pieces[id]


TOKENIZER: Any = Vocabulary()
LIKELY = {ord(c): 40.0 for c in '"}]<>/'} | {i: 3.0 for i in range(32, 127) if chr(i) not in '"}]<>/'}
LIKELY |= dict.fromkeys(map(ord, "0123456789.eE+-"), 0.3) | dict.fromkeys(range(256, 400), 60.0)


@pytest.fixture(scope="module")
def vocabulary() -> GrammarVocabulary:
    return GrammarVocabulary(TOKENIZER.pieces, TOKENIZER.stop_ids, sorted(TOKENIZER.ids.values()))


def write(lark: str, vocabulary: GrammarVocabulary, seed: int, most: int = 3000) -> str | None:
    """What a random model writes that a grammar binds; None if it does not end."""
    state, draw, out = Grammar.from_lark(lark).start(vocabulary), random.Random(seed), b""
    for _ in range(most):
        allowed = [i for i, forbidden in enumerate(state.forbidden()) if not forbidden]
        (id,) = draw.choices(allowed, [LIKELY.get(i, 0.05) for i in allowed])
        if id in TOKENIZER.stop_ids:
            return out.decode()
        out += TOKENIZER.pieces[id]
        state.accept(id)
        if state.complete:
            return out.decode()
    return None


def schema(draw: random.Random, depth: int = 0) -> dict[str, Any]:
    kind = draw.choice(
        ["string", "integer", "number", "boolean", "enum", "const", *(["array", "object", "anyOf"] * (depth < 2))]
    )
    if kind == "string":
        lengths = {"minLength": draw.randint(0, 3), "maxLength": draw.randint(3, 9)}
        return {"type": "string"} | (lengths if draw.random() < 0.5 else {})
    if kind in ("integer", "number"):
        return {"type": kind} | (
            {"minimum": draw.randint(-9, 0), "maximum": draw.randint(1, 99)} if draw.random() < 0.7 else {}
        )
    if kind == "boolean":
        return {"type": "boolean"}
    if kind == "enum":
        return {"type": "string", "enum": draw.sample(["red", "light blue", 'say "x"', "ü"], 2)}
    if kind == "const":
        return {"type": "string", "const": "only"}
    if kind == "array":
        return {"type": "array", "items": schema(draw, depth + 1), "minItems": draw.randint(0, 1), "maxItems": 2}
    if kind == "anyOf":
        return {"anyOf": [schema(draw, depth + 1), {"type": "null"}]}
    return parameters(draw, depth + 1)


def parameters(draw: random.Random, depth: int = 0) -> dict[str, Any]:
    names = draw.sample(["city", "unit", "day_of_week", "n", "what"], draw.randint(0, 3))
    properties = {name: schema(draw, depth) for name in names}
    required = [name for name in names if draw.random() < 0.7]
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def tool(name: str, declared: dict[str, Any]) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": declared}}


def read(template: ResponseTemplate, text: str, tools: list[dict[str, Any]]) -> list[dict[str, Any]]:
    reader = ResponseReader(template, "", tools)
    reader.feed(text)
    reader.finish()
    assert not reader.message.get("content"), (text, reader.message)
    assert "tool_calls" in reader.message, (text, reader.message)
    found = reader.message["tool_calls"]
    calls = [call for each in found for call in (each if isinstance(each, list) else [each])]
    return [call["function"] for call in calls]


@pytest.mark.parametrize("name", EXPRESSIVE)
@pytest.mark.parametrize(("types", "values"), [(["string", "null"], ["red", None]), (["string", "integer"], [1, 2])])
def test_types_in_a_list(name: str, types: list[str], values: list[Any], vocabulary: GrammarVocabulary) -> None:
    (known,) = [f for f in FORMATS if f.name == name]
    template = ResponseTemplate.from_json(known.template())
    declared = {"type": types, "enum": values}
    tools = [tool("get", {"type": "object", "properties": {"unit": declared}, "required": ["unit"]})]
    lark = call_grammar(template, tools, TOKENIZER, several=False)
    texts = [text for seed in range(40) if (text := write(lark, vocabulary, seed)) is not None]
    assert texts
    for text in texts:
        (call,) = read(template, text, tools)
        assert call["arguments"]["unit"] in values, text


def test_what_tags_cannot_be_bound_to() -> None:
    declared = {"type": ["string", "null"], "anyOf": [{"maxLength": 3}, {"minLength": 9}]}
    tools = [tool("get", {"type": "object", "properties": {"unit": declared}, "required": ["unit"]})]
    (known,) = [f for f in FORMATS if f.name == "xml"]
    with pytest.raises(GrammarError, match="a text has 'anyOf'"):
        call_grammar(ResponseTemplate.from_json(known.template()), tools, TOKENIZER)
    tools = [tool("get", {"type": "object", "properties": {"unit": {"type": "string", "minLength": "5"}}})]
    with pytest.raises(GrammarError, match=r"minLength is '5'.*expected an integer"):
        call_grammar(ResponseTemplate.from_json(known.template()), tools, TOKENIZER)


@pytest.mark.parametrize("name", EXPRESSIVE)
def test_calls_are_valid_for_random_schemas(name: str, vocabulary: GrammarVocabulary) -> None:
    """There are 1,000 in all."""
    (known,) = [f for f in FORMATS if f.name == name]
    template = ResponseTemplate.from_json(known.template())
    n = seed = 0
    while n < -(-1000 // len(EXPRESSIVE)):
        seed += 1
        draw = random.Random(f"{name} {seed}")
        tools = [tool(each, parameters(draw)) for each in ("get_weather", "get", "x.run")]
        text = write(call_grammar(template, tools, TOKENIZER, several=seed % 2 == 0), vocabulary, seed)
        if text is None:  # it writes a text or a number for ever
            assert seed < 300
            continue
        n += 1
        calls = read(template, text, tools)
        assert calls, text
        assert seed % 2 == 0 or len(calls) == 1
        for call in calls:
            (declared,) = [t["function"]["parameters"] for t in tools if t["function"]["name"] == call["name"]]
            jsonschema.validate(call["arguments"], declared)
