"""Lowerings of elementwise ops."""

from __future__ import annotations

from hotshoe_core.dtypes import DType
from hotshoe_core.tensor import Tensor
from hotshoe_ggml._native import ffi, kernels
from hotshoe_ggml.lowering.builder import F32, Builder, Ptr, extents, lowers

_CAST = frozenset({DType.F32, DType.F16, DType.BF16, DType.I32})
_UNARY = ("sqr", "sqrt", "log", "sin", "cos", "neg", "exp", "tanh", "sigmoid", "softplus", "relu", "silu")


@lowers(*_UNARY)
def _unary(b: Builder, node: Tensor, x: Ptr) -> Ptr:
    return b.call(node.op, b.cont(b.f32(x)))


@lowers("gelu")
def _gelu(b: Builder, node: Tensor, x: Ptr) -> Ptr:
    x = b.cont(b.f32(x))
    if node.attrs["approximate"] != "none":
        return b.call({"tanh": "gelu", "quick": "gelu_quick"}[node.attrs["approximate"]], x)
    if b.custom:
        return b.call("map_custom1", x, ffi.addressof(kernels(), "hotshoe_gelu_erf"), -1, ffi.NULL)
    return b.call("gelu_erf", x)


@lowers("add", "mul", "sub", "div")
def _binary(b: Builder, node: Tensor, x: Ptr, y: Ptr) -> Ptr:
    x, y = b.rows(b.f32(x)), b.rows(b.f32(y))
    ne = extents(node.shape)
    if list(x.ne) != ne:  # ggml repeats only its second operand
        if node.op in ("add", "mul") and list(y.ne) == ne:
            x, y = y, x
        else:
            x = b.repeat(x, ne)
    return b.call(node.op, x, y)


@lowers("affine")
def _affine(b: Builder, node: Tensor, x: Ptr) -> Ptr:
    return b.call("scale_bias", b.cont(b.f32(x)), node.attrs["scale"], node.attrs["bias"])


@lowers("clamp")
def _clamp(b: Builder, node: Tensor, x: Ptr) -> Ptr:
    # ggml_clamp works in place: it must not overwrite what others read
    return b.call("clamp", b.call("cont", b.f32(x)), node.attrs["min"], node.attrs["max"])


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


@lowers("swiglu", "reglu")
def _gated(b: Builder, node: Tensor, gate: Ptr, up: Ptr) -> Ptr:
    return b.call(f"{node.op}_split", b.cont(b.f32(gate)), b.cont(b.f32(up)))


@lowers("geglu")
def _geglu(b: Builder, node: Tensor, gate: Ptr, up: Ptr) -> Ptr:
    name = {"none": "geglu_erf_split", "tanh": "geglu_split", "quick": "geglu_quick_split"}
    return b.call(name[node.attrs["approximate"]], b.cont(b.f32(gate)), b.cont(b.f32(up)))
