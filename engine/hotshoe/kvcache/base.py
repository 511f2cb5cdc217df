"""The half of the contract a model sees: one layer's keys and values within a graph."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hotshoe_core import Tensor

if TYPE_CHECKING:
    from hotshoe_core import Context

__all__ = ["CacheInputs", "LayerCache"]


@dataclass(frozen=True, slots=True)
class CacheInputs:
    """A graph's inputs that say where its tokens go and what they see.

    cells: (n,) I32, a cell for each token of the batch. masks: by window (0 for none), (n, m) with 0 where the
    token may look and -inf elsewhere; m is how many cells the graph reads.
    """

    cells: Tensor
    masks: dict[int, Tensor]
    n_cells: int


class LayerCache:
    """One layer's view of the cache while a graph is built."""

    def __init__(self, ctx: Context, inputs: CacheInputs, keys: Tensor, values: Tensor, window: int) -> None:
        self._ctx = ctx
        self._inputs = inputs
        self._keys = keys
        self._values = values
        self._window = window

    @property
    def mask(self) -> Tensor:
        """(n, m): what each token of the batch may look at, in this layer."""
        return self._inputs.masks[self._window]

    def update(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Store the batch's keys and values, (n, kv_heads, head_dim); returns all of them: (m, kv_heads, head_dim)."""
        return self._put(self._keys, k), self._put(self._values, v)

    def _put(self, state: Tensor, rows: Tensor) -> Tensor:
        # a row of the state holds all heads: quantized types store blocks along it
        new = state.set_rows(self._inputs.cells, rows.reshape(rows.shape[0], -1))
        self._ctx.update(state, new)
        return new[: self._inputs.n_cells].reshape(self._inputs.n_cells, *rows.shape[1:])
