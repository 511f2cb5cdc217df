"""The contract of a cache: the views that a model calls, and the interface that the runner calls.

The cache numbers its *slots*, each of which holds the rows of one sequence. For each graph, the runner allocates room
for the next rows of some slots, commits, and computes the graph. If it does not come to that, it rolls back; what was
evicted does not come back. If the graph fails, the runner removes the rows.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

if TYPE_CHECKING:
    from hotshoe_core import Context, Tensor

__all__ = [
    "CHECKPOINT_BYTES",
    "MAX_SEQUENCES",
    "Allocation",
    "AttentionView",
    "Cache",
    "CrossView",
    "LayerView",
    "LayerViews",
    "RecurrentView",
    "Sizes",
    "common_resume_position",
]

CHECKPOINT_BYTES = 64 << 20  # of a recurrent cache, unless more is asked for
MAX_SEQUENCES = 1024  # slots of a cache, numbered from 0

Array = np.ndarray[Any, Any]
Sizes = tuple[int, ...]
"""The number of cells that a graph reads, one number for each kind of cells."""


# Called by the model


class AttentionView(Protocol):
    """One layer's keys and values. n: rows of the graph; m: cells that it reads."""

    @property
    def mask(self) -> Tensor:
        """(n, m), or broadcastable to (…, heads, n, m): 0 where a row attends to a cell, -inf elsewhere.

        For scores that ``attend`` does not have; pass the mask to ``ops.attention``.
        """

    @property
    def cell_positions(self) -> Tensor:
        """(m,) I32: the position of the token in each cell, for scores that depend on positions."""

    def update(self, k: Tensor, v: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Store the graph's keys and values, (n, kv_heads, dim); return all that the layer reads, (m, kv_heads, dim).

        ``v`` is None if and only if the layer's spec sets ``v_in_k``.
        """

    def attend(
        self,
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
        """Attention of the graph's rows to ``k`` and ``v``, as ``update`` or ``read`` returned them.

        q: (…, n, heads, dim); gives (…, n, heads, v_dim). The view decides what each row sees, and how the backend is
        told: by ``mask``, or by lists of cells (``cached_attention``). sinks, scale and softcap are as in
        ``ops.attention``. slopes (heads,): a head's scores fall by ``slope * distance`` (ALiBi); positions (n,), the
        batch's, are needed for slopes only. Raises GraphError for slopes without positions.
        """

    def read(self) -> tuple[Tensor, Tensor]:
        """Return what ``update`` returned; a layer whose spec has ``like`` reads what that layer's update returned."""


class RecurrentView(Protocol):
    """One layer's states. Every sequence of the graph has the same number of tokens t, in consecutive rows."""

    @property
    def n_sequences(self) -> int:
        """The number of sequences in the graph."""

    def split(self, x: Tensor) -> Tensor:
        """Reshape (n, …) to (n_sequences, t, …)."""

    def merge(self, x: Tensor) -> Tensor:
        """Reshape (n_sequences, t, …) to (n, …)."""

    def read(self, name: str) -> Tensor:
        """Return the state before this graph, (n_sequences, *shape) F32; zeros for a sequence that starts."""

    def write(self, name: str, new: Tensor) -> None:
        """Store the state after this graph, of the same shape as ``read`` returns."""

    def roll(self, name: str, x: Tensor) -> Tensor:
        """Return the k steps before ``x`` (n_sequences, t, …), and store the last k: for a state of k earlier steps."""


class CrossView(Protocol):
    """One layer's keys and values of encoders' outputs. m: the cells that a graph reads, of all sequences together."""

    @property
    def mask(self) -> Tensor:
        """(n, m): 0 at the cells of the outputs that a row attends to, -inf elsewhere. A row that attends to nothing
        has one 0, so that its softmax is a number."""

    @property
    def attends(self) -> Tensor:
        """(n, 1) F32: 1 for a row that attends to an encoder's output, 0 for one that attends to nothing."""

    def put(self, k: Tensor, v: Tensor) -> None:
        """Store keys and values of encoders' outputs, (rows, kv_heads, dim): only in the graph that stores them."""

    def read(self) -> tuple[Tensor, Tensor]:
        """Return keys and values, (m, kv_heads, dim)."""


LayerView = AttentionView | RecurrentView | CrossView | None
"""The view of one thing that a layer keeps; None where its spec is None."""

LayerViews = LayerView | tuple[LayerView, ...]
"""The view that a model's layer gets: a tuple of views where its spec is a tuple."""


# Called by the runner


class Allocation(NamedTuple):
    """Positions ``start`` to ``start + n`` of a sequence, for which a graph needs cells or a state."""

    slot: int
    """The number of the sequence's slot."""

    start: int
    n: int
    spans: tuple[tuple[int, int], ...] = ()
    """[start, stop) of the spans in which every row attends to every other row, later ones included."""

    encoded: tuple[tuple[int, int], ...] = ()
    """The position, and the number of rows, of each encoder's output that begins in these rows (cross-attention).

    If there are several, ``Cache.fits`` expects a graph for each, which begins with it.
    """

    passing: bool = False
    """Whether the model has written these rows, so that hardly another text begins with all of them.

    A recurrent cache keeps the state after them until a graph has gone on from there, but not as a checkpoint.
    """

    guessed: bool = False
    """Whether the last rows may be wrong, so that the state before all of them must stay."""


class Cache(Protocol):
    """The interface of every cache. Slots are numbers below MAX_SEQUENCES; positions count rows from 0."""

    @property
    def uniform(self) -> bool:
        """Whether all sequences of a graph must have the same number of tokens."""

    @property
    def shift_refusal(self) -> str | None:
        """The reason why positions cannot be moved; None if they can."""

    @property
    def sizes(self) -> Sizes:
        """How many cells a graph must read now; with lists, how many those of the last graph name, rounded up.

        Part of the graph's signature.
        """

    @property
    def max_sizes(self) -> Sizes:
        """``sizes`` of a full cache: the size for which a graph's memory is reserved."""

    def allocate(self, allocations: Sequence[Allocation], n_rows: int) -> dict[str, Array]:
        """Take cells or states for a graph; return the values of its inputs by name.

        n_rows: rows of the graph. Rows after the allocated ones are padding, which is never read. ``commit`` or
        ``rollback`` must follow, even after an error. Raises CacheFullError.
        """

    def commit(self) -> None:
        """Keep what the last graph allocated: it is computed before all graphs that are allocated from now on."""

    def rollback(self) -> None:
        """Undo the last ``allocate``, if it was not committed: its graph was not started. Idempotent."""

    def views(self, ctx: Context, n_rows: int, n_sequences: int, sizes: Sizes) -> list[LayerViews]:
        """Return one view for each layer of the model, for a graph of ``n_rows`` rows."""

    def fits(self, allocations: Sequence[Allocation], keep: Collection[int] | None = None, min_free: int = 0) -> bool:
        """Whether the cache has room for all these rows, in one graph or several, and for ``min_free`` more rows.

        keep: the other slots whose rows must stay; None for all.
        """

    def length(self, slot: int) -> int:
        """The number of positions of a slot: its last position plus 1, or 0 if the cache holds nothing of it."""

    def copy_prefix(self, source: int, target: int, n: int) -> None:
        """Let ``target`` begin with the first ``n`` positions of ``source``. Both share them: no data is copied."""

    def can_resume(self, slot: int, position: int) -> bool:
        """Whether the cache holds everything that a token at ``position`` depends on."""

    def resume_position(self, slot: int, position: int) -> int:
        """Return the greatest position, at most ``position``, that ``can_resume`` accepts; it always accepts 0."""

    def remove(self, slot: int, start: int = 0, stop: int | None = None) -> None:
        """Remove positions ``start`` to ``stop`` of a slot. Later positions keep their numbers: see ``shift``."""

    def slots_sharing(self, slot: int, start: int) -> frozenset[int]:
        """Return the other slots that share anything at position ``start`` or later with this one."""

    def shift(self, slot: int, start: int, by: int) -> None:
        """Move positions from ``start`` on by ``by``. Computes a graph. Raises GraphError if that is not possible."""

    def held_bytes(self, slot: int, start: int, stop: int) -> int:
        """Return the size of what ``save`` returns."""

    def save(self, slot: int, start: int, stop: int) -> dict[str, Array]:
        """Return what the cache holds of positions ``start`` to ``stop`` of a slot. Computes a graph."""

    def restore(self, slot: int, saved: Mapping[str, Array], stop: int) -> None:
        """Put back what ``save`` returned, for a text that goes on at ``stop``. Computes a graph.

        The slot holds the positions before those that were saved, or as many of them as a token at ``stop`` attends to.
        Raises CacheFullError.
        """

    def scrub(self) -> None:
        """Overwrite what no slot holds with zeros. Computes a graph.

        A graph multiplies these cells too, by weights that the mask makes 0; but 0 * NaN is NaN.
        """

    def close(self) -> None:
        """Free the memory."""


def common_resume_position(functions: Sequence[Callable[[int, int], int]], slot: int, position: int) -> int:
    """Return the greatest position, at most ``position``, that all these ``resume_position`` functions allow."""
    while True:
        n = min((f(slot, position) for f in functions), default=position)
        if n == position:
            return n
        position = n
