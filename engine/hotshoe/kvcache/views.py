"""Attention views: how a model's layer reads and updates its keys and values, with and without a cache."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import numpy as np

from hotshoe_core import DType, Tensor, ops
from hotshoe_core.errors import DTypeError, GraphError, ShapeError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hotshoe.kvcache.base import AttentionView
    from hotshoe.kvcache.spec import AttentionSpec, Part
    from hotshoe_core import Backend, CacheConfig, Context

__all__ = [
    "AttendingView",
    "CellInputs",
    "KeyValueView",
    "SharedView",
    "UncachedView",
    "require_blocks",
    "require_rows",
    "saved_type",
    "zero_rows",
]

Array = np.ndarray[Any, Any]


class CellInputs:
    """The inputs of a graph for one kind of cells; layers of the same reach share them.

    size: how many cells the graph sees; with lists, how many they name: then it may see all n_cells. config: says the
    types, and whether there are lists. on_mask: called when a layer asks for the mask or for positions.
    """

    def __init__(
        self,
        ctx: Context,
        name: str,
        n_rows: int,
        size: int,
        n_cells: int,
        config: CacheConfig,
        on_mask: Callable[[], object],
    ) -> None:
        self._ctx, self._name, self._on_mask = ctx, name, on_mask
        self._mask_dtype = config.mask_dtype
        self.cells = ctx.input(f"cache.cells.{name}", (n_rows,), config.cell_dtype)
        """(n,): the cell of each row."""

        self.lists: tuple[Tensor, Tensor] | None = None
        self.n_seen = n_cells if config.reads_lists else size
        if config.reads_lists:
            cells = ctx.input(f"cache.lists.{name}", (size,), DType.I32)
            self.lists = cells, ctx.input(f"cache.ranges.{name}", (n_rows, 3), DType.I32)

    @functools.cached_property
    def mask(self) -> Tensor:
        """(n, m): what each row attends to."""
        self._on_mask()
        return self._ctx.input(f"cache.mask.{self._name}", (self.cells.shape[0], self.n_seen), self._mask_dtype)

    @functools.cached_property
    def positions(self) -> Tensor:
        """(m,) I32: the position of the token in each cell. An input only of graphs whose model reads it."""
        self._on_mask()
        return self._ctx.input(f"cache.positions.{self._name}", (self.n_seen,), DType.I32)


class AttendingView:
    """Attention by a mask, or by lists of cells. A subclass has ``mask`` and ``cell_positions``: see AttentionView."""

    both_sides = False
    """Whether tokens see later ones, too, so that distances (ALiBi) count in both directions."""

    @property
    def lists(self) -> tuple[Tensor, Tensor] | None:
        """The cells (l,) and ranges (n, 3) of ``cached_attention``, if the backend reads lists."""
        return None

    def attend(
        self: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        sinks: Tensor | None = None,
        *,
        scale: float,
        softcap: float = 0.0,
        slopes: Tensor | None = None,
        positions: Tensor | None = None,
    ) -> Tensor:
        if slopes is not None and positions is None:
            raise GraphError("view.attend got slopes and no positions", hint="pass positions=batch.positions")
        if self.lists is not None:
            return ops.cached_attention(q, k, v, *self.lists, sinks, slopes, scale=scale, softcap=softcap)
        mask = self.mask
        if slopes is not None and positions is not None:
            rows = positions.cast(DType.F32).reshape(-1, 1)  # (n, 1)
            distances = slopes.reshape(-1, 1, 1) * (self.cell_positions.cast(DType.F32) - rows)  # (heads, n, m)
            mask = mask + (-distances.abs() if self.both_sides else distances)
        return ops.attention(q, k, v, mask, sinks, scale=scale, softcap=softcap)


class KeyValueView(AttendingView):
    """The AttentionView of one layer of a CausalCache."""

    def __init__(
        self, ctx: Context, layer: Part, spec: AttentionSpec, inputs: CellInputs, keys: Tensor, values: Tensor | None
    ) -> None:
        self._ctx = ctx
        self._layer = layer
        self._spec = spec
        self._inputs = inputs
        self._keys = keys
        self._values = values
        self._all: tuple[Tensor, Tensor] | None = None

    @property
    def lists(self) -> tuple[Tensor, Tensor] | None:
        return self._inputs.lists

    @property
    def mask(self) -> Tensor:
        return self._inputs.mask

    @property
    def cell_positions(self) -> Tensor:
        return self._inputs.positions

    def update(self, k: Tensor, v: Tensor | None = None) -> tuple[Tensor, Tensor]:
        spec = self._spec
        if self._all is not None:
            raise GraphError(f"layer {self._layer} updates its keys and values twice in a graph; expected once")
        if (v is None) != (spec.v_in_k > 0):
            raise GraphError(
                f"layer {self._layer}: update got {'no values' if v is None else 'values'}; its cache_spec says "
                + (f"v_in_k={spec.v_in_k}: the values are part of the keys" if v is not None else "that it stores them")
            )
        n = self._inputs.cells.shape[0]
        require_rows(f"layer {self._layer}: keys", k, (n, spec.n_kv_heads, spec.k_dim))
        all_k = self._put(self._keys, k)
        if v is None or self._values is None:
            self._all = all_k, all_k[..., : spec.v_in_k]
        else:
            require_rows(f"layer {self._layer}: values", v, (n, spec.n_kv_heads, spec.value_dim))
            self._all = all_k, self._put(self._values, v)
        return self._all

    def read(self) -> tuple[Tensor, Tensor]:
        return _updated(self._all, f"layer {self._layer}")

    def _put(self, state: Tensor, rows: Tensor) -> Tensor:
        new = state.set_rows(self._inputs.cells, rows.reshape(rows.shape[0], -1))
        self._ctx.update(state, new)
        return new[: self._inputs.n_seen].reshape(self._inputs.n_seen, *rows.shape[1:])


class UncachedView(AttendingView):
    """An AttentionView without a cache, for a batch of whole texts. The mask broadcasts to (b, heads, n, n)."""

    both_sides = True

    def __init__(self, mask: Tensor, positions: Tensor, v_in_k: int = 0) -> None:
        self.mask = mask
        self.cell_positions = positions
        self._v_in_k = v_in_k
        self._all: tuple[Tensor, Tensor] | None = None

    def update(self, k: Tensor, v: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return the keys and values of the batch itself."""
        if v is None:
            if not self._v_in_k:
                raise GraphError("update got no values, and the layer's cache_spec does not set v_in_k")
            v = k[..., : self._v_in_k]
        self._all = k, v
        return self._all

    def read(self) -> tuple[Tensor, Tensor]:
        return _updated(self._all, "the layer")


