"""CrossCache: keys and values of an encoder's output, one block of cells for each slot.

The encoder's graph stores them (``encoder_views``, ``encoder_feeds``); every later graph of the sequence reads them.
Forks of a sequence share its block. For encoder-decoders; no model of this repository uses it yet.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from hotshoe.kvcache.base import MAX_SEQUENCES, Allocation, LayerViews, Sizes
from hotshoe.kvcache.spec import CrossSpec, LayerSpec, Part, parts_of, per_layer
from hotshoe.kvcache.views import require_rows, zero_rows
from hotshoe_core import DType, Tensor
from hotshoe_core.errors import CacheFullError, DTypeError, GraphError, ModelDefinitionError

if TYPE_CHECKING:
    from hotshoe_core import Backend, Context

__all__ = ["CrossCache"]

Array = np.ndarray[Any, Any]


class CrossCache:
    """The encoder's keys and values for ``n_sequences`` sequences. All layers have the same number of positions.

    spec: one entry for each layer; parts other than CrossSpec get None as their view. Raises
    InsufficientMemoryError; DTypeError; ModelDefinitionError if layers have different numbers of positions.
    """

    uniform = False
    shift_refusal = None  # it holds no positions of the text

    def __init__(
        self, backend: Backend, spec: Sequence[LayerSpec], *, n_sequences: int = 1, dtype: DType = DType.F16
    ) -> None:
        self._backend = backend
        self._mask_dtype = backend.cache_config().mask_dtype
        self._spec = spec
        self._layers = {i: s for i, s in parts_of(spec).items() if isinstance(s, CrossSpec)}
        lengths = {s.n_positions for s in self._layers.values()}
        if len(lengths) != 1:
            raise ModelDefinitionError(
                f"CrossSpec: layers have {sorted(lengths)} positions of the encoder; expected one number"
            )
        (self.n_positions,) = lengths
        self.n_blocks = n_sequences
        self._block: dict[int, int] = {}  # slot → block
        n_rows = self.n_blocks * self.n_positions
        self._made: list[Tensor] = []
        self._states: dict[Part, tuple[Tensor, Tensor]] = {}
        try:
            for i, s in self._layers.items():
                for size in (s.k_dim, s.v_dim):
                    if size % dtype.block_size:
                        raise DTypeError(
                            f"a {dtype.name} cache stores blocks of {dtype.block_size}; layer {i} has heads of {size}",
                            hint="use f16",
                        )
                for name, size in (("k", s.k_dim), ("v", s.v_dim)):
                    self._made.append(backend.state((n_rows, s.n_kv_heads * size), dtype, f"cross.{i}.{name}", i.layer))
                self._states[i] = (self._made[-2], self._made[-1])
        except BaseException:
            self.close()
            raise

    # The encoder's graph

    def encoder_views(self, ctx: Context) -> list[LayerViews]:
        """Return the views for a graph that stores the keys and values of one sequence."""
        cells = ctx.input("cross.cells", (self.n_positions,), DType.I32)
        return self._views(ctx, lambda i: _CrossLayer(ctx, i, self._layers[i], *self._states[i], cells=cells))

    def encoder_feeds(self, slot: int) -> dict[str, Array]:
        """Give a slot its own block; return the values of the encoder graph's inputs. Raises CacheFullError."""
        _require_slot(slot)
        self._block.pop(slot, None)
        free = sorted(set(range(self.n_blocks)) - set(self._block.values()))
        if not free:
            raise CacheFullError(
                f"the cache holds the encoder's output of {self.n_blocks} sequences already",
                hint="use a larger n_sequences, or remove a sequence",
            )
        self._block[slot] = free[0]
        return {"cross.cells": np.arange(self.n_positions, dtype=np.int32) + free[0] * self.n_positions}

    # The text's graphs

    @property
    def sizes(self) -> Sizes:
        return ()

    @property
    def max_sizes(self) -> Sizes:
        return ()

    def allocate(self, allocations: Sequence[Allocation], n_rows: int) -> dict[str, Array]:
        """Return the mask. Raises GraphError for a slot whose encoder has not run."""
        missing = [a.slot for a in allocations if a.slot not in self._block]
        if missing:
            raise GraphError(f"slot {missing[0]} has no encoder output yet", hint="compute the encoder first")
        mask = np.full((n_rows, self.n_blocks, self.n_positions), -np.inf, self._mask_dtype.numpy)
        row = 0
        for a in allocations:
            mask[row : row + a.n, self._block[a.slot]] = 0
            row += a.n
        mask[row:, 0] = 0  # padding attends to some block, as a softmax of nothing is NaN
        return {"cross.mask": mask.reshape(n_rows, -1)}

    def commit(self) -> None: ...

    def rollback(self) -> None: ...

    def views(self, ctx: Context, n_rows: int, n_sequences: int, sizes: Sizes) -> list[LayerViews]:
        mask = ctx.input("cross.mask", (n_rows, self.n_blocks * self.n_positions), self._mask_dtype)
        return self._views(ctx, lambda i: _CrossLayer(ctx, i, self._layers[i], *self._states[i], mask=mask))

    def _views(self, ctx: Context, make: Any) -> list[LayerViews]:
        return per_layer(self._spec, {i: make(i) for i in self._layers})

    def fits(self, allocations: Sequence[Allocation], keep: Collection[int] | None = None, min_free: int = 0) -> bool:
        return True

    def length(self, slot: int) -> int:
        return 0

    def copy_prefix(self, source: int, target: int, n: int) -> None:
        self.remove(target)
        if source in self._block:
            self._block[_require_slot(target)] = self._block[source]

    def can_resume(self, slot: int, position: int) -> bool:
        return True

    def resume_position(self, slot: int, position: int) -> int:
        return position

    def remove(self, slot: int, start: int = 0, stop: int | None = None) -> None:
        if start == 0 and stop is None:
            self._block.pop(slot, None)

    def slots_sharing(self, slot: int, start: int) -> frozenset[int]:
        return frozenset()  # graphs of the text only read it, so sharing needs no care

    def shift(self, slot: int, start: int, by: int) -> None: ...

    def held_bytes(self, slot: int, start: int, stop: int) -> int:
        return 0

    def save(self, slot: int, start: int, stop: int) -> dict[str, Array]:
        return {}

    def restore(self, slot: int, saved: Mapping[str, Array], stop: int) -> None: ...

    def scrub(self) -> None:
        held = np.isin(np.arange(self.n_blocks), list(self._block.values()))
        zero_rows(self._backend, self._made, np.flatnonzero(~held.repeat(self.n_positions)), self.n_positions)

    def close(self) -> None:
        self._backend.release(self._made)
        self._made = []


