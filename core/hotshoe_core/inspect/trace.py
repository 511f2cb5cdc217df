"""Trace: record the value of every node of one forward pass in a file that ``hotshoe compare`` reads.

    with trace("mine.jsonl"):
        ctx.compute({x: array})       # the first run of any context inside is recorded

The trace contains the graph that the model's author wrote, in its order and with its names.
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
from hotshoe_core.errors.arguments import file_path
from hotshoe_core.graphs.context import Context, Observer
from hotshoe_core.graphs.graph import Graph, lower
from hotshoe_core.inspect.tracefile import Node, measure, write_trace
from hotshoe_core.tensors.dtypes import DType
from hotshoe_core.tensors.tensor import TABLE, Tensor

if TYPE_CHECKING:
    from hotshoe_core.contract.backend import Backend

__all__ = ["VARIABLE", "compute_nodes", "observe", "trace", "watch"]

VARIABLE = "HOTSHOE_TRACE"
"""This environment variable names a file for the trace of the first forward pass after ``hotshoe.load_model``."""

_GROUP = 1 << 30  # bytes of nodes that one graph returns

Array = np.ndarray[Any, Any]


@contextlib.contextmanager
def trace(path: str | os.PathLike[str], *, about: Mapping[str, str] | None = None) -> Iterator[None]:
    """Record the first run of a context inside the ``with`` block, in any thread.

    about: facts for the file's header. The run itself does not change: the nodes are computed again, from the same
    inputs and states, in graphs that have them as outputs. Raises TraceError if the file cannot be written, or nothing
    was computed.
    """
    recorder = _Recorder(file_path("the file of a trace", path, TraceError), dict(about or {}))
    _hub.add(recorder)
    try:
        yield
    finally:
        _hub.remove(recorder)
    if not recorder.done:
        raise TraceError(f"{path}: nothing was computed inside trace()", hint="call ctx.compute(...) in it")


@contextlib.contextmanager
def observe(observer: Observer) -> Iterator[None]:
    """Call ``observer`` before every run of any context inside the ``with`` block, in any thread.

    An exception that it raises cancels the run, and ``compute`` raises it.
    """
    _hub.add(observer)
    try:
        yield
    finally:
        _hub.remove(observer)


def watch(backend: Backend, about: Mapping[str, str]) -> None:
    """If HOTSHOE_TRACE names a file, trace the first run on this backend or on another watched one."""
    global _from_environment
    path = os.environ.get(VARIABLE)
    if not path:
        return
    target = file_path(VARIABLE, path, TraceError)
    if _from_environment is None or _from_environment.path != target:
        _from_environment = _Recorder(target, {})
        _from_environment.watch(backend, about)
        _hub.add(_from_environment)
    else:
        _from_environment.watch(backend, about)


class _Recorder:
    """Waits for a run of any context and writes its trace."""

    def __init__(self, path: Path, about: dict[str, str]) -> None:
        self.path = path
        self.done = False
        self._about = about
        self._watched: weakref.WeakKeyDictionary[Backend, dict[str, str]] = weakref.WeakKeyDictionary()
        self._watches_all = True
        self._lock = threading.Lock()
        try:
            path.write_bytes(b"")  # fail before the model is loaded if the file cannot be written
        except OSError as e:
            raise TraceError(f"{path}: the trace cannot be written: {e.strerror or e}") from None

    def watch(self, backend: Backend, about: Mapping[str, str]) -> None:
        """Record runs on this backend, and on others only if they are watched too."""
        self._watches_all = False
        self._watched[backend] = dict(about)

    def before_run(self, context: Context, fed: Mapping[Tensor, Array]) -> None:
        if not self._watches_all:
            if context.backend not in self._watched:
                return
            self._about = self._watched[context.backend]
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
    """Calls several observers. It is the observer of Context only while it has one."""

    def __init__(self) -> None:
        self._observers: list[Observer] = []
        self._lock = threading.Lock()

    def add(self, observer: Observer) -> None:
        with self._lock:
            self._observers.append(observer)
            Context.observer = self

    def remove(self, observer: Observer) -> None:
        with self._lock:
            if observer in self._observers:
                self._observers.remove(observer)
            if not self._observers:
                Context.observer = None

    def before_run(self, context: Context, fed: Mapping[Tensor, Array]) -> None:
        for observer in list(self._observers):
            observer.before_run(context, fed)


_hub = _Hub()
_from_environment: _Recorder | None = None


def _nodes(context: Context, fed: Mapping[Tensor, Array]) -> Iterator[tuple[Node, Array | None]]:
    """Inputs and nodes in the order in which they were created (by id), with their values; None for views of states."""
    graph = context.graph()
    order = sorted((*graph.inputs, *graph.nodes), key=lambda t: t.id)
    names = _names([*(t for t in graph.leaves if t.op != "input"), *order])
    views = {t for t in graph.leaves if t.op == "state"}
    for t in order:
        if t.sources and t.source(0) in views and (TABLE[t.op].movement or TABLE[t.op].overwrites):
            views.add(t)
    for group in _groups(order):
        values = compute_nodes(context.backend, [t for t in group if not t.is_leaf and t not in views], fed)
        for t in group:
            array = values.get(t, fed.get(t))
            yield _node(t, names, array), array


def _groups(tensors: list[Tensor]) -> Iterator[list[Tensor]]:
    """Divide the tensors into groups whose values take at most ``_GROUP`` bytes together."""
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
    """The values of these nodes, computed from fed inputs and the current states.

    The graph updates no state. ``nodes`` may be new nodes that were made from tensors of a context.
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
    """An attribute as a JSON value."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: _plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, (tuple, list)):
        return [_plain(v) for v in value]
    if isinstance(value, DType):
        return value.name
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value if isinstance(value, (bool, int, float, str, type(None))) else repr(value)
