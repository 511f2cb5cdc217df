"""HybridCache: layers of several kinds, each kind in a cache of its own, asked together."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from hotshoe.kvcache.base import Allocation, Cache, LayerView, Sizes
from hotshoe.kvcache.causal import least_common
from hotshoe_core.errors import CacheFullError, GraphError

if TYPE_CHECKING:
    from hotshoe_core import Context

__all__ = ["HybridCache"]

Array = np.ndarray[Any, Any]


class HybridCache:
    """Several caches over the same layers, of which each gives a view of its own ones only."""

    def __init__(self, parts: Sequence[Cache]) -> None:
        self.parts = tuple(parts)
        self.uniform = any(p.uniform for p in parts)

    @property
    def shift_refusal(self) -> str | None:
        return next((p.shift_refusal for p in self.parts if p.shift_refusal is not None), None)

    @property
    def sizes(self) -> Sizes:
        return tuple(size for p in self.parts for size in p.sizes)

    @property
    def largest(self) -> Sizes:
        return tuple(size for p in self.parts for size in p.largest)

    def allocate(self, step: Sequence[Allocation], n_rows: int) -> dict[str, Array]:
        """Raises CacheFullError if one of the caches has no room; then none has taken any."""
        if not self.fits(step):
            raise CacheFullError(
                f"the cache has no room for {sum(p.n for p in step)} tokens of {len(step)} sequences",
                hint="load the model with a larger n_ctx or n_sequences, or remove a sequence",
            )
        feeds: dict[str, Array] = {}
        for part in self.parts:
            feeds |= part.allocate(step, n_rows)
        return feeds

    def commit(self) -> None:
        for part in self.parts:
            part.commit()

    def rollback(self) -> None:
        for part in self.parts:
            part.rollback()

    def layers(self, ctx: Context, n_rows: int, n_sequences: int, sizes: Sizes) -> list[LayerView]:
        each: list[list[LayerView]] = []
        at = 0
        for part in self.parts:
            n = len(part.sizes)
            each.append(part.layers(ctx, n_rows, n_sequences, sizes[at : at + n]))
            at += n
        return [next((view for view in views if view is not None), None) for views in zip(*each, strict=True)]

    def fits(self, step: Sequence[Allocation], keep: Collection[int] | None = None, spare: int = 0) -> bool:
        return all(part.fits(step, keep, spare) for part in self.parts)

    def length(self, sequence: int) -> int:
        return max(part.length(sequence) for part in self.parts)

    def copy_prefix(self, source: int, target: int, n: int) -> None:
        for part in self.parts:
            part.copy_prefix(source, target, n)

    def can_resume(self, sequence: int, position: int) -> bool:
        return all(part.can_resume(sequence, position) for part in self.parts)

    def resumable(self, sequence: int, position: int) -> int:
        return least_common([part.resumable for part in self.parts], sequence, position)

    def remove(self, sequence: int, start: int = 0, stop: int | None = None) -> None:
        for part in self.parts:
            part.remove(sequence, start, stop)

    def sharing(self, sequence: int, start: int) -> frozenset[int]:
        return frozenset[int]().union(*(part.sharing(sequence, start) for part in self.parts))

    def shift(self, sequence: int, start: int, by: int) -> None:
        if self.shift_refusal is not None:
            raise GraphError(f"positions of this cache cannot be moved: {self.shift_refusal}")
        for part in self.parts:
            part.shift(sequence, start, by)

    def close(self) -> None:
        for part in self.parts:
            part.close()
