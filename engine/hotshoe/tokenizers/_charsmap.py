"""SentencePiece's table of what a text's characters become (``precompiled_charsmap``), checked before anybody uses it.

The ``tokenizers`` package follows the numbers in it without a look at where they lead: a wrong one is a panic, at the
first text that comes by it, or memory of the size that it claims. Layout: 4 bytes, the length of a trie in bytes; the
trie, a double array of 32-bit units as darts-clone writes it; strings, each ended by a zero.
Source: https://github.com/google/sentencepiece/blob/master/src/normalizer.cc, darts-clone's ``DoubleArrayUnit``
"""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import Any

import numpy as np

__all__ = ["checked_charsmap"]

_LEAF = 1 << 31  # a unit that is a value: where a string begins
_VALUE = _LEAF - 1
_HAS_VALUE = 1 << 8  # a unit at which a word ends


def checked_charsmap(values: Iterable[Any]) -> bytes:
    """The table as bytes, from the numbers of a GGUF array. Raises ValueError for one that leads out of itself."""
    try:
        raw = bytes(operator.index(value) & 0xFF for value in values)
    except TypeError:
        raise ValueError("it is no array of bytes") from None
    size = int.from_bytes(raw[:4], "little")
    if len(raw) < 4 or size % 4 or not 0 < size <= len(raw) - 4:
        raise ValueError(f"a trie of {size} bytes does not fit into its {len(raw)}")
    units = np.frombuffer(raw, "<u4", size // 4, 4).astype(np.int64)
    strings = raw[4 + size :]
    try:
        strings.decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"its strings are not UTF-8: {error}") from None
    # where a unit's children lie, one for each next byte: at this place with the byte's bits turned over
    children = np.arange(len(units)) ^ ((units >> 10) << ((units & (1 << 9)) >> 6))
    inner = (units & _LEAF) == 0
    inner[0] = True  # the root, which is followed without a look at what it is
    if (children[inner] | 0xFF).max(initial=0) >= len(units):
        raise ValueError(f"a unit of its trie leads outside its {len(units)}")
    starts = units[children[inner & ((units & _HAS_VALUE) != 0)]] & _VALUE
    first = np.frombuffer(strings + b"\0", np.uint8)  # a string may begin at the end: an empty one
    if starts.max(initial=0) > len(strings) or ((first[starts] & 0xC0) == 0x80).any():
        raise ValueError(f"a unit of its trie leads to no string in its {len(strings)} bytes of them")
    return raw
