"""Penalties: lower the logits of tokens that occurred in the last tokens."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any

import numpy as np

from hotshoe.sampling._params import SamplingParams

__all__ = ["Penalties"]


class Penalties:
    """Repetition, presence and frequency penalties over the last tokens. Source: llama.cpp, ``penalties``."""

    __slots__ = ("_counts", "_frequency", "_presence", "_repetition", "_window")

    def __init__(self, params: SamplingParams) -> None:
        self._window: deque[int] | None = None if params.penalty_window is None else deque(maxlen=params.penalty_window)
        self._counts: dict[int, int] = {}
        self._repetition = params.repetition_penalty
        self._presence = params.presence_penalty
        self._frequency = params.frequency_penalty

    def see(self, ids: Iterable[int]) -> None:
        """Add tokens to the window, and remove the oldest ones if it is full."""
        counts, window = self._counts, self._window
        for id in ids:
            if window is not None:
                if len(window) == window.maxlen:
                    oldest = window[0]
                    if counts[oldest] == 1:
                        del counts[oldest]
                    else:
                        counts[oldest] -= 1
                window.append(id)
            counts[id] = counts.get(id, 0) + 1

    def apply(self, x: np.ndarray[Any, Any]) -> None:
        """Change the logits ``x``, (vocab_size,), in place. Only those of tokens in the window change."""
        n = len(self._counts)
        if not n:
            return
        ids = np.fromiter(self._counts.keys(), np.int64, n)
        counts = np.fromiter(self._counts.values(), np.float64, n)
        logits = x[ids].astype(np.float64)
        logits = np.where(logits > 0, logits / self._repetition, logits * self._repetition)
        x[ids] = logits - counts * self._frequency - self._presence
