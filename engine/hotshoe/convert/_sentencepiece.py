"""Read SentencePiece's ``tokenizer.model``: the tokens ("pieces"), their scores and types, and the space prefix.

The file is a Protocol Buffers message. It is simple enough to read without the ``sentencepiece`` package.
Source: https://github.com/google/sentencepiece/blob/master/src/sentencepiece_model.proto
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from hotshoe_core.errors import ConversionError, ModelFileError

__all__ = ["Piece", "SentencePieceModel", "read_model"]

# field numbers of ModelProto and of the messages inside it
_PIECES, _TRAINER, _NORMALIZER = 1, 2, 3
_TEXT, _SCORE, _TYPE = 1, 2, 3
_MODEL_TYPE = 3
_TABLE, _SPACE_PREFIX, _TRIM = 2, 3, 4
_UNIGRAM, _BPE = 1, 2
_KINDS = {_UNIGRAM: "unigram", _BPE: "BPE", 3: "word", 4: "char"}


class Piece(NamedTuple):
    """One token. ``type`` uses the same numbers as GGUF's token types."""

    text: str
    score: float
    type: int


@dataclass(frozen=True, slots=True)
class SentencePieceModel:
    """The content of a ``tokenizer.model``."""

    pieces: tuple[Piece, ...]
    space_prefix: bool
    """True if a space is put before each text."""


def read_model(path: Path) -> SentencePieceModel:
    """Read a ``tokenizer.model``.

    Raises ModelFileError if it is not a SentencePiece model or is damaged; ConversionError if GGUF cannot express it.
    """
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise ModelFileError(f"cannot be read: {error.strerror or error}", path=path) from error
    pieces: list[Piece] = []
    kind, table, space_prefix, trim = _UNIGRAM, b"", True, True  # the defaults of the format
    try:
        for number, value in _fields(raw):
            if number == _PIECES:
                pieces.append(_piece(_bytes(value)))
            elif number == _TRAINER:
                kind = next((_int(v) for n, v in _fields(_bytes(value)) if n == _MODEL_TYPE), _UNIGRAM)
            elif number == _NORMALIZER:
                normalizer = dict(_fields(_bytes(value)))
                table = _bytes(normalizer.get(_TABLE, b""))
                space_prefix = bool(_int(normalizer.get(_SPACE_PREFIX, 1)))
                trim = bool(_int(normalizer.get(_TRIM, 1)))
    except (ValueError, struct.error) as error:
        raise ModelFileError(
            f"is not a SentencePiece model: {error}",
            path=path,
            hint="remove it if the folder has a tokenizer.json; otherwise download it again",
        ) from None
    if not pieces:
        raise ModelFileError("is not a SentencePiece model: it has no pieces", path=path)
    if kind != _BPE or table or trim:
        what = f"its kind is {_KINDS.get(kind, kind)}" if kind != _BPE else "it changes the text before it is split"
        raise ConversionError(
            f"{path}: {what}; for this architecture a GGUF file can only express BPE on unchanged text"
        )
    return SentencePieceModel(tuple(pieces), space_prefix)


def _piece(raw: bytes) -> Piece:
    fields = dict(_fields(raw))
    score = fields.get(_SCORE, b"\0\0\0\0")
    kind = _int(fields.get(_TYPE, 1))
    if not 1 <= kind <= 6:
        raise ValueError(f"a piece has the type {kind}")
    return Piece(_bytes(fields.get(_TEXT, b"")).decode(), struct.unpack("<f", _bytes(score))[0], kind)


def _fields(raw: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield the number and the value of each field: an integer, or the bytes of a number, text or message."""
    position = 0
    while position < len(raw):
        tag, position = _varint(raw, position)
        number, wire = tag >> 3, tag & 7
        if wire == 0:
            value, position = _varint(raw, position)
            yield number, value
            continue
        if wire == 2:
            length, position = _varint(raw, position)
        elif wire in (1, 5):
            length = 8 if wire == 1 else 4
        else:
            raise ValueError(f"the field at byte {position} has an unknown wire type")
        if length > len(raw) - position:
            raise ValueError(f"a field at byte {position} claims {length} bytes, but {len(raw) - position} are left")
        yield number, raw[position : position + length]
        position += length


def _varint(raw: bytes, start: int) -> tuple[int, int]:
    """Decode a variable-length integer. Return it and the position after it."""
    value = 0
    for i, byte in enumerate(raw[start : start + 10]):
        value |= (byte & 0x7F) << 7 * i
        if byte < 0x80:
            return value, start + i + 1
    raise ValueError(f"a number at byte {start} does not end")


def _int(value: int | bytes) -> int:
    if isinstance(value, bytes):
        raise ValueError("a number was expected")
    return value


def _bytes(value: int | bytes) -> bytes:
    if isinstance(value, int):
        raise ValueError("bytes were expected")
    return value
