"""Reads SentencePiece's ``tokenizer.model``: pieces, scores, types, and whether a text gets a space before it.

It is a message of Protocol Buffers, small enough to read by hand, so that nobody needs the ``sentencepiece`` package.
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

# field numbers of ModelProto and of the messages in it
_PIECES, _TRAINER, _NORMALIZER = 1, 2, 3
_TEXT, _SCORE, _TYPE = 1, 2, 3
_MODEL_TYPE = 3
_TABLE, _SPACE_PREFIX, _TRIM = 2, 3, 4
_UNIGRAM, _BPE = 1, 2
_KINDS = {_UNIGRAM: "unigram", _BPE: "BPE", 3: "word", 4: "char"}


class Piece(NamedTuple):
    """``type`` has the numbers of GGUF's token types."""

    text: str
    score: float
    type: int


@dataclass(frozen=True, slots=True)
class SentencePieceModel:
    pieces: tuple[Piece, ...]
    space_prefix: bool


def read_model(path: Path) -> SentencePieceModel:
    """Raises ModelFileError for a file that is no such model, ConversionError for a kind that GGUF cannot express."""
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
            hint="remove it if the folder has a tokenizer.json; else download it again",
        ) from None
    if not pieces:
        raise ModelFileError("is not a SentencePiece model: it has no pieces", path=path)
    if kind != _BPE or table or trim:
        what = f"its kind is {_KINDS.get(kind, kind)}" if kind != _BPE else "it changes the text before it is split"
        raise ConversionError(
            f"{path}: {what}; for this architecture a GGUF file can only say BPE on the text as it is"
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
    """Number and value of each field: an integer, or the bytes of a number, text or message."""
    at = 0
    while at < len(raw):
        tag, at = _varint(raw, at)
        number, wire = tag >> 3, tag & 7
        if wire == 0:
            value, at = _varint(raw, at)
            yield number, value
            continue
        if wire == 2:
            length, at = _varint(raw, at)
        elif wire in (1, 5):
            length = 8 if wire == 1 else 4
        else:
            raise ValueError(f"byte {at} has no field that can be read")
        if length > len(raw) - at:
            raise ValueError(f"a field at byte {at} claims {length} bytes, and {len(raw) - at} are left")
        yield number, raw[at : at + length]
        at += length


def _varint(raw: bytes, at: int) -> tuple[int, int]:
    value = 0
    for i in range(10):
        if at + i >= len(raw):
            break
        value |= (raw[at + i] & 0x7F) << 7 * i
        if raw[at + i] < 0x80:
            return value, at + i + 1
    raise ValueError(f"a number at byte {at} does not end")


def _int(value: int | bytes) -> int:
    if isinstance(value, bytes):
        raise ValueError("a number was expected")
    return value


def _bytes(value: int | bytes) -> bytes:
    if isinstance(value, int):
        raise ValueError("bytes were expected")
    return value
