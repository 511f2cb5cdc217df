"""Pace: how many rows of prompts a step may compute, so that it takes no longer than others can wait.

The time of a row is learned while the engine runs.
"""

from __future__ import annotations

from hotshoe.kvcache.buckets import round_down
from hotshoe.runner.scheduler import STABLE_ROWS

__all__ = ["Pace"]

_ALONE = 4  # a step for one caller alone may take this many times as long
_FEWEST = 8  # rows of a piece, however slow the device is
_WEIGHT = 0.5  # of a new measurement
_MOST_GROWTH = 1.25  # of an estimate, by a step that built a graph: that takes time too, but only once


class Pace:
    """Measures steps, and bounds the next ones.

    max_seconds: how long a step may take if more than one job waits. per_octave: see kvcache/buckets.py.
    """

    def __init__(self, max_seconds: float, per_octave: int) -> None:
        self._max_seconds = max_seconds
        self._per_octave = per_octave
        self._row_seconds: float | None = None  # for one more row of a prompt; None: not known yet
        self._decode_seconds = 0.0  # of a step without prompts

    def max_prompt_rows(self, n_jobs: int) -> int:
        """Return the most rows of prompts in a step for this number of jobs.

        Results do not depend on the measured time while pieces have ``STABLE_ROWS`` rows or more. That is so for a
        single job. If several wait, a slow device gets smaller pieces, whose bits may differ in near ties.
        """
        if self._row_seconds is None:
            return STABLE_ROWS
        if n_jobs == 1:
            n = max(STABLE_ROWS, int(self._max_seconds * _ALONE / self._row_seconds))
        else:
            n = max(_FEWEST, int((self._max_seconds - self._decode_seconds) / self._row_seconds))
        return round_down(n - n % STABLE_ROWS or n, self._per_octave)

    def learn(self, n_prompt_rows: int, seconds: float, *, built: bool) -> None:
        """Note how long a step took. built: whether it built a graph."""
        if not n_prompt_rows:
            self._decode_seconds += _WEIGHT * (seconds - self._decode_seconds)
            return
        row = max(1e-9, seconds - min(self._decode_seconds, seconds / 2)) / n_prompt_rows
        old = self._row_seconds
        if old is None:
            self._row_seconds = row
        else:
            row = min(row, _MOST_GROWTH * old) if built else row
            self._row_seconds = max(row, old + _WEIGHT * (row - old))  # a slower step counts at once
