"""Lowerings of elementwise ops."""

from __future__ import annotations

from hotshoe_core.tensors.dtypes import DType
from hotshoe_core.tensors.tensor import Tensor
from hotshoe_ggml.cpu.kernels import activation_node, pointwise_node
from hotshoe_ggml.lowering.builder import F32, Builder, Ptr, always, extents, lowers

_CAST = frozenset({DType.F32, DType.F16, DType.BF16, DType.I32})
_UNARY = ("sqr", "sqrt", "log", "sin", "cos", "neg", "exp", "tanh", "sigmoid", "relu", "silu", "floor", "ceil")


@lowers(*_UNARY)
def _unary(b: Builder, node: Tensor, x: Ptr) -> Ptr:
    return b.call(node.op, b.cont(b.f32(x)))


@lowers("softplus")
def _softplus(b: Builder, node: Tensor, x: Ptr) -> Ptr:
    x = b.cont(b.f32(x))
    return activation_node(b, "softplus", x) if b.custom else b.call("softplus", x)


@lowers("gelu")
def _gelu(b: Builder, node: Tensor, x: Ptr) -> Ptr:
    x, approximate = b.cont(b.f32(x)), node.attrs["approximate"]
    if b.custom:
        return activation_node(b, approximate, x)
    return b.call({"none": "gelu_erf", "tanh": "gelu", "quick": "gelu_quick"}[approximate], x)


@lowers("swiglu", "reglu")
def _gated(b: Builder, node: Tensor, gate: Ptr, up: Ptr) -> Ptr:
    return b.call(f"{node.op}_split", b.cont(b.f32(gate)), b.cont(b.f32(up)))


@lowers("geglu")
def _geglu(b: Builder, node: Tensor, gate: Ptr, up: Ptr) -> Ptr:
    gate, up, approximate = b.cont(b.f32(gate)), b.cont(b.f32(up)), node.attrs["approximate"]
    if b.custom:
        return activation_node(b, approximate, gate, up)
    name = {"none": "geglu_erf_split", "tanh": "geglu_split", "quick": "geglu_quick_split"}
    return b.call(name[approximate], gate, up)


@lowers("clamped_swiglu")
def _clamped_swiglu(b: Builder, node: Tensor, gate: Ptr, up: Ptr) -> Ptr:
    return b.call("swiglu_oai", b.cont(b.f32(gate)), b.cont(b.f32(up)), node.attrs["alpha"], node.attrs["limit"])


@lowers("affine")
def _affine(b: Builder, node: Tensor, x: Ptr) -> Ptr:
    return b.call("scale_bias", b.cont(b.f32(x)), node.attrs["scale"], node.attrs["bias"])


# Arithmetic and comparison. ggml's is of floats only; integers are I32, and our kernel's.


def _of_integers(node: Tensor) -> bool:
    return any(s is not None and s.dtype.is_integer for s in node.sources)


def _readable(node: Tensor) -> bool:
    return all(s is None or not s.dtype.is_integer or s.dtype is DType.I32 for s in node.sources)


@lowers("add", "mul", "sub", "div", when=_readable, own_kernels=_of_integers)
def _binary(b: Builder, node: Tensor, x: Ptr, y: Ptr) -> Ptr:
    if _of_integers(node):
        return _pointwise(b, node, x, y)
    x, y = b.rows(b.f32(x)), b.rows(b.f32(y))
    ne = extents(node.shape)
    if list(x.ne) != ne:  # ggml repeats only its second operand
        if node.op in ("add", "mul") and list(y.ne) == ne:
            x, y = y, x
        else:
            x = b.repeat(x, ne)
    return b.call(node.op, x, y)


@lowers(
    *("equal", "less", "less_equal", "minimum", "maximum", "mod", "floor_divide", "round", "sign"),
    when=_readable,
    own_kernels=always,
)
def _pointwise(b: Builder, node: Tensor, *xs: Ptr) -> Ptr:
    return pointwise_node(b, node.op, extents(node.shape), [x if x.type == DType.I32.id else b.f32(x) for x in xs])


@lowers("where", when=_readable, own_kernels=always)
def _where(b: Builder, node: Tensor, condition: Ptr, x: Ptr, y: Ptr) -> Ptr:
    return _pointwise(b, node, condition, x, y)


@lowers("abs", when=_readable, own_kernels=_of_integers)
def _abs(b: Builder, node: Tensor, x: Ptr) -> Ptr:
    return _pointwise(b, node, x) if _of_integers(node) else b.call("abs", b.cont(b.f32(x)))


@lowers("clamp", when=_readable, own_kernels=_of_integers)
def _clamp(b: Builder, node: Tensor, x: Ptr) -> Ptr:
    low, high = node.attrs["min"], node.attrs["max"]
    if _of_integers(node):
        return pointwise_node(b, "clamp", extents(node.shape), [x], low=low, high=high)
    return b.call("clamp", b.call("cont", b.f32(x)), low, high)  # in place: it must not overwrite what others read


def _can_cast(node: Tensor) -> bool:
    """ggml aborts on the rest."""
    (x,) = node.sources
    assert x is not None
    known = all(t.dtype in _CAST or t.dtype.is_quantized for t in (node, x))
    return known and (node.dtype is x.dtype or not node.dtype.is_integer)


@lowers("cast", when=_can_cast)
def _cast(b: Builder, node: Tensor, x: Ptr) -> Ptr:
    if x.type not in (F32.id, DType.F16.id) and node.dtype is not F32:
        x = b.f32(x)  # ggml converts between F32 and the rest
    return b.call("cast", b.cont(x), node.dtype.id)
