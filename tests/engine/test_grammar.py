"""Grammars: what may come next, against Python's own json and re; and without llguidance, what to do about it."""

from __future__ import annotations

import json
import re
import sys
from typing import Any

import numpy as np
import pytest

from hotshoe.sampling import Grammar, GrammarState, GrammarVocabulary, Sampler, SamplingParams
from hotshoe.tokenizers import load_tokenizer
from hotshoe_core.errors import GrammarError, MissingPackageError
from hotshoe_core.errors.install import pip_install
from tests.support.vocabularies import byte_bpe, keys, recorded

EOS = 256
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 4},
        "n": {"type": "integer", "minimum": 0, "maximum": 99},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 2},
    },
    "required": ["name", "n", "tags"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def vocabulary() -> GrammarVocabulary:
    """Every byte, the end of a text, some longer tokens, and one whose name is ordinary text."""
    pytest.importorskip("llguidance")
    tokens = [bytes([b]) for b in range(256)] + [b"<eos>", b"ab", b'": ', b"true", b"<tool>", b"}\n"]
    return GrammarVocabulary(tokens, stop_ids=[EOS], special_ids=[260])


def allowed(state: GrammarState) -> set[int]:
    return set(np.flatnonzero(~state.forbidden()).tolist())


def generate(state: GrammarState, pieces: list[bytes], seed: int, limit: int = 400) -> bytes:
    """A random text under the grammar; every token equally likely."""
    sampler = Sampler(SamplingParams(temperature=1, top_k=0, top_p=1, min_p=0, seed=seed), len(pieces), state)
    logits, out = np.zeros(len(pieces), np.float32), b""
    for _ in range(limit):
        id = sampler.sample(logits).id
        sampler.accept(id)
        if id == EOS:
            break
        out += pieces[id]
        if sampler.complete:
            break
    return out


PIECES = [bytes([b]) for b in range(256)] + [b"", b"ab", b'": ', b"true", b"", b"}\n"]


@pytest.mark.parametrize("seed", range(8))
def test_json_that_fits_the_schema(vocabulary: GrammarVocabulary, seed: int) -> None:
    state = Grammar.from_json_schema(SCHEMA, whitespace=False).start(vocabulary)
    value = json.loads(generate(state, PIECES, seed))
    assert state.complete
    assert set(value) == {"name", "n", "tags"}
    assert len(value["name"]) <= 4
    assert 0 <= value["n"] <= 99
    assert set(value["tags"]) <= {"a", "b"}
    assert len(value["tags"]) <= 2


@pytest.mark.parametrize("pattern", ["ab+c", "(true|false)", "[a-c]{2,3}é?", "[0-9]{4}-[0-9]"])
def test_text_that_matches_the_expression(vocabulary: GrammarVocabulary, pattern: str) -> None:
    for seed in range(5):
        text = generate(Grammar.from_regex(pattern).start(vocabulary), PIECES, seed)
        assert re.fullmatch(pattern, text.decode())


def test_lark_and_gbnf_say_the_same(vocabulary: GrammarVocabulary) -> None:
    lark = Grammar.from_lark('start: "(" start ")" | "x"').start(vocabulary)
    gbnf = Grammar.from_gbnf('root ::= "(" root ")" | "x"').start(vocabulary)
    for state in (lark, gbnf):
        for byte in b"((x)":
            assert not state.complete
            assert allowed(state) == (set(b"(x") if byte != ord(")") else set(b")"))
            state.accept(byte)
        assert allowed(state) == set(b")")
        state.accept(ord(")"))
        assert state.complete
        assert state.may_end
        assert allowed(state) == {EOS}


def test_a_text_may_end_before_it_must(vocabulary: GrammarVocabulary) -> None:
    state = Grammar.from_regex("ab*").start(vocabulary)
    assert not state.may_end
    assert allowed(state) == {ord("a"), 257}  # 257 is "ab"
    state.accept(257)
    assert (state.may_end, state.complete) == (True, False)
    assert allowed(state) == {ord("b"), EOS}
    state.accept(EOS)
    assert state.complete


def test_special_tokens_are_not_text(vocabulary: GrammarVocabulary) -> None:
    state = Grammar.from_regex(".*").start(vocabulary)
    assert 260 not in allowed(state)  # "<tool>", which "." would match as characters
    assert {ord("<"), 259, EOS} <= allowed(state)
    named = Grammar.from_lark('start: <tool> "x"').start(vocabulary)
    assert allowed(named) == {260}


def test_a_token_that_does_not_fit_changes_nothing(vocabulary: GrammarVocabulary) -> None:
    state = Grammar.from_regex("abc").start(vocabulary)
    for wrong in (ord("z"), EOS, 10_000, -1):
        with pytest.raises(GrammarError, match=f"token {wrong} does not fit the regular expression here"):
            state.accept(wrong)
    state.accept(ord("a"))
    assert allowed(state) == {ord("b")}


def test_states_are_copied_and_rolled_back(vocabulary: GrammarVocabulary) -> None:
    state = Grammar.from_regex("abc").start(vocabulary)
    state.accept(ord("a"))
    other = state.copy()
    other.accept(ord("b"))
    assert (allowed(state), allowed(other)) == ({ord("b")}, {ord("c")})
    other.rollback(2)
    assert allowed(other) == {257}  # "ab": without a choice of characters, the longest token
    with pytest.raises(GrammarError, match="5 tokens cannot be taken back"):
        state.rollback(5)


def test_the_sampler_counts_only_what_the_grammar_accepts(vocabulary: GrammarVocabulary) -> None:
    sampler = Sampler(SamplingParams(presence_penalty=1), 262, Grammar.from_regex("abc").start(vocabulary))
    sampler.observe([ord("z")])  # the prompt does not belong to the text
    with pytest.raises(GrammarError):
        sampler.accept(ord("z"))
    assert sampler.sample(np.zeros(262, np.float32)).id in (ord("a"), 257)


# --- tokenizers


def test_a_byte_level_vocabulary() -> None:
    pytest.importorskip("llguidance")
    tokenizer = load_tokenizer(byte_bpe(merges=["a b"], special=["<|im_end|>"], pre="qwen2", eos_token_id=257))
    pieces = [tokenizer.piece(i) for i in range(tokenizer.vocab_size)]
    state = Grammar.from_regex("(ab|é){3} <").start(GrammarVocabulary.from_tokenizer(tokenizer))
    ids: list[int] = []
    while not state.complete:
        best = min(allowed(state), key=lambda i: (len(pieces[i]), i))
        state.accept(best)
        ids.append(best)
    assert re.fullmatch("(ab|é){3} <", tokenizer.decode(ids))


def test_a_vocabulary_of_words_and_bytes() -> None:
    pytest.importorskip("llguidance")
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256)), "\u2581", "a", "\u2581a"]
    types = [2, 3, 3, *[6] * 256, 1, 1, 1]
    metadata = keys(model="llama", tokens=tokens, scores=[0.0] * len(tokens), token_type=types, eos_token_id=2)
    tokenizer = load_tokenizer(metadata)
    state = Grammar.from_regex(" a").start(GrammarVocabulary.from_tokenizer(tokenizer))
    assert allowed(state) == {tokens.index("\u2581a")}  # as the tokenizer cuts it inside a text


