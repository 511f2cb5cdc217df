"""Decode ids to text, one token after another: the bytes that each token adds, and a decoder for streams.

A token of a byte-level vocabulary may hold a part of a character, so a token adds bytes, not text. ``StreamDecoder``
holds an incomplete character back. ``Tokenizer.decode`` uses it too, so a stream always gives the same text.
"""

from __future__ import annotations

import codecs
import operator
from collections.abc import Collection, Sequence
from typing import Protocol, final

from hotshoe.tokenizers._vocabulary import TokenType
from hotshoe_core.errors import InputTypeError
from hotshoe_core.errors.arguments import described
from hotshoe_core.errors.text import shown

__all__ = [
    "BYTE_TOKENS",
    "ByteLevelDecoder",
    "TokenDecoder",
    "SentencePieceDecoder",
    "StreamDecoder",
    "byte_letters",
    "byte_value",
]

SPACE = "\u2581"
BYTE_TOKENS = tuple(map("<0x{:02X}>".format, range(256)))
"""The token that represents each byte in vocabularies of UTF-8."""


class TokenDecoder(Protocol):
    """The bytes that each token adds to a text."""

    def first(self, id: int) -> bytes:
        """The bytes of a token at the start of a text."""

    def next(self, id: int) -> bytes:
        """The bytes of a token after another token."""


def byte_letters() -> list[str]:
    """The character that represents each byte in a byte-level vocabulary. Source: GPT-2, ``bytes_to_unicode``."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = (b for b in range(256) if b not in printable)
    letters = {b: chr(b) for b in printable} | {b: chr(256 + n) for n, b in enumerate(others)}
    return [letters[b] for b in range(256)]


def byte_value(token: str) -> int | None:
    """The byte that a token such as ``<0x0A>`` represents; None for any other token."""
    if len(token) == 6 and token.startswith("<0x") and token.endswith(">"):
        try:
            return int(token[3:5], 16)
        except ValueError:
            return None
    return None


_BYTES = {letter: byte for byte, letter in enumerate(byte_letters())}
_VERBATIM = frozenset({TokenType.CONTROL, TokenType.USER_DEFINED, TokenType.UNKNOWN, TokenType.UNUSED})


@final
class ByteLevelDecoder:
    """Decodes a byte-level vocabulary: every character of a normal token represents a byte."""

    __slots__ = ("_tokens", "_types")

    def __init__(self, tokens: Sequence[str], types: Sequence[int]) -> None:
        self._tokens = tokens
        self._types = types

    def first(self, id: int) -> bytes:
        return self.next(id)

    def next(self, id: int) -> bytes:
        token = self._tokens[id]
        if self._types[id] in _VERBATIM:
            return token.encode()
        try:
            return bytes([_BYTES[letter] for letter in token])
        except KeyError:  # a special token that the file declares as a normal one
            return token.encode()


@final
class SentencePieceDecoder:
    """Decodes a vocabulary with U+2581 for spaces and <0xXX> for bytes.

    strip: remove the space that the tokenizer puts before each text.
    """

    __slots__ = ("_strip", "_tokens", "_types")

    def __init__(self, tokens: Sequence[str], types: Sequence[int], *, strip: bool) -> None:
        self._tokens = tokens
        self._types = types
        self._strip = strip

    def first(self, id: int) -> bytes:
        piece = self.next(id)
        return piece[1:] if self._strip and piece.startswith(b" ") else piece

    def next(self, id: int) -> bytes:
        token, kind = self._tokens[id], self._types[id]
        if kind == TokenType.BYTE:
            value = byte_value(token)
            return token.encode() if value is None else bytes([value])
        if kind in _VERBATIM and kind != TokenType.USER_DEFINED:
            return token.encode()
        return token.replace(SPACE, " ").encode()


def known_id(id: int, n: int) -> int:
    """Return ``id`` as an int. Raises IndexError if it is not below ``n``, InputTypeError if it is not an integer."""
    try:
        id = operator.index(id)
    except TypeError:
        raise InputTypeError(f"token id {described(id)}; expected an integer below {n}") from None
    if not 0 <= id < n:
        raise IndexError(f"token id {shown(id)} is outside the vocabulary of {n} tokens")
    return id


@final
class StreamDecoder:
    """Decodes a stream of ids to text. Make one for each stream. Not thread-safe.

    ``add`` returns the text that a token completes, never a part of a character. So it often returns "" in scripts that
    the vocabulary spells in bytes. Invalid bytes become U+FFFD.
    """

    __slots__ = ("_decoder", "_hidden", "_n_tokens", "_piece", "_utf8")

    def __init__(self, decoder: TokenDecoder, n_tokens: int, hidden: Collection[int]) -> None:
        self._decoder = decoder
        self._n_tokens = n_tokens
        self._hidden = hidden
        self._piece = decoder.first
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def add(self, id: int) -> str:
        """Return the text that this token completes.

        Raises IndexError if the id is outside the vocabulary, InputTypeError if it is not an integer.
        """
        id = known_id(id, self._n_tokens)
        if id in self._hidden:
            return ""
        piece = self._piece(id)
        self._piece = self._decoder.next
        return self._utf8.decode(piece)

    def flush(self) -> str:
        """Return the rest at the end of a stream: "", or U+FFFD for an incomplete character. Resets the decoder."""
        rest = self._utf8.decode(b"", True)
        self._utf8.reset()
        self._piece = self._decoder.first
        return rest
