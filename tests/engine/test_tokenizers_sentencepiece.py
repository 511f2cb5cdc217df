"""SentencePiece (merges by score, and unigram) from GGUF metadata: recorded ids, naive oracles, bad files."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hotshoe.tokenizers import load_tokenizer
from hotshoe_core.errors import TokenizerError
from tests.support.vocabularies import keys, recorded, recorded_ids, recorded_scores, spaced_bpe

SPACE = "\u2581"
A, B, AB, ABA, LONE = 259, 260, 261, 262, 263
WORDS = {"a": -10.0, "b": -11.0, "ab": -2.0, "aba": -1.0, SPACE: -12.0, SPACE + "ab": -3.0}


def joined(text: str, scores: dict[str, float]) -> list[str]:
    """SentencePiece's rule, naively: join the neighbours with the highest score, the left ones of equals."""
    parts = list(text)
    while True:
        pairs = [(-scores[a + b], i) for i, (a, b) in enumerate(itertools.pairwise(parts)) if a + b in scores]
        if not pairs:
            return parts
        i = min(pairs)[1]
        parts[i : i + 2] = [parts[i] + parts[i + 1]]


def spelled(parts: list[str], ids: dict[str, int]) -> list[int]:
    return [i for part in parts for i in ([ids[part]] if part in ids else [ids[f"<0x{b:02X}>"] for b in part.encode()])]


# --- recorded ids, and a naive oracle


def test_recorded_ids_of_llama_cpp() -> None:
    tokenizer = recorded("llama-spm")
    for text, ids in recorded_ids("llama-spm"):
        assert tokenizer.encode(text, add_special=False) == ids, text
        assert tokenizer.decode(ids) == text
    assert (tokenizer.bos, tokenizer.eos, tokenizer.unk) == (1, 2, 0)
    assert tokenizer.encode("") == [1]
    assert tokenizer.stop_ids == {2}


def test_equal_to_the_rule_on_adversarial_texts() -> None:
    tokens, scores, types = recorded_scores("llama-spm")
    normal = {t: s for t, s, k in zip(tokens, scores, types, strict=True) if k == 1}
    ids = {t: i for i, t in enumerate(tokens)}
    tokenizer = recorded("llama-spm")
    for text in adversarial():
        expected = spelled(joined(SPACE + text.replace(" ", SPACE), normal), ids) if text else []
        assert tokenizer.encode(text, add_special=False, parse_special=False) == expected, text


def adversarial() -> list[str]:
    rng = random.Random(11)
    texts = [c * n for c in " =-_#*./a0\u6f22\u2581" for n in range(1, 35)]
    pieces = [*"\n\t\u0000\u00e9\u6f22\U0001f999", "the", "lololol", "hahaha", "<s>", "<0x41>", "</s>", "  ", "x="]
    for _ in range(400):
        runs = [rng.choice(" =-.a") * rng.randrange(30) for _ in range(3)]
        texts.append("".join(rng.sample(pieces * 2, 4) + runs + rng.sample(pieces, 2)))
    return texts


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=60))
def test_decoding_gives_the_text_back(text: str) -> None:
    tokenizer = recorded("llama-spm")
    # U+2581 in a text is read as the space it stands for
    assert tokenizer.decode(tokenizer.encode(text, parse_special=False)) == text.replace(SPACE, " ")


@settings(max_examples=100, deadline=None)
@given(st.text(max_size=40), st.booleans())
def test_decoding_gives_the_text_back_without_recorded_vocabularies(text: str, prefix: bool) -> None:
    tokenizer = load_tokenizer(spaced_bpe(WORDS, add_space_prefix=prefix))
    ids = tokenizer.encode(text, parse_special=False)
    assert tokenizer.decode(ids) == text.replace(SPACE, " ")
    assert all(0 <= i < tokenizer.vocab_size for i in ids)


