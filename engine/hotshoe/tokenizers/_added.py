"""Added tokens: special and user-defined tokens, which are searched for in a text before it is split into words.

If several begin at one position, the longest is used.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, final

from hotshoe.tokenizers._vocabulary import TokenType, Vocabulary

if TYPE_CHECKING:
    import tokenizers

__all__ = ["AddedTokens", "add_tokens", "hidden_ids", "unusual_names"]

_HIDDEN = (TokenType.CONTROL, TokenType.UNKNOWN, TokenType.UNUSED)


def hidden_ids(types: bytes | bytearray) -> list[int]:
    """Ids that do not appear in a decoded text: control, unknown and unused tokens."""
    return [i for i, kind in _unusual(types) if kind in _HIDDEN]


def unusual_names(tokens: Sequence[str], types: bytes | bytearray) -> dict[int, str]:
    """All tokens except normal ones, by id."""
    return {i: tokens[i] for i, _ in _unusual(types)}


def add_tokens(
    inner: tokenizers.Tokenizer, vocabulary: Vocabulary, tokens: Sequence[str], types: bytes | bytearray
) -> None:
    """Add the special and user-defined ones of ``tokens`` to ``inner``, which must have them in its vocabulary."""
    AddedTokens(vocabulary, unusual_names(tokens, types), types).add_to(inner)


@final
class AddedTokens:
    """The special and user-defined tokens of a vocabulary, for several tokenizers of the ``tokenizers`` package."""

    def __init__(self, vocabulary: Vocabulary, names: Mapping[int, str], types: bytes | bytearray) -> None:
        """names: from ``unusual_names``. Raises TokenizerError if they are too long in total."""
        import tokenizers

        left, right = _strips(vocabulary)

        def added(name: str, special: bool) -> tokenizers.AddedToken:
            rstrip = right and name not in ("<unk>", "<s>", "<|endoftext|>")
            return tokenizers.AddedToken(name, special=special, normalized=False, lstrip=name == left, rstrip=rstrip)

        unusual = [(names[i], kind) for i, kind in _unusual(types)]
        vocabulary.refuse_long_literals(name for name, _ in unusual)
        self._user = [added(name, False) for name, k in unusual if k == TokenType.USER_DEFINED]
        special = (TokenType.CONTROL, TokenType.UNKNOWN)
        self._special = [added(name, True) for name, k in unusual if k in special]

    def add_to(self, inner: tokenizers.Tokenizer) -> None:
        """Add them to a tokenizer that has them in its vocabulary."""
        # Two calls only, because each call rebuilds the search automaton. Special tokens come last: if the model
        # numbers added tokens, the others then have the same number in a tokenizer without special tokens (see
        # without_special).
        inner.add_tokens(self._user)
        inner.add_special_tokens(self._special)


def _unusual(types: bytes | bytearray) -> list[tuple[int, int]]:
    import numpy as np

    # by NumPy, because a vocabulary has 100,000 tokens or more, and nearly all are normal
    found = np.flatnonzero(np.frombuffer(types, np.uint8) != TokenType.NORMAL)
    return [(i, types[i]) for i in found.tolist()]


def _strips(vocabulary: Vocabulary) -> tuple[str | None, bool]:
    # Whether special tokens absorb the white space next to them. GGUF has no key for this; as in llama.cpp, it depends
    # on names.
    architecture = str(vocabulary.metadata.get("general.architecture", ""))
    name = str(vocabulary.metadata.get("general.name", "")).lower()
    if any(p in vocabulary.pre for p in ("jina-v2-de", "jina-v2-es", "jina-v2-code")):
        return "<mask>", False
    if any(a in architecture for a in ("nomic-bert-moe", "jina-bert-v3")):
        return "<mask>", False
    if "phi-3" in name or "phi3" in name:
        return None, True
    return ("[MASK]" if "modern-bert" in name else None), False
