"""The contract of a cache, in two halves: what a model calls while its graph is built, and what the runner calls.

A *step* is what one graph computes: the next tokens of some sequences. The runner places them, computes, and commits;
if anything goes wrong between, it rolls back, and the cache is as before.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

if TYPE_CHECKING:
    from hotshoe_core import Context, Tensor

__all__ = ["MAX_SEQUENCES", "AttentionView", "Cache", "CrossView", "LayerView", "Placed", "RecurrentView", "Sizes"]

MAX_SEQUENCES = 63  # a cache numbers its sequences from 0 on; one bit each of an int64

Array = np.ndarray[Any, Any]
Sizes = tuple[int, ...]
"""How many cells a graph reads, one number for each kind of cells."""


# What a model calls


class AttentionView(Protocol):
    """One layer's keys and values. n: rows of the graph; m: cells it reads."""

    @property
    def mask(self) -> Tensor:
        """(n, m), or broadcastable to (…, heads, n, m): 0 where a token may look, -inf elsewhere."""

    @property
    def cell_positions(self) -> Tensor:
        """(m,) I32: the position of the token in each cell, for models that ask (ALiBi, …)."""

    def update(self, k: Tensor, v: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Keep the step's keys and values, (n, kv_heads, dim); returns all that the layer reads, (m, kv_heads, dim).

        ``v`` is None only where the spec says ``v_in_k``.
        """


class RecurrentView(Protocol):
    """One layer's states. Every sequence of the step has the same number of tokens t, and its rows are together."""

    @property
    def n_sequences(self) -> int:
        """Sequences of the step."""

    def split(self, x: Tensor) -> Tensor:
        """(n, …) to (n_sequences, t, …)."""

    def merge(self, x: Tensor) -> Tensor:
        """(n_sequences, t, …) to (n, …)."""

    def read(self, name: str) -> Tensor:
        """The state before this step, (n_sequences, *shape) F32; zeros where a sequence starts."""

    def write(self, name: str, new: Tensor) -> None:
        """The state after this step, of the shape that ``read`` gave."""


class CrossView(Protocol):
    """One layer's keys and values of the encoder. b: sequences whose encoder ran; m: positions read, of all of them."""

    @property
    def mask(self) -> Tensor:
        """(n, m): 0 where a token's own sequence is, -inf elsewhere."""

    def put(self, k: Tensor, v: Tensor) -> None:
        """Keep what the encoder gave for one sequence: (n_positions, kv_heads, dim)."""

    def read(self) -> tuple[Tensor, Tensor]:
        """Keys and values, (m, kv_heads, dim)."""


LayerView = AttentionView | RecurrentView | CrossView | None
"""What the model's layer gets; None where its spec is None."""


# What the runner calls


class Placed(NamedTuple):
    """The next tokens of a sequence: rows ``start`` to ``start + n`` of it, its own positions of the cache.

    spans: pieces [from, to) of the sequence in which every row sees all others, those behind it included.
    """

    sequence: int
    start: int
    n: int
    spans: tuple[tuple[int, int], ...] = ()


class Cache(Protocol):
    """What the runner asks. Sequences are numbers below MAX_SEQUENCES; positions count a sequence's rows from 0."""

    @property
    def uniform(self) -> bool:
        """Whether the sequences of a step must have the same number of tokens."""

    @property
    def shift_refusal(self) -> str | None:
        """Why positions cannot be moved; None if they can."""

    @property
    def sizes(self) -> Sizes:
        """What a graph must read now. Part of its shape signature."""

    @property
    def largest(self) -> Sizes:
        """``sizes`` of a full cache, which a graph's memory is reserved for."""

    def place(self, step: Sequence[Placed], n_rows: int) -> dict[str, Array]:
        """Make room for a step; returns what the inputs of its graph are fed with, by name.

        n_rows: rows of the graph; those beyond the step's own are padding, which nobody reads. Raises CacheFullError.
        Whatever happens then, ``commit`` or ``rollback`` must follow.
        """

    def commit(self) -> None:
        """The step was computed: what it placed is the sequences' now."""

    def rollback(self) -> None:
        """The step was not computed, or not to its end: forget what it placed. Idempotent."""

    def layers(self, ctx: Context, n_rows: int, n_sequences: int, sizes: Sizes) -> list[LayerView]:
        """A view for each layer, to be handed to the model, of a graph of so many rows."""

    def fits(self, step: Sequence[Placed], keep: Collection[int] | None = None, spare: int = 0) -> bool:
        """Whether all these tokens could be placed, now or in several steps, and ``spare`` more.

        keep: the other sequences that must stay; None for all.
        """

    def length(self, sequence: int) -> int:
        """Positions of a sequence: one more than its last; 0 if nothing of it is here."""

    def copy_prefix(self, source: int, target: int, n: int) -> None:
        """``target`` begins as the first ``n`` positions of ``source`` do. Nothing is copied: both share it."""

    def can_resume(self, sequence: int, position: int) -> bool:
        """Whether a token at ``position`` would find all that it depends on."""

    def resumable(self, sequence: int, position: int) -> int:
        """The greatest position up to this one that can be resumed at; 0 always can."""

    def remove(self, sequence: int, start: int = 0, stop: int | None = None) -> None:
        """Take positions ``start`` to ``stop`` out of a sequence. Those after ``stop`` keep theirs: see ``shift``."""

    def sharing(self, sequence: int, start: int) -> frozenset[int]:
        """The other sequences that have something from position ``start`` on in common with this one."""

    def shift(self, sequence: int, start: int, by: int) -> None:
        """Move positions from ``start`` on by ``by``. Raises GraphError where that is refused; computes a graph."""

    def close(self) -> None:
        """Free the memory."""
