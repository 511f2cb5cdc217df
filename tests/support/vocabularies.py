"""Vocabularies for tests of tokenizers: recorded ones of llama.cpp, and tiny ones as GGUF metadata."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from hotshoe.tokenizers import Tokenizer, load_tokenizer
from hotshoe.tokenizers._decoding import byte_letters
from hotshoe_core.gguf import GGUFFile
from tests.support.vocabulary_files import vocabulary_file


@cache
def recorded(name: str) -> Tokenizer:
    """The tokenizer of a recorded vocabulary; skips the test if it is missing."""
    return fresh(name)


def fresh(name: str) -> Tokenizer:
    """``recorded`` without a past."""
    with GGUFFile(vocabulary_file(name)) as file:
        return load_tokenizer(file.metadata)


def recorded_ids(name: str) -> Iterator[tuple[str, list[int]]]:
    """Texts and the ids that the model's own tokenizer gave, without special tokens around them."""
    path = vocabulary_file(name)
    inputs = Path(f"{path}.inp").read_bytes().decode().split("\n__ggml_vocab_test__\n")
    outputs = Path(f"{path}.out").read_text().split("\n")
    assert len(inputs) == len(outputs) > 40
    for text, ids in zip(inputs, outputs, strict=True):
        yield text, [int(i) for i in ids.split()]


def recorded_scores(name: str) -> tuple[list[str], list[float], list[int]]:
    """Tokens, scores and types of a recorded vocabulary."""
    with GGUFFile(vocabulary_file(name)) as file:
        keys = ("tokens", "scores", "token_type")
        tokens, scores, types = (list(file.metadata[f"tokenizer.ggml.{key}"]) for key in keys)
    return tokens, scores, types


def keys(**values: Any) -> dict[str, Any]:
    """GGUF metadata; the names are those after "tokenizer.ggml.", None leaves one out."""
    return {f"tokenizer.ggml.{key}": value for key, value in values.items() if value is not None}


def byte_bpe(
    *, merges: Sequence[str] = (), special: Sequence[str] = (), user: Sequence[str] = (), **changes: Any
) -> dict[str, Any]:
    """A byte-level vocabulary: id b is byte b, then what ``merges`` make, then special and user-defined tokens."""
    made = [merge.replace(" ", "") for merge in merges]
    tokens = [*byte_letters(), *made, *special, *user]
    types = [1] * (256 + len(made)) + [3] * len(special) + [4] * len(user)
    own = {"model": "gpt2", "pre": "gpt-2", "tokens": tokens, "token_type": types, "merges": list(merges)}
    return keys(**own | changes)


def spaced_bpe(
    words: dict[str, float], *, special: Sequence[str] = (), user: Sequence[str] = (), **changes: Any
) -> dict[str, Any]:
    """A vocabulary with scores: <unk> <s> </s>, 256 bytes from id 3, then ``words``, special, user-defined ones."""
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256)), *words, *special, *user]
    types = [2, 3, 3] + [6] * 256 + [1] * len(words) + [3] * len(special) + [4] * len(user)
    scores = [0.0] * 259 + list(words.values()) + [0.0] * (len(special) + len(user))
    own = {"model": "llama", "pre": "default", "tokens": tokens, "token_type": types, "scores": scores}
    return keys(**own | changes)


def charsmap(words: Mapping[str, str]) -> bytes:
    """A table whose double array is laid out in the simplest way: every unit's children in 256 of their own."""
    strings, starts = b"", {}
    for word, value in words.items():
        starts[word.encode()] = len(strings)
        strings += value.encode() + b"\0"
    units, owned = [0] * 256, {b"": 0}
    prefixes = sorted({word[:n] for word in starts for n in range(len(word) + 1)})
    for number, prefix in enumerate(prefixes):
        base = 256 * (number + 1)
        units += [0] * 256
        place = owned[prefix]
        assert (place ^ base) % 256 == place % 256
        # an offset of whole 256s is stored without them, and says so by bit 9
        units[place] |= (((place ^ base) >> 8 << 8) >> 8) << 10 | 1 << 9
        children = base | place % 256
        if prefix in starts:
            units[place] |= 1 << 8
            units[children] = 1 << 31 | starts[prefix]
        for other in prefixes:
            if len(other) == len(prefix) + 1 and other.startswith(prefix):
                owned[other] = children ^ other[-1]
                units[owned[other]] |= other[-1]
    trie = struct.pack(f"<{len(units)}I", *units)
    return struct.pack("<I", len(trie)) + trie + strings
