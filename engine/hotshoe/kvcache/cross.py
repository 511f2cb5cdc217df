"""CrossCache: keys and values of encoders' outputs, such as pictures, to which layers of a text model attend.

An output stands at a position of a sequence. A row attends to the last output at or before it, and to those directly
before that one: so do Llama 3.2's pictures. Outputs have cells of their own, and forks of a sequence share them. What
no later row of any sequence attends to makes room for others; it is computed again if later rows come to attend to it,
as a sequence was cut back to it, or lost what stood between.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from hotshoe.kvcache.base import Allocation, LayerViews, Sizes
from hotshoe.kvcache.buckets import round_up, rows_per_octave
from hotshoe.kvcache.spec import CrossSpec, LayerSpec, Part, parts_of, per_layer
from hotshoe.kvcache.views import require_blocks, require_rows, saved_type, zero_rows
from hotshoe_core import DType, Tensor
from hotshoe_core.errors import CacheFullError, GraphError

if TYPE_CHECKING:
    from hotshoe_core import Backend, Context

__all__ = ["CrossCache", "most_attended"]

Array = np.ndarray[Any, Any]
Outputs = dict[int, Array | None]
"""Of one slot: the position of each output, in order, and its cells; None if it gave up its cells."""

_AT_ONCE = 512  # rows that one graph overwrites with zeros


class CrossCache:
    """The keys and values of encoders' outputs, of ``n_rows`` rows together.

    spec: one entry for each layer; parts other than CrossSpec get None as their view, and so do all parts in a graph of
    rows that attend to nothing. Raises InsufficientMemoryError; DTypeError for a type whose blocks do not fit.
    """

    uniform = False
    shift_refusal = None  # keys do not depend on positions

    def __init__(self, backend: Backend, spec: Sequence[LayerSpec], *, n_rows: int, dtype: DType = DType.F16) -> None:
        self._backend = backend
        self._mask_dtype = backend.cache_config().mask_dtype
        self._per_octave = rows_per_octave(backend)
        self._spec = spec
        self._layers = {i: s for i, s in parts_of(spec).items() if isinstance(s, CrossSpec)}
        self.n_rows = n_rows
        self._slots: dict[int, Outputs] = {}
        self._new: list[tuple[int, int]] = []  # slot and position of the outputs that the current graph stores
        self._n_read = n_rows  # of the graph that is built first, which shows whether all weights fit
        self._made: list[Tensor] = []
        self._states: dict[Part, tuple[Tensor, Tensor]] = {}
        try:
            for i, s in self._layers.items():
                require_blocks(i, (s.k_dim, s.v_dim), dtype)
                for name, size in (("k", s.k_dim), ("v", s.v_dim)):
                    self._made.append(backend.state((n_rows, s.n_kv_heads * size), dtype, f"cross.{i}.{name}", i.layer))
                self._states[i] = (self._made[-2], self._made[-1])
        except BaseException:
            self.close()
            raise

    # Graphs

    def storing_views(self, ctx: Context, n: int) -> list[LayerViews]:
        """Return the views for a graph that stores ``n`` rows of outputs, at the cells in its input "cross.cells"."""
        cells = ctx.input("cross.cells", (n,), DType.I32)
        return per_layer(self._spec, {i: _Storing(ctx, i, s, *self._states[i], cells) for i, s in self._layers.items()})

    @property
    def sizes(self) -> Sizes:
        return (self._n_read,)

    @property
    def max_sizes(self) -> Sizes:
        return (self.n_rows,)

    def allocate(self, allocations: Sequence[Allocation], n_rows: int) -> dict[str, Array]:
        """Take cells for the outputs in these rows: "cross.cells" has those of all of them, one after the other."""
        self._new = []
        kept = self._needed(self._slots, allocations)
        try:
            for a in allocations:
                for position, n in a.encoded:
                    cells = self._take(n, kept)
                    kept[cells] = True
                    self._slots.setdefault(a.slot, {})[position] = cells
                    self._new.append((a.slot, position))
        except CacheFullError:
            self.rollback()
            raise
        reach = [list(self._reach(a)) for a in allocations]
        last = max((int(cells.max()) for found in reach for _, _, cells in found), default=-1)
        self._n_read = min(self.n_rows, round_up(last + 1, self._per_octave))
        feeds: dict[str, Array] = {}
        if self._new:
            feeds["cross.cells"] = np.concatenate([self._cells(*new) for new in self._new]).astype(np.int32)
        if self._n_read:
            mask = np.full((n_rows, self._n_read), -np.inf, self._mask_dtype.numpy)
            attends = np.zeros((n_rows, 1), np.float32)
            row = 0
            for a, found in zip(allocations, reach, strict=True):
                for first, stop, cells in found:
                    mask[row + first : row + stop, cells] = 0
                    attends[row + first : row + stop] = 1
                row += a.n
            mask[attends[:, 0] == 0, 0] = 0
            feeds |= {"cross.mask": mask, "cross.attends": attends}
        return feeds

    def _reach(self, a: Allocation) -> Iterator[tuple[int, int, Array]]:
        """For the rows of an allocation: from which row on, up to which, they attend to which cells."""
        positions = [p for p in self._slots.get(a.slot, {}) if p < a.start + a.n]
        ends = [*positions[1:], a.start + a.n]
        for i, (position, end) in enumerate(zip(positions, ends, strict=False)):
            if end > a.start:
                cells = np.concatenate([self._cells(a.slot, p) for p in _joined(positions[: i + 1])])
                yield max(0, position - a.start), end - a.start, cells

    def commit(self) -> None:
        self._new = []

    def rollback(self) -> None:
        for slot, position in self._new:
            self._slots[slot].pop(position, None)
        self._new = []

    def views(self, ctx: Context, n_rows: int, n_sequences: int, sizes: Sizes) -> list[LayerViews]:
        (n_read,) = sizes
        if not n_read:
            return per_layer(self._spec, {})
        mask = ctx.input("cross.mask", (n_rows, n_read), self._mask_dtype)
        attends = ctx.input("cross.attends", (n_rows, 1))
        return per_layer(self._spec, {i: _Reading(s, *self._states[i], mask, attends) for i, s in self._layers.items()})

    def fits(self, allocations: Sequence[Allocation], keep: Collection[int] | None = None, min_free: int = 0) -> bool:
        new = sum(most_attended(a.encoded) for a in allocations)  # a text's earlier outputs make room for later ones
        slots = self._slots.keys() if keep is None else {*keep, *(a.slot for a in allocations)}
        return not new or new <= self.n_rows - int(self._needed(slots, allocations).sum())

    # Outputs

    def _cells(self, slot: int, position: int) -> Array:
        cells = self._slots[slot][position]
        if cells is None:
            raise GraphError(f"slot {slot}: the encoder's output at position {position} is not in the cache")
        return cells

    def _needed(self, slots: Collection[int], allocations: Sequence[Allocation]) -> Array:
        """(n_rows,) bool: the cells that a graph of these rows needs, or the next row of one of these slots.

        A graph that begins with an output does not need those before it, unless they follow each other.
        """
        past = {
            a.slot
            for a in allocations
            if a.encoded and a.encoded[0][0] == a.start and a.start - 1 not in self._slots.get(a.slot, {})
        }
        return self._attended([slot for slot in slots if slot not in past])

    def _attended(self, slots: Collection[int]) -> Array:
        """(n_rows,) bool: the cells that the next row of one of these slots attends to."""
        found = np.zeros(self.n_rows, bool)
        for slot in slots:
            outputs = self._slots.get(slot, {})
            for position in _joined(list(outputs)):
                if (cells := outputs[position]) is not None:
                    found[cells] = True
        return found

    def _used(self) -> Array:
        """(n_rows,) bool: the cells that hold something."""
        used = np.zeros(self.n_rows, bool)
        for outputs in self._slots.values():
            for cells in outputs.values():
                if cells is not None:
                    used[cells] = True
        return used

    def _take(self, n: int, kept: Array) -> Array:
        """Return ``n`` free cells, the first ones. If there are too few, all but the ``kept`` ones make room."""
        used = self._used()
        if n > self.n_rows - used.sum():
            for outputs in self._slots.values():
                for position, cells in outputs.items():
                    if cells is not None and not kept[cells[0]]:
                        outputs[position] = None
            used &= kept
        free = np.flatnonzero(~used)
        if n > len(free):
            raise CacheFullError(
                f"the cache has room for {self.n_rows} rows of pictures, of which {len(free)} are free; {n} are needed",
                hint="use a larger n_sequences, or show fewer pictures at once",
            )
        return free[:n]

    def length(self, slot: int) -> int:
        return 0

    def copy_prefix(self, source: int, target: int, n: int) -> None:
        self._slots[target] = {p: cells for p, cells in self._slots.get(source, {}).items() if p < n}

    def can_resume(self, slot: int, position: int) -> bool:
        return self.resume_position(slot, position) == position

    def resume_position(self, slot: int, position: int) -> int:
        """A row needs the outputs that it attends to. Rows are computed again from the first one that is missing on."""
        outputs = self._slots.get(slot, {})
        joined = _joined([p for p in outputs if p < position])
        return next((p for p in joined if outputs[p] is None), position)

    def remove(self, slot: int, start: int = 0, stop: int | None = None) -> None:
        outputs = self._slots.pop(slot, {})
        kept = {p: cells for p, cells in outputs.items() if p < start or (stop is not None and p >= stop)}
        if kept:
            self._slots[slot] = kept

    def slots_sharing(self, slot: int, start: int) -> frozenset[int]:
        return frozenset()  # positions are records of each slot, and cells never change

    def shift(self, slot: int, start: int, by: int) -> None:
        """Move outputs. If the next row then attends to one that gave up its cells, ``resume_position`` says so."""
        moved = {p + by if p >= start else p: cells for p, cells in self._slots.get(slot, {}).items()}
        if moved:
            self._slots[slot] = moved

    # Save and restore

    def _between(self, slot: int, start: int, stop: int) -> Outputs:
        return {p: cells for p, cells in self._slots.get(slot, {}).items() if start <= p < stop}

    def held_bytes(self, slot: int, start: int, stop: int) -> int:
        n = sum(len(cells) for cells in self._between(slot, start, stop).values() if cells is not None)
        return n * sum(saved_type(state).itemsize * state.shape[1] for state in self._made)

    def save(self, slot: int, start: int, stop: int) -> dict[str, Array]:
        found = self._between(slot, start, stop)
        lengths = [0 if cells is None else len(cells) for cells in found.values()]
        saved: dict[str, Array] = {"cross.outputs": np.array([list(found), lengths], np.int32)}
        held = [cells for cells in found.values() if cells is not None]
        if held:
            with self._backend.new_context() as ctx:
                cells = ctx.input("cells", (sum(lengths),), DType.I32)
                rows = [state.take(cells) for state in self._made]
                ctx.forward(*rows)
                ctx.compute({cells: np.concatenate(held)})
                for state, read in zip(self._made, rows, strict=True):
                    saved[state.name] = read.read().astype(saved_type(state))
        return saved

    def restore(self, slot: int, saved: Mapping[str, Array], stop: int) -> None:
        """Put outputs back. One for which there is no room stays missing, so that its rows are computed again."""
        outputs = self._slots.setdefault(slot, {})
        first = 0
        for position, n in saved["cross.outputs"].T.tolist():
            if position < stop:
                outputs[position] = None
                try:
                    cells = self._take(n, self._attended(self._slots)) if n else None
                except CacheFullError:
                    cells = None
                if cells is not None:
                    self._put(cells, {state.name: saved[state.name][first : first + n] for state in self._made})
                    outputs[position] = cells
            first += n

    def _put(self, cells: Array, values: Mapping[str, Array]) -> None:
        with self._backend.new_context() as ctx:
            indices = ctx.input("cells", (len(cells),), DType.I32)
            feeds: dict[Tensor, Array] = {indices: cells}
            for state in self._made:
                rows = ctx.input(state.name, (len(cells), state.shape[1]))
                ctx.update(state, state.set_rows(indices, rows))
                feeds[rows] = values[state.name].astype(np.float32)
            ctx.compute(feeds)

    def scrub(self) -> None:
        zero_rows(self._backend, self._made, np.flatnonzero(~self._used()), _AT_ONCE)

    def close(self) -> None:
        self._backend.release(self._made)
        self._made = []


def most_attended(outputs: Iterable[tuple[int, int]]) -> int:
    """Return the most rows of outputs that one row attends to: those of outputs that follow each other directly.

    outputs: the position and the number of rows of each, in order.
    """
    most, n, next_position = 0, 0, -1
    for position, n_rows in outputs:
        n = n_rows + (n if position == next_position else 0)
        most, next_position = max(most, n), position + 1
    return most


def _joined(positions: list[int]) -> list[int]:
    """Return the last positions that follow each other directly."""
    n = len(positions)
    first = next((i for i in range(n - 1, 0, -1) if positions[i] != positions[i - 1] + 1), 0)
    return positions[first:]


class _Reading:
    """The CrossView of one layer in a graph of the text."""

    def __init__(self, spec: CrossSpec, keys: Tensor, values: Tensor, mask: Tensor, attends: Tensor) -> None:
        self._spec, self._keys, self._values = spec, keys, values
        self.mask, self.attends = mask, attends

    def put(self, k: Tensor, v: Tensor) -> None:
        raise GraphError("a layer stores an encoder's keys in a graph of the text", hint="call read()")

    def read(self) -> tuple[Tensor, Tensor]:
        spec, n = self._spec, self.mask.shape[1]
        keys = self._keys[:n].reshape(n, spec.n_kv_heads, spec.k_dim)
        return keys, self._values[:n].reshape(n, spec.n_kv_heads, spec.v_dim)


class _Storing:
    """The CrossView of one layer in the graph that stores outputs."""

    def __init__(self, ctx: Context, layer: Part, spec: CrossSpec, keys: Tensor, values: Tensor, cells: Tensor) -> None:
        self._ctx, self._layer, self._spec = ctx, layer, spec
        self._keys, self._values, self._cells = keys, values, cells

    @property
    def mask(self) -> Tensor:
        raise GraphError(f"layer {self._layer} reads in the graph that stores an encoder's keys", hint="call put(k, v)")

    attends = mask

    def put(self, k: Tensor, v: Tensor) -> None:
        spec, n = self._spec, self._cells.shape[0]
        require_rows(f"layer {self._layer}: keys", k, (n, spec.n_kv_heads, spec.k_dim))
        require_rows(f"layer {self._layer}: values", v, (n, spec.n_kv_heads, spec.v_dim))
        for state, rows in ((self._keys, k), (self._values, v)):
            self._ctx.update(state, state.set_rows(self._cells, rows.reshape(n, -1)))

    def read(self) -> tuple[Tensor, Tensor]:
        raise GraphError(f"layer {self._layer} reads in the graph that stores an encoder's keys", hint="call put(k, v)")
