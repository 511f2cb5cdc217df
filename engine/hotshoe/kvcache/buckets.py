"""Buckets: round numbers of rows and cells to few different ones, so that few different graphs are needed."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hotshoe_core import Backend

__all__ = ["BLOCKS_PER_OCTAVE", "ROWS_PER_OCTAVE", "round_down", "round_up", "rows_per_octave"]

ROWS_PER_OCTAVE = 16  # padding adds at most 6 %
BLOCKS_PER_OCTAVE = 8  # lengths of the cache in its blocks; kernels skip blocks that no row attends to


def rows_per_octave(backend: Backend) -> int:
    """Return how many numbers of rows the graphs of a backend may have, from a power of two to the next one."""
    return backend.cache_config().lengths_per_octave or ROWS_PER_OCTAVE


def round_up(n: int, per_octave: int) -> int:
    """Round ``n`` up to a bucket: exact below ``2 * per_octave``, then ``per_octave`` sizes up to each power of two.

    per_octave: a power of two.
    """
    quantum = _quantum(n, per_octave)
    return -(-n // quantum) * quantum


def round_down(n: int, per_octave: int) -> int:
    """Round ``n`` down to a bucket: a number that ``round_up`` does not change."""
    return n - n % _quantum(n, per_octave)


def _quantum(n: int, per_octave: int) -> int:
    return max(1, (1 << max(0, n.bit_length() - 1)) // per_octave)