def test_a_large_vocabulary() -> None:
    pytest.importorskip("llguidance")
    tokenizer = recorded("qwen2")
    text = '{"name": "Zoé", "n": 7, "tags": ["a"]}'
    state = Grammar.from_json_schema(SCHEMA).start(GrammarVocabulary.from_tokenizer(tokenizer))
    for id in tokenizer.encode(text, add_special=False):
        assert not state.forbidden()[id]
        state.accept(id)
    assert state.complete
    assert allowed(state) <= tokenizer.stop_ids


# --- refusals


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Grammar.from_regex("a(b"), "regular expression cannot be used: .*unclosed group"),
        (lambda: Grammar.from_lark("start: foo"), 'Lark grammar cannot be used: .*unknown name: "foo"'),
        (lambda: Grammar.from_gbnf("root ::= ("), "GBNF grammar cannot be used: .*line 1"),
        (lambda: Grammar.from_gbnf('root ::= foo "a"'), "GBNF grammar cannot be used: .*'foo' not found"),
        (lambda: Grammar.from_gbnf('x ::= "a"'), "No 'root' rule found(.|\\n)*hint: .*starts at the rule named root"),
        (lambda: Grammar.from_json_schema("{"), "the JSON schema is not JSON"),
        (lambda: Grammar.from_json_schema("person.json"), "give a dict or JSON text, not a file's name"),
        (lambda: Grammar.from_json_schema("[]"), r"the JSON schema is \[\]; expected an object"),
        (lambda: Grammar.from_json_schema({"type": {1}}), "the JSON schema is not JSON"),
        (lambda: Grammar.from_json_schema({"type": "strin"}), "Invalid type: strin"),
        (lambda: Grammar.from_json_schema({"not": {}}), "not"),
        (lambda: Grammar.from_regex(5), "the pattern is int; expected str"),
        (lambda: Grammar.from_regex("\ud800"), "surrogates not allowed"),
        (lambda: Grammar.from_gbnf('root ::= "\ud800"'), "surrogates not allowed"),
        (lambda: Grammar.from_lark('start: "\ud800"'), "surrogates not allowed"),
        (lambda: Grammar.from_gbnf("root ::= missing"), "missing"),
        (lambda: Grammar.from_json_schema({"minimum": 10**400}), "out of range"),
        (lambda: Grammar.from_json_schema({"const": "\ud800"}), "end of hex escape"),
        (lambda: Grammar.from_regex(" " * 10_000_000), "has 10,000,000 characters; expected at most 1,000,000"),
    ],
)
def test_a_grammar_is_checked_when_made(make: Any, says: str) -> None:
    pytest.importorskip("llguidance")
    with pytest.raises(GrammarError, match=f"(?s){says}"):
        make()


