"""Pace: how many rows of prompts a step may compute, so that it takes no longer than others can wait.

The time of a row depends on how many tokens it attends to: after 16,000 tokens attention may take ten times as long as
all the rest. So two numbers are learned while the engine runs: seconds for a row, and for a row and a token that it
attends to (a *pair*).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

__all__ = ["STABLE_ROWS", "Allowance", "Pace"]

STABLE_ROWS = 64
"""Kernels are slow with fewer rows, and some devices give a row other bits then, so pieces are not smaller."""

_ALONE = 4  # a step for one caller alone may take this many times as long
_FEWEST = 8  # rows of a piece, however slow the device is
_WEIGHT = 0.5  # of a step that was faster than expected; a slower one counts in full
_MOST_GROWTH = 2.0  # of what a step was expected to take: a single slow one may have other causes
_MOST_GROWTH_BUILT = 1.25  # if it built a graph: that takes time too, but only once
_SHORTEST = 1e-9  # seconds of a row
_EVEN = 2048  # a row after so many tokens tells as much about pairs as about rows


class Allowance(NamedTuple):
    """What is left of a step's time, and what rows take."""

    seconds: float
    per_row: float
    per_pair: float
    min_rows: int
    """Rows of a prompt that are computed in any case, so that every step goes on with one."""

    def after(self, parts: Iterable[tuple[int, int]]) -> Allowance:
        """Return what is left after these parts of sequences: the position of the first row, the number of rows."""
        return self._replace(seconds=self.seconds - sum(self.cost(start, n) for start, n in parts))

    def at_most(self, seconds: float) -> Allowance:
        """Return the same with at most ``seconds`` left."""
        return self._replace(seconds=min(self.seconds, seconds))

    def cost(self, start: int, n: int) -> float:
        """Return the seconds that ``n`` rows from position ``start`` on take."""
        rows, pairs = _work([(start, n)])
        return rows * self.per_row + pairs * self.per_pair

    def rows(self, start: int) -> int:
        """Return how many rows from position ``start`` on can be computed in the time that is left, or ``min_rows``."""
        # seconds = n * first + n² / 2 * per_pair, solved for n
        first = self.per_row + start * self.per_pair
        left = max(0.0, self.seconds)
        n = 2 * left / (first + math.sqrt(first * first + 2 * self.per_pair * left))
        return max(self.min_rows, int(n))


class Pace:
    """Measures steps, and bounds the next ones. max_seconds: how long a step may take if more than one job waits."""

    def __init__(self, max_seconds: float) -> None:
        self._max_seconds = max_seconds
        self._per_row: float | None = None  # None: not known yet
        self._per_pair = 0.0

    @property
    def known(self) -> bool:
        """Whether a step was measured."""
        return self._per_row is not None

    def allowance(self, n_jobs: int) -> Allowance:
        """Return what a step for this number of jobs may take.

        Pieces of a single job have ``STABLE_ROWS`` rows or more. If several wait, a slow device gets smaller ones.
        """
        if self._per_row is None:
            return Allowance(STABLE_ROWS, 1.0, 0.0, STABLE_ROWS)
        alone = n_jobs == 1
        seconds = self._max_seconds * (_ALONE if alone else 1)
        return Allowance(seconds, self._per_row, self._per_pair, STABLE_ROWS if alone else _FEWEST)

    def learn(self, parts: Iterable[tuple[int, int]], seconds: float, *, built: bool) -> None:
        """Note how long a step took.

        parts: for each part of a sequence, the position of its first row and the number of rows. built: whether the
        step built a graph. Both numbers are corrected by the smallest change that explains the step (the method of
        Kaczmarz).
        """
        rows, pairs = _work(parts)
        if self._per_row is None:
            self._per_row = max(_SHORTEST, seconds / rows)
            return
        expected = rows * self._per_row + pairs * self._per_pair
        error = min(seconds, expected * (_MOST_GROWTH_BUILT if built else _MOST_GROWTH)) - expected
        scaled = pairs / _EVEN
        change = (error if error > 0 else _WEIGHT * error) / (rows * rows + scaled * scaled)
        self._per_row = max(_SHORTEST, self._per_row + change * rows)
        self._per_pair = max(0.0, self._per_pair + change * scaled / _EVEN)


def _work(parts: Iterable[tuple[int, int]]) -> tuple[float, float]:
    """Return the rows of these parts, and the pairs of a row and a token that it attends to."""
    rows = pairs = 0.0
    for start, n in parts:
        rows += n
        pairs += n * (start + n / 2)
    return rows, pairs
