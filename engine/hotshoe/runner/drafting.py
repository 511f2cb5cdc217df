"""Drafts: the next tokens of a text, guessed from what the text repeats (prompt lookup decoding), or by a layer.

A text often repeats what it has said or read: code that is edited, a document that is quoted, names, JSON. If its last
tokens stand earlier in it too, those that followed there are a good guess. The model computes several guessed tokens in
one step, which takes little longer than one, as it reads its weights once for all. The sampler then chooses each token
as always, so a guess decides how many tokens a step gives, and never which.

Source of the idea: https://github.com/apoorvumang/prompt-lookup-decoding

Some models have a layer that guesses tokens (nn.NextN, runner/nextn.py). It is asked where the text repeats
nothing, or little of what it repeats is right, as its guesses take time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

__all__ = ["LENGTHS", "MAX_DRAFT", "NOT_A_TOKEN", "Drafter", "Hidden", "NextNLength"]

MAX_DRAFT = 15
"""The most tokens of a draft: with the next token, a step has 16 rows. More rows take as much longer as they save."""

NOT_A_TOKEN = -1
"""Stands for a row of a picture or a sound, which is never guessed."""

_SAME = 2  # tokens that must be the same before a guess
_MOST_SAME = 8  # tokens that are compared: of several places, those count that are alike for longest; then the latest
_WEIGHT = 0.15  # of the last guess in the rate of right ones
_FIRST_RATE = 0.6
LENGTHS = ((0.95, MAX_DRAFT), (0.8, 7), (0.6, 3), (0.3, 1))
"""From what rate of right guesses on a draft has how many tokens.

Chosen by simulation with benchmarks/drafting.py. With the next token, a step has 16, 8, 4 or 2 rows.
"""

_NEXTN_LENGTHS = ((0.75, 3), (0.62, 2), (0.35, 1))  # the same for guesses of a drafting layer, which take time
_NEXTN_FIRST_RATE = 0.7
_NEXTN_WEIGHT = 0.08
_RECOVERY = 0.001  # what a token without such guesses adds to their rate: after a while there is another try

_MOST_TOKENS = 1 << 18  # that are kept and searched: the last ones
_MOST_PLACES = 1 << 12  # with the same last token that are compared: the last ones

Array = np.ndarray[Any, Any]


class Drafter:
    """The tokens of one text, and the earlier place that it repeats at the moment, if there is one.

    predicted: what may follow the tokens. lengths: see LENGTHS.
    """

    def __init__(
        self,
        tokens: Sequence[int],
        predicted: Sequence[int] = (),
        lengths: Sequence[tuple[float, int]] = LENGTHS,
    ) -> None:
        self._lengths = lengths
        self._tokens: Array = np.array([*predicted, *tokens][-_MOST_TOKENS:], np.int32)
        self._n = len(self._tokens)
        whole = self._n == len(predicted) + len(tokens)
        self._next = 0 if predicted and whole else self._repeated()  # where the guess for the next token stands
        self._rate = _FIRST_RATE  # of right guesses; also of those that no step computed

    def add(self, token: int) -> None:
        """Add the token that follows."""
        if self._n >= 2 * _MOST_TOKENS:
            gone = self._n - _MOST_TOKENS
            self._tokens, self._n = self._tokens[gone:].copy(), _MOST_TOKENS
            self._next = None if self._next is None or self._next < gone else self._next - gone
        if self._n == len(self._tokens):
            self._tokens = np.concatenate((self._tokens, np.empty(self._n // 2 + 64, np.int32)))
        self._tokens[self._n] = token
        self._n += 1
        at, self._next = self._next, None
        if at is not None:
            right = bool(self._tokens[at] == token)
            self._rate += _WEIGHT * (right - self._rate)
            self._next = at + 1 if right else None
        if self._next is None:
            self._next = self._repeated()

    @property
    def guesses(self) -> bool:
        """Whether ``draft`` has a guess."""
        return self._next is not None and self._rate >= self._lengths[-1][0]

    def draft(self, most: int) -> list[int]:
        """Return the tokens that are guessed to follow, at most ``most``; none without a good guess."""
        if self._next is None:
            return []
        n = min(most, next((n for rate, n in self._lengths if self._rate >= rate), 0))
        found: list[int] = self._tokens[self._next : min(self._next + n, self._n)].tolist()
        if NOT_A_TOKEN in found:
            return found[: found.index(NOT_A_TOKEN)]
        for i in range(n - len(found)):  # the place is near the end: the text repeats what it has just begun to repeat
            found.append(found[i])
        return found

    def _repeated(self) -> int | None:
        """Return the place after an earlier one that is like the end of the text."""
        tokens, last = self._tokens, self._n - 1
        if last < _SAME:
            return None
        ends = np.flatnonzero(tokens[_SAME - 1 : last] == tokens[last])[-_MOST_PLACES:] + _SAME - 1
        for i in range(1, _MOST_SAME):
            alike = ends[(ends >= i) & (tokens[ends - i] == tokens[last - i])]
            if not len(alike) and i < _SAME:
                return None
            if not len(alike):
                break
            ends = alike
        return int(ends[-1]) + 1 if len(ends) else None


class Hidden(NamedTuple):
    """The model's hidden state, (dim,) F32, after the row before ``position``."""

    position: int
    state: Array


class NextNLength:
    """How many tokens a drafting layer (nn.NextN) is to guess, up to 3: more if more of its guesses are right."""

    def __init__(self) -> None:
        self._rate = _NEXTN_FIRST_RATE

    @property
    def n(self) -> int:
        """How many; 0 while they are mostly wrong."""
        return next((n for rate, n in _NEXTN_LENGTHS if self._rate >= rate), 0)

    def learn(self, n_right: int, n: int) -> None:
        """Note that the first ``n_right`` of ``n`` guesses were right; n is 0 for a token without guesses."""
        if not n:
            self._rate = max(self._rate, min(self._rate + _RECOVERY, _NEXTN_LENGTHS[-1][0]))
        for right in [True] * n_right + [False] * (n_right < n):
            self._rate += _NEXTN_WEIGHT * (right - self._rate)
