"""Lowering: one function an op, from core's tensors to ggml's.

ggml counts axes the other way round, and a ggml tensor always has four: a shape (batch, n, dim) is
``ne = [dim, n, batch, 1]``. That stays inside this file. What an op of ggml demands of the memory of its
operands is met here, by a copy (``ggml_cont``) where it must be and only there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from hotshoe_core.dtypes import DType
from hotshoe_core.tensor import Shape, Tensor
from hotshoe_ggml._fusion import Fused
from hotshoe_ggml._kernels import attention_node, attention_types, layer_norm_node, rms_norm_node
from hotshoe_ggml._native import ffi, kernels, lib
from hotshoe_ggml._packed import PackedWeight, linear_node

__all__ = ["LOWERINGS", "Builder", "can_lower", "extents", "lower_fused"]

Ptr = Any  # struct ggml_tensor *
F32 = DType.F32
MAX_AXES = 4

_UNREADABLE = frozenset({DType.F64, DType.Q8_1, DType.Q8_K})  # the last two: for ggml's own intermediate results
_CAST = frozenset({DType.F32, DType.F16, DType.BF16, DType.I32})
_REPEATED = frozenset({DType.F32, DType.F16, DType.BF16, DType.I16, DType.I32})

Lowering = Callable[..., Ptr]
LOWERINGS: dict[str, Lowering] = {}


def lowers(*ops: str) -> Callable[[Lowering], Lowering]:
    def add(function: Lowering) -> Lowering:
        for op in ops:
            LOWERINGS[op] = function
        return function

    return add


def can_lower(node: Tensor) -> bool:
    """Whether the lowering of this op covers these shapes and types."""
    tensors = [node, *(s for s in node.sources if s is not None)]
    if node.op not in LOWERINGS or any(t.ndim > MAX_AXES for t in tensors):
        return False
    if any(t.dtype in _UNREADABLE for t in tensors):
        return False
    if node.op == "cast":  # ggml aborts on the rest
        known = all(t.dtype in _CAST or t.dtype.is_quantized for t in tensors)
        return known and (node.dtype is tensors[1].dtype or not node.dtype.is_integer)
    if node.op == "expand":
        return node.dtype in _REPEATED or node.size == tensors[1].size
    if node.op in ("take", "take_along", "set_rows", "rope", "linear_experts"):  # ggml's indices are I32
        indices = node.sources[2 if node.op == "linear_experts" else 1]
        readable = not tensors[1].dtype.is_integer or tensors[1].dtype is DType.I32
        return indices is not None and indices.dtype is DType.I32 and readable
    return True


def extents(shape: Shape) -> list[int]:
    """A NumPy shape as ggml's four sizes, fastest first."""
    return [*reversed(shape), *(1,) * (MAX_AXES - len(shape))]


class Builder:
    """Builds ggml nodes in one ``ggml_context``.

    custom: our own kernels may be used, which run on the CPU only. flash: "on", "off" or "auto". keep: what
    must live as long as the graph.
    """

    def __init__(self, context: Any, *, custom: bool, flash: str) -> None:
        self.context = context
        self.g = lib()
        self.custom = custom
        self.flash = flash
        self.keep: list[Any] = []

    def new(self, shape: Shape, dtype: DType) -> Ptr:
        return self.g.ggml_new_tensor(self.context, dtype.id, MAX_AXES, extents(shape))

    def call(self, name: str, *args: Any) -> Ptr:
        return getattr(self.g, "ggml_" + name)(self.context, *args)

    def cont(self, x: Ptr) -> Ptr:
        """``x`` in contiguous memory, with the strides that follow from its sizes."""
        if not self.g.ggml_is_contiguous(x):
            return self.call("cont", x)
        # the stride of an axis of size 1 means nothing, but some of ggml's ops insist on it
        return x if self._usual_strides(x) else self.call("reshape_4d", x, *x.ne)

    def rows(self, x: Ptr) -> Ptr:
        """``x`` with each row contiguous; rows may lie apart."""
        return x if x.nb[0] == self.g.ggml_type_size(x.type) else self.cont(x)

    def _usual_strides(self, x: Ptr) -> bool:
        row = self.g.ggml_row_size(x.type, x.ne[0])
        usual = [self.g.ggml_type_size(x.type), row, row * x.ne[1], row * x.ne[1] * x.ne[2]]
        return list(x.nb) == usual

    def f32(self, x: Ptr) -> Ptr:
        return x if x.type == F32.id else self.call("cast", x, F32.id)

    def reshape(self, x: Ptr, shape: Shape) -> Ptr:
        ne = extents(shape)
        if list(x.ne) == ne:
            return x
        return self.call("reshape_4d", self.cont(x), *ne)

    def swap(self, x: Ptr, a: int, b: int) -> Ptr:
        """Two of ggml's axes exchanged, as a view."""
        order = list(range(MAX_AXES))
        order[a], order[b] = b, a
        return self.call("permute", x, *order)

    def repeat(self, x: Ptr, ne: list[int]) -> Ptr:
        return x if list(x.ne) == ne else self.call("repeat_4d", x, *ne)


