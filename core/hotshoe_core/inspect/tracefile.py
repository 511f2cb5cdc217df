"""Write and read the file of a trace: nodes and their statistics.

A file that ends in ``.npz`` also keeps all numbers. Any other file is JSON Lines: a header, then one line for each
node.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import os
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from hotshoe_core.errors import TraceError
from hotshoe_core.errors.arguments import file_path, regular
from hotshoe_core.errors.text import shown

if TYPE_CHECKING:
    from typing import Self

__all__ = ["Node", "Statistics", "Trace", "measure", "read_trace", "write_trace"]

_FORMAT, _VERSION = "hotshoe-trace", 1
_MEMBER = "hotshoe-trace.jsonl"  # in an .npz
_FIRST = 8  # values that are kept
_SKETCHES = 8
_CHUNK = 1 << 16  # elements measured at once

Array = np.ndarray[Any, Any]


@dataclasses.dataclass(frozen=True, slots=True)
class Statistics:
    """Statistics of one tensor: min, max, mean, std, rms and sketch are of its finite values."""

    min: float | None
    """None if no value is finite; also ``max``."""
    max: float | None
    mean: float
    std: float
    rms: float
    n_nan: int
    n_inf: int

    first: tuple[float, ...]
    """The first 8 values."""

    sketch: tuple[float, ...]
    """8 sums of the values with pseudorandom signs, each divided by the square root of the number of values.

    The mean square of the 8 differences between the sketches of two tensors estimates the mean square of the difference
    of their values (Alon, Matias, Szegedy 1996).
    """

    checksum: int
    """CRC-32 of the bytes."""


@dataclasses.dataclass(frozen=True, slots=True)
class Node:
    """One tensor of a trace."""

    name: str
    """The name that the model's author gave; nodes with the same name get ``#2`` and so on."""

    op: str
    """"input" for an input, "" if it is unknown."""

    layer: int
    dtype: str
    shape: tuple[int, ...]

    sources: tuple[str, ...]
    """Names of nodes, inputs, weights, states and constants."""

    attrs: Mapping[str, Any]

    statistics: Statistics | None
    """None for a view of a state, because each backend chooses the size of states."""


def measure(array: Array) -> Statistics:
    """The statistics of an array, computed without a copy of the whole array."""
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
    for start in range(0, flat.size, _CHUNK):  # a second pass: squares minus the square of the mean would cancel
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


def write_trace(path: Path, header: Mapping[str, Any], nodes: Iterable[tuple[Node, Array | None]]) -> None:
    """Write nodes in their order, each with its numbers if they are given. Raises OSError."""
    lines = [json.dumps({"format": _FORMAT, "version": _VERSION, **header})]
    if path.suffix != ".npz":
        lines += [_line(node) for node, _ in nodes]
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        return
    with zipfile.ZipFile(path, "w") as archive:
        for node, array in nodes:
            lines.append(_line(node))
            if array is not None:
                with archive.open(f"{node.name}.npy", "w", force_zip64=True) as file:
                    np.lib.format.write_array(file, array, allow_pickle=False)
        archive.writestr(_MEMBER, "\n".join(lines) + "\n")


def _line(node: Node) -> str:
    row = dataclasses.asdict(node)
    if node.statistics is not None:
        row["statistics"]["first"] = [v if math.isfinite(v) else str(v) for v in node.statistics.first]
    return json.dumps(row, allow_nan=False)


