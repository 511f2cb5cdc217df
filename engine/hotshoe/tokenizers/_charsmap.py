"""Check SentencePiece's character map (``precompiled_charsmap``), which normalizes the characters of a text.

The ``tokenizers`` package does not check the numbers in it. An invalid number would cause a panic when a text reaches
it, or an allocation of any size. Layout: 4 bytes with the length of a trie in bytes; the trie, a double array of 32-bit
units as darts-clone writes it; strings, each terminated by a zero byte.
Source: https://github.com/google/sentencepiece/blob/master/src/normalizer.cc, darts-clone's ``DoubleArrayUnit``
"""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import Any

import numpy as np

__all__ = ["checked_charsmap"]

_LEAF = 1 << 31  # the unit is a value: the position of a string
_VALUE = _LEAF - 1
_HAS_VALUE = 1 << 8  # a word ends at this unit


def checked_charsmap(values: Iterable[Any]) -> bytes:
    """Return the map as bytes, from the numbers of a GGUF array. Raises ValueError if a number points outside of it."""
    try:
        raw = bytes(operator.index(value) & 0xFF for value in values)
    except TypeError:
        raise ValueError("it is not an array of bytes") from None
    size = int.from_bytes(raw[:4], "little")
    if len(raw) < 4 or size % 4 or not 0 < size <= len(raw) - 4:
        raise ValueError(f"a trie of {size} bytes does not fit into its {len(raw)}")
    units = np.frombuffer(raw, "<u4", size // 4, 4).astype(np.int64)
    strings = raw[4 + size :]
    try:
        strings.decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"its strings are not UTF-8: {error}") from None
    # a unit's child for a byte is at this position XOR the byte
    children = np.arange(len(units)) ^ ((units >> 10) << ((units & (1 << 9)) >> 6))
    inner = (units & _LEAF) == 0
    inner[0] = True  # the root is followed whatever its type
    if (children[inner] | 0xFF).max(initial=0) >= len(units):
        raise ValueError(f"a unit of its trie points outside the {len(units)} units")
    starts = units[children[inner & ((units & _HAS_VALUE) != 0)]] & _VALUE
    first = np.frombuffer(strings + b"\0", np.uint8)  # an empty string may begin at the end
    if starts.max(initial=0) > len(strings) or ((first[starts] & 0xC0) == 0x80).any():
        raise ValueError(f"a unit of its trie points to no valid string in the {len(strings)} bytes of strings")
    return raw
