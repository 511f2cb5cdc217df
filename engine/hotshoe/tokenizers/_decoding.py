"""Ids back to text, one token after another: what each token adds, in bytes, and a decoder for streams.

A token of a byte-level vocabulary may hold half a character, so what a token adds is bytes; ``StreamDecoder`` keeps
an unfinished character back until it is complete. Decoding a whole list is the same thing at once, so the pieces of
a stream always join to what ``decode`` gives.
"""

from __future__ import annotations

import codecs
import operator
from collections.abc import Collection, Sequence
from typing import Protocol, final

from hotshoe.tokenizers._vocabulary import TokenType
from hotshoe_core.errors import InputTypeError
from hotshoe_core.errors.arguments import described

__all__ = ["ByteLevelDecoder", "TokenDecoder", "SentencePieceDecoder", "StreamDecoder", "byte_letters", "byte_value"]

SPACE = "\u2581"


class TokenDecoder(Protocol):
    """What a token adds to a text."""

    def first(self, id: int) -> bytes:
        """At the start of a text."""

    def next(self, id: int) -> bytes:
        """After another token."""


def byte_letters() -> list[str]:
    """The character that stands for each byte in a byte-level vocabulary. Source: GPT-2, ``bytes_to_unicode``."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = (b for b in range(256) if b not in printable)
    letters = {b: chr(b) for b in printable} | {b: chr(256 + n) for n, b in enumerate(others)}
    return [letters[b] for b in range(256)]


def byte_value(token: str) -> int | None:
    """The byte that ``<0x0A>`` stands for; None for any other token."""
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
    """A byte-level vocabulary: every character of an ordinary token stands for a byte."""

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
        except KeyError:  # a special token that the file calls an ordinary one
            return token.encode()


@final
class SentencePieceDecoder:
    """A vocabulary with U+2581 for spaces and <0xXX> for bytes; ``strip``: a text starts with a space of its own."""

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
    """``id`` as an int, one of ``n``. Raises IndexError, and InputTypeError for no integer."""
    try:
        id = operator.index(id)
    except TypeError:
        raise InputTypeError(f"token id {described(id)}; expected an integer below {n}") from None
    if not 0 <= id < n:
        raise IndexError(f"token id {id} is outside the vocabulary of {n} tokens")
    return id


@final
class StreamDecoder:
    """Text out of ids as they come. Not for several threads; make one for each stream.

    ``add`` gives the text that the token completes: never half a character, so often "" in scripts that a
    vocabulary spells in bytes. Bytes that cannot become a character are U+FFFD.
    """

    __slots__ = ("_decoder", "_hidden", "_n_tokens", "_piece", "_utf8")

    def __init__(self, decoder: TokenDecoder, n_tokens: int, hidden: Collection[int]) -> None:
        self._decoder = decoder
        self._n_tokens = n_tokens
        self._hidden = hidden
        self._piece = decoder.first
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def add(self, id: int) -> str:
        """The text completed by this token. Raises IndexError outside the vocabulary, InputTypeError for no integer."""
        id = known_id(id, self._n_tokens)
        if id in self._hidden:
            return ""
        piece = self._piece(id)
        self._piece = self._decoder.next
        return self._utf8.decode(piece)

    def flush(self) -> str:
        """What is left at the end: "" or U+FFFD for a character that never became complete. Ready to start anew."""
        rest = self._utf8.decode(b"", True)
        self._utf8.reset()
        self._piece = self._decoder.first
        return rest
