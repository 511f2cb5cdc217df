"""generate, stream, chat and stream_chat with json_schema=, regex= and grammar=; the limits of JSON schemas."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hotshoe.runner.stream import Completion, Stream
from hotshoe.runner.text import TextModel
from hotshoe.sampling import Grammar, GrammarVocabulary
from hotshoe.sampling._json_schema import prepare
from hotshoe_core.errors import GrammarError
from tests.support.text_models import load

pytest.importorskip("llguidance")

SCHEMA = {"type": "object", "properties": {"n": {"type": "integer", "maximum": 99, "minimum": 10}}, "required": ["n"]}
GREEDY: dict[str, Any] = {"temperature": 0, "max_tokens": 40}
MESSAGES = [{"role": "user", "content": "hello camera"}]


@pytest.fixture(scope="module")
def model(gguf: Callable[..., Path]) -> Iterator[TextModel]:
    with load(gguf("Qwen2ForCausalLM"), "reference") as opened:
        yield opened


@pytest.mark.parametrize("schema", [SCHEMA, json.dumps(SCHEMA)], ids=["mapping", "text"])
def test_a_json_schema(model: TextModel, schema: Any) -> None:
    done = model.generate("the camera", json_schema=schema, **GREEDY)
    assert done.finish_reason == "stop"
    assert 10 <= json.loads(done.text)["n"] <= 99


def test_a_regular_expression_and_a_grammar(model: TextModel) -> None:
    assert re.fullmatch("[0-4]{3}x?", model.generate("the", regex="[0-4]{3}x?", **GREEDY).text)
    gbnf = 'root ::= ("ab" | "c"){2} "d"'
    for grammar in (gbnf, Grammar.from_gbnf(gbnf)):
        assert re.fullmatch("(ab|c){2}d", "".join(model.stream("the", grammar=grammar, **GREEDY)))


def test_one_grammar_restricts_every_prompt_of_a_list(model: TextModel) -> None:
    texts = model.generate(["the", "a", "one two"], regex="[0-4]{3}", **GREEDY)
    assert all(re.fullmatch("[0-4]{3}", done.text) for done in texts)
    texts = model.generate(["the", "a", "one"], grammar=[Grammar.from_regex("b+c"), None, 'root ::= "xyz"'], **GREEDY)
    assert re.fullmatch("b+c?", texts[0].text)
    assert texts[1].text == model.generate("a", **GREEDY).text
    assert texts[2].text == "xyz"


def test_chat_gives_the_whole_answer_and_stream_chat_its_pieces(model: TextModel) -> None:
    whole = model.chat(MESSAGES, json_schema=SCHEMA, **GREEDY)
    stream = model.stream_chat(MESSAGES, json_schema=SCHEMA, **GREEDY)
    assert isinstance(whole, Completion)
    assert isinstance(stream, Stream)
    assert whole.text == "".join(stream) == stream.completion.text
    assert 10 <= json.loads(whole.text)["n"] <= 99
    assert re.fullmatch("[01]{2}", model.chat(MESSAGES, regex="[01]{2}", **GREEDY).text)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"json_schema": {}, "regex": "a"}, "json_schema and regex are given; expected one of them"),
        ({"regex": "a", "grammar": ["x"]}, "regex and grammar are given; expected one of them"),
        ({"regex": "("}, "the regular expression cannot be used"),
        ({"regex": 5}, "the pattern is int; expected str"),
        ({"grammar": 'a ::= "b"'}, "No 'root' rule found"),
        ({"json_schema": "[1]"}, r"^the JSON schema is \[1\]; expected an object"),
        ({"json_schema": "{"}, "the JSON schema is not JSON"),
    ],
    ids=str,
)
def test_invalid_grammars_are_refused_at_once(model: TextModel, options: dict[str, Any], words: str) -> None:
    for call in (model.generate, model.stream):
        with pytest.raises(GrammarError, match=words):
            call("the", **options)


# JSON schemas


@pytest.fixture(scope="module")
def vocabulary() -> GrammarVocabulary:
    return GrammarVocabulary([bytes([b]) for b in range(256)] + [b"<eos>"], stop_ids=[256])


def accepted(vocabulary: GrammarVocabulary, schema: Any, text: str, **options: Any) -> int:
    """How many characters of ``text`` the schema's grammar accepts."""
    state = Grammar.from_json_schema(schema, **options).start(vocabulary)
    for i, byte in enumerate(text.encode()):
        if state.forbidden()[byte]:
            return i
        state.accept(byte)
    return len(text)


