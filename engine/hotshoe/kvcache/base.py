"""The half of the contract a model sees: one layer's keys and values within a graph."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hotshoe_core import Tensor

if TYPE_CHECKING:
    from hotshoe_core import Context

__all__ = ["LayerCache", "LayerInputs"]


@dataclass(frozen=True, slots=True)
class LayerInputs:
    """A graph's inputs that say where its tokens go and what they see; layers of the same window share them.

    cells: (n,) I32, a cell for each token of the batch. mask: (n, m) with 0 where the token may look and -inf
    elsewhere; m is how many cells the graph reads.
    """

    cells: Tensor
    mask: Tensor


class LayerCache:
    """One layer's view of the cache while a graph is built."""

    def __init__(self, ctx: Context, inputs: LayerInputs, keys: Tensor, values: Tensor) -> None:
        self._ctx = ctx
        self._inputs = inputs
        self._keys = keys
        self._values = values

    @property
    def mask(self) -> Tensor:
        """(n, m): what each token of the batch may look at, in this layer."""
        return self._inputs.mask

    def update(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Store the batch's keys and values, (n, kv_heads, head_dim); returns all of them: (m, kv_heads, head_dim)."""
        return self._put(self._keys, k), self._put(self._values, v)

    def _put(self, state: Tensor, rows: Tensor) -> Tensor:
        # a row of the state holds all heads: quantized types store blocks along it
        new = state.set_rows(self._inputs.cells, rows.reshape(rows.shape[0], -1))
        self._ctx.update(state, new)
        m = self._inputs.mask.shape[1]
        return new[:m].reshape(m, *rows.shape[1:])