class SharedView:
    """An AttentionView of a layer that reads the keys and values of another layer: its spec has ``like``."""

    def __init__(self, layer: Part, stored: AttentionView) -> None:
        self._layer = layer
        self._stored = stored

    @property
    def mask(self) -> Tensor:
        return self._stored.mask

    @property
    def cell_positions(self) -> Tensor:
        return self._stored.cell_positions

    def update(self, k: Tensor, v: Tensor | None = None) -> tuple[Tensor, Tensor]:
        raise GraphError(
            f"layer {self._layer} updates keys and values; by its cache_spec it reads those of another layer (like)",
            hint="call view.read()",
        )

    def attend(self, *operands: Any, **options: Any) -> Tensor:
        return self._stored.attend(*operands, **options)

    def read(self) -> tuple[Tensor, Tensor]:
        return self._stored.read()


def _updated(stored: tuple[Tensor, Tensor] | None, what: str) -> tuple[Tensor, Tensor]:
    if stored is None:
        raise GraphError(
            f"the keys and values of {what} are read before they are stored in this graph",
            hint="call view.update(k, v) in the layer that stores them, which must come first",
        )
    return stored


def require_rows(what: str, x: Tensor, shape: tuple[int, ...]) -> None:
    """Raise ShapeError unless ``x`` has the shape that the layer's ``cache_spec`` gives."""
    if x.shape != shape:
        raise ShapeError(
            f"{what} are {x.shape}; the layer's cache_spec says {shape}",
            hint="correct the number or the size of heads in cache_spec, or the reshape before update",
        )


def require_blocks(layer: Part, head_sizes: Sequence[int], dtype: DType) -> None:
    """Raise DTypeError unless heads of these sizes are made of whole blocks of ``dtype``."""
    for size in head_sizes:
        if size % dtype.block_size:
            raise DTypeError(
                f"a {dtype.name} cache stores blocks of {dtype.block_size}; layer {layer} has heads of {size} elements",
                hint="use f16",
            )


def saved_type(state: Tensor) -> np.dtype[Any]:
    """Return the type in which rows of a state are saved. F16 for F16, F32 for other types: both keep every bit."""
    return np.dtype(np.float16 if state.dtype == DType.F16 else np.float32)


def zero_rows(backend: Backend, states: Sequence[Tensor], rows: Array, at_once: int) -> None:
    """Overwrite these rows of each state with zeros, by graphs of at most ``at_once`` rows."""
    n = min(len(rows), at_once)
    if not n:
        return
    with backend.new_context() as ctx:
        indices = ctx.input("rows", (n,), DType.I32)
        for state in states:
            ctx.update(state, state.set_rows(indices, ops.zeros((n, state.shape[1]))))
        for start in range(0, len(rows), n):
            ctx.compute({indices: rows[min(start, len(rows) - n) :][:n]})
