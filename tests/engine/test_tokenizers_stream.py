"""Decoding one token after another: whole characters only, and in the end what ``decode`` gives."""

from __future__ import annotations

import random
from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hotshoe.tokenizers import StreamDecoder, Tokenizer, load_tokenizer
from tests.support.vocabularies import byte_bpe, recorded, spaced_bpe

SPACE = "\u2581"


@pytest.fixture(scope="module")
def level() -> Tokenizer:
    return load_tokenizer(byte_bpe(merges=["a b"], special=["<|im_end|>"]))


@pytest.fixture(scope="module")
def spaced() -> Tokenizer:
    return load_tokenizer(spaced_bpe({SPACE: -3.0, "a": -4.0, SPACE + "a": -1.0}))


def pieces(stream: StreamDecoder, ids: Iterable[int]) -> list[str]:
    return [*map(stream.add, ids), stream.flush()]


def test_a_character_comes_when_it_is_whole(level: Tokenizer) -> None:
    llama = "\U0001f999".encode()
    assert pieces(level.stream(), [97, *llama, 98]) == ["a", "", "", "", "\U0001f999", "b", ""]
    assert pieces(level.stream(), [*"\u00e9".encode(), 256]) == ["", "\u00e9", "ab", ""]


def test_bytes_that_become_no_character(level: Tokenizer) -> None:
    assert pieces(level.stream(), [0xF0, 0x9F, 97]) == ["", "", "\ufffda", ""]
    assert pieces(level.stream(), [97, 0xF0, 0x9F]) == ["a", "", "", "\ufffd"]
    assert level.decode([97, 0xF0, 0x9F]) == "a\ufffd"


def test_special_tokens_are_not_text(level: Tokenizer) -> None:
    assert pieces(level.stream(), [97, 257, 98]) == ["a", "", "b", ""]
    assert pieces(level.stream(skip_special=False), [97, 257]) == ["a", "<|im_end|>", ""]
    # not even in the middle of a character
    assert pieces(level.stream(), [0xC3, 257, 0xA9]) == ["", "", "\u00e9", ""]


def test_only_the_first_space_of_a_text_is_dropped(spaced: Tokenizer) -> None:
    a, lone = 261, 259
    assert pieces(spaced.stream(), [1, a, a]) == ["", "a", " a", ""]
    assert pieces(spaced.stream(), [lone, lone, a]) == ["", " ", " a", ""]
    assert pieces(spaced.stream(), [260, a]) == ["a", " a", ""]


def test_flush_makes_ready_for_another_text(spaced: Tokenizer) -> None:
    stream = spaced.stream()
    assert pieces(stream, [261, 3 + 0xC3]) == ["a", "", "\ufffd"]
    assert pieces(stream, [261, 261]) == ["a", " a", ""]


def test_streams_do_not_share_anything(level: Tokenizer) -> None:
    one, other = level.stream(), level.stream()
    assert one.add(0xC3) == ""
    assert other.add(97) == "a"
    assert one.add(0xA9) == "\u00e9"


def test_ids_outside_the_vocabulary(level: Tokenizer) -> None:
    for id in (-1, 258):
        with pytest.raises(IndexError, match=f"token id {id} is outside the vocabulary of 258 tokens"):
            level.stream().add(id)
        with pytest.raises(IndexError):
            level.decode([id])
        with pytest.raises(IndexError):
            level.piece(id)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.integers(0, 257), max_size=40))
def test_any_ids_join_to_what_decode_gives(ids: list[int]) -> None:
    for tokenizer in (load_tokenizer(byte_bpe(merges=["a b"], special=["<x>"])),):
        for skip in (True, False):
            assert "".join(pieces(tokenizer.stream(skip), ids)) == tokenizer.decode(ids, skip)


@pytest.mark.parametrize("name", ["llama-bpe", "llama-spm", "qwen2", "bert-bge"])
def test_recorded_vocabularies_join_to_what_decode_gives(name: str) -> None:
    tokenizer, rng = recorded(name), random.Random(5)
    texts = ["", " a", "Hello  w\u00f6rld \U0001f999 \u6f22\u5b57\n\n  x", "don't go ."]
    lists = [tokenizer.encode(text) for text in texts]
    lists += [[rng.randrange(tokenizer.vocab_size) for _ in range(30)] for _ in range(50)]
    for ids in lists:
        for skip in (True, False):
            parts = pieces(tokenizer.stream(skip), ids)
            assert "".join(parts) == tokenizer.decode(ids, skip)


def test_equal_to_the_decoders_of_the_tokenizers_package() -> None:
    from tokenizers import decoders

    rng, level, spaced = random.Random(6), recorded("qwen2"), recorded("llama-spm")
    for _ in range(100):
        text = "".join(chr(rng.choice([32, 46, 97, 0xE9, 0x6F22, 0x1F999])) for _ in range(20))
        ids = level.encode(text)
        assert level.decode(ids) == decoders.ByteLevel().decode([level.token(i) for i in ids])
        chain = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
        ids = spaced.encode(text, add_special=False)
        assert spaced.decode(ids) == decoders.Sequence(chain).decode([spaced.token(i) for i in ids])
