"""Building blocks for ops.py: errors as functions of the correct result and its operands."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from hotshoe_core.contract.backend import Backend
from hotshoe_core.contract.device import BackendParams
from hotshoe_core.eager.adapter import EagerBackend
from hotshoe_core.eager.reference import numpy_library, reference_device
from hotshoe_core.graphs.graph import Graph, lower
from hotshoe_core.tensors.dtypes import DType
from hotshoe_core.tensors.quants import round_to
from hotshoe_core.tensors.tensor import TABLE, Tensor

Array = np.ndarray[Any, Any]
Function = Callable[..., Any]

f2, f4, i4 = np.float16, np.float32, np.int32
ARITHMETIC = numpy_library().functions


def opened(params: BackendParams | None = None, **functions: Function) -> Backend:
    """The NumPy backend with some ops replaced."""
    library = replace(numpy_library(), f32=None)  # an error in how F16 is computed must see F16
    if "cast" in functions:  # to types that arrays have not, the adapter rounds by a function of its own
        library = replace(library, round_to=lambda x, dtype: functions["cast"](x, dtype=dtype))
    right = {name: f if _keeps_type(name) else _in_f32(f) for name, f in library.functions.items()}
    changed = replace(library, functions={**right, **functions})
    return EagerBackend("mutant", reference_device(), params or BackendParams(), changed)


def _keeps_type(op: str) -> bool:
    row = TABLE[op]
    return row.movement or row.overwrites or op in ("cast", "concat")


def _in_f32(function: Function) -> Function:
    def call(*arrays: Array | None, **attrs: Any) -> Array:
        return np.asarray(function(*(a.astype(f4) if a is not None and a.dtype == f2 else a for a in arrays), **attrs))

    return call


def right(op: str) -> Function:
    """The function of an op over arrays."""
    if op not in ARITHMETIC:
        return functools.partial(_decomposed, op)
    return ARITHMETIC[op] if _keeps_type(op) else _in_f32(ARITHMETIC[op])


def _decomposed(op: str, *arrays: Array | None, **attrs: Any) -> Array:
    given = [a.astype(f4) if a is not None and a.dtype.kind == "f" else a for a in arrays]
    types = {np.dtype(f4): DType.F32, np.dtype(i4): DType.I32, np.dtype(np.int64): DType.I64}
    leaves = [None if a is None else Tensor("input", (), {}, a.shape, types[a.dtype], name="x") for a in given]
    node = TABLE[op](*leaves, **attrs)
    graph, lowered = lower(Graph.trace([node]), lambda n: n.op in ARITHMETIC)
    values: dict[Any, Any] = {None: None, **dict(zip(leaves, given))}
    values |= {leaf: leaf.attrs["value"] for leaf in graph.leaves if leaf.op == "constant"}
    for n in graph.nodes:
        values[n] = ARITHMETIC[n.op](*(values[s] for s in n.sources), **n.attrs)
    return np.asarray(values[lowered[node]])


# What rows are written with


def given(**changed: Any) -> Function:
    """The op with other attributes than given."""
    return lambda f, *xs, **attrs: f(*xs, **{**attrs, **changed})


def operand(i: int, change: Callable[[Array], Array | None]) -> Function:
    """The op with another operand than given; an absent operand stays absent."""
    return lambda f, *xs, **attrs: f(*(change(x) if j == i and x is not None else x for j, x in enumerate(xs)), **attrs)


def result(change: Callable[[Array], Array]) -> Function:
    """The op with a changed result."""
    return lambda f, *xs, **attrs: change(np.asarray(f(*xs, **attrs)))


def rounded(dtype: DType) -> Function:
    """The correct result with less precision."""
    return result(lambda y: round_to(y, dtype).astype(f4))


def in_half(f: Function, *xs: Array | None, **attrs: Any) -> Array:
    """F16 computed in F16, whose largest number is 65504; the contract says F32."""
    if not any(x is not None and x.dtype == f2 for x in xs):
        return np.asarray(f(*xs, **attrs))
    with np.errstate(all="ignore"):
        return np.asarray(f(*xs, **attrs)).astype(f2).astype(f4)


def through_floats(f: Function, *xs: Array, **attrs: Any) -> Array:
    """Integers computed in F32, which is exact up to 2^24."""
    y = f(*(x.astype(f4) for x in xs), **attrs)
    return y.astype(xs[-1].dtype) if xs[-1].dtype.kind == "i" and np.dtype(y.dtype).kind == "f" else y


def flags_through_floats(f: Function, a: Array, b: Array) -> Array:
    return np.asarray(f(a.astype(f4), b.astype(f4)))


def nothing_where(wrong: Callable[..., Any], value: float) -> Function:
    return lambda f, *xs: np.where(wrong(*xs), f4(value), f(*xs)).astype(f4)


def rms_norm(scale: Callable[[Array, float], Array]) -> Function:
    def body(f: Function, x: Array, weight: Array | None = None, *, eps: float) -> Array:
        y = x.astype(f4) * scale(np.mean(np.square(x.astype(f4)), -1, keepdims=True), eps)
        return (y if weight is None else y * weight).astype(f4)

    return body


def layer_norm(scale: Callable[[Array, float], Array], *, naive: bool = False) -> Function:
    def body(f: Function, x: Array, weight: Array | None = None, bias: Array | None = None, *, eps: float) -> Array:
        x = x.astype(f4)
        mean, square = np.mean(x, -1, keepdims=True), np.mean(np.square(x), -1, keepdims=True)
        variance = square - np.square(mean) if naive else np.mean(np.square(x - mean), -1, keepdims=True)
        y = (x - mean) * scale(variance, eps)
        y = y if weight is None else y * weight
        return (y if bias is None else y + bias).astype(f4)

    return body


def l2_norm(divisor: Callable[[Array, float], Array]) -> Function:
    return lambda f, x, *, eps: (x / divisor(np.sqrt(np.sum(np.square(x, dtype=f4), -1, keepdims=True)), eps)).astype(
        f4
    )


def bf16(rounding: Callable[[Array], Array]) -> Function:
    """Casts to BF16 with another rounding."""
    return lambda f, x, *, dtype: rounding(x.astype(f4)) if dtype is DType.BF16 else f(x, dtype=dtype)


def to(kind: DType, change: Callable[[Array], Array]) -> Function:
    """Casts to one type with a changed operand."""
    return lambda f, x, *, dtype: f(change(x) if dtype is kind else x, dtype=dtype)


def truncated(x: Array) -> Array:
    return (x.view(np.uint32) & np.uint32(0xFFFF0000)).view(f4)


def last_of_equals(f: Function, x: Array) -> Array:
    return (x.shape[-1] - 1 - f(x[..., ::-1])).astype(i4)


def order_with_repeats(x: Array, *, descending: bool = False) -> Array:
    """For each position, the first element with that value: correct unless elements are equal."""
    ordered = np.sort(-x if descending else x, -1)
    values = -ordered if descending else ordered
    return np.argmax(values[..., None] == x[..., None, :], -1).astype(i4)


def nan_first(x: Array, *, descending: bool = False) -> Array:
    least = np.where(np.isnan(x), f4(np.inf if descending else -np.inf), x.astype(f4))
    return np.argsort(-least if descending else least, -1, kind="stable").astype(i4)


def steps_ignored(f: Function, x: Array, values: Array, *, slices: Any, dtype: DType) -> Array:
    out = np.array(x)
    out[tuple(slice(s[0], s[0] + n) for s, n in zip(slices, values.shape))] = values
    return out


def written_through(f: Function, x: Array, values: Array, *, slices: Any, dtype: DType) -> Array:
    x.flags.writeable = True
    x[tuple(slice(*s) for s in slices)] = values
    return x


def rows_written_through(f: Function, x: Array, at: Array, rows: Array, *, dtype: DType) -> Array:
    x = x if x.flags.owndata else np.array(x)
    x.flags.writeable = True
    x[at] = round_to(rows, dtype)
    return x


def first_axis_only(f: Function, x: Array, *, axis: Any, keepdims: bool) -> Array:
    """Over several axes: the first element along all axes except one."""
    axes = axis if isinstance(axis, tuple) else (axis,)
    rest = tuple(slice(0, 1) if i in axes[1:] else slice(None) for i in range(x.ndim))
    return np.asarray(f(x[rest], axis=axis, keepdims=keepdims))


def other_axis(f: Function, x: Array, *, axis: Any, keepdims: bool) -> Array:
    """The wrong one of two axes with the same length: the second to last."""
    swapped = x.ndim > 1 and axis in (-1, x.ndim - 1, (x.ndim - 1,)) and x.shape[-1] == x.shape[-2]
    return np.asarray(f(np.swapaxes(x, -1, -2) if swapped else x, axis=axis, keepdims=keepdims))


def heads_strided(f: Function, q: Array, k: Array, v: Array, *rest: Array, **attrs: Any) -> Array:
    """Head h reads key/value head h modulo their number."""
    at = np.arange(q.shape[-2]) % k.shape[-2]
    return np.asarray(f(q, np.take(k, at, -2), np.take(v, at, -2), *rest, **attrs))


def with_mask(change: Callable[..., Array]) -> Function:
    """Attention with another mask, which may depend on the attributes."""

    def body(f: Function, q: Array, k: Array, v: Array, mask: Array | None = None, *rest: Array, **attrs: Any) -> Array:
        return np.asarray(f(q, k, v, None if mask is None else change(mask.astype(f4), attrs), *rest, **attrs))

    return body


def rope(**changed: Any) -> Function:
    """rope with changed fields of its config; a function computes the value of a field from the config."""

    def body(f: Function, *operands: Array, config: Any) -> Array:
        fields = {name: value(config) if callable(value) else value for name, value in changed.items()}
        return np.asarray(f(*operands, config=replace(config, **fields)))

    return body


def tail_lost(f: Function, x: Array, *rest: Array, config: Any) -> Array:
    y = np.array(f(x, *rest, config=config))
    y[..., config.dim :] = 0
    return y


def one_sided(f: Function, x: Array, *rest: Array, padding: Any, **attrs: Any) -> Array:
    """All padding at the end."""
    widths = [*((0, 0),) * (x.ndim - len(padding)), *((0, 2 * p) for p in padding)]
    return np.asarray(f(np.pad(x, widths), *rest, padding=(0,) * len(padding), **attrs))


def padded(mode: Any) -> Function:
    def body(f: Function, x: Array, *rest: Array, padding: Any, **attrs: Any) -> Array:
        widths = [*((0, 0),) * (x.ndim - len(padding)), *((p, p) for p in padding)]
        return np.asarray(f(np.pad(x, widths, mode), *rest, padding=(0,) * len(padding), **attrs))

    return body


def fitted(y: Array, shape: tuple[int, ...]) -> Array:
    """Cut, or continued with zeros: a wrong result in memory of the right size."""
    out = np.zeros(shape, y.dtype)
    part = tuple(slice(min(n, m)) for n, m in zip(y.shape, shape))
    out[part] = y[part]
    return out


def undilated(f: Function, *xs: Array, dilation: Any, **attrs: Any) -> Array:
    """The taps without dilation, at the same number of positions."""
    spots = np.asarray(f(*xs, dilation=dilation, **attrs)).shape[-len(dilation) :]
    y = np.asarray(f(*xs, dilation=(1,) * len(dilation), **attrs))
    return y[(..., *(slice(n) for n in spots))]


def channels_strided(f: Function, x: Array, w: Array, *rest: Array, groups: int, stride: Any, **attrs: Any) -> Array:
    """The channels of a group have a stride of ``groups``."""
    axis = x.ndim - len(stride) - 1
    order = np.arange(x.shape[axis]).reshape(-1, groups).T.reshape(-1)
    return np.asarray(f(np.take(x, order, axis), w, *rest, groups=groups, stride=stride, **attrs))


def grouped_by_stride(f: Function, x: Array, *rest: Array, n_groups: int, eps: float) -> Array:
    order = np.arange(x.shape[1]).reshape(-1, n_groups).T.reshape(-1)
    y = f(x[:, order], *(None if v is None else v[order] for v in rest), n_groups=n_groups, eps=eps)
    return np.asarray(y)[:, np.argsort(order)]


def scan(**parts: Callable[..., tuple[Array, Array]]) -> Function:
    """A recurrence with a changed y or state: ``change(y, new_state, old_state)``."""
    (change,) = parts.values()

    def body(f: Function, *xs: Array, **attrs: Any) -> Array:
        packed, old = np.asarray(f(*xs, **attrs)), xs[-1]
        y, new = change(packed[: -old.size], packed[-old.size :].reshape(old.shape), old)
        return np.concatenate([y.reshape(-1), new.reshape(-1)]).astype(f4)

    return body


def reset(f: Function, *xs: Array, **attrs: Any) -> Array:
    return np.asarray(f(*xs[:-1], np.zeros_like(xs[-1]), **attrs))


def scalar(value: float) -> Callable[[Array], Array]:
    return lambda x: np.full_like(x, value)


def taps_exchanged(x: Array) -> Array:
    return x[(..., *(slice(None, None, -1),) * (x.ndim - 2))]


def without_last(f: Function, a: Array, b: Array, **attrs: Any) -> Array:
    """The inner axis ends one element too early."""
    a = np.array(a)
    a[..., -1] = 0
    return np.asarray(f(a, b, **attrs))
