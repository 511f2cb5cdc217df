"""HybridCache: several caches as one, for models whose layers are of several kinds."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from hotshoe.kvcache.base import Allocation, Cache, LayerViews, Sizes, common_resume_position
from hotshoe_core.errors import CacheFullError, GraphError

if TYPE_CHECKING:
    from hotshoe_core import Context

__all__ = ["HybridCache", "part_of"]

Array = np.ndarray[Any, Any]
C = TypeVar("C")


class HybridCache:
    """Several caches over the same layers. Each returns views of what it keeps itself, and None for the rest."""

    def __init__(self, caches: Sequence[Cache]) -> None:
        self.caches = tuple(caches)
        self.uniform = any(cache.uniform for cache in caches)

    @property
    def shift_refusal(self) -> str | None:
        return next((cache.shift_refusal for cache in self.caches if cache.shift_refusal is not None), None)

    @property
    def sizes(self) -> Sizes:
        return tuple(size for cache in self.caches for size in cache.sizes)

    @property
    def max_sizes(self) -> Sizes:
        return tuple(size for cache in self.caches for size in cache.max_sizes)

    def allocate(self, allocations: Sequence[Allocation], n_rows: int) -> dict[str, Array]:
        """Allocate in every cache. Raises CacheFullError, and allocates nothing, if one of them is full."""
        if not self.fits(allocations):
            raise CacheFullError(
                f"the cache has no room for {sum(a.n for a in allocations)} tokens of {len(allocations)} sequences",
                hint="use a larger n_ctx or n_sequences, or remove a sequence",
            )
        feeds: dict[str, Array] = {}
        for cache in self.caches:
            feeds |= cache.allocate(allocations, n_rows)
        return feeds

    def commit(self) -> None:
        for cache in self.caches:
            cache.commit()

    def rollback(self) -> None:
        for cache in self.caches:
            cache.rollback()

    def views(self, ctx: Context, n_rows: int, n_sequences: int, sizes: Sizes) -> list[LayerViews]:
        all_views: list[list[LayerViews]] = []
        first = 0
        for cache in self.caches:
            n = len(cache.sizes)
            all_views.append(cache.views(ctx, n_rows, n_sequences, sizes[first : first + n]))
            first += n
        return [_merged(views) for views in zip(*all_views, strict=True)]

    def fits(self, allocations: Sequence[Allocation], keep: Collection[int] | None = None, min_free: int = 0) -> bool:
        return all(cache.fits(allocations, keep, min_free) for cache in self.caches)

    def length(self, slot: int) -> int:
        return max(cache.length(slot) for cache in self.caches)

    def copy_prefix(self, source: int, target: int, n: int) -> None:
        for cache in self.caches:
            cache.copy_prefix(source, target, n)

    def can_resume(self, slot: int, position: int) -> bool:
        return all(cache.can_resume(slot, position) for cache in self.caches)

    def resume_position(self, slot: int, position: int) -> int:
        return common_resume_position([cache.resume_position for cache in self.caches], slot, position)

    def remove(self, slot: int, start: int = 0, stop: int | None = None) -> None:
        for cache in self.caches:
            cache.remove(slot, start, stop)

    def slots_sharing(self, slot: int, start: int) -> frozenset[int]:
        return frozenset[int]().union(*(cache.slots_sharing(slot, start) for cache in self.caches))

    def shift(self, slot: int, start: int, by: int) -> None:
        if self.shift_refusal is not None:
            raise GraphError(f"positions of this cache cannot be moved: {self.shift_refusal}")
        for cache in self.caches:
            cache.shift(slot, start, by)

    def held_bytes(self, slot: int, start: int, stop: int) -> int:
        return sum(cache.held_bytes(slot, start, stop) for cache in self.caches)

    def save(self, slot: int, start: int, stop: int) -> dict[str, Array]:
        saved: dict[str, Array] = {}
        for cache in self.caches:
            saved |= cache.save(slot, start, stop)
        return saved

    def restore(self, slot: int, saved: Mapping[str, Array], stop: int) -> None:
        for cache in self.caches:
            cache.restore(slot, saved, stop)

    def scrub(self) -> None:
        for cache in self.caches:
            cache.scrub()

    def close(self) -> None:
        for cache in self.caches:
            cache.close()


def part_of(cache: Cache, kind: type[C]) -> C | None:
    """Return the part of a cache that is of this class; None if it has none."""
    parts = cache.caches if isinstance(cache, HybridCache) else (cache,)
    return next((part for part in parts if isinstance(part, kind)), None)


def _merged(views: Sequence[Any]) -> Any:
    """Merge the views that the caches return for one layer, of which each cache makes some."""
    if isinstance(views[0], tuple):
        return tuple(_merged(column) for column in zip(*views, strict=True))
    return next((view for view in views if view is not None), None)
