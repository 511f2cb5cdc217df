"""CausalCache: cells shared by all sequences, with full or sliding-window attention over them.

A cell holds one token's keys and values of every layer. Which token that is, is known on the host: its position, and
the sequences it belongs to (a bit each). So a prefix is shared by setting bits, and removing a sequence clears
them; no tensor moves. Positions are kept in keys (RoPE), so shifting them needs a graph: see ``shift``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from hotshoe.kvcache.base import CacheInputs, LayerCache
from hotshoe_core import DType, Tensor, ops
from hotshoe_core.errors import CacheFullError, DTypeError, GraphError

if TYPE_CHECKING:
    from hotshoe_core import Backend, Context
    from hotshoe_core.ops import RoPE

__all__ = ["CausalCache"]

MAX_SEQUENCES = 63  # one bit each of an int64
_FREE = -1


class CausalCache:
    """Keys and values of ``n_cells`` tokens.

    windows: for each layer, how many positions back it looks, itself included; 0 for all. dtype: element
    type of keys and values. Raises InsufficientMemoryError, and DTypeError for a type whose blocks do not fit.
    """

    def __init__(
        self,
        backend: Backend,
        *,
        n_cells: int,
        n_kv_heads: int,
        head_dim: int,
        windows: Sequence[int],
        dtype: DType = DType.F16,
    ) -> None:
        if head_dim % dtype.block_size:
            raise DTypeError(
                f"a {dtype.name} cache stores blocks of {dtype.block_size}; the model has heads of {head_dim} elements",
                hint="use f16",
            )
        config = backend.cache_config()
        self.padding = config.padding
        self.n_cells = -(-n_cells // config.padding) * config.padding
        self.dtype = dtype
        self.windows = tuple(windows)
        self._backend = backend
        self._mask_dtype = config.mask_dtype
        self._head_dim = head_dim
        self._rows = (self.n_cells, n_kv_heads * head_dim)
        self._made: list[Tensor] = []
        try:
            for layer in range(len(windows)):
                for name in ("k", "v"):
                    self._made.append(backend.state(self._rows, dtype, f"cache.{layer}.{name}", layer))
        except BaseException:
            self.close()
            raise
        self._states = list(zip(self._made[::2], self._made[1::2], strict=True))
        self._limit = n_cells
        self.positions = np.full(self.n_cells, _FREE, np.int64)
        self.members = np.zeros(self.n_cells, np.int64)

    # What the runner calls

    def place(self, positions: np.ndarray[Any, Any], sequences: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Take a cell for each token of a batch: (n,) I32. Raises CacheFullError, and then takes none."""
        free = np.flatnonzero(self.members[: self._limit] == 0)
        if len(free) < len(positions):
            raise CacheFullError(
                f"the cache holds {self._limit} tokens and has room for {len(free)}; {len(positions)} are to be added",
                hint="load the model with a larger n_ctx, remove a sequence, or shift the context",
            )
        cells = free[: len(positions)]
        self.positions[cells] = positions
        self.members[cells] = np.int64(1) << sequences.astype(np.int64)
        return cells.astype(np.int32)

    @property
    def n_used(self) -> int:
        """How many cells a graph must read, padded as the backend likes it."""
        used = np.flatnonzero(self.members)
        n = int(used[-1]) + 1 if len(used) else 1
        return -(-n // self.padding) * self.padding

    def masks(
        self, positions: np.ndarray[Any, Any], sequences: np.ndarray[Any, Any], n: int
    ) -> dict[int, np.ndarray[Any, Any]]:
        """By window, (tokens, n): 0 where a token may look, -inf elsewhere."""
        mine = (self.members[:n] >> sequences[:, None]) & 1
        back = positions[:, None] - self.positions[:n]
        visible = (mine == 1) & (back >= 0)
        out = {}
        for window in set(self.windows):
            seen = visible & (back < window) if window else visible
            out[window] = np.where(seen, np.float32(0), np.float32(-np.inf)).astype(self._mask_dtype.numpy)
        return out

    def inputs(self, ctx: Context, n_tokens: int, n_cells: int) -> CacheInputs:
        """The inputs of a graph that puts ``n_tokens`` and reads ``n_cells``."""
        return CacheInputs(
            ctx.input("cache.cells", (n_tokens,), DType.I32),
            {w: ctx.input(f"cache.mask.{w}", (n_tokens, n_cells), self._mask_dtype) for w in sorted(set(self.windows))},
            n_cells,
        )

    def layers(self, ctx: Context, inputs: CacheInputs) -> list[LayerCache]:
        """A view for each layer, to be handed to the model."""
        return [
            LayerCache(ctx, inputs, k, v, window) for (k, v), window in zip(self._states, self.windows, strict=True)
        ]

    def feeds(
        self, inputs: CacheInputs, cells: np.ndarray[Any, Any], masks: Mapping[int, np.ndarray[Any, Any]]
    ) -> dict[Tensor, np.ndarray[Any, Any]]:
        """What those inputs are fed with."""
        return {inputs.cells: cells, **{inputs.masks[w]: mask for w, mask in masks.items()}}

    def length(self, sequence: int) -> int:
        """Positions of a sequence: one more than its last; 0 if it has no token here."""
        mine = self._of(sequence)
        return int(self.positions[mine].max()) + 1 if mine.any() else 0

    def copy_prefix(self, source: int, target: int, n: int) -> None:
        """``target`` begins with the first ``n`` positions of ``source``. Nothing is copied: the cells are shared."""
        self.remove(target)
        shared = self._of(source) & (self.positions < n)
        self.members[shared] |= np.int64(1) << np.int64(self._require_sequence(target))

    def can_resume(self, sequence: int, position: int) -> bool:
        """Whether a token at ``position`` would still find all that it may look at."""
        mine = np.sort(self.positions[self._of(sequence)])
        mine = mine[mine < position]
        reach = max((position if w == 0 else min(w - 1, position) for w in set(self.windows)), default=0)
        return bool(np.isin(np.arange(position - reach, position), mine).all())

    def remove(self, sequence: int, start: int = 0, stop: int | None = None) -> None:
        """Take positions ``start`` to ``stop`` out of a sequence. Those after ``stop`` keep theirs: see ``shift``."""
        mine = self._of(sequence) & (self.positions >= start)
        if stop is not None:
            mine &= self.positions < stop
        self.members[mine] &= ~(np.int64(1) << np.int64(sequence))
        self.positions[self.members == 0] = _FREE

    def shift(self, sequence: int, start: int, by: int, rope: RoPE, factors: Tensor | None = None) -> None:
        """Move positions from ``start`` on by ``by``, and turn their keys accordingly.

        RoPE turns a key by its position, and turns add up: turning by the difference gives what the new
        position would have. Raises GraphError if a cell is shared with another sequence, whose positions stay.
        """
        mine = self._of(sequence) & (self.positions >= start)
        others = ~(np.int64(1) << np.int64(sequence))
        if (self.members[mine] & others).any():
            raise GraphError(f"positions of sequence {sequence} from {start} on are shared and cannot shift")
        if self.positions[mine].size and self.positions[mine].min() + by < 0:
            raise GraphError(f"shifting by {by} would make positions negative")
        if not mine.any() or by == 0:
            return
        turns = np.where(mine, by, 0).astype(np.int32)
        plain = _without_magnitude(rope)
        with self._backend.new_context() as ctx:
            offsets = ctx.input("offsets", (self.n_cells,), DType.I32)
            cells = ctx.input("cells", (self.n_cells,), DType.I32)
            for keys, _ in self._states:
                heads = keys.take(cells).reshape(self.n_cells, -1, self._head_dim)
                turned = ops.rope(heads, offsets, factors, config=plain)
                ctx.forward(turned.reshape(*self._rows))
            ctx.compute({offsets: turns, cells: np.arange(self.n_cells)})
            results = [out.read() for out in ctx.graph().outputs]
        self._write_keys(results)
        self.positions[mine] += by

    def _write_keys(self, rows: list[np.ndarray[Any, Any]]) -> None:
        """A graph that updates a state may not read its old value: so turning and writing back are two graphs."""
        with self._backend.new_context() as ctx:
            cells = ctx.input("cells", (self.n_cells,), DType.I32)
            feeds: dict[Tensor, Any] = {cells: np.arange(self.n_cells)}
            for layer, ((keys, _), value) in enumerate(zip(self._states, rows, strict=True)):
                new = ctx.input(f"k{layer}", self._rows)
                feeds[new] = value
                ctx.update(keys, keys.set_rows(cells, new))
            ctx.compute(feeds)

    def clear(self) -> None:
        """Forget all sequences. The memory stays."""
        self.members[:] = 0
        self.positions[:] = _FREE

    def close(self) -> None:
        """Free the memory."""
        self._backend.release(self._made)
        self._made = []

    def _of(self, sequence: int) -> np.ndarray[Any, np.dtype[np.bool_]]:
        return (self.members >> self._require_sequence(sequence)) & 1 == 1

    def _require_sequence(self, sequence: int) -> int:
        if not 0 <= sequence < MAX_SEQUENCES:
            raise GraphError(f"sequence {sequence} is out of range: 0 to {MAX_SEQUENCES - 1}")
        return sequence


def _without_magnitude(rope: RoPE) -> RoPE:
    """The same turns, without YaRN's scaling of the length: the key has it already."""
    if not rope.ext_factor:
        return dataclasses.replace(rope, attn_factor=1.0)
    return dataclasses.replace(rope, attn_factor=rope.attn_factor / rope.magnitude())
