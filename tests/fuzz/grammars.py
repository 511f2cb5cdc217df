"""Random grammars in each syntax, sound and damaged: a text is written with each, or it is refused in words."""

from __future__ import annotations

import contextlib
import json
import random
import time
from pathlib import Path
from typing import Any

import numpy as np

import hotshoe
from hotshoe.sampling import Grammar, GrammarVocabulary
from hotshoe_core.errors import GrammarError
from tests.fuzz.fault import Fault

__all__ = ["SEEDS", "SHARE", "run", "setup"]

SEEDS = (1000044, 1000130)  # a lone surrogate: untyped
SHARE = 80
SECONDS = 10.0  # of one case
MODEL = Path(__file__).parents[1] / "data" / "llamacpp" / "LlamaForCausalLM.gguf"
STEPS = 12

_vocabulary: list[GrammarVocabulary] = []

_ODD = (
    *(None, True, False, 0, -1, 1, 3, 2**31, 2**53, 2**63, 2**64, 10**400, -(10**400), 10**5000),
    *(0.5, 1e308, 1e-320, float("nan"), float("inf"), "", "a", "\ud800", "\0", "\u202e", "\x1b[2J", "a" * 5000),
    *([], {}, [[]], [None], {"": {}}, {"type": "x"}, b"a", object()),
)
_SCHEMAS: tuple[Any, ...] = (
    *({"type": "object"}, {"type": "integer"}, {"const": "a b"}, {"enum": [1, "x", None]}, {"$ref": "#"}, True, False),
    *({"type": "string", "maxLength": 5}, {"type": "string", "pattern": "^a+$"}, {"type": "string", "format": "date"}),
    {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "string"}}, "required": ["a"]},
    {"type": "array", "items": {"type": "number", "minimum": -3, "multipleOf": 0.5}, "maxItems": 3},
    {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/x"}], "$defs": {"x": {"type": "boolean"}}},
    {"allOf": [{"type": "object", "properties": {"a": {}}}, {"required": ["b"]}]},
)
_KEYWORDS = (
    *("type", "properties", "required", "items", "enum", "const", "anyOf", "oneOf", "allOf", "not", "$ref", "$defs"),
    *("minimum", "maximum", "exclusiveMinimum", "multipleOf", "minLength", "maxLength", "pattern", "format", "if"),
    *("minItems", "maxItems", "prefixItems", "additionalProperties", "patternProperties", "x-guidance", "uniqueItems"),
)
_REGEXES = ("[0-9]{3}", "(a|b)*c", "a{2,5}", r"\d+\.\d*", ".*", "(?i)yes|no", r"[^\n]{0,40}", r"\p{L}+", "a?" * 30)
_GBNF = (
    'root ::= "yes" | "no"',
    'root ::= item ("," item)*\nitem ::= [a-z]+ | "(" root ")"',
    "root ::= [^\\n]{1,20} # a comment",
    'root ::= ws "{" ws "}"\nws ::= [ \\t\\n]*',
)
_LARK = ('start: "yes" | "no"', 'start: WORD ("," WORD)*\nWORD: /[a-z]+/', 'start: "(" start ")" | "x"', "start: /a*/")
_PIECES = (
    *("root", "start", "::=", ":", "|", "*", "+", "?", "(", ")", "[", "]", "{", "}", "{3}", "{0,99999}", "{5,2}", '"'),
    *("\\", "\\x", "\\u{110000}", "\\ud800", "/", "#", "\n", "^", "$", ".", "-", "(?=a)", "(?P<a>", "\\1", "\\b"),
    *("\ud800", "\0", "é", "🦊", " " * 1000, "(" * 300, "a" * 3000, "%json {}", "%ignore", "<[1]>", "<|x|>", "@a"),
    *("%lark", "[a-z", "[z-a]", "[]", "!root", "missing", 'x[lazy]: "a"'),
)


def setup() -> None:
    _vocabulary[:] = [GrammarVocabulary.from_tokenizer(hotshoe.load_tokenizer(MODEL))]


def run(seed: int) -> str:
    rng = random.Random(seed)
    begun = time.process_time()
    try:
        outcome = _write(_make(rng), rng)
    except GrammarError as error:
        outcome = "refused"
        if not error.message.strip() or len(str(error)) > 20_000:
            raise Fault("escape", f"a message of {len(str(error))} characters") from None
    if (seconds := time.process_time() - begun) > SECONDS:
        raise Fault("slow", f"{seconds:.1f} s until {outcome}")
    return outcome


def _write(grammar: Grammar, rng: random.Random) -> str:
    """Write some tokens, each of those that are allowed, and take some back."""
    state = grammar.start(_vocabulary[0])
    for step in range(STEPS):
        allowed = np.flatnonzero(~state.forbidden())
        if not allowed.size:
            raise Fault("different", f"no token is allowed after {step}, not even the end")
        if state.complete:
            break
        forbidden = np.flatnonzero(state.forbidden())
        if forbidden.size and rng.random() < 0.3:
            _must_refuse(state, int(rng.choice(forbidden)))
        state.accept(int(rng.choice(allowed)))
    copy = state.copy()
    if step and not state.complete:
        copy.rollback(1)
        copy.forbidden()
    return "answered"


def _must_refuse(state: Any, id: int) -> None:
    try:
        state.accept(id)
    except GrammarError:
        return
    raise Fault("different", f"token {id} is forbidden, and was accepted")


def _make(rng: random.Random) -> Grammar:
    kind = rng.randrange(5)
    if kind == 0:
        return Grammar.from_regex(_damaged(rng.choice(_REGEXES), rng))
    if kind == 1:
        return Grammar.from_gbnf(_damaged(rng.choice(_GBNF), rng))
    if kind == 2:
        return Grammar.from_lark(_damaged(rng.choice(_LARK), rng))
    schema = _schema(rng)
    if kind == 3:
        with contextlib.suppress(TypeError, ValueError, RecursionError):
            schema = _damaged(json.dumps(schema), rng)
    return Grammar.from_json_schema(schema, whitespace=rng.random() < 0.7)


def _damaged(text: str, rng: random.Random) -> Any:
    for _ in range(rng.choice((0, 1, 1, 2, 4))):
        at = rng.randrange(len(text) + 1)
        piece = rng.choice(_PIECES)
        kind = rng.randrange(3)
        text = text[:at] + piece + text[at + (kind == 1) :] if kind < 2 else text[:at]
    return text if rng.random() < 0.97 else rng.choice((b"a", None, 5, text + " " * 1_100_000))


def _schema(rng: random.Random) -> Any:
    """A known schema with keywords added or replaced, at any depth; in some cases nested deeply."""
    schema = json.loads(json.dumps(rng.choice(_SCHEMAS)))
    for _ in range(rng.choice((0, 1, 1, 2, 3))):
        place = schema
        while isinstance(place, dict) and place and rng.random() < 0.5:
            place = rng.choice(list(place.values()))
        if isinstance(place, dict):
            value = rng.choice(_ODD) if rng.random() < 0.6 else json.loads(json.dumps(rng.choice(_SCHEMAS)))
            place[rng.choice(_KEYWORDS)] = value
        elif isinstance(place, list):
            place.append(rng.choice(_ODD))
    if rng.random() < 0.1:
        wrap = rng.choice(("items", "not", "additionalProperties"))
        for _ in range(rng.choice((50, 150, 400, 3000))):
            schema = {wrap: schema}
    return schema
