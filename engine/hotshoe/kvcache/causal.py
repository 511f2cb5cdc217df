"""CausalCache: keys and values for layers that attend to all earlier tokens, to a window, or to a chunk.

Layers of the same reach share their cells (kvcache/cells.py), so layers of a short reach need few. Keys contain their
positions (RoPE), so moving them means rotating them: see ``shift``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from hotshoe.kvcache.base import Allocation, LayerViews, Sizes, common_resume_position
from hotshoe.kvcache.buckets import BLOCKS_PER_OCTAVE
from hotshoe.kvcache.cells import Cells, Reach, SlotBits, bits_of, full, slots_of
from hotshoe.kvcache.lists import CellLists
from hotshoe.kvcache.spec import AttentionSpec, LayerSpec, Part, parts_of, per_layer, storing_part
from hotshoe.kvcache.views import CellInputs, KeyValueView, SharedView, require_blocks, saved_type, zero_rows
from hotshoe_core import DType, Tensor, ops
from hotshoe_core.errors import CacheFullError, GraphError

if TYPE_CHECKING:
    from hotshoe_core import Backend, Context
    from hotshoe_core.ops import RoPE

__all__ = ["CausalCache"]

Array = np.ndarray[Any, Any]


class CausalCache:
    """The keys and values of ``n_sequences`` sequences of ``n_tokens`` tokens each, or of more that are shorter.

    spec: one entry for each layer; parts other than AttentionSpec get None as their view. n_ubatch: the most rows of a
    graph; layers of a short reach need room for them too. n_scratch: the most rows of padding. dtype: the element type
    of keys and values. Raises InsufficientMemoryError; DTypeError for a type whose blocks do not fit;
    ModelDefinitionError for a layer that reads the keys and values of a layer without any.
    """

    uniform = False

    def __init__(
        self,
        backend: Backend,
        spec: Sequence[LayerSpec],
        *,
        n_tokens: int,
        n_sequences: int = 1,
        n_ubatch: int = 512,
        n_scratch: int = 0,
        dtype: DType = DType.F16,
    ) -> None:
        config = backend.cache_config()
        self.padding = config.padding
        self.dtype = dtype
        self._spec = spec
        parts = parts_of(spec)
        attention = {i: s for i, s in parts.items() if isinstance(s, AttentionSpec)}
        self._layers = {i: s for i, s in attention.items() if s.like is None}
        self._readers = {i: storing_part(parts, i) for i, s in attention.items() if s.like is not None}
        for layer, s in self._layers.items():
            require_blocks(layer, (s.k_dim, s.value_dim), dtype)
        self._reach = {i: Reach(s.window, s.chunk, spans=s.spans) for i, s in self._layers.items()}
        self._backend = backend
        self._config = config
        self._n_ubatch = n_ubatch
        total = n_tokens * n_sequences
        per_octave = config.lengths_per_octave or BLOCKS_PER_OCTAVE
        self.cells = {
            reach: Cells(
                min(total, reach.most * n_sequences + n_ubatch) if reach.most else total,
                reach,
                config.padding,
                n_scratch,
                per_octave,
            )
            for reach in sorted(set(self._reach.values()))
        }
        self._lists = {
            reach: CellLists(cells, config.padding, per_octave, n_sequences)
            for reach, cells in self.cells.items()
            if config.reads_lists
        }
        self._masked = set() if config.reads_lists else set(self.cells)
        """For what reach a graph reads a mask: with lists, where a view was asked for it."""
        self._states: dict[Part, tuple[Tensor, Tensor | None]] = {}
        self._made: list[Tensor] = []
        try:
            for i, s in self._layers.items():
                n_rows = self.cells[self._reach[i]].n_rows
                k = self._make(n_rows, s.n_kv_heads * s.k_dim, f"cache.{i}.k", i.layer)
                v = None if s.v_in_k else self._make(n_rows, s.n_kv_heads * s.value_dim, f"cache.{i}.v", i.layer)
                self._states[i] = (k, v)
        except BaseException:
            self.close()
            raise

    def _make(self, n_rows: int, row: int, name: str, layer: int) -> Tensor:
        # a row holds all heads, as quantized types store blocks along rows
        self._made.append(self._backend.state((n_rows, row), self.dtype, name, layer))
        return self._made[-1]

    @property
    def shift_refusal(self) -> str | None:
        for i, s in self._layers.items():
            if not s.shiftable:
                return f"layer {i} does not allow moving its positions (shiftable is False)"
            if s.chunk:
                return f"layer {i} attends within chunks of {s.chunk} positions, whose borders would move"
        return None

    def allocate(self, allocations: Sequence[Allocation], n_rows: int) -> dict[str, Array]:
        """Take cells for the rows of a graph. Raises CacheFullError, and takes none, if there are too few."""
        n = sum(a.n for a in allocations)
        positions = np.array([i for a in allocations for i in range(a.start, a.start + a.n)], np.int32)
        slots = np.array([a.slot for a in allocations for _ in range(a.n)], np.int64)
        spans = _spans_of(allocations, positions)
        feeds: dict[str, Array] = {}
        try:
            for reach, cells in self.cells.items():
                taken = cells.allocate(positions, slots, n_rows)
                feeds[f"cache.cells.{reach}"] = taken.astype(self._config.cell_dtype.numpy, copy=False)
                if reach in self._lists:
                    lists, ranges = self._lists[reach].write(taken, positions, slots, spans)
                    feeds |= {f"cache.lists.{reach}": lists, f"cache.ranges.{reach}": ranges}
                if reach in self._masked:
                    n_seen = cells.n_rows if reach in self._lists else cells.n_read
                    mask = np.full((n_rows, n_seen), -np.inf, self._config.mask_dtype.numpy)
                    cells.write_mask(mask[:n, : cells.n_read], positions, slots, spans)
                    mask[n:, 0] = 0  # padding sees any cell: a softmax of nothing is NaN
                    feeds[f"cache.mask.{reach}"] = mask
                    feeds[f"cache.positions.{reach}"] = np.maximum(cells.positions[:n_seen], 0)
        except CacheFullError:
            self.rollback()
            raise full(min(cells.room() for cells in self.cells.values()), n) from None
        return feeds

    def commit(self) -> None:
        for cells in self.cells.values():
            cells.commit()

    def rollback(self) -> None:
        for cells in self.cells.values():
            cells.rollback()

    @property
    def sizes(self) -> Sizes:
        if self._lists:
            return tuple(lists.size for lists in self._lists.values())
        return tuple(cells.n_read for cells in self.cells.values())

    @property
    def max_sizes(self) -> Sizes:
        if self._lists:
            return tuple(lists.max_size for lists in self._lists.values())
        return tuple(cells.most_read for cells in self.cells.values())

    def views(self, ctx: Context, n_rows: int, n_sequences: int, sizes: Sizes) -> list[LayerViews]:
        inputs = {
            reach: CellInputs(
                ctx, str(reach), n_rows, size, cells.n_rows, self._config, partial(self._masked.add, reach)
            )
            for (reach, cells), size in zip(self.cells.items(), sizes, strict=True)
        }
        views = {i: KeyValueView(ctx, i, s, inputs[self._reach[i]], *self._states[i]) for i, s in self._layers.items()}
        return per_layer(self._spec, views | {i: SharedView(i, views[stored]) for i, stored in self._readers.items()})

    def fits(self, allocations: Sequence[Allocation], keep: Collection[int] | None = None, min_free: int = 0) -> bool:
        bits: SlotBits = bits_of(None if keep is None else {*keep, *(a.slot for a in allocations)})
        return all(cells.fits(allocations, bits, min_free, self._n_ubatch) for cells in self.cells.values())

    def length(self, slot: int) -> int:
        return next(iter(self.cells.values())).length(slot)

    def copy_prefix(self, source: int, target: int, n: int) -> None:
        self.remove(target)
        for cells in self.cells.values():
            cells.share(source, target, n)

    def can_resume(self, slot: int, position: int) -> bool:
        return self.resume_position(slot, position) == position

    def resume_position(self, slot: int, position: int) -> int:
        return common_resume_position([cells.resume_position for cells in self.cells.values()], slot, position)

    def remove(self, slot: int, start: int = 0, stop: int | None = None) -> None:
        for cells in self.cells.values():
            cells.remove(slot, start, stop)

    def slots_sharing(self, slot: int, start: int) -> frozenset[int]:
        bits = 0
        for cells in self.cells.values():
            bits |= cells.slots_sharing(slot, start)
        return slots_of(bits)

    def shift(self, slot: int, start: int, by: int) -> None:
        """Move positions and rotate the keys, in one graph on the device.

        RoPE rotates a key by its position, and rotations add up: a rotation by the difference gives the key of the new
        position. Raises GraphError if a layer refuses it, a position would become negative, or a cell is shared with
        another slot, whose positions do not change.
        """
        if self.shift_refusal is not None:
            raise GraphError(f"positions of this cache cannot be moved: {self.shift_refusal}")
        if self.slots_sharing(slot, start):
            raise GraphError(f"positions of slot {slot} from {start} on are shared and cannot be moved")
        moved = {r: np.flatnonzero(c.held_by(slot) & (c.positions >= start)) for r, c in self.cells.items()}
        for reach, cells in self.cells.items():
            if len(moved[reach]) and cells.positions[moved[reach]].min() + by < 0:
                raise GraphError(f"shifting by {by} would make positions negative")
        if by:
            self._rotate({r: m for r, m in moved.items() if len(m)}, by)
            for reach, cells in self.cells.items():
                cells.move(slot, moved[reach], by)

    def _rotate(self, moved: dict[Reach, Array], by: int) -> None:
        layers = [i for i, s in self._layers.items() if s.rope is not None and self._reach[i] in moved]
        if not layers:
            return
        with self._backend.new_context() as ctx:
            indices = {r: ctx.input(f"cells.{r}", (len(m),), DType.I32) for r, m in moved.items()}
            by_row = {r: ctx.input(f"by.{r}", (len(m),), DType.I32) for r, m in moved.items()}
            for i in layers:
                spec, reach, keys = self._layers[i], self._reach[i], self._states[i][0]
                rows = keys.take(indices[reach]).reshape(-1, spec.n_kv_heads, spec.k_dim)  # (moved, kv_heads, k_dim)
                rows = _rotated(rows, by_row[reach], spec)
                ctx.update(keys, keys.set_rows(indices[reach], rows.reshape(len(moved[reach]), -1)))
            feeds: dict[Tensor, Array] = {indices[r]: m for r, m in moved.items()}
            ctx.compute(feeds | {by_row[r]: np.full(len(m), by) for r, m in moved.items()})

    def held_bytes(self, slot: int, start: int, stop: int) -> int:
        held = {reach: len(cells.found(slot, start, stop)) for reach, cells in self.cells.items()}
        states = sum(
            held[self._reach[i]] * state.shape[1] * saved_type(state).itemsize for i, _, state in self._named_states()
        )
        return states + 4 * sum(held.values())

    def save(self, slot: int, start: int, stop: int) -> dict[str, Array]:
        found = {reach: cells.found(slot, start, stop) for reach, cells in self.cells.items()}
        saved: dict[str, Array] = {
            f"cells.{reach}": self.cells[reach].positions[cells] for reach, cells in found.items()
        }
        with self._backend.new_context() as ctx:
            indices = {r: ctx.input(f"cells.{r}", (len(m),), DType.I32) for r, m in found.items() if len(m)}
            rows = {
                name: (state, state.take(indices[self._reach[i]]))
                for i, name, state in self._named_states()
                if self._reach[i] in indices
            }
            if rows:
                ctx.forward(*(read for _, read in rows.values()))
                ctx.compute({indices[r]: found[r] for r in indices})
                saved |= {name: read.read().astype(saved_type(state)) for name, (state, read) in rows.items()}
        return saved

    def restore(self, slot: int, saved: Mapping[str, Array], stop: int) -> None:
        wanted = {}
        for reach in self.cells:
            positions = saved[f"cells.{reach}"]
            wanted[reach] = (positions < stop) & (positions >= reach.first_seen(stop))
        try:
            taken = {r: c.restore(slot, saved[f"cells.{r}"][wanted[r]]) for r, c in self.cells.items()}
            with self._backend.new_context() as ctx:
                feeds: dict[Tensor, Array] = {}
                indices = {r: ctx.input(f"cells.{r}", (len(m),), DType.I32) for r, m in taken.items() if len(m)}
                for i, name, state in self._named_states():
                    reach = self._reach[i]
                    if reach in indices:
                        rows = ctx.input(name, (len(taken[reach]), state.shape[1]))
                        ctx.update(state, state.set_rows(indices[reach], rows))
                        feeds[rows] = saved[name][wanted[reach]].astype(np.float32)
                if feeds:
                    ctx.compute(feeds | {indices[r]: taken[r] for r in indices})
        except BaseException:
            self.rollback()
            raise
        self.commit()

    def _named_states(self) -> Iterator[tuple[Part, str, Tensor]]:
        for i, pair in self._states.items():
            for name, state in zip("kv", pair, strict=True):
                if state is not None:
                    yield i, f"{i}.{name}", state

    def scrub(self) -> None:
        for reach, cells in self.cells.items():
            pairs = [pair for i, pair in self._states.items() if self._reach[i] == reach]
            states = [state for pair in pairs for state in pair if state is not None]
            zero_rows(self._backend, states, np.flatnonzero(~cells.used), self._n_ubatch)

    def close(self) -> None:
        self._backend.release(self._made)
        self._made = []


def _spans_of(allocations: Sequence[Allocation], positions: Array) -> tuple[Array, Array] | None:
    """Return the first and last position of the span that each row is in; the row's own position outside spans."""
    if not any(a.spans for a in allocations):
        return None
    first, last = positions.copy(), positions.copy()
    row = 0
    for a in allocations:
        for start, stop in a.spans:
            inside = slice(row + max(start, a.start) - a.start, row + min(stop, a.start + a.n) - a.start)
            first[inside], last[inside] = start, stop - 1
        row += a.n
    return first, last


def _rotated(rows: Tensor, by: Tensor, spec: AttentionSpec) -> Tensor:
    assert spec.rope is not None
    rope = _without_magnitude(spec.rope)
    if rope.sections:  # all streams of positions move by the same distance
        by = by.reshape(1, -1).expand(len(rope.sections), by.shape[0])
    if not spec.rope_start:
        return ops.rope(rows, by, spec.rope_factors, config=rope)
    rotated = ops.rope(rows[..., spec.rope_start :], by, spec.rope_factors, config=rope)
    return ops.concat(rows[..., : spec.rope_start], rotated, axis=-1)


def _without_magnitude(rope: RoPE) -> RoPE:
    """Return the same rotation without YaRN's scaling of the length, which the key already has."""
    if not rope.ext_factor:
        return dataclasses.replace(rope, attn_factor=1.0)
    return dataclasses.replace(rope, attn_factor=rope.attn_factor / rope.magnitude())
