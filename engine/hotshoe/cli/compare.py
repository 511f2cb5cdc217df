"""``hotshoe compare A B``: find the first node that differs between two traces, or a trace and other activations."""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from hotshoe.cli._names import match
from hotshoe.cli.parsing import CommandParser, Subparsers
from hotshoe.cli.tables import table
from hotshoe_core.errors import TraceError
from hotshoe_core.errors.arguments import regular
from hotshoe_core.errors.text import printable
from hotshoe_core.inspect.tracefile import Node, Statistics, Trace, measure, read_trace

__all__ = ["Comparison", "Pair", "add_parser", "compare", "run"]

_BEFORE, _AFTER = 3, 6  # rows of the table around the first node that differs
_NAMED = 3  # names listed in one line
_IN_NOTEBOOK = 20  # rows

Array = np.ndarray[Any, Any]


def add_parser(commands: Subparsers[CommandParser]) -> None:
    """Add the command ``compare``."""
    parser = commands.add_parser(
        "compare",
        usage="%(prog)s [options] A B",
        help="find the first node that differs between two traces",
        description="Compare two traces, or a trace with the activations of other code in an .npz file. "
        "Exit code: 0 they agree, 1 they differ, 2 they cannot be compared.",
    )
    parser.add_argument("a", metavar="A", help="a trace")
    parser.add_argument(
        "b", metavar="B", help="another trace, or an .npz file of activations, named as modules or nodes"
    )
    parser.add_argument("--map", type=Path, metavar="FILE", help='JSON: {"name in B": "node or module in A", ...}')
    parser.add_argument(
        "--tolerance",
        type=float,
        default=1e-3,
        metavar="X",
        help="how much a node may differ, relative to its root mean square and its largest value; default: 0.001. "
        "With quantized weights, devices differ by about 0.01: use 0.02",
    )
    parser.add_argument("--full", action="store_true", help="show every node that was compared")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print a table and the verdict."""
    if not (math.isfinite(args.tolerance) and args.tolerance >= 0):
        raise TraceError(f"--tolerance is {args.tolerance}; expected a number of 0 or more")
    with read_trace(args.a) as a, read_trace(args.b) as b:
        found = compare(a, b, tolerance=args.tolerance, names=None if args.map is None else _read_map(args.map))
        print("\n".join(_report(found, args.full)))
    return 1 if found.first is not None else 0


class Pair(NamedTuple):
    """A node of A and its partner in B."""

    node: Node

    other: str
    """The name of the partner."""

    difference: float
    """See ``compare``; NaN if the two have different shapes."""

    note: str = ""
    """What else was found, to be read after "it"."""


class Comparison(NamedTuple):
    """What two traces have in common, and where they differ."""

    a: Trace
    b: Trace
    tolerance: float

    pairs: list[Pair]
    """The pairs that were compared, in the order of the model."""

    not_compared: list[Pair]
    """Pairs of different shapes, or without numbers."""

    unmatched: list[str]
    """Names of nodes without a partner."""

    def __repr__(self) -> str:
        verdict = "all agree" if self.first is None else f"the first difference is at {printable(self.first.node.name)}"
        return f"<Comparison: {len(self.pairs)} nodes, tolerance {self.tolerance:g}: {verdict}>"

    def _repr_html_(self) -> str:
        from hotshoe_core.contract.html import table

        differing = [p for p in self.pairs if not p.difference <= self.tolerance]
        shown = differing or sorted(self.pairs, key=lambda p: -p.difference)
        rows = [
            (p.node.name, p.node.op, _shape(p.node.shape), f"{p.difference:.1e}", p.note) for p in shown[:_IN_NOTEBOOK]
        ]
        return table(["node", "op", "shape", "difference", ""], rows, repr(self))

    @property
    def first(self) -> Pair | None:
        """The first pair that differs by more than the tolerance."""
        return next((p for p in self.pairs if not p.difference <= self.tolerance), None)

    def sources(self, node: Node) -> Iterator[Pair | str]:
        """The inputs of a node: the nearest pairs before it, and the names of weights and states between them."""
        pairs = {p.node.name: p for p in self.pairs}
        seen: set[str] = set()
        waiting = list(node.sources)
        while waiting:
            name = waiting.pop(0)
            if name in seen:
                continue
            seen.add(name)
            if name in pairs:
                yield pairs[name]
            elif name not in self.a.nodes:
                yield name
            else:
                waiting += self.a.nodes[name].sources


def compare(a: Trace, b: Trace, *, tolerance: float = 1e-3, names: Mapping[str, str] | None = None) -> Comparison:
    """Compare the nodes that two traces have in common.

    names: maps names in ``b`` to nodes or modules of ``a``.

    The difference of two nodes is the larger of two quotients: root mean square of the difference over that of the
    values, and largest difference over largest value. If a file holds only statistics, the first is an estimate. The
    difference is infinite if NaN or infinities are not at the same elements. Raises TraceError if nothing can be
    compared.
    """
    if not a.recorded:
        if not b.recorded:
            raise TraceError(
                f"neither {a.path} nor {b.path} is a trace", hint="record one: hotshoe trace MODEL TEXT -o FILE"
            )
        if names is not None:
            raise TraceError(f"{a.path} is not a trace, and names are mapped from B to A", hint="swap the two files")
        a, b = b, a
    matched, unmatched = match(a, b, names, lambda node, other: _pair(a, b, node, other).difference <= tolerance)
    pairs = [_pair(a, b, node, other) for node, other in matched]
    shapes = {p.node.name for p in pairs if math.isnan(p.difference)}
    if b.recorded:  # two traces of one model: a shape that neither an input nor the cache explains is a difference
        for i, p in enumerate(pairs):
            if math.isnan(p.difference) and p.node.op != "input" and not _follows(a, p.node, shapes):
                pairs[i] = p._replace(difference=math.inf)
    not_compared = [p for p in pairs if math.isnan(p.difference)]
    pairs = [p for p in pairs if not math.isnan(p.difference)]
    if not any(p.node.op != "input" for p in pairs):
        raise TraceError(
            f"nothing in {b.path} can be compared with {a.path}: "
            + (
                f"{not_compared[0].node.name} {not_compared[0].note}"
                if not_compared
                else f"its names are unknown: {_some(unmatched)}"
            ),
            hint="trace the same text"
            if not_compared
            else "map its names: --map names.json, with {name in B: node of A}",
        )
    return Comparison(a, b, tolerance, pairs, not_compared, unmatched)


def _follows(trace: Trace, node: Node, shapes: set[str]) -> bool:
    """Whether a source has another shape too, or is a view of the cache, whose length the backend chooses."""
    sources = [trace.nodes[s] for s in node.sources if s in trace.nodes]
    return any(s.name in shapes or s.statistics is None for s in sources)


def _pair(a: Trace, b: Trace, node: Node, other: str) -> Pair:
    theirs = b.nodes[other]
    if theirs.shape != node.shape and (b.recorded or _squeezed(theirs.shape) != _squeezed(node.shape)):
        return Pair(
            node, other, math.nan, f"is {_shape(node.shape)} in {a.path} and {_shape(theirs.shape)} in {b.path}"
        )
    ours, array = a.array(node.name), b.array(other)
    mine, statistics = a.statistics(node.name), b.statistics(other) if array is None else None
    if mine is None or (array is None and statistics is None):
        return Pair(node, other, math.nan, "has no numbers")
    if array is None:
        assert statistics is not None
        return Pair(node, other, _estimate(mine, statistics))
    array = array.reshape(node.shape)
    pair = Pair(node, other, _difference(ours, mine, array))
    size = 0 if b.recorded else _interleaved_head_dim(a, node)
    if size and pair.difference > 0:
        halves = array.reshape(-1, 2, size // 2)
        turned = _difference(ours, mine, np.swapaxes(halves, 1, 2).reshape(node.shape))
        if turned < pair.difference:
            pair = Pair(node, other, turned, "has the elements of each head in the order of an interleaved RoPE")
    return pair


def _interleaved_head_dim(trace: Trace, node: Node) -> int:
    """The size of the heads, if the node goes into an interleaved RoPE; else 0.

    Research code pairs the halves of a head. Files for interleaved RoPE hold the weights in another order.
    """
    readers: dict[str, Node] = {s: n for n in reversed(list(trace.nodes.values())) for s in n.sources}
    reader: Node | None = node
    while reader is not None and reader.op in ("linear", "add", "reshape"):
        reader = readers.get(reader.name)
    config = reader.attrs.get("config") if reader is not None and reader.op == "rope" else None
    if reader is None or not isinstance(config, dict) or not config.get("interleaved"):
        return 0
    size = reader.shape[-1]
    return size if size % 2 == 0 and node.shape[-1] % size == 0 else 0


def _difference(ours: Array | None, mine: Statistics, array: Array) -> float:
    """The difference, from all numbers if ``a`` holds them, else from statistics."""
    if ours is None:
        return _estimate(mine, measure(array))
    x, y = ours.astype(np.float64), array.astype(np.float64)
    finite = np.isfinite(x)
    if not np.array_equal(x[~finite], y[~finite], equal_nan=True) or not np.isfinite(y[finite]).all():
        return math.inf
    x, y = x[finite], y[finite]
    if not x.size:
        return 0.0
    largest = max(np.abs(x).max(), np.abs(y).max())
    rms = math.sqrt(max(np.mean(x**2), np.mean(y**2)))
    delta = np.abs(x - y)
    return float(max(math.sqrt(np.mean(delta**2)) / rms, delta.max() / largest)) if rms else 0.0


def _estimate(a: Statistics, b: Statistics) -> float:
    if a.checksum == b.checksum:
        return 0.0
    if (a.n_nan, a.n_inf) != (b.n_nan, b.n_inf):
        return math.inf
    if a.min is None or b.min is None or a.max is None or b.max is None:
        return 0.0 if a.first == b.first or a.n_nan else math.inf
    largest, rms = max(abs(v) for v in (a.min, a.max, b.min, b.max)), max(a.rms, b.rms)
    if not largest:
        return 0.0
    ends = [(a.min, b.min), (a.max, b.max), *zip(a.first, b.first)]
    if any(math.isfinite(x) != math.isfinite(y) or (math.isinf(x) and x != y) for x, y in ends):
        return math.inf
    ends = [(x, y) for x, y in ends if math.isfinite(x)]
    sketch = np.subtract(a.sketch, b.sketch)
    return float(max(np.sqrt(np.mean(sketch**2)) / rms, *(abs(x - y) / largest for x, y in ends)))


def _read_map(path: Path) -> dict[str, str]:
    try:
        names = json.loads(regular(path).read_text(encoding="utf-8"))
    except OSError as e:
        raise TraceError(f"{path} cannot be read: {e.strerror or e}") from None
    except (ValueError, RecursionError) as e:
        raise TraceError(f"{path} is not valid JSON: {e}") from None
    if not isinstance(names, dict) or not all(isinstance(v, str) for v in names.values()):
        raise TraceError(f'{path} is not a map; expected an object of names: {{"model.norm": "output_norm"}}')
    return names


# The report


def _report(found: Comparison, full: bool) -> Iterator[str]:
    first = found.first
    rows = found.pairs
    if first is None:
        worst = sorted(rows, key=lambda p: -p.difference)[:_AFTER]
        rows = rows if full else [p for p in rows if p in worst]
    elif not full:
        i = rows.index(first)
        rows = rows[max(0, i - _BEFORE) : i + 1 + _AFTER]
    yield from _table(rows, found.tolerance)
    yield ""
    for what, names in (
        ("not compared, because shapes differ", [p.node.name for p in found.not_compared]),
        ("in one file only", found.unmatched),
    ):
        if names:
            yield f"{len(names)} {what}: {_some(names)}"
    if first is None:
        yield f"{len(found.pairs)} nodes agree within {found.tolerance:g}"
        return
    n_differing = sum(not p.difference <= found.tolerance for p in found.pairs)
    yield f"{n_differing} of the {len(found.pairs)} nodes that were compared differ by more than {found.tolerance:g}"
    yield f"the first is {printable(first.node.name)}{_in_layer(first.node)}"
    yield from _explain(found, first)


def _explain(found: Comparison, first: Pair) -> Iterator[str]:
    node = first.node
    for line in _differing(node.attrs, found.b.nodes[first.other].attrs) if found.b.recorded else ():
        yield printable(f"  its {line}")
    for trace, name in ((found.a, node.name), (found.b, first.other)):
        s = trace.statistics(name)
        if s is not None and (s.n_nan or s.n_inf):
            yield f"  in {trace.path} it holds {s.n_nan} NaN and {s.n_inf} infinities"
    if first.note:
        yield f"  it {printable(first.note)}"
    if node.op == "input":
        yield "  it is an input: the two runs had different inputs"
        return
    yield "  it is computed from"
    for source in found.sources(node):
        if isinstance(source, str):
            yield f"    {printable(source)}"
        else:
            equal = "is equal" if source.difference == 0 else f"differs by {source.difference:.1e}"
            yield f"    {printable(source.node.name)}, which {equal}"


def _differing(a: Mapping[str, Any], b: Mapping[str, Any]) -> Iterator[str]:
    """The attributes that both have, with different values."""
    for name in a.keys() & b.keys():
        x, y = a[name], b[name]
        if isinstance(x, dict) and isinstance(y, dict):
            yield from _differing(x, y)
        elif x != y:
            x, y = (f"{v:.7g}" if isinstance(v, float) else v for v in (x, y))
            yield f"{name} is {x} in A and {y} in B"


def _in_layer(node: Node) -> str:
    where = f" of layer {node.layer}" if node.layer >= 0 else ""
    return f" ({printable(node.op)}{where})"


def _table(pairs: Sequence[Pair], tolerance: float) -> list[str]:
    rows = []
    for p in pairs:
        marks = [] if p.difference <= tolerance else ["differs"]
        marks += [] if p.other == p.node.name else [f"= {p.other}"]
        rows.append((p.node.name, _shape(p.node.shape), f"{p.difference:.1e}", ", ".join(marks)))
    return table(("node", "shape", "difference", ""), rows, "<<><")


def _shape(shape: Sequence[int]) -> str:
    return " x ".join(map(str, shape)) or "scalar"


def _squeezed(shape: Sequence[int]) -> tuple[int, ...]:
    """The shape without axes of size 1: other code has one more for the batch."""
    return tuple(d for d in shape if d != 1)


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(printable(n) for n in names[:_NAMED]) + more
