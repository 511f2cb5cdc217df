"""Trace: what every node of one forward pass computed, in a file that ``hotshoe compare`` reads.

    with trace("mine.jsonl"):
        ctx.compute({x: array})       # the first run of any context in here is recorded

What is traced is the graph as the model's author wrote it, in that order and with those names.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import threading
import weakref
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hotshoe_core.errors import TraceError
from hotshoe_core.graphs.context import Context, Observer
from hotshoe_core.graphs.graph import Graph, lower
from hotshoe_core.inspect.tracefile import Node, measure, write_trace
from hotshoe_core.tensors.dtypes import DType
from hotshoe_core.tensors.tensor import TABLE, Tensor

if TYPE_CHECKING:
    from hotshoe_core.contract.backend import Backend

__all__ = ["VARIABLE", "compute_nodes", "observe", "trace", "watch"]

VARIABLE = "HOTSHOE_TRACE"
"""Names the file that the first forward pass of the models ``hotshoe.load_model`` opens is traced to."""

_GROUP = 1 << 30  # bytes of nodes that one graph hands out

Array = np.ndarray[Any, Any]


@contextlib.contextmanager
def trace(path: str | os.PathLike[str], *, about: Mapping[str, str] | None = None) -> Iterator[None]:
    """Record the first run of a context that happens inside, in any thread. ``about`` goes into the file's header.

    The run itself is untouched: the nodes are computed once more, from the same inputs and states, in graphs whose
    outputs they are. Raises TraceError if the file cannot be written, or nothing was computed.
    """
    recorder = _Recorder(Path(path), dict(about or {}))
    _hub.add(recorder)
    try:
        yield
    finally:
        _hub.remove(recorder)
    if not recorder.done:
        raise TraceError(f"{path}: nothing was computed inside trace()", hint="call ctx.compute(...) in it")


@contextlib.contextmanager
def observe(observer: Observer) -> Iterator[None]:
    """Tell ``observer`` of every run of any context that happens inside, in any thread, before it happens.

    An exception that it raises cancels the run, and goes to whoever asked for that.
    """
    _hub.add(observer)
    try:
        yield
    finally:
        _hub.remove(observer)


def watch(backend: Backend, about: Mapping[str, str]) -> None:
    """Trace the first run on this backend, or another watched one, if HOTSHOE_TRACE names a file."""
    global _from_environment
    path = os.environ.get(VARIABLE)
    if not path:
        return
    if _from_environment is None or _from_environment.path != Path(path):
        _from_environment = _Recorder(Path(path), {}, weakref.WeakKeyDictionary())
        _hub.add(_from_environment)
    assert _from_environment.watched is not None
    _from_environment.watched[backend] = dict(about)


class _Recorder:
    """Waits for a run and writes it. ``watched``: of these backends only, and what to say about each."""

    def __init__(
        self,
        path: Path,
        about: dict[str, str],
        watched: weakref.WeakKeyDictionary[Backend, dict[str, str]] | None = None,
    ) -> None:
        self.path = path
        self.done = False
        self.watched = watched
        self._about = about
        self._lock = threading.Lock()
        try:
            path.write_bytes(b"")  # what cannot be written must not wait for the model
        except OSError as e:
            raise TraceError(f"{path}: the trace cannot be written: {e.strerror or e}") from None

    def before_run(self, context: Context, fed: Mapping[Tensor, Array]) -> None:
        if self.watched is not None:
            if context.backend not in self.watched:
                return
            self._about = self.watched[context.backend]
        with self._lock:
            if self.done:
                return
            self.done = True
        _hub.remove(self)
        device = context.backend.devices[0].name
        try:
            write_trace(
                self.path,
                {"backend": context.backend.name, "device": device, "about": self._about},
                _nodes(context, fed),
            )
        except OSError as e:
            raise TraceError(f"{self.path}: the trace cannot be written: {e.strerror or e}") from None


class _Hub:
    """Tells each recorder; the context knows of it only while there is one."""

    def __init__(self) -> None:
        self._recorders: list[Observer] = []
        self._lock = threading.Lock()

    def add(self, recorder: Observer) -> None:
        with self._lock:
            self._recorders.append(recorder)
            Context.observer = self

    def remove(self, recorder: Observer) -> None:
        with self._lock:
            if recorder in self._recorders:
                self._recorders.remove(recorder)
            if not self._recorders:
                Context.observer = None

    def before_run(self, context: Context, fed: Mapping[Tensor, Array]) -> None:
        for recorder in list(self._recorders):
            recorder.before_run(context, fed)


_hub = _Hub()
_from_environment: _Recorder | None = None


def _nodes(context: Context, fed: Mapping[Tensor, Array]) -> Iterator[tuple[Node, Array | None]]:
    """Inputs and nodes in the order they were written, which is that of their ids; None where nothing is read."""
    graph = context.graph()
    order = sorted((*graph.inputs, *graph.nodes), key=lambda t: t.id)
    names = _names([*(t for t in graph.leaves if t.op != "input"), *order])
    views: set[Tensor | None] = {t for t in graph.leaves if t.op == "state"}
    for t in order:
        if t.sources and t.sources[0] in views and (TABLE[t.op].movement or TABLE[t.op].overwrites):
            views.add(t)
    for group in _groups(order):
        values = compute_nodes(context.backend, [t for t in group if not t.is_leaf and t not in views], fed)
        for t in group:
            array = values.get(t, fed.get(t))
            yield _node(t, names, array), array


def _groups(tensors: list[Tensor]) -> Iterator[list[Tensor]]:
    """So many at a time that what they hand out fits into memory."""
    group: list[Tensor] = []
    size = 0
    for t in tensors:
        if group and size + 4 * t.size > _GROUP:
            yield group
            group, size = [], 0
        group.append(t)
        size += 4 * t.size
    yield group


def compute_nodes(backend: Backend, nodes: Sequence[Tensor], fed: Mapping[Tensor, Array]) -> dict[Tensor, Array]:
    """The values of these nodes, from what inputs were fed and from the states as they are.

    States stay so: the graph updates none. Nodes may be new ones that were made from those of a context.
    """
    if not nodes:
        return {}
    readable = {t: t if t.dtype.numpy is not None else t.cast(DType.F32) for t in nodes}
    graph, lowered = lower(Graph.trace(list(readable.values())), backend.supports)
    executable = backend.compile(graph)
    try:
        for t in graph.inputs:
            executable.write(t, fed[t])
        executable.run()
        values = {t: np.empty(t.shape, r.dtype.numpy) for t, r in readable.items()}
        for t, r in readable.items():
            executable.read(lowered[r], values[t])
        return values
    finally:
        executable.close()


def _names(tensors: list[Tensor]) -> dict[Tensor, str]:
    names: dict[Tensor, str] = {}
    counts: dict[str, int] = {}
    for t in tensors:
        counts[t.name] = n = counts.get(t.name, 0) + 1
        names[t] = t.name if n == 1 else f"{t.name}#{n}"
    return names


def _node(t: Tensor, names: Mapping[Tensor, str], array: Array | None) -> Node:
    sources = tuple(names[s] for s in t.sources if s is not None)
    attrs = {name: _plain(value) for name, value in t.attrs.items()}
    statistics = None if array is None else measure(array)
    return Node(names[t], t.op, t.layer, t.dtype.name, t.shape, sources, attrs, statistics)


def _plain(value: Any) -> Any:
    """An attribute as JSON has it."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: _plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, (tuple, list)):
        return [_plain(v) for v in value]
    if isinstance(value, DType):
        return value.name
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value if isinstance(value, (bool, int, float, str, type(None))) else repr(value)
