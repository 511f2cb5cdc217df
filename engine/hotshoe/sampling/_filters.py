"""The filters: each keeps some of the candidate tokens, which are sorted with the best first.

Logits of candidates are float64, because a draw must not depend on how a processor rounds ``exp`` of a float32:
otherwise two platforms would sooner or later draw different tokens. Of equal logits, the lower id always comes first.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from hotshoe_core.errors import SamplingError

__all__ = [
    "Candidates",
    "drop_impossible",
    "largest",
    "min_p",
    "nucleus",
    "sort_candidates",
    "reaching",
    "softmax",
    "top_p",
    "typical_p",
]

Array = np.ndarray[Any, Any]

_ROWS = 64  # the vocabulary as a matrix with this many rows: the maxima of its columns find the k best without sorting
_CHUNK = 1024  # the first number of best tokens in which ``nucleus`` searches


class Candidates(NamedTuple):
    """Tokens that can still be drawn, best first."""

    ids: Array  # (n,) int64
    logits: Array  # (n,) float64


def softmax(logits: Array) -> Array:
    """The probabilities of logits, the first of which must be the largest."""
    p: Array = np.exp(logits - logits[0])
    p /= p.sum()
    return p


def sort_candidates(ids: Array, logits: Array) -> Candidates:
    """Sort by logit, best first, and equal logits by id. ``ids`` must be in ascending order."""
    order = np.argsort(-logits, kind="stable")
    return Candidates(ids[order], logits[order].astype(np.float64))


def largest(x: Array, k: int) -> Candidates:
    """The k largest elements of ``x``, or fewer if fewer are above -inf. Raises SamplingError if ``x`` contains NaN.

    The k-th largest of the maxima of disjoint groups is a lower bound of the k-th largest element, and at least k
    elements reach it. So only a few elements have to be sorted. This is 20 times as fast as argpartition for a
    vocabulary of 150,000.
    """
    n = len(x)
    rows = min(_ROWS, n // (4 * k))
    if rows >= 2:
        columns = n // rows
        maxima = np.concatenate([x[: rows * columns].reshape(rows, columns).max(axis=0), x[rows * columns :]])
    else:
        maxima = x
    if math.isnan(maxima.max()):
        raise SamplingError(*_nan(x))
    bound = np.partition(maxima, len(maxima) - k)[len(maxima) - k] if k < len(maxima) else maxima.min()
    ids = np.flatnonzero(x >= bound) if bound > -math.inf else np.flatnonzero(x > -math.inf)
    found = sort_candidates(ids, x[ids])
    return Candidates(found.ids[:k], found.logits[:k])


def _nan(x: Array) -> tuple[str]:
    bad = np.flatnonzero(np.isnan(x))
    return (f"{len(bad)} of {len(x)} logits are NaN, the first at id {bad[0]}; expected numbers, or -inf",)


def drop_impossible(c: Candidates) -> Candidates:
    """Remove tokens with a logit of -inf. Raises SamplingError if none is left, or if a logit is not a number."""
    n = len(c.ids) if len(c.ids) and c.logits[-1] > -math.inf else int(np.count_nonzero(c.logits > -math.inf))
    if not n:
        raise SamplingError(
            "no token is possible: every logit is -inf", hint="relax logit_bias or the grammar, or check the model"
        )
    if not c.logits[0] < math.inf:
        raise SamplingError(f"the logit of id {c.ids[0]} is {c.logits[0]}; expected a number, or -inf")
    return Candidates(c.ids[:n], c.logits[:n])


def typical_p(c: Candidates, p: float) -> Candidates:
    """Keep the fewest tokens with information nearest to the entropy whose probabilities sum to at least ``p``."""
    probabilities = softmax(c.logits)
    surprise = -np.log(np.maximum(probabilities, np.finfo(np.float64).tiny))
    entropy = float(np.dot(probabilities, surprise))
    order = np.argsort(np.abs(surprise - entropy), kind="stable")
    n = _n_reaching(np.cumsum(probabilities[order]), p)
    kept = np.sort(order[:n])  # sorted best first again
    return Candidates(c.ids[kept], c.logits[kept])


def top_p(c: Candidates, p: float) -> Candidates:
    """Keep the fewest best tokens whose probabilities sum to at least ``p``."""
    n = _n_reaching(np.cumsum(softmax(c.logits)), p)
    return Candidates(c.ids[:n], c.logits[:n])


def nucleus(x: Array, p: float) -> Candidates:
    """``top_p`` of a whole vocabulary, sorting only its best tokens."""
    best = float(x.max())
    total = float(np.exp(x.astype(np.float64) - best).sum()) if math.isfinite(best) else math.nan
    k = _CHUNK
    while True:
        c = largest(x, min(k, len(x)))
        if not math.isfinite(total):
            return c  # all -inf, or inf: the next step raises the error
        reached = np.cumsum(np.exp(c.logits - best)) / total
        if reached[-1] >= p or k >= len(x):
            n = _n_reaching(reached, p)
            return Candidates(c.ids[:n], c.logits[:n])
        k *= 8


def min_p(c: Candidates, p: float) -> Candidates:
    """Keep the tokens whose probability is at least ``p`` times that of the best token."""
    n = int(np.count_nonzero(c.logits >= c.logits[0] + math.log(p)))
    return Candidates(c.ids[:n], c.logits[:n])


def reaching(x: Array, p: float) -> Candidates:
    """``min_p`` of a whole vocabulary, compared in float32 and rounded down, so it may keep a token just below."""
    best = largest(x, 1)
    if not len(best.ids):
        return best
    bound = np.nextafter(np.float32(best.logits[0] + math.log(p)), np.float32(-math.inf))
    ids = np.flatnonzero(x >= bound)
    return sort_candidates(ids, x[ids])


def _n_reaching(cumulative: Array, p: float) -> int:
    # at least one; all of them if rounding keeps the sum below p
    return min(int(np.searchsorted(cumulative, p)) + 1, len(cumulative))
