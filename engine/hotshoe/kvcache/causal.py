"""CausalCache: keys and values of several sequences, with full or sliding-window attention over them.

Layers of the same window share their cells (kvcache/cells.py), so those of a sliding window need few. Positions are
kept in keys (RoPE), so shifting them needs a graph: see ``shift``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from hotshoe.kvcache.base import LayerCache, LayerInputs
from hotshoe.kvcache.cells import MAX_SEQUENCES, Cells
from hotshoe_core import DType, Tensor, ops
from hotshoe_core.errors import CacheFullError, DTypeError, GraphError

if TYPE_CHECKING:
    from hotshoe_core import Backend, Context
    from hotshoe_core.ops import RoPE

__all__ = ["CausalCache", "RopeOf"]

Array = np.ndarray[Any, Any]
RopeOf = Callable[[int], "tuple[RoPE, Tensor | None]"]
"""Of a layer: how it turns keys, and the factors of the frequencies."""


class CausalCache:
    """Keys and values of ``n_tokens`` tokens of each of ``n_sequences`` sequences, or of more that are shorter.

    windows: for each layer, how many positions back it looks, itself included; 0 for all. n_batch: the most tokens
    that ``place`` is called with, for which a window's cells must have room too. dtype: element type of keys and
    values. Raises InsufficientMemoryError, and DTypeError for a type whose blocks do not fit.
    """

    def __init__(
        self,
        backend: Backend,
        *,
        n_tokens: int,
        n_kv_heads: int,
        head_dim: int,
        windows: Sequence[int],
        n_sequences: int = 1,
        n_batch: int = 512,
        dtype: DType = DType.F16,
    ) -> None:
        if head_dim % dtype.block_size:
            raise DTypeError(
                f"a {dtype.name} cache stores blocks of {dtype.block_size}; the model has heads of {head_dim} elements",
                hint="use f16",
            )
        config = backend.cache_config()
        self.padding = config.padding
        self.dtype = dtype
        self.windows = tuple(windows)
        self._backend = backend
        self._mask_dtype = config.mask_dtype
        self._head_dim = head_dim
        self._row = n_kv_heads * head_dim
        self._n_batch = n_batch
        total = n_tokens * n_sequences
        self.cells = {
            w: Cells(min(total, w * n_sequences + n_batch) if w else total, w, config.padding)
            for w in sorted(set(windows))
        }
        self._states: list[tuple[Tensor, Tensor]] = []
        self._made: list[Tensor] = []
        try:
            for layer, window in enumerate(windows):
                rows = (self.cells[window].n_padded, self._row)
                for name in ("k", "v"):
                    self._made.append(backend.state(rows, dtype, f"cache.{layer}.{name}", layer))
        except BaseException:
            self.close()
            raise
        self._states = list(zip(self._made[::2], self._made[1::2], strict=True))

    # What the runner calls

    def place(self, positions: Array, sequences: Array) -> dict[str, Array]:
        """Take cells for the tokens of a batch; returns what the inputs of its graph are fed with, by name.

        positions, sequences: (n,), of each token. Raises CacheFullError, and then takes none.
        """
        room = self.room()
        if room < len(positions):
            raise CacheFullError(
                f"the cache has room for {room} more tokens; {len(positions)} are to be added",
                hint="load the model with a larger n_ctx or n_sequences, or remove a sequence",
            )
        feeds: dict[str, Array] = {}
        for window, cells in self.cells.items():
            feeds[f"cache.cells.{window}"] = cells.place(positions, sequences)
            mask = np.where(cells.mask(positions, sequences), np.float32(0), np.float32(-np.inf)).astype(
                self._mask_dtype.numpy
            )
            feeds[f"cache.mask.{window}"] = mask
        return feeds

    @property
    def sizes(self) -> tuple[int, ...]:
        """How many cells a graph must read, for each window, padded as the backend likes it."""
        return tuple(cells.n_read for cells in self.cells.values())

    def layers(self, ctx: Context, n_tokens: int, sizes: Sequence[int]) -> list[LayerCache]:
        """A view for each layer, to be handed to the model, of a graph that puts ``n_tokens`` and reads ``sizes``."""
        inputs = {
            window: LayerInputs(
                ctx.input(f"cache.cells.{window}", (n_tokens,), DType.I32),
                ctx.input(f"cache.mask.{window}", (n_tokens, size), self._mask_dtype),
            )
            for window, size in zip(self.cells, sizes, strict=True)
        }
        return [LayerCache(ctx, inputs[w], k, v) for w, (k, v) in zip(self.windows, self._states, strict=True)]

    def room(self, keep: int = -1) -> int:
        """How many tokens could be placed if only the sequences of ``keep``, a bit each, stayed; -1 for all."""
        return min(cells.room(keep) for cells in self.cells.values())

    def fits(self, lengths: Sequence[int], pending: int, keep: int = -1) -> bool:
        """Whether sequences of these lengths can be computed together, ``pending`` tokens of which are not here yet.

        The sequences of ``keep``, a bit each, stay; -1 for all.
        """
        return all(cells.fits(lengths, pending, keep, self._n_batch) for cells in self.cells.values())

    def length(self, sequence: int) -> int:
        """Positions of a sequence: one more than its last; 0 if it has no token here."""
        _require_sequence(sequence)
        cells = next(iter(self.cells.values()))
        mine = cells.of(sequence)
        return int(cells.positions[mine].max()) + 1 if mine.any() else 0

    def copy_prefix(self, source: int, target: int, n: int) -> None:
        """``target`` begins with the first ``n`` positions of ``source``. Nothing is copied: the cells are shared."""
        self.remove(target)
        for cells in self.cells.values():
            cells.share(_require_sequence(source), target, n)

    def can_resume(self, sequence: int, position: int) -> bool:
        """Whether a token at ``position`` would still find all that it may look at."""
        _require_sequence(sequence)
        return all(cells.can_resume(sequence, position) for cells in self.cells.values())

    def remove(self, sequence: int, start: int = 0, stop: int | None = None) -> None:
        """Take positions ``start`` to ``stop`` out of a sequence. Those after ``stop`` keep theirs: see ``shift``."""
        for cells in self.cells.values():
            cells.remove(_require_sequence(sequence), start, stop)

    def sharing(self, sequence: int, start: int) -> int:
        """The other sequences, a bit each, that have cells from position ``start`` on in common with this one."""
        found = 0
        for cells in self.cells.values():
            mine = cells.of(_require_sequence(sequence)) & (cells.positions >= start)
            found |= int(np.bitwise_or.reduce(cells.members[mine]))
        return found & ~(1 << sequence)

    def shift(self, sequence: int, start: int, by: int, rope_of: RopeOf) -> None:
        """Move positions from ``start`` on by ``by``, and turn their keys as ``rope_of(layer)`` does.

        RoPE turns a key by its position, and turns add up: turning by the difference gives what the new
        position would have. Raises GraphError if a cell is shared with another sequence, whose positions stay.
        """
        if self.sharing(sequence, start):
            raise GraphError(f"positions of sequence {sequence} from {start} on are shared and cannot shift")
        moved = {w: np.flatnonzero(c.of(sequence) & (c.positions >= start)) for w, c in self.cells.items()}
        for window, cells in self.cells.items():
            if len(moved[window]) and cells.positions[moved[window]].min() + by < 0:
                raise GraphError(f"shifting by {by} would make positions negative")
        if by == 0:
            return
        self._turn(moved, by, rope_of)
        for window, cells in self.cells.items():
            cells.positions[moved[window]] += by

    def _turn(self, moved: dict[int, Array], by: int, rope_of: RopeOf) -> None:
        """A graph that updates a state may not read its old value: so turning keys and writing them are two graphs."""
        chosen = [
            (w, keys, rope_of(i)) for i, (w, (keys, _)) in enumerate(zip(self.windows, self._states, strict=True))
        ]
        chosen = [entry for entry in chosen if len(moved[entry[0]])]
        if not chosen:
            return
        with self._backend.new_context() as ctx:
            at = {w: ctx.input(f"cells.{w}", (len(c),), DType.I32) for w, c in moved.items() if len(c)}
            offsets = {w: ctx.input(f"offsets.{w}", (len(moved[w]),), DType.I32) for w in at}
            turned = []
            for window, keys, (rope, factors) in chosen:
                heads = keys.take(at[window]).reshape(len(moved[window]), -1, self._head_dim)
                y = ops.rope(heads, offsets[window], factors, config=_without_magnitude(rope))
                turned.append(y.reshape(-1, self._row))
            feeds = {x: moved[w] for w, x in at.items()}
            ctx.forward(*turned).compute(feeds | {x: np.full(x.shape, by) for x in offsets.values()})
            values = [y.read() for y in turned]
        with self._backend.new_context() as ctx:
            at = {w: ctx.input(f"cells.{w}", (len(c),), DType.I32) for w, c in moved.items() if len(c)}
            feeds = {x: moved[w] for w, x in at.items()}
            for i, ((window, keys, _), value) in enumerate(zip(chosen, values, strict=True)):
                new = ctx.input(f"keys.{i}", value.shape)
                feeds[new] = value
                ctx.update(keys, keys.set_rows(at[window], new))
            ctx.compute(feeds)

    def close(self) -> None:
        """Free the memory."""
        self._backend.release(self._made)
        self._made = []


def _require_sequence(sequence: int) -> int:
    if not 0 <= sequence < MAX_SEQUENCES:
        raise GraphError(f"sequence {sequence} is out of range: 0 to {MAX_SEQUENCES - 1}")
    return sequence


def _without_magnitude(rope: RoPE) -> RoPE:
    """The same turns, without YaRN's scaling of the length: the key has it already."""
    if not rope.ext_factor:
        return dataclasses.replace(rope, attn_factor=1.0)
    return dataclasses.replace(rope, attn_factor=rope.attn_factor / rope.magnitude())
