"""Show the numbers of a tensor (``dump``) or the drawing of a graph (``to_dot``)."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np

from hotshoe_core.contract.backend import Backend
from hotshoe_core.errors import GraphError, UnsupportedOpError
from hotshoe_core.graphs.graph import Graph
from hotshoe_core.tensors.dtypes import DType
from hotshoe_core.tensors.tensor import TABLE, Tensor, constant

__all__ = ["dump", "to_dot"]

_COLUMNS = 256  # of a weight that one product reads

Array = np.ndarray[Any, Any]


def dump(
    value: Tensor | np.ndarray[Any, Any], *, precision: int = 4, threshold: int = 1000, edge_items: int = 3
) -> str:
    """The numbers of an array or a tensor as text. The tensor is a leaf, or an output that was computed.

    precision: decimals, if the largest finite number shown is less than 10^8 and not 0 with these decimals; otherwise
    all have an exponent. threshold: of more elements than this, only ``edge_items`` at each end of an axis are shown.
    Quantized and BF16 values are shown as F32, an input with the values it was last fed. Raises GraphError for a tensor
    without a value, and UnsupportedOpError for a weight that the backend cannot read back.
    """
    if edge_items < 1 or precision < 0:
        raise GraphError(f"dump: got precision {precision} and edge_items {edge_items}; expected >= 0 and >= 1")
    array = _numbers(value) if isinstance(value, Tensor) else np.asarray(value)
    if array.size > threshold:
        threshold = 0  # of what is left below, in which NumPy replaces the element in the middle of an axis by "..."
        ends = [*range(edge_items), 0, *range(-edge_items, 0)]
        array = array[np.ix_(*(ends if n > 2 * edge_items else range(n) for n in array.shape))]
    largest = 0.0
    if array.dtype.kind == "f":
        array = array.astype(np.float64)  # of which NumPy writes larger numbers without an exponent
        largest = np.abs(array[np.isfinite(array)]).max(initial=0.0)
    text = np.array2string(
        array,
        precision=precision,
        suppress_small=largest >= 10.0**-precision,  # otherwise NumPy writes an exponent if the sizes differ
        threshold=threshold,
        edgeitems=edge_items,
        floatmode="fixed",
        separator=", ",
    )
    return f"{value!r}\n{text}" if isinstance(value, Tensor) else text


def _numbers(tensor: Tensor) -> Array:
    if tensor.op == "constant":
        value: Array = tensor.attrs["value"]
        return value
    if tensor.op == "input" and tensor.context is not None:
        return tensor.context.fed(tensor)
    return _stored(tensor) if tensor.op in ("weight", "state") else tensor.read()


def _stored(tensor: Tensor) -> Array:
    """The numbers of a weight or state: read directly, by rows, or through products, whichever the backend supports."""
    backend = tensor.owner
    if not isinstance(backend, Backend):
        raise GraphError(
            f"the owner of {tensor!r} is of type {type(backend).__name__}; expected a Backend",
            hint="load() and state() of a backend set tensor.owner to the backend",
        )
    with contextlib.suppress(UnsupportedOpError):
        return _compute(backend, tensor)
    if tensor.ndim == 2:
        with contextlib.suppress(UnsupportedOpError):
            return _compute(backend, tensor.take(constant(np.arange(len(tensor), dtype=np.int32))))
    if tensor.ndim in (2, 3):
        with contextlib.suppress(UnsupportedOpError):
            return _by_products(backend, tensor)
    raise UnsupportedOpError(
        f"{tensor!r}: the {backend.name} backend cannot read its numbers",
        hint="open the backend with repack=False, or use the reference device",
    )


def _compute(backend: Backend, tensor: Tensor) -> Array:
    with backend.new_context() as ctx:
        return ctx.forward(tensor).compute().read(tensor)


def _by_products(backend: Backend, weight: Tensor) -> Array:
    """Read a weight (..., out, in), which its device has rearranged for products, through products with it.

    Each row of ``x`` has one number that is not 0, which selects a column. For quantized weights that number is 127: if
    a device quantizes ``x`` to 8 bits, 127 is exact with a scale of 1.
    """
    one = np.float32(127 if weight.dtype.is_quantized else 1)
    *experts, n_out, n_in = weight.shape
    n = min(n_in, _COLUMNS)
    numbers = np.empty((*experts, n_out, n_in), np.float32)
    with backend.new_context() as ctx:
        if experts:
            x = ctx.input("x", (n, 1, n_in))
            chosen = ctx.input("chosen", (n, 1), DType.I32)
            y = TABLE["linear_experts"](x, weight, chosen)  # (n, 1, out)
        else:
            x, chosen = ctx.input("x", (n, n_in)), None
            y = TABLE["linear"](x, weight)  # (n, out)
        ctx.forward(y).reserve()
        for expert in range(*experts or (1,)):
            for start in range(0, n_in, n):
                start = min(start, n_in - n)  # may read columns twice, so that all products have the same shape
                picks = np.zeros(x.shape, np.float32)
                picks.reshape(n, n_in)[np.arange(n), start + np.arange(n)] = one
                ctx.compute({x: picks} if chosen is None else {x: picks, chosen: np.full((n, 1), expert)})
                columns = y.read().reshape(n, n_out).T / one
                numbers[(expert, ...) if experts else ...][:, start : start + n] = columns
    return numbers


def to_dot(graph: Graph) -> str:
    """The graph as Graphviz source, for ``dot -Tsvg``. Boxes are grouped by part of the model."""
    lines = ["digraph hotshoe {", "  rankdir=TB; node [shape=box, fontname=monospace, fontsize=10];"]
    groups: dict[str, list[str]] = {}
    fills = {"weight": "lightgrey", "state": "khaki", "input": "lightblue", "constant": "white"}
    for t in (*graph.leaves, *graph.nodes):
        group = "" if t.is_leaf else t.name.rpartition(".")[0]
        label = f"{t.name if t.is_leaf else t.op}\\n{t.dtype.name} {list(t.shape)}".replace('"', "'")
        style = f', style=filled, fillcolor="{fills[t.op]}"' if t.is_leaf else ""
        bold = ", penwidth=2" if t in graph.outputs else ""
        groups.setdefault(group, []).append(f'n{t.id} [label="{label}"{style}{bold}];')
    for i, (group, nodes) in enumerate(groups.items()):
        if group:
            lines += [f"  subgraph cluster_{i} {{", f'    label="{group}"; color=grey;']
            lines += [f"    {n}" for n in nodes] + ["  }"]
        else:
            lines += [f"  {n}" for n in nodes]
    for t in graph.nodes:
        lines += [f"  n{s.id} -> n{t.id};" for s in t.sources if s is not None]
    lines += [f"  n{new.id} -> n{state.id} [style=dashed, label=update];" for state, new in graph.updates.items()]
    return "\n".join([*lines, "}"])
