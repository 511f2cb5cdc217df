r"""RWKV's vocabularies (``tokenizer.ggml.model`` "rwkv"): at each position of a text, its longest token is taken.

A token is a string of bytes. Files store it as Python writes such a string: ``\n``, ``\xe4``, ``\\``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import final

from hotshoe.tokenizers._added import hidden_ids
from hotshoe.tokenizers._longest import LongestMatch
from hotshoe.tokenizers._roles import find_affixes, find_roles
from hotshoe.tokenizers._tokenizer import Tokenizer
from hotshoe.tokenizers._vocabulary import TokenType, Vocabulary
from hotshoe_core.errors import TokenizerError

__all__ = ["build"]

_ESCAPE = re.compile(rb"\\(?:x([0-9a-fA-F]{2})|([^x]))", re.DOTALL)
_LETTERS = {b"t": b"\t", b"n": b"\n", b"r": b"\r"}


def build(vocabulary: Vocabulary) -> Tokenizer:
    """Build the tokenizer.

    Raises TokenizerError if a byte has no token, two tokens are equal, or a token has an invalid escape.
    """
    vocabulary.refuse_long_tokens()
    tokens, ids = vocabulary.numbered()
    roles = find_roles(vocabulary, ids)
    pieces = [_unescaped(i, token) for i, token in enumerate(tokens)]
    searched = {tokens[i]: i for i, kind in enumerate(roles.types) if kind in (TokenType.CONTROL, TokenType.UNKNOWN)}
    vocabulary.refuse_long_literals(searched)
    ordinary = (TokenType.NORMAL, TokenType.USER_DEFINED, TokenType.BYTE)
    known: dict[bytes, int] = {}
    for i, kind in enumerate(roles.types):
        if kind in ordinary and known.setdefault(pieces[i], i) != i:
            raise TokenizerError(f"tokens {known[pieces[i]]} and {i} are both {pieces[i]!r}")
    missing = next((byte for byte in range(256) if bytes([byte]) not in known), None)
    if missing is not None:
        raise TokenizerError(f"the vocabulary of {len(tokens)} tokens has none for the byte {missing:#04x}")
    return Tokenizer(
        LongestMatch(known, searched),
        tokens,
        roles.special,
        _PieceDecoder(pieces),
        hidden=hidden_ids(roles.types),
        stop_ids=roles.stop_ids,
        affixes=find_affixes(vocabulary, roles.special, bos=False),
    )


def _unescaped(i: int, token: str) -> bytes:
    def replaced(match: re.Match[bytes]) -> bytes:
        return bytes([int(match[1], 16)]) if match[1] else _LETTERS.get(match[2], match[2])

    stored = token.encode()
    if b"\\" not in stored:
        return stored
    if b"\\" in _ESCAPE.sub(b"", stored):
        raise TokenizerError(f"tokenizer.ggml.tokens[{i}] is {token[:60]!r}, which has an invalid escape")
    return _ESCAPE.sub(replaced, stored)


@final
class _PieceDecoder:
    """Decodes tokens to their bytes."""

    __slots__ = ("_pieces",)

    def __init__(self, pieces: Sequence[bytes]) -> None:
        self._pieces = pieces

    def first(self, id: int) -> bytes:
        return self._pieces[id]

    def next(self, id: int) -> bytes:
        return self._pieces[id]