@settings(max_examples=300, deadline=None)
@given(st.text("ab", max_size=24), st.randoms(use_true_random=False))
def test_equal_to_the_rule_on_random_vocabularies(text: str, rng: random.Random) -> None:
    words = ["".join(w) for n in (1, 2, 3, 4) for w in itertools.product("ab", repeat=n)]
    kept = ["a", "b", *rng.sample(words[2:], 9)]
    scores = {word: -float(n) for n, word in enumerate(rng.sample(kept, len(kept)))}
    metadata = spaced_bpe(scores, add_space_prefix=False, add_bos_token=False)
    ids = {t: i for i, t in enumerate(metadata["tokenizer.ggml.tokens"])}
    got, expected = load_tokenizer(metadata).encode(text), spelled(joined(text, scores), ids)
    assert got == expected
    assert load_tokenizer(metadata).decode(got) == text


# --- settings


def test_a_space_before_a_text_and_after_special_tokens() -> None:
    tokenizer = load_tokenizer(spaced_bpe(WORDS))
    spaced = 264
    assert tokenizer.encode("ab") == [1, spaced]
    assert tokenizer.encode("aba", add_special=False) == [LONE, ABA]
    assert tokenizer.encode("ab</s>ab", add_special=False) == [spaced, 2, spaced]
    assert tokenizer.decode([1, spaced, 2]) == "ab"
    assert tokenizer.decode([1, spaced, 2], skip_special=False) == "<s> ab</s>"
    bare = load_tokenizer(spaced_bpe(WORDS, add_space_prefix=False, add_bos_token=False, add_eos_token=True))
    assert bare.encode("ab ab") == [AB, spaced, 2]
    assert bare.decode([spaced]) == " ab"


def test_special_tokens_are_not_made_of_characters() -> None:
    words = dict.fromkeys("</s>i" + SPACE, -9.0) | {"</": -1.0, "</s": -1.5, "<s": -2.0}
    tokenizer = load_tokenizer(spaced_bpe(words, add_bos_token=False))
    assert tokenizer.encode("</s>", parse_special=True) == [2]
    assert not {0, 1, 2} & set(tokenizer.encode("</s><s><unk><0x41>", parse_special=False))


def test_bytes_stand_for_what_has_no_token() -> None:
    tokenizer = load_tokenizer(spaced_bpe(WORDS, add_space_prefix=False, add_bos_token=False))
    assert tokenizer.encode("a\u00e9\n") == [A, 3 + 0xC3, 3 + 0xA9, 3 + 0x0A]
    tokens, types = ["<unk>", "<s>", "</s>", "a"], [2, 3, 3, 1]
    few = keys(model="llama", tokens=tokens, token_type=types, scores=[0.0] * 4, add_space_prefix=False)
    assert load_tokenizer(few).encode("a\u00e9\u00e9a") == [1, 3, 0, 3]


def test_tokens_of_letters_that_are_not_tokens() -> None:
    words = {"a": -9.0, "\u6f22\u5b57": -1.0, "a\u6f22": -3.0}
    tokenizer = load_tokenizer(spaced_bpe(words, add_space_prefix=False, add_bos_token=False))
    assert tokenizer.encode("\u6f22\u5b57a\u6f22") == [260, 261]
    text = "\u5b57a\u6f22\u5b57"
    assert tokenizer.encode(text) == [3 + b for b in "\u5b57".encode()] + [259, 260]
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_user_defined_tokens() -> None:
    gemma = load_tokenizer(spaced_bpe(WORDS, user=["[q]", SPACE * 2, SPACE * 3], add_space_prefix=False))
    assert gemma.encode("[q]a  b     ab", parse_special=False)[1:] == [265, A, 266, B, 267, 266, AB]
    assert gemma.decode(gemma.encode("[q]a  b     ab")) == "[q]a  b     ab"
    llama = load_tokenizer(spaced_bpe(WORDS, user=["[q]", SPACE * 2]))
    assert llama.encode("a  b[q]", add_special=False) == [LONE, A, 266, B, 265]


# --- unigram