class Trace:
    """A trace that was read: its nodes by name, in order. Close it, or use it as a context manager: an .npz stays open.

    For an .npz that hotshoe did not write (activations of other code), ``recorded`` is False, each array is a node, and
    only its name, type and shape are known.
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
        """Facts about the model, from the file's header."""
        found: Mapping[str, str] = self.header.get("about", {})
        return found

    def array(self, name: str) -> Array | None:
        """All numbers of a node; None if the file does not have them. Raises TraceError for a damaged file."""
        if self._arrays is None or name not in self._arrays.files:
            return None
        with _reading(self.path):
            array = self._arrays[name]
            if not isinstance(array, np.ndarray):
                raise ValueError(f"{name} is not an array")
        if self.recorded and array.shape != self.nodes[name].shape:
            raise TraceError(
                f"{self.path}: {name} is {array.shape}; expected {self.nodes[name].shape}, the shape of its node"
            )
        if array.dtype.kind not in "fiub":
            raise TraceError(
                f"{self.path}: {name} is of type {array.dtype}; expected numbers",
                hint="save it as float32: activations[name] = tensor.float().numpy()",
            )
        return array

    def statistics(self, name: str) -> Statistics | None:
        """The statistics of a node: recorded, or measured now from its numbers; None if there are neither."""
        if self.recorded:
            return self.nodes[name].statistics
        array = self.array(name)
        return None if array is None else measure(array)

    def close(self) -> None:
        """Close the file."""
        if self._arrays is not None:
            self._arrays.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def read_trace(path: str | os.PathLike[str]) -> Trace:
    """Read a trace, or an .npz of activations. Raises TraceError for any other file."""
    path = file_path("the file of a trace", path, TraceError)
    with _reading(path), regular(path).open("rb") as file:
        if file.read(2) != b"PK":  # not a zip file
            file.seek(0)
            return Trace(path, *_parse(path, file), recorded=True)
    with _reading(path):
        if not zipfile.is_zipfile(path):  # numpy.load would leave it open
            raise ValueError("it is incomplete")
        arrays: Any = np.load(path, allow_pickle=False)
    try:
        if _MEMBER in arrays.files:
            with _reading(path):
                lines = arrays[_MEMBER].splitlines()
            return Trace(path, *_parse(path, lines), arrays, recorded=True)
        unnamed = Trace(path, {}, {}, arrays, recorded=False)
        nodes = {}
        for name in arrays.files:
            array = unnamed.array(name)
            if array is not None:
                nodes[name] = Node(name, "", -1, str(array.dtype), array.shape, (), {}, None)
        return Trace(path, {}, nodes, arrays, recorded=False)
    except BaseException:
        arrays.close()
        raise


@contextlib.contextmanager
def _reading(path: Path) -> Iterator[None]:
    try:
        yield
    except TraceError:
        raise
    except OSError as e:
        raise TraceError(f"{path}: cannot be read: {e.strerror or e}") from None
    except Exception as e:  # of many types, from zipfile, zlib, NumPy and json
        raise TraceError(
            f"{path}: is neither a trace nor an .npz of plain arrays: {str(e)[:200] or type(e).__name__}",
            hint="record one: hotshoe trace MODEL TEXT -o FILE, or numpy.savez(FILE, **activations)",
        ) from None


def _parse(path: Path, lines: list[bytes] | IO[bytes]) -> tuple[dict[str, Any], dict[str, Node]]:
    rows = enumerate(lines, 1)
    _, first = next(rows, (1, b""))
    if not first:
        raise TraceError(
            f"{path}: is empty: a trace was started, but nothing was computed", hint="compute something with the model"
        )
    header: dict[str, Any] = json.loads(first)
    if not isinstance(header, dict) or header.get("format") != _FORMAT or not isinstance(header.get("about"), dict):
        raise TraceError(
            f"{path}: does not begin with the header of a trace", hint="record one: hotshoe trace MODEL TEXT -o FILE"
        )
    if header.get("version") != _VERSION:
        raise TraceError(f"{path}: is a trace of version {header.get('version')}; expected {_VERSION}")
    nodes: dict[str, Node] = {}
    for number, line in rows:
        try:
            node = _node_of(json.loads(line))
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError, RecursionError) as e:
            raise TraceError(f"{path}, line {number}: is not a node of a trace: {shown(e)}") from None
        nodes[node.name] = node
    return header, nodes


def _node_of(row: dict[str, Any]) -> Node:
    """The node of a line. The conversions raise KeyError, TypeError or ValueError for an invalid one."""
    fields = row["statistics"]
    statistics = None
    if fields is not None:
        low, high = (None if fields[k] is None else float(fields[k]) for k in ("min", "max"))
        mean, std, rms = (float(fields[k]) for k in ("mean", "std", "rms"))
        n_nan, n_inf, checksum = (int(fields[k]) for k in ("n_nan", "n_inf", "checksum"))
        first, sketch = (tuple(map(float, fields[k])) for k in ("first", "sketch"))
        statistics = Statistics(low, high, mean, std, rms, n_nan, n_inf, first, sketch, checksum)
        if len(statistics.sketch) != _SKETCHES:
            raise ValueError(f"{len(statistics.sketch)} sketches; expected {_SKETCHES}")
    shape = tuple(int(d) for d in row["shape"])
    texts = {k: str(row[k]) for k in ("name", "op", "dtype")}
    sources = tuple(map(str, row["sources"]))
    return Node(**texts, layer=int(row["layer"]), shape=shape, sources=sources, attrs=dict(row["attrs"]),
                statistics=statistics)  # fmt: skip
