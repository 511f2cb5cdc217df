"""The half of the contract a model sees: what one layer keeps, within a graph."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from hotshoe_core import Tensor
from hotshoe_core.errors import GraphError

if TYPE_CHECKING:
    from hotshoe_core import Context

__all__ = ["AttentionView", "LayerCache", "LayerInputs", "RecurrentView", "UncachedView"]


class AttentionView(Protocol):
    """One layer's keys and values."""

    @property
    def mask(self) -> Tensor:
        """(n, m), or what broadcasts to (..., heads, n, m): 0 where a token may look, -inf elsewhere."""

    @property
    def cell_positions(self) -> Tensor:
        """(m,) I32: the position of the token in each cell that is read."""

    def update(self, k: Tensor, v: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Store this step's keys and values, (n, kv_heads, dim); returns all that the layer reads, (m, kv_heads, dim).

        v: None where the layer's values are part of its keys.
        """


class RecurrentView(Protocol):
    """One layer's states. Each sequence of a step has the same number of tokens, t; its rows are together."""

    @property
    def n_sequences(self) -> int:
        """Sequences of the step."""

    def split(self, x: Tensor) -> Tensor:
        """(n, ...) to (n_sequences, t, ...)."""

    def merge(self, x: Tensor) -> Tensor:
        """(n_sequences, t, ...) to (n, ...)."""

    def read(self, name: str) -> Tensor:
        """(n_sequences, *shape) F32: the state before this step; zeros at the start of a sequence."""

    def write(self, name: str, new: Tensor) -> None:
        """The state after this step, (n_sequences, *shape)."""


@dataclass(frozen=True, slots=True)
class UncachedView:
    """An AttentionView over nothing kept: whole texts, padded to one length, as encoders read them.

    mask: (batch, 1, 1, n), or (batch, 1, n, n) where a token looks back only. positions: (n,).
    """

    mask: Tensor
    positions: Tensor

    @property
    def cell_positions(self) -> Tensor:
        return self.positions

    def update(self, k: Tensor, v: Tensor | None = None) -> tuple[Tensor, Tensor]:
        if v is None:
            raise GraphError("attention without a cache was given keys and no values; pass the values too")
        return k, v


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

    @property
    def cell_positions(self) -> Tensor:
        raise NotImplementedError

    def update(self, k: Tensor, v: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Store the batch's keys and values, (n, kv_heads, head_dim); returns all of them: (m, kv_heads, head_dim)."""
        assert v is not None
        return self._put(self._keys, k), self._put(self._values, v)

    def _put(self, state: Tensor, rows: Tensor) -> Tensor:
        # a row of the state holds all heads: quantized types store blocks along it
        new = state.set_rows(self._inputs.cells, rows.reshape(rows.shape[0], -1))
        self._ctx.update(state, new)
        m = self._inputs.mask.shape[1]
        return new[:m].reshape(m, *rows.shape[1:])