def unigram(**changes: Any) -> dict[str, Any]:
    words = {SPACE: -4.0, "a": -3.0, "b": -3.5, "ab": -4.5, SPACE + "a": -3.2, "bab": -5.0, "</": -2.0}
    tokens = ["<pad>", "</s>", "<unk>", *words, "[q]"]
    scores = [0.0, 0.0, 0.0, *words.values(), 0.0]
    types = [3, 3, 2] + [1] * len(words) + [4]
    return keys(**{"model": "t5", "tokens": tokens, "scores": scores, "token_type": types} | changes)


@settings(max_examples=200, deadline=None)
@given(st.text("ab x", max_size=12))
def test_unigram_is_the_best_of_all_ways(text: str) -> None:
    metadata = unigram(add_space_prefix=False, add_eos_token=False)
    tokenizer = load_tokenizer(metadata)
    tokens, scores = metadata["tokenizer.ggml.tokens"][3:-1], metadata["tokenizer.ggml.scores"][3:-1]
    table = dict(zip(tokens, scores, strict=True))

    def total(parts: list[str]) -> float:
        return float(sum(table.get(p, min(scores) - 10) for p in parts))

    best: list[list[str]] = [[]]
    normal = text.replace(" ", SPACE)
    for end in range(1, len(normal) + 1):
        starts = (s for s in range(end) if normal[s:end] in table or end - s == 1)
        best.append(max(([*best[s], normal[s:end]] for s in starts), key=total))
    got = tokenizer.encode(text)
    # a run of unknown characters is one unknown token
    parts = ["".join(g) if in_it else "?" for in_it, g in itertools.groupby(best[-1], table.__contains__)]
    assert "".join(tokenizer.token(i) if i != 2 else "?" for i in got) == "".join(parts)
    known = [tokenizer.token(i) for i in got if i != 2]
    assert total(known) == pytest.approx(total([p for p in best[-1] if p in table]))


def test_unigram_settings_and_special_tokens() -> None:
    tokenizer = load_tokenizer(unigram())
    assert tokenizer.encode("a ab") == [7, 7, 5, 1]
    assert tokenizer.decode(tokenizer.encode("a ab")) == "a ab"
    assert tokenizer.encode("a</s>[q]", add_special=False) == [7, 1, 10]
    assert tokenizer.encode("a</s>", add_special=False, parse_special=False) == [7, 9, 2]
    assert tokenizer.encode("a[q]", add_special=False, parse_special=False) == [7, 10]
    assert (tokenizer.pad, tokenizer.eos, tokenizer.unk) == (0, 1, 2)
    trimmed = load_tokenizer(unigram(remove_extra_whitespaces=True))
    assert trimmed.encode("  a    a ") == trimmed.encode("a a") == [7, 7, 1]
    assert trimmed.encode("   ", add_special=False) == []
    with pytest.raises(TokenizerError, match="precompiled_charsmap is not a character map"):
        load_tokenizer(unigram(precompiled_charsmap=[1, 2]))


# --- files that are wrong


@pytest.mark.parametrize("make", [lambda **c: spaced_bpe(WORDS, **c), unigram])
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"scores": None}, "no key tokenizer.ggml.scores"),
        ({"scores": [1.0]}, "scores is an array of 1; expected an array of"),
        ({"scores": "high"}, "scores is 'high'; expected an array of"),
        ({"scores": [float("nan")] * 265}, "scores is an array of 265"),
        ({"bos_token_id": 10**6}, "bos_token_id is 1000000, but the vocabulary has"),
        ({"tokens": ["a", "a"], "token_type": [1, 1], "scores": [0, 0]}, "'a' both at 0 and at 1"),
        ({"token_type": [1]}, "token_type is an array of 1"),
        ({"add_space_prefix": 1}, "add_space_prefix is 1; expected true or false"),
    ],
)
def test_inconsistent_metadata_is_a_tokenizer_error(make: Any, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(TokenizerError, match=message):
        load_tokenizer(make(**changes))


def test_kinds_that_hotshoe_does_not_know() -> None:
    with pytest.raises(
        TokenizerError, match=r"model is 'plamo2'; hotshoe has tokenizers for: bert, gemma4, gpt2, llama"
    ):
        load_tokenizer(keys(model="plamo2", tokens=["a"]))