# Elementwise

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


@lowers("cast")
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


# Matrix products. ggml_mul_mat(w, x) is x @ w.T, with w first.


@lowers("linear")
def _linear(b: Builder, node: Tensor, x: Ptr, weight: Ptr | PackedWeight) -> Ptr:
    if isinstance(weight, PackedWeight):
        return b.reshape(linear_node(b, b.cont(x), weight), node.shape)
    flat = b.reshape(b.f32(x), (node.size // node.shape[-1], weight.ne[0]))  # one product, not one a batch element
    return b.reshape(b.call("mul_mat", b.rows(weight), b.rows(flat)), node.shape)


def lower_fused(b: Builder, node: Tensor, fused: Fused, native: Mapping[Tensor, Any]) -> Ptr:
    """A product with a packed weight and what was fused into it; ``node`` is the last of the pattern."""
    x, weight = fused.linear.sources
    assert x is not None
    assert weight is not None
    bias = None if fused.bias is None else native[fused.bias]
    residual = None if fused.residual is None else b.cont(native[fused.residual])
    return b.reshape(linear_node(b, b.cont(native[x]), native[weight], bias, residual, fused.activation), node.shape)


@lowers("matmul")
def _matmul(b: Builder, node: Tensor, x: Ptr, y: Ptr) -> Ptr:
    x = b.rows(b.f32(x))
    y = b.rows(y if node.attrs["transpose"] else b.call("transpose", y))
    y = b.f32(y) if y.type == DType.F64.id else y
    batch = [max(x.ne[2], y.ne[2]), max(x.ne[3], y.ne[3])]
    if [x.ne[2], x.ne[3]] != batch:  # ggml repeats only its first operand, which is ours transposed
        x = b.repeat(x, [x.ne[0], x.ne[1], *batch])
    product = b.call("mul_mat", y, x)
    if node.attrs["precision"] == "full":
        b.g.ggml_mul_mat_set_prec(product, b.g.GGML_PREC_F32)
    return product


@lowers("linear_experts")
def _linear_experts(b: Builder, node: Tensor, x: Ptr, weight: Ptr, experts: Ptr) -> Ptr:
    return b.call("mul_mat_id", b.rows(weight), b.cont(b.f32(x)), b.cont(experts))


# Reductions and norms


@lowers("sum", "mean")
def _reduce(b: Builder, node: Tensor, x: Ptr) -> Ptr:
    (source,) = node.sources
    assert source is not None
    at = source.ndim - 1 - node.attrs["axis"]
    x = b.f32(x)
    if at:  # only the fastest axis can be reduced: bring it there, the others keep their order
        order = [i + 1 if i < at else i for i in range(MAX_AXES)]
        order[at] = 0
        x = b.call("permute", x, *order)
    return b.reshape(b.call("mean" if node.op == "mean" else "sum_rows", b.cont(x)), node.shape)


@lowers("softmax")
def _softmax(b: Builder, node: Tensor, x: Ptr, mask: Ptr | None) -> Ptr:
    return softmax(b, b.cont(b.f32(x)), mask, node.attrs["scale"])


def softmax(b: Builder, x: Ptr, mask: Ptr | None, scale: float) -> Ptr:
    if mask is None:
        return b.call("soft_max_ext", x, ffi.NULL, scale, 0.0)
    # ggml repeats the mask over its two slowest axes; the row count and length must be x's
    mask = mask if mask.type == DType.F16.id else b.f32(mask)
    mask = b.cont(b.repeat(mask, [x.ne[0], x.ne[1], mask.ne[2], mask.ne[3]]))
    return b.call("soft_max_ext", x, mask, scale, 0.0)


@lowers("rms_norm")
def _rms_norm(b: Builder, node: Tensor, x: Ptr, weight: Ptr | None) -> Ptr:
    x = b.rows(b.f32(x))
    ours = rms_norm_node(b, x, weight, node.attrs["eps"]) if b.custom else None
    if ours is not None:
        return ours
    y = b.call("rms_norm", x, node.attrs["eps"])
    return y if weight is None else b.call("mul", y, b.f32(weight))


@lowers("layer_norm")
def _layer_norm(b: Builder, node: Tensor, x: Ptr, weight: Ptr | None, bias: Ptr | None) -> Ptr:
    x = b.rows(b.f32(x))
    ours = layer_norm_node(b, x, weight, bias, node.attrs["eps"]) if b.custom else None
    if ours is not None:
        return ours
    y = b.call("norm", x, node.attrs["eps"])
    y = y if weight is None else b.call("mul", y, b.f32(weight))
    return y if bias is None else b.call("add", y, b.f32(bias))


@lowers("l2_norm")
def _l2_norm(b: Builder, node: Tensor, x: Ptr) -> Ptr:
    return b.call("l2_norm", b.rows(b.f32(x)), node.attrs["eps"])


@lowers("cumsum")
def _cumsum(b: Builder, node: Tensor, x: Ptr) -> Ptr:
    return b.call("cumsum", b.cont(b.f32(x)))


# Movement


@lowers("reshape")
def _reshape(b: Builder, node: Tensor, x: Ptr) -> Ptr:
    return b.reshape(x, node.shape)


@lowers("permute")
def _permute(b: Builder, node: Tensor, x: Ptr) -> Ptr:
    axes = node.attrs["axes"]
    last = len(axes) - 1
    order = list(range(MAX_AXES))
    for to, from_ in enumerate(axes):
        order[last - from_] = last - to  # ggml names, for each axis of the source, where it goes
    return b.call("permute", x, *order)


@lowers("expand")
def _expand(b: Builder, node: Tensor, x: Ptr) -> Ptr:
    return b.repeat(b.cont(x), extents(node.shape))


@lowers("slice")
def _slice(b: Builder, node: Tensor, x: Ptr) -> Ptr:
    slices = list(reversed(node.attrs["slices"]))
    nb, size = list(x.nb), node.dtype.block_size
    offset = sum(s.start // (size if i == 0 else 1) * nb[i] for i, s in enumerate(slices))
    for i, s in enumerate(slices):
        nb[i] *= s.step
    view = b.call("view_4d", x, *extents(node.shape), nb[1], nb[2], nb[3], offset)
    view.nb[0] = nb[0]  # ggml_view takes rows to be dense, which those of a transposed or stepped tensor are not
    return view


@lowers("concat")
def _concat(b: Builder, node: Tensor, *xs: Ptr) -> Ptr:
    axis = node.ndim - 1 - node.attrs["axis"]
    joined = b.cont(xs[0])
    for x in xs[1:]:
        joined = b.call("concat", joined, b.cont(x), axis)
    return joined


@lowers("pad")
def _pad(b: Builder, node: Tensor, x: Ptr) -> Ptr:
    widths = [w for pair in reversed(node.attrs["widths"]) for w in pair]
    return b.call("pad_ext", b.cont(b.f32(x)), *widths, *(0,) * (2 * MAX_AXES - len(widths)))


@lowers("take")
def _take(b: Builder, node: Tensor, x: Ptr, indices: Ptr) -> Ptr:
    source, at = node.sources[0], node.sources[1]
    assert source is not None
    assert at is not None
    rows = b.reshape(x, (len(source), source.size // len(source)))
    return b.reshape(b.call("get_rows", b.rows(rows), b.reshape(b.cont(indices), (at.size,))), node.shape)


@lowers("take_along")
def _take_along(b: Builder, node: Tensor, x: Ptr, indices: Ptr) -> Ptr:
    source = node.sources[0]
    assert source is not None
    n = source.size // source.shape[-1]
    columns = b.reshape(b.f32(x), (n, source.shape[-1], 1))  # a row of one element each, for ggml gathers rows
    at = b.reshape(b.cont(indices), (n, node.shape[-1]))
    return b.reshape(b.call("get_rows", columns, at), node.shape)


@lowers("set_rows")
def _set_rows(b: Builder, node: Tensor, x: Ptr, indices: Ptr, rows: Ptr) -> Ptr:
    """In place: the executable passes a copy where the source's old value must survive."""
    n, width = node.shape[0], node.size // node.shape[0]
    flat = b.reshape(x, (n, width))
    values = b.reshape(b.f32(rows), (indices.ne[0], width))
    return b.reshape(b.call("set_rows", flat, b.rows(values), b.cont(indices)), node.shape)


@lowers("argsort")
def _argsort(b: Builder, node: Tensor, x: Ptr) -> Ptr:
    order = b.g.GGML_SORT_ORDER_DESC if node.attrs["descending"] else b.g.GGML_SORT_ORDER_ASC
    return b.call("argsort", b.cont(b.f32(x)), order)


@lowers("top_k")
def _top_k(b: Builder, node: Tensor, x: Ptr) -> Ptr:
    return b.cont(b.call("argsort_top_k", b.cont(b.f32(x)), node.attrs["k"]))  # ggml_top_k does not order them


@lowers("argmax")
def _argmax(b: Builder, node: Tensor, x: Ptr) -> Ptr:
    (source,) = node.sources
    assert source is not None
    return b.reshape(b.call("argmax", b.reshape(b.f32(x), (-(-source.size // x.ne[0]), x.ne[0]))), node.shape)


# Attention


@lowers("rope")
def _rope(b: Builder, node: Tensor, x: Ptr, positions: Ptr, factors: Ptr | None) -> Ptr:
    c, at = node.attrs["config"], node.sources[1]
    assert at is not None
    x, positions = b.f32(x), b.cont(positions)
    if at.ndim > 1 or node.ndim > 3:
        if at.ndim == 1:  # one position a row of the batch too
            positions = b.repeat(
                positions, extents((node.size // node.shape[-1] // node.shape[-2] // at.size, at.size))
            )
        x = b.reshape(x, (-(-node.size // (node.shape[-1] * node.shape[-2])), *node.shape[-2:]))
        positions = b.reshape(positions, (x.ne[2],))
    mode = b.g.GGML_ROPE_TYPE_NORMAL if c.interleaved else b.g.GGML_ROPE_TYPE_NEOX
    y = b.call(
        "rope_ext", b.rows(x), positions, ffi.NULL if factors is None else b.f32(factors), c.dim, mode,
        c.original_context, c.base, c.scale, c.ext_factor, c.attn_factor, c.beta_fast, c.beta_slow,
    )  # fmt: skip
    return b.reshape(y, node.shape)


@lowers("attention")
def _attention(b: Builder, node: Tensor, q: Ptr, k: Ptr, v: Ptr, mask: Ptr | None, sinks: Ptr | None) -> Ptr:
    scale, softcap = node.attrs["scale"], node.attrs["softcap"]
    q, k, v = b.rows(b.f32(q)), b.rows(k), b.rows(v)  # (dim, heads, rows, batch)
    if b.custom and b.flash == "auto" and sinks is None:
        read = mask if mask is None else b.rows(mask if mask.type in attention_types() else b.f32(mask))
        ours = attention_node(b, q, k, v, read, scale, softcap)
        if ours is not None:
            return ours
    q, k, v = (b.swap(x, 1, 2) for x in (q, k, v))  # (dim, rows, heads, batch)
    if b.flash == "on" or (b.flash == "auto" and k.type != F32.id):  # a cache of half or quantized rows
        return _flash_attention(b, q, k, v, mask, sinks, scale, softcap)
    scores = b.call("mul_mat", k, q)  # ggml repeats k over the heads of a group by itself
    b.g.ggml_mul_mat_set_prec(scores, b.g.GGML_PREC_F32)
    if softcap:
        scores = b.call("scale", b.call("tanh", b.call("scale", scores, scale / softcap)), softcap)
        scale = 1.0
    weights = softmax(b, scores, mask, scale)
    if sinks is not None:
        b.g.ggml_soft_max_add_sinks(weights, b.f32(sinks))
    values = b.call("cont", b.swap(b.f32(v), 0, 1))
    y = b.call("mul_mat", values, weights)
    return b.cont(b.swap(y, 1, 2))


def _flash_attention(
    b: Builder, q: Ptr, k: Ptr, v: Ptr, mask: Ptr | None, sinks: Ptr | None, scale: float, softcap: float
) -> Ptr:
    if mask is not None:
        ne = [k.ne[1], q.ne[1], mask.ne[2], mask.ne[3]]
        if mask.type != DType.F16.id or list(mask.ne) != ne:
            mask = b.call("cast", b.repeat(b.f32(mask), ne), DType.F16.id)
        mask = b.cont(mask)
    y = b.call("flash_attn_ext", q, k, v, ffi.NULL if mask is None else mask, scale, 0.0, softcap)
    b.g.ggml_flash_attn_ext_set_prec(y, b.g.GGML_PREC_F32)
    if sinks is not None:
        b.g.ggml_flash_attn_ext_add_sinks(y, b.f32(sinks))
    return y