class _CrossLayer:
    """The CrossView of one layer, for the encoder's graph (cells) or a graph of the text (mask)."""

    def __init__(
        self,
        ctx: Context,
        layer: Part,
        spec: CrossSpec,
        keys: Tensor,
        values: Tensor,
        *,
        cells: Tensor | None = None,
        mask: Tensor | None = None,
    ) -> None:
        self._ctx, self._layer, self._spec = ctx, layer, spec
        self._keys, self._values = keys, values
        self._cells, self._mask = cells, mask

    @property
    def mask(self) -> Tensor:
        if self._mask is None:
            raise GraphError(
                f"layer {self._layer} reads keys in the encoder's graph, which only stores them", hint="call put(k, v)"
            )
        return self._mask

    def put(self, k: Tensor, v: Tensor) -> None:
        spec = self._spec
        if self._cells is None:
            raise GraphError(
                f"layer {self._layer} stores keys in a graph of the text; only the encoder's graph may",
                hint="call read()",
            )
        require_rows(f"layer {self._layer}: keys", k, (spec.n_positions, spec.n_kv_heads, spec.k_dim))
        require_rows(f"layer {self._layer}: values", v, (spec.n_positions, spec.n_kv_heads, spec.v_dim))
        for state, rows in ((self._keys, k), (self._values, v)):
            self._ctx.update(state, state.set_rows(self._cells, rows.reshape(rows.shape[0], -1)))

    def read(self) -> tuple[Tensor, Tensor]:
        spec = self._spec
        keys = self._keys.reshape(-1, spec.n_kv_heads, spec.k_dim)
        return keys, self._values.reshape(-1, spec.n_kv_heads, spec.v_dim)


def _require_slot(slot: int) -> int:
    if not 0 <= slot < MAX_SEQUENCES:
        raise GraphError(f"slot {slot} is out of range: 0 to {MAX_SEQUENCES - 1}")
    return slot