def test_a_panic_of_llguidance_is_a_grammar_error(vocabulary: GrammarVocabulary, monkeypatch: Any) -> None:
    """Rust's panics arrive as an exception that is not an Exception."""
    panic = type("PanicException", (BaseException,), {})
    module = pytest.importorskip("llguidance")

    def fails(*args: Any, **options: Any) -> None:
        raise panic("capacity overflow")

    grammar = Grammar.from_regex("a*")
    monkeypatch.setattr(module, "LLMatcher", type("LLMatcher", (), {"validate_grammar_with_warnings": fails}))
    with pytest.raises(GrammarError, match="the Lark grammar cannot be used: capacity overflow"):
        Grammar("start: /a/", "Lark grammar")
    monkeypatch.setattr(module, "LLMatcher", fails)
    with pytest.raises(GrammarError, match="the regular expression cannot be used: capacity overflow"):
        grammar.start(vocabulary)
    panic = KeyboardInterrupt  # type: ignore[assignment]
    with pytest.raises(KeyboardInterrupt):
        grammar.start(vocabulary)


def test_tokens_a_grammar_names_must_be_there(vocabulary: GrammarVocabulary) -> None:
    with pytest.raises(GrammarError, match=r"<\|nope\|>"):
        Grammar.from_lark("start: <|nope|>").start(vocabulary)


def test_a_vocabulary_needs_an_end() -> None:
    with pytest.raises(GrammarError, match="no token that ends a text"):
        GrammarVocabulary([b"a"], stop_ids=[])
    with pytest.raises(GrammarError, match="token id 1 is outside"):
        GrammarVocabulary([b"a"], stop_ids=[1])


def test_without_llguidance_the_command_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "llguidance"]:
        monkeypatch.delitem(sys.modules, name)

    class Missing:
        def find_spec(self, name: str, *_: object) -> None:
            if name.partition(".")[0] == "llguidance":
                raise ModuleNotFoundError(f"No module named {name!r}", name="llguidance")

    monkeypatch.setattr(sys, "meta_path", [Missing(), *sys.meta_path])
    for make in (Grammar.from_regex, Grammar.from_gbnf, lambda _: Grammar.from_json_schema({})):
        with pytest.raises(MissingPackageError) as caught:
            make("a")
        assert caught.value.hint == pip_install("hotshoe[grammar]")
        assert isinstance(caught.value, ImportError)
