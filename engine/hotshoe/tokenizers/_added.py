"""Tokens that a text may name: special ones, and those the model's maker has defined by hand.

They are found before the text is cut into words, the longest of several that begin at one place.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from hotshoe.tokenizers._vocabulary import TokenType, Vocabulary

if TYPE_CHECKING:
    import tokenizers

__all__ = ["add_tokens", "hidden_ids", "unusual_ids"]

_HIDDEN = (TokenType.CONTROL, TokenType.UNKNOWN, TokenType.UNUSED)


def hidden_ids(types: bytes | bytearray) -> list[int]:
    """Ids that are no part of a decoded text."""
    return [i for i, kind in _unusual(types) if kind in _HIDDEN]


def unusual_ids(types: bytes | bytearray) -> list[int]:
    """Ids of all but the ordinary tokens."""
    return [i for i, _ in _unusual(types)]


def add_tokens(
    inner: tokenizers.Tokenizer, vocabulary: Vocabulary, tokens: Sequence[str], types: bytes | bytearray
) -> None:
    """Make ``inner`` find the special and the user-defined ones of ``tokens``; their ids are those in its model."""
    import tokenizers

    left, right = _strips(vocabulary)

    def added(i: int, special: bool) -> tokenizers.AddedToken:
        rstrip = right and tokens[i] not in ("<unk>", "<s>", "<|endoftext|>")
        return tokenizers.AddedToken(
            tokens[i], special=special, normalized=False, lstrip=tokens[i] == left, rstrip=rstrip
        )

    unusual = _unusual(types)
    vocabulary.refuse_long_literals(tokens[i] for i, _ in unusual)
    # In two calls, because each builds the search automaton anew. Special ones last: where tokens are numbered as
    # they are added, the others have the same number in a tokenizer without special ones (Tokenizer makes one).
    inner.add_tokens([added(i, False) for i, k in unusual if k == TokenType.USER_DEFINED])
    inner.add_special_tokens([added(i, True) for i, k in unusual if k in (TokenType.CONTROL, TokenType.UNKNOWN)])


def _unusual(types: bytes | bytearray) -> list[tuple[int, int]]:
    import numpy as np

    # a vocabulary has 100,000 tokens and more, nearly all of them ordinary
    found = np.flatnonzero(np.frombuffer(types, np.uint8) != TokenType.NORMAL)
    return [(i, types[i]) for i in found.tolist()]


def _strips(vocabulary: Vocabulary) -> tuple[str | None, bool]:
    # Whether a special token takes the white space beside it. GGUF has no key for it; llama.cpp goes by names, too.
    architecture = str(vocabulary.metadata.get("general.architecture", ""))
    name = str(vocabulary.metadata.get("general.name", "")).lower()
    if any(p in vocabulary.pre for p in ("jina-v2-de", "jina-v2-es", "jina-v2-code")):
        return "<mask>", False
    if any(a in architecture for a in ("nomic-bert-moe", "jina-bert-v3")):
        return "<mask>", False
    if "phi-3" in name or "phi3" in name:
        return None, True
    return ("[MASK]" if "modern-bert" in name else None), False