OPEN = {"type": "object", "properties": {"a": {"type": "integer"}}}
OTHER = {"properties": {"b": {"type": "boolean"}}, "required": ["b"]}


@pytest.mark.parametrize(
    ("text", "n"),
    [
        ('{"a": 1}', 8),
        ('{\n  "a": 1\n}', 12),
        ("{" + " " * 50, 2),
        ("{" + "\n" * 50, 2),
        ("{\n" + " " * 50, 22),
        ("{\n" + "\t" * 50, 2),
        ('{"a": ' + "1" * 50, 6 + 16),
        ('{"a": 1, "b"', 7),
    ],
)
def test_spaces_digits_and_properties_have_an_end(vocabulary: GrammarVocabulary, text: str, n: int) -> None:
    assert accepted(vocabulary, OPEN, text) == n


def test_compact_json(vocabulary: GrammarVocabulary) -> None:
    assert accepted(vocabulary, OPEN, '{"a":1}', whitespace=False) == 7
    assert accepted(vocabulary, OPEN, '{"a": 1}', whitespace=False) == 5


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        (OPEN | {"additionalProperties": True}, '{"a": 1, "b": [2]}'),
        (OPEN | {"additionalProperties": {"type": "string"}}, '{"b": "x"}'),
        (OPEN | {"patternProperties": {"^x": {}}}, '{"a": 1, "xy": 2}'),
        (OPEN | {"required": ["b"]}, '{"a": 1, "b": 2}'),
        ({"type": "object"}, '{"any": {"thing": [1, 2.5e9]}}'),
        ({"allOf": [OPEN, OTHER]}, '{"a": 1, "b": true}'),
        ({"$defs": {"p": OPEN}, "$ref": "#/$defs/p", "allOf": [OTHER]}, '{"a": 1, "b": true}'),
        ({"anyOf": [OPEN], "oneOf": [OTHER]}, '{"a": 1, "b": true}'),
        ({"$defs": {"p": OPEN}, "$ref": "#/$defs/p", "anyOf": [OTHER, OTHER]}, '{"a": 1, "b": true}'),
        ({"type": "integer", "minimum": 0, "maximum": 10**17}, str(10**17)),
        ({"type": "integer", "minimum": 10**17}, str(10**17)),
        ({"type": ["integer", "null"]}, "null"),
        ({"enum": [10**17, {"properties": 1}]}, str(10**17)),
        ({"type": "number"}, "6.02e23"),
        ({"$defs": {"p": OPEN}, "type": "array", "items": {"$ref": "#/$defs/p"}}, '[{"a": 1}, {}]'),
    ],
    ids=str,
)
def test_what_a_schema_asks_for_is_allowed(vocabulary: GrammarVocabulary, schema: Any, text: str) -> None:
    assert accepted(vocabulary, schema, text) == len(text)


def test_the_given_schema_is_not_changed() -> None:
    schema = {"properties": {"a": {"type": "integer"}}}
    before = json.dumps(schema)
    assert json.loads(prepare(schema))["additionalProperties"] is False
    assert json.dumps(schema) == before


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ('{"items": ' * 5000 + "{}" + "}" * 5000, "nested too deeply"),
        ({"minimum": float("nan")}, "is not JSON"),
        ('{"minimum": NaN}', "is not JSON"),
        ({"type": "number", "maximum": 10**400}, "out of range"),
        ({"const": "x" * 1_000_001}, "has 1,000,014 characters; expected at most 1,000,000"),
        ({"type": "integer", "minimum": "x"}, "cannot be used"),
        ({"properties": {}, "required": [[]]}, "cannot be used"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_hostile_schemas_are_refused(schema: Any, words: str) -> None:
    with pytest.raises(GrammarError, match=words):
        Grammar.from_json_schema(schema)


@pytest.mark.parametrize("make", [Grammar.from_regex, Grammar.from_lark, Grammar.from_gbnf])
def test_a_huge_grammar_is_refused_before_it_is_parsed(make: Callable[[str], Grammar]) -> None:
    with pytest.raises(GrammarError, match="has 10,000,000 characters; expected at most 1,000,000"):
        make(" " * 10_000_000)
