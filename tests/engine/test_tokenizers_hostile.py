"""Tokenizer data made to crash or to hang its reader: a typed error, and soon."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from typing import Any

import pytest

from hotshoe.tokenizers import load_tokenizer
from hotshoe_core.errors import TokenizerError
from tests.support.vocabularies import byte_bpe, charsmap, keys, spaced_bpe

# --- SentencePiece's table


def unigram(**changes: Any) -> dict[str, Any]:
    tokens, types = ["<pad>", "</s>", "<unk>", "a", "b", "fi"], [3, 3, 2, 1, 1, 1]
    scores = [0.0, 0.0, 0.0, -1.0, -1.0, -1.0]
    own = {"model": "t5", "tokens": tokens, "scores": scores, "token_type": types, "add_space_prefix": False}
    return keys(**own | changes)


GOOD = charsmap({"\ufb01": "fi", "A": "a", "\u00e4": "a"})


def test_a_table_that_is_right_is_used() -> None:
    tokenizer = load_tokenizer(unigram(precompiled_charsmap=list(GOOD)))
    assert tokenizer.encode("\ufb01A\u00e4b", add_special=False) == [5, 3, 3, 4]
    signed = [byte - 256 if byte > 127 else byte for byte in GOOD]  # as an array of int8
    assert load_tokenizer(unigram(precompiled_charsmap=signed)).encode("A", add_special=False) == [3]


def table(*units: int, strings: bytes = b"", size: int | None = None) -> bytes:
    trie = struct.pack(f"<{len(units)}I", *units)
    return struct.pack("<I", len(trie) if size is None else size) + trie + strings


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (b"", "a trie of 0 bytes does not fit into its 0"),
        (b"\1\2", "does not fit into its 2"),
        (table(), "a trie of 0 bytes"),
        (table(0, size=0xFFFFFFFC), "a trie of 4294967292 bytes does not fit into its 8"),  # 8 GiB for the package
        (table(0, size=0xFFFFFFFF), "a trie of 4294967295 bytes"),
        (table(0, size=3), "a trie of 3 bytes"),
        (table(0), "points outside the 1 units"),
        (table(*[0] * 255), "points outside the 255 units"),
        (table(1 << 30, *[0] * 255), "points outside the 256 units"),
        (table(1 << 8, 0, *[0] * 254, strings=b"\xff"), "are not UTF-8"),
        (table(1 << 8 | 1 << 10, 1 << 31 | 9, *[0] * 254, strings=b"a\0"), "points to no valid string in the 2 bytes"),
        (table(1 << 8 | 1 << 10, 1 << 31 | 1, *[0] * 254, strings="\u00e4".encode()), "points to no valid string"),
        ([1.5], "not an array of bytes"),
        (["a"], "not an array of bytes"),
        (7, "not an array of bytes"),
    ],
)
def test_a_character_map_that_points_outside(values: Any, message: str) -> None:
    metadata = unigram(precompiled_charsmap=list(values) if isinstance(values, bytes) else values)
    with pytest.raises(
        TokenizerError, match=f"precompiled_charsmap is not a character map of SentencePiece(.|\n)*{message}"
    ):
        load_tokenizer(metadata)


def test_no_table_makes_the_package_panic() -> None:
    """Bytes of a good one changed at random: refused, or harmless whatever the text."""
    rng, refused = random.Random(3), 0
    texts = ["\ufb01A\u00e4b", "".join(map(chr, range(1, 0x300))), "\U0001f980\ufffd\u4e2d"]
    for _ in range(300):
        changed = bytearray(GOOD)
        for _ in range(rng.randrange(1, 4)):
            changed[rng.randrange(len(changed)) if rng.random() < 0.5 else rng.randrange(40)] = rng.randrange(256)
        try:
            tokenizer = load_tokenizer(unigram(precompiled_charsmap=list(changed)))
        except TokenizerError:
            refused += 1
            continue
        for text in texts:
            tokenizer.encode(text)
    assert 30 < refused < 290


# --- tokens that are too long


LONG = "a" * 1_000_000


def many(n: int, length: int) -> dict[str, float]:
    return {f"{i:06}" + "a" * (length - 6): -1.0 - i for i in range(n)}


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        (
            lambda: spaced_bpe({"a": -1.0, LONG: -2.0}),
            r"\[260\] has 1000000 characters; expected at most 2048 .* 'llama'",
        ),
        (lambda: unigram(tokens=[*"12345", LONG]), r"tokens\[5\] has 1000000 characters"),
        (lambda: spaced_bpe(many(400, 2000)), "too many of them in long tokens"),
        (lambda: byte_bpe(user=[LONG, LONG + "b"]), r"user-defined strings of .* have 2000001 characters in total"),
        (lambda: byte_bpe(special=[f"<{i:06}{'x' * 1000}>" for i in range(1100)]), "expected at most 1048576"),
        (lambda: spaced_bpe({"a": -1.0}, user=list(many(2100, 512))), "expected at most 1048576"),
    ],
)
def test_tokens_that_would_keep_a_reader_busy(metadata: Callable[[], dict[str, Any]], message: str) -> None:
    with pytest.raises(TokenizerError, match=message):
        load_tokenizer(metadata())


def test_tokens_as_long_as_they_may_be() -> None:
    longest = "a" * 2048
    tokenizer = load_tokenizer(spaced_bpe({"a": -1.0, longest: -2.0}, add_bos_token=False, add_space_prefix=False))
    assert tokenizer.decode(tokenizer.encode(longest)) == longest
    # byte-level BPE looks at words, and only at their parts
    tokenizer = load_tokenizer(byte_bpe(merges=["a a"], user=[LONG]))
    assert tokenizer.encode(LONG) == [257]


def test_words_that_are_split_in_the_cube_of_their_characters() -> None:
    from tests.engine.test_tokenizers_wordpiece import metadata

    wordpiece = metadata() | {"hotshoe.tokenizer.max_characters_per_word": 10**6}
    with pytest.raises(TokenizerError, match="max_characters_per_word is 1000000; expected at most 1000"):
        load_tokenizer(wordpiece)


# --- types


@pytest.mark.parametrize("kind", [7, -1, 2**31, 2**63, -(2**63), 10**30])
@pytest.mark.parametrize("make", [lambda **c: spaced_bpe({"a": -1.0}, **c), unigram, byte_bpe])
def test_types_beyond_their_range(make: Callable[..., dict[str, Any]], kind: int) -> None:
    metadata = make()
    types = list(metadata["tokenizer.ggml.token_type"])
    types[4] = kind
    with pytest.raises(TokenizerError, match=rf"token_type\[4\] is {kind}; expected 1 to 6, or 0"):
        load_tokenizer(metadata | {"tokenizer.ggml.token_type": types})


@pytest.mark.parametrize("kind", [1.0, 1.5, "1", None, float("nan")])
def test_types_that_are_not_integers(kind: Any) -> None:
    metadata = spaced_bpe({"a": -1.0})
    types = [*metadata["tokenizer.ggml.token_type"][:-1], kind]
    with pytest.raises(TokenizerError, match=r"token_type is an array of 260; expected an array of 260 integers"):
        load_tokenizer(metadata | {"tokenizer.ggml.token_type": types})
