"""Lowerings of elementwise ops."""

from __future__ import annotations

from hotshoe_core.tensors.dtypes import DType
from hotshoe_core.tensors.tensor import Tensor
from hotshoe_ggml.lowering.builder import F32, Builder, Ptr
from hotshoe_ggml.lowering.table import always, lowers
from hotshoe_ggml.native.context import extents

_CAST = frozenset({DType.F32, DType.F16, DType.BF16, DType.I32})
_UNARY = ("sqr", "sqrt", "log", "sin", "cos", "neg", "exp", "tanh", "sigmoid", "relu", "silu", "floor", "ceil")


@lowers(*_UNARY)
def _unary(b: Builder, node: Tensor, x: Ptr) -> Ptr:
    return b.call(node.op, b.cont(b.f32(x)))


@lowers("softplus")
def _softplus(b: Builder, node: Tensor, x: Ptr) -> Ptr:
    return b.softplus(b.cont(b.f32(x)))


@lowers("gelu")
def _gelu(b: Builder, node: Tensor, x: Ptr) -> Ptr:
    return b.gelu(b.cont(b.f32(x)), node.attrs["approximate"])


@lowers("swiglu", "reglu")
def _gated(b: Builder, node: Tensor, gate: Ptr, up: Ptr) -> Ptr:
    return b.call(f"{node.op}_split", b.cont(b.f32(gate)), b.cont(b.f32(up)))


@lowers("geglu")
def _geglu(b: Builder, node: Tensor, gate: Ptr, up: Ptr) -> Ptr:
    return b.geglu(b.cont(b.f32(gate)), b.cont(b.f32(up)), node.attrs["approximate"])


@lowers("clamped_swiglu")
def _clamped_swiglu(b: Builder, node: Tensor, gate: Ptr, up: Ptr) -> Ptr:
    return b.call("swiglu_oai", b.cont(b.f32(gate)), b.cont(b.f32(up)), node.attrs["alpha"], node.attrs["limit"])


@lowers("affine")
def _affine(b: Builder, node: Tensor, x: Ptr) -> Ptr:
    return b.call("scale_bias", b.cont(b.f32(x)), node.attrs["scale"], node.attrs["bias"])


# Arithmetic and comparison. ggml has them for floats only; the integers are I32.


def _of_integers(node: Tensor) -> bool:
    return any(s is not None and s.dtype.is_integer for s in node.sources)


def _readable(node: Tensor) -> bool:
    return all(s is None or not s.dtype.is_integer or s.dtype is DType.I32 for s in node.sources)


@lowers("add", "mul", "sub", "div", when=_readable, ggml_lacks=_of_integers)
def _binary(b: Builder, node: Tensor, x: Ptr, y: Ptr) -> Ptr:
    if _of_integers(node):
        return _pointwise(b, node, x, y)
    return b.binary(node.op, extents(node.shape), b.f32(x), b.f32(y))


@lowers("less", when=_readable, ggml_lacks=_of_integers)
def _less(b: Builder, node: Tensor, x: Ptr, y: Ptr) -> Ptr:
    return _pointwise(b, node, x, y) if _of_integers(node) else b.less(extents(node.shape), b.f32(x), b.f32(y))


@lowers(
    *("equal", "less_equal", "minimum", "maximum", "mod", "floor_divide", "round", "sign"),
    when=_readable,
    ggml_lacks=always,
)
def _pointwise(b: Builder, node: Tensor, *xs: Ptr) -> Ptr:
    return b.pointwise(node.op, extents(node.shape), [x if x.type == DType.I32.id else b.f32(x) for x in xs])


@lowers("where", when=_readable, ggml_lacks=always)
def _where(b: Builder, node: Tensor, condition: Ptr, x: Ptr, y: Ptr) -> Ptr:
    return _pointwise(b, node, condition, x, y)


@lowers("abs", when=_readable, ggml_lacks=_of_integers)
def _abs(b: Builder, node: Tensor, x: Ptr) -> Ptr:
    return _pointwise(b, node, x) if _of_integers(node) else b.call("abs", b.cont(b.f32(x)))


@lowers("clamp", when=_readable, ggml_lacks=_of_integers)
def _clamp(b: Builder, node: Tensor, x: Ptr) -> Ptr:
    low, high = node.attrs["min"], node.attrs["max"]
    if _of_integers(node):
        return b.pointwise("clamp", extents(node.shape), [x], low=low, high=high)
    return b.call("clamp", b.call("cont", b.f32(x)), low, high)  # in place: it must not overwrite what others read


def _can_cast(node: Tensor) -> bool:
    """Whether ggml can convert between these types. It aborts on other casts."""
    x = node.source(0)
    known = all(t.dtype in _CAST or t.dtype.is_quantized for t in (node, x))
    return known and (node.dtype is x.dtype or not node.dtype.is_integer)


@lowers("cast", when=_can_cast)
def _cast(b: Builder, node: Tensor, x: Ptr) -> Ptr:
    if x.type not in (F32.id, DType.F16.id) and node.dtype is not F32:
        x = b.f32(x)  # ggml converts other types from F32 only
    return b.call("cast", b.cont(x), node.dtype.id)
