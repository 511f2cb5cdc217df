"""Trace: what every node of one forward pass computed, in a file that ``hotshoe compare`` reads.

    with trace("mine.jsonl"):
        ctx.compute({x: array})       # the first run of any context in here is recorded

A file that ends in ``.npz`` keeps all numbers too; any other is JSON Lines: a header, then one node a line.
What is traced is the graph as the model's author wrote it, in that order and with those names.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import os
import threading
import weakref
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from hotshoe_core.context import Context
from hotshoe_core.dtypes import DType
from hotshoe_core.errors import TraceError
from hotshoe_core.graph import Graph, lower
from hotshoe_core.tensor import Tensor

if TYPE_CHECKING:
    from typing_extensions import Self

    from hotshoe_core.backend import Backend

__all__ = ["VARIABLE", "Node", "Statistics", "Trace", "measure", "read_trace", "trace", "watch"]

VARIABLE = "HOTSHOE_TRACE"
"""Names the file that the first forward pass of the models ``hotshoe.load_model`` opens is traced to."""

_FORMAT, _VERSION = "hotshoe-trace", 1
_MEMBER = "hotshoe-trace.jsonl"  # of an .npz
_FIRST = 8  # values shown as they are
_SKETCHES = 8
_CHUNK = 1 << 16  # elements measured at once
_GROUP = 1 << 30  # bytes of nodes that one graph hands out
_VIEWS = ("reshape", "permute", "slice", "expand", "set_rows")

Array = np.ndarray[Any, Any]


@dataclasses.dataclass(frozen=True, slots=True)
class Statistics:
    """Of one tensor. All but the counts and ``first`` are of its finite values; min and max are None if it has none.

    sketch: sums of the values with pseudorandom signs, over the root of their number, in 8 ways. The sums of two
    tensors differ by as much as the tensors do: the mean square of the 8 differences estimates that of the values
    (Alon, Matias, Szegedy 1996). checksum: CRC-32 of the bytes.
    """

    min: float | None
    max: float | None
    mean: float
    std: float
    rms: float
    n_nan: int
    n_inf: int
    first: tuple[float, ...]
    sketch: tuple[float, ...]
    checksum: int


@dataclasses.dataclass(frozen=True, slots=True)
class Node:
    """One tensor of a trace. ``statistics`` is None for views of a state, whose size is the backend's choice.

    name: the author's; ``#2`` and so on tells nodes of one name apart. op: "input" for what was fed, "" where it is not
    known. sources: names of nodes, inputs, weights, states and constants.
    """

    name: str
    op: str
    layer: int
    dtype: str
    shape: tuple[int, ...]
    sources: tuple[str, ...]
    attrs: Mapping[str, Any]
    statistics: Statistics | None


def measure(array: Array) -> Statistics:
    """The statistics of an array, without a copy of all of it."""
    flat = np.ascontiguousarray(array).reshape(-1)
    low, high, total, squares, n = math.inf, -math.inf, 0.0, 0.0, 0
    n_nan = n_inf = 0
    sketch = np.zeros(_SKETCHES)
    for start in range(0, flat.size, _CHUNK):
        x = flat[start : start + _CHUNK].astype(np.float64)
        finite = np.isfinite(x)
        if not finite.all():
            n_nan += int(np.isnan(x).sum())
            n_inf += int(np.isinf(x).sum())
            x[~finite] = 0.0
        n += int(finite.sum())
        if finite.any():
            low, high = min(low, float(x[finite].min())), max(high, float(x[finite].max()))
        total += float(x.sum())
        squares += float(x @ x)
        sketch += x @ _signs(start, len(x))
    mean = total / max(n, 1)
    spread = 0.0
    for start in range(0, flat.size, _CHUNK):  # again: squares minus the square of the mean would cancel
        x = flat[start : start + _CHUNK].astype(np.float64)
        spread += float(((x[np.isfinite(x)] - mean) ** 2).sum())
    return Statistics(
        min=low if n else None,
        max=high if n else None,
        mean=mean,
        std=math.sqrt(spread / max(n, 1)),
        rms=math.sqrt(squares / max(n, 1)),
        n_nan=n_nan,
        n_inf=n_inf,
        first=tuple(float(v) for v in flat[:_FIRST]),
        sketch=tuple(float(v) for v in sketch / math.sqrt(max(flat.size, 1))),
        checksum=zlib.crc32(flat.view(np.uint8).data),
    )


def _signs(start: int, n: int) -> Array:
    """1 or -1 for each element and sketch, (n, 8) int8, from a hash of its index (splitmix64: Steele et al. 2014)."""
    z = np.arange(start, start + n, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    bits = np.unpackbits((z ^ (z >> np.uint64(31))).astype(np.uint8)[:, None], axis=1)
    return 1 - 2 * bits.astype(np.int8)


# Recording


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
        header = {"format": _FORMAT, "version": _VERSION, "backend": context.backend.name, "device": device}
        lines = [json.dumps(header | {"about": self._about})]
        try:
            if self.path.suffix != ".npz":
                lines += [_line(node) for node, _ in _nodes(context, fed)]
                self.path.write_text("\n".join(lines) + "\n", encoding="utf-8")
                return
            with zipfile.ZipFile(self.path, "w") as archive:
                for node, array in _nodes(context, fed):
                    lines.append(_line(node))
                    if array is not None:
                        with archive.open(f"{node.name}.npy", "w", force_zip64=True) as file:
                            np.lib.format.write_array(file, array, allow_pickle=False)
                archive.writestr(_MEMBER, "\n".join(lines) + "\n")
        except OSError as e:
            raise TraceError(f"{self.path}: the trace cannot be written: {e.strerror or e}") from None


class _Hub:
    """Tells each recorder; the context knows of it only while there is one."""

    def __init__(self) -> None:
        self._recorders: list[_Recorder] = []
        self._lock = threading.Lock()

    def add(self, recorder: _Recorder) -> None:
        with self._lock:
            self._recorders.append(recorder)
            Context.observer = self

    def remove(self, recorder: _Recorder) -> None:
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
        if t.op in _VIEWS and t.sources[0] in views:
            views.add(t)
    for group in _groups(order):
        values = _compute(context.backend, [t for t in group if not t.is_leaf and t not in views], fed)
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


def _compute(backend: Backend, nodes: list[Tensor], fed: Mapping[Tensor, Array]) -> dict[Tensor, Array]:
    """These nodes from the states as they are, which stay so: the graph updates none."""
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


def _line(node: Node) -> str:
    row = dataclasses.asdict(node)
    if node.statistics is not None:
        row["statistics"]["first"] = [v if math.isfinite(v) else str(v) for v in node.statistics.first]
    return json.dumps(row, allow_nan=False)


# Reading


class Trace:
    """A trace that was read: its nodes by name, in order. A context manager, for an .npz stays open.

    Of an .npz that hotshoe did not write (activations of other code) each array is a node of which nothing else is
    known; ``recorded`` is False then.
    """

    def __init__(
        self, path: Path, header: Mapping[str, Any], nodes: Mapping[str, Node], arrays: Any = None, *, recorded: bool
    ) -> None:
        self.path = path
        self.header = header
        self.nodes = nodes
        self.recorded = recorded
        self._arrays = arrays

    @property
    def about(self) -> Mapping[str, str]:
        """What the recorder said of the model."""
        found: Mapping[str, str] = self.header.get("about", {})
        return found

    def array(self, name: str) -> Array | None:
        """All numbers of a node, if the file holds them. Raises TraceError for a damaged file."""
        if self._arrays is None or name not in self._arrays.files:
            return None
        with _reading(self.path):
            array = self._arrays[name]
            if not isinstance(array, np.ndarray):
                raise ValueError(f"{name} is no array")
        if self.recorded and array.shape != self.nodes[name].shape:
            raise TraceError(
                f"{self.path}: {name} is {array.shape}; expected {self.nodes[name].shape}, its node's shape"
            )
        if array.dtype.kind not in "fiub":
            raise TraceError(
                f"{self.path}: {name} is of type {array.dtype}; expected numbers",
                hint="save it as float32: activations[name] = tensor.float().numpy()",
            )
        return array

    def statistics(self, name: str) -> Statistics | None:
        """Recorded, or measured now."""
        if self.recorded:
            return self.nodes[name].statistics
        array = self.array(name)
        return None if array is None else measure(array)

    def close(self) -> None:
        if self._arrays is not None:
            self._arrays.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def read_trace(path: str | os.PathLike[str]) -> Trace:
    """A trace, or an .npz of activations. Raises TraceError for a file that is neither."""
    path = Path(path)
    with _reading(path), path.open("rb") as file:
        if file.read(2) != b"PK":  # no zip file
            file.seek(0)
            return Trace(path, *_parse(path, file), recorded=True)
    with _reading(path):
        if not zipfile.is_zipfile(path):  # numpy.load would leave it open
            raise ValueError("it is cut short")
        arrays: Any = np.load(path, allow_pickle=False)
    try:
        if _MEMBER in arrays.files:
            with _reading(path):
                lines = arrays[_MEMBER].splitlines()
            return Trace(path, *_parse(path, lines), arrays, recorded=True)
        found = Trace(path, {}, {}, arrays, recorded=False)
        nodes = {}
        for name in arrays.files:
            array = found.array(name)
            assert array is not None
            nodes[name] = Node(name, "", -1, str(array.dtype), array.shape, (), {}, None)
        return Trace(path, {}, nodes, arrays, recorded=False)
    except BaseException:
        arrays.close()
        raise


@contextlib.contextmanager
def _reading(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as e:
        raise TraceError(f"{path}: cannot be read: {e.strerror or e}") from None
    except (ValueError, EOFError, zipfile.BadZipFile, zlib.error, NotImplementedError, MemoryError) as e:
        if isinstance(e, TraceError):
            raise
        raise TraceError(
            f"{path}: is no trace and no .npz of plain arrays: {e}",
            hint="record one: hotshoe trace MODEL TEXT -o FILE, or numpy.savez(FILE, **activations)",
        ) from None


def _parse(path: Path, lines: list[bytes] | IO[bytes]) -> tuple[dict[str, Any], dict[str, Node]]:
    rows = enumerate(lines, 1)
    _, first = next(rows, (1, b""))
    if not first:
        raise TraceError(
            f"{path}: is empty: a trace was begun and nothing computed", hint="compute something with the model"
        )
    header: dict[str, Any] = json.loads(first)
    if not isinstance(header, dict) or header.get("format") != _FORMAT or not isinstance(header.get("about"), dict):
        raise TraceError(f"{path}: does not begin as a trace does", hint="record one: hotshoe trace MODEL TEXT -o FILE")
    if header.get("version") != _VERSION:
        raise TraceError(f"{path}: is a trace of version {header.get('version')}; expected {_VERSION}")
    nodes: dict[str, Node] = {}
    for number, line in rows:
        try:
            node = _node_of(json.loads(line))
        except (KeyError, TypeError, ValueError, AttributeError) as e:
            raise TraceError(f"{path}, line {number}: is no node of a trace: {e!r}") from None
        nodes[node.name] = node
    return header, nodes


def _node_of(row: dict[str, Any]) -> Node:
    """Checked by conversion: what is of another type raises."""
    found = row["statistics"]
    statistics = None
    if found is not None:
        low, high = (None if found[k] is None else float(found[k]) for k in ("min", "max"))
        mean, std, rms = (float(found[k]) for k in ("mean", "std", "rms"))
        n_nan, n_inf, checksum = (int(found[k]) for k in ("n_nan", "n_inf", "checksum"))
        first, sketch = (tuple(map(float, found[k])) for k in ("first", "sketch"))
        statistics = Statistics(low, high, mean, std, rms, n_nan, n_inf, first, sketch, checksum)
        if len(statistics.sketch) != _SKETCHES:
            raise ValueError(f"{len(statistics.sketch)} sketches; expected {_SKETCHES}")
    shape = tuple(int(d) for d in row["shape"])
    texts = {k: str(row[k]) for k in ("name", "op", "dtype")}
    sources = tuple(map(str, row["sources"]))
    return Node(**texts, layer=int(row["layer"]), shape=shape, sources=sources, attrs=dict(row["attrs"]),
                statistics=statistics)  # fmt: skip
