"""RecurrentCache: states of fixed size, one row for each sequence (Mamba, short convolutions, delta nets, RWKV).

A graph reads and writes rows at indices that are inputs; kvcache/recurrent_rows.py chooses them.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from hotshoe.kvcache.base import CHECKPOINT_BYTES, MAX_SEQUENCES, Allocation, LayerViews, Sizes
from hotshoe.kvcache.recurrent_rows import Rows
from hotshoe.kvcache.spec import LayerSpec, Part, RecurrentSpec, parts_of, per_layer
from hotshoe_core import DType, Tensor, ops
from hotshoe_core.errors import GraphError, ShapeError, did_you_mean

if TYPE_CHECKING:
    from hotshoe_core import Backend, Context

__all__ = ["RecurrentCache"]

Array = np.ndarray[Any, Any]

_FEWEST = 3  # checkpoints for each sequence, however large a state is


class RecurrentCache:
    """The states of ``n_sequences`` sequences, and checkpoints: their states after earlier tokens.

    Checkpoints take ``checkpoint_bytes``, or the room of three for each sequence if that is more. The current states of
    more sequences may take their place. One more state serves guessed tokens. spec: one entry for each layer; parts
    other than RecurrentSpec get None as their view. Raises InsufficientMemoryError.
    """

    uniform = True
    shift_refusal = (
        "the model keeps a recurrent state, which is the sum of all tokens before it: none of them can be taken out"
    )

    def __init__(
        self,
        backend: Backend,
        spec: Sequence[LayerSpec],
        *,
        n_sequences: int = 1,
        checkpoint_bytes: int = CHECKPOINT_BYTES,
    ) -> None:
        self._backend = backend
        self._spec = spec
        self._layers = {i: s for i, s in parts_of(spec).items() if isinstance(s, RecurrentSpec)}
        row = 4 * sum(s.n_elements for s in self._layers.values())
        n = n_sequences + max(n_sequences * _FEWEST + 1, min(MAX_SEQUENCES, checkpoint_bytes // row))
        self.rows = Rows(n - 1, first=1)  # and one for guesses. Row 0 stays zero, for sequences that start
        self._made: list[Tensor] = []
        self._states: dict[Part, dict[str, Tensor]] = {}
        try:
            for i, s in self._layers.items():
                self._states[i] = {
                    name: self._make((n + 1, math.prod(shape)), f"cache.{i}.{name}", i.layer)
                    for name, shape in s.states.items()
                }
        except BaseException:
            self.close()
            raise

    def _make(self, shape: tuple[int, int], name: str, layer: int) -> Tensor:
        self._made.append(self._backend.state(shape, DType.F32, name, layer))
        return self._made[-1]

    @property
    def sizes(self) -> Sizes:
        return ()

    @property
    def max_sizes(self) -> Sizes:
        return ()

    def allocate(self, allocations: Sequence[Allocation], n_rows: int) -> dict[str, Array]:
        """Choose the rows to read and to write. Raises CacheFullError; GraphError if sequences differ in length."""
        n = allocations[0].n
        if any(a.n != n for a in allocations) or n_rows != n * len(allocations):
            raise GraphError(
                f"sequences of {[a.n for a in allocations]} tokens in {n_rows} rows; "
                "a recurrent cache needs equal lengths without padding"
            )
        reads, writes = self.rows.allocate(allocations)
        return {"cache.read": np.maximum(np.array(reads, np.int32), 0), "cache.write": np.array(writes, np.int32)}

    def commit(self) -> None:
        self.rows.commit()

    def rollback(self) -> None:
        self.rows.rollback()

    def views(self, ctx: Context, n_rows: int, n_sequences: int, sizes: Sizes) -> list[LayerViews]:
        read = ctx.input("cache.read", (n_sequences,), DType.I32)
        write = ctx.input("cache.write", (n_sequences,), DType.I32)
        views = {i: StateView(ctx, i, s, self._states[i], read, write) for i, s in self._layers.items()}
        return per_layer(self._spec, views)

    def fits(self, allocations: Sequence[Allocation], keep: Collection[int] | None = None, min_free: int = 0) -> bool:
        return self.rows.fits([a.slot for a in allocations], keep)

    def length(self, slot: int) -> int:
        return self.rows.length(slot)

    def copy_prefix(self, source: int, target: int, n: int) -> None:
        self.remove(target)
        self.rows.share(source, target, n)

    def can_resume(self, slot: int, position: int) -> bool:
        return self.resume_position(slot, position) == position

    def resume_position(self, slot: int, position: int) -> int:
        return self.rows.resume_position(slot, position)

    def remove(self, slot: int, start: int = 0, stop: int | None = None) -> None:
        """Forget the states that contain the token at ``start``, and so all later ones, whatever ``stop`` is."""
        self.rows.remove(slot, start)

    def slots_sharing(self, slot: int, start: int) -> frozenset[int]:
        return self.rows.slots_sharing(slot, start)

    def shift(self, slot: int, start: int, by: int) -> None:
        raise GraphError(f"positions of this cache cannot be moved: {self.shift_refusal}")

    def held_bytes(self, slot: int, start: int, stop: int) -> int:
        elements = sum(s.n_elements for s in self._layers.values())
        return 4 * elements * len(self.rows.found(slot, start, stop))

    def save(self, slot: int, start: int, stop: int) -> dict[str, Array]:
        """Return the states after ``start + 1`` to ``stop`` tokens, as far as they are kept."""
        found = self.rows.found(slot, start, stop)
        saved: dict[str, Array] = {"states": np.array([position for _, position in found], np.int32)}
        if found:
            with self._backend.new_context() as ctx:
                rows = ctx.input("rows", (len(found),), DType.I32)
                reads = {name: state.take(rows) for name, state in self._named_states()}
                ctx.forward(*reads.values())
                ctx.compute({rows: np.array([number for number, _ in found], np.int32)})
                saved |= {name: read.read() for name, read in reads.items()}
        return saved

    def restore(self, slot: int, saved: Mapping[str, Array], stop: int) -> None:
        """Put back the last state that contains at most ``stop`` tokens."""
        usable = np.flatnonzero(saved["states"] <= stop)
        number = self.rows.take() if len(usable) else None
        if number is None:
            return
        last = int(usable[-1])
        with self._backend.new_context() as ctx:
            row = ctx.input("row", (1,), DType.I32)
            feeds: dict[Tensor, Array] = {row: np.array([number], np.int32)}
            for name, state in self._named_states():
                value = ctx.input(name, (1, state.shape[1]))
                ctx.update(state, state.set_rows(row, value))
                feeds[value] = saved[name][last : last + 1]
            ctx.compute(feeds)
        self.rows.put(number, slot, int(saved["states"][last]))

    def _named_states(self) -> Iterator[tuple[str, Tensor]]:
        for i, states in self._states.items():
            for name, state in states.items():
                yield f"{i}.{name}", state

    def scrub(self) -> None: ...  # a graph reads the states of its own sequences only

    def close(self) -> None:
        self._backend.release(self._made)
        self._made = []


class StateView:
    """The RecurrentView of one layer."""

    def __init__(
        self, ctx: Context, layer: Part, spec: RecurrentSpec, states: Mapping[str, Tensor], read: Tensor, write: Tensor
    ) -> None:
        self.n_sequences = read.shape[0]
        self._ctx = ctx
        self._layer = layer
        self._spec = spec
        self._states = states
        self._read = read
        self._write = write
        self._written: set[str] = set()

    def split(self, x: Tensor) -> Tensor:
        if x.shape[0] % self.n_sequences:
            raise ShapeError(
                f"layer {self._layer}: {x.shape[0]} rows cannot be divided into {self.n_sequences} equal sequences"
            )
        return x.reshape(self.n_sequences, x.shape[0] // self.n_sequences, *x.shape[1:])

    def merge(self, x: Tensor) -> Tensor:
        return x.reshape(x.shape[0] * x.shape[1], *x.shape[2:])

    def read(self, name: str) -> Tensor:
        return self._state(name).take(self._read).reshape(self.n_sequences, *self._spec.states[name])

    def write(self, name: str, new: Tensor) -> None:
        state, shape = self._state(name), (self.n_sequences, *self._spec.states[name])
        if new.shape != shape:
            raise ShapeError(f"layer {self._layer}: the new state {name!r} is {new.shape}; expected {shape}")
        if name in self._written:
            raise GraphError(f"layer {self._layer} writes its state {name!r} twice in a graph; expected once")
        self._written.add(name)
        self._ctx.update(state, state.set_rows(self._write, new.reshape(self.n_sequences, -1)))

    def roll(self, name: str, x: Tensor) -> Tensor:
        before = self.read(name)
        n, n_kept = x.shape[1], before.shape[1]
        self.write(name, x[:, n - n_kept :] if n >= n_kept else ops.concat(before[:, n:], x, axis=1))
        return before

    def require_written(self) -> None:
        """Raise GraphError if the layer has not written a state: the row for the next graph would be undefined."""
        missing = self._states.keys() - self._written
        if missing:
            raise GraphError(
                f"layer {self._layer} never writes its state {sorted(missing)[0]!r}, which its cache_spec names",
                hint="call cache.write(name, new) in every call of the layer",
            )

    def _state(self, name: str) -> Tensor:
        if name not in self._states:
            raise GraphError(
                f"layer {self._layer} has no state {name!r}", hint=did_you_mean(name, self._states) + " (cache_spec)"
            )
        return self._states[name]
