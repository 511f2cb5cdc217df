"""LongestMatch: split texts into tokens by taking the longest one at each position, as RWKV does."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple, final

__all__ = ["LongestMatch"]


class _Encoding(NamedTuple):
    ids: list[int]


@final
class LongestMatch:
    """Splits texts into their longest tokens, in the place of a tokenizer of the ``tokenizers`` package."""

    def __init__(self, ids: Mapping[bytes, int], searched: Mapping[str, int]) -> None:
        """ids: the id of each token, with one for each byte. searched: the names of special tokens, and their ids."""
        self._ids = ids
        self._searched = searched
        names = sorted(searched, key=len, reverse=True)
        self._special = re.compile(f"({'|'.join(map(re.escape, names))})") if names else None
        lengths: dict[bytes, set[int]] = {}
        for token in ids:
            lengths.setdefault(token[:2], set()).add(len(token))
        # the lengths of the tokens that begin with two bytes, longest first
        self._lengths = {start: sorted(found, reverse=True) for start, found in lengths.items()}

    def without_special(self) -> LongestMatch:
        """Return the same without special tokens."""
        return LongestMatch(self._ids, {})

    def encode_batch_fast(self, texts: Sequence[str], add_special_tokens: bool) -> list[_Encoding]:
        """Encode texts. Raises TypeError, as the package does, if a text is not valid UTF-8."""
        return [_Encoding(self._encoded(text)) for text in texts]

    def _encoded(self, text: str) -> list[int]:
        found: list[int] = []
        for i, part in enumerate(self._special.split(text) if self._special else [text]):
            if i % 2:
                found.append(self._searched[part])
                continue
            try:
                self._split(part.encode(), found)
            except UnicodeEncodeError as error:
                raise TypeError(str(error)) from None
        return found

    def _split(self, data: bytes, found: list[int]) -> None:
        ids, lengths, at = self._ids, self._lengths, 0
        while at < len(data):
            for length in lengths.get(data[at : at + 2], ()):
                piece = data[at : at + length]
                if piece in ids:
                    break
            else:
                piece = data[at : at + 1]
            found.append(ids[piece])
            at += len(piece)
