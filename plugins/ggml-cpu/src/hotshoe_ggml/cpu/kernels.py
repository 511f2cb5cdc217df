"""Nodes of ggml graphs that run hotshoe's own kernels (`native/`): attention, norms and small ops, on the CPU only.

Each function gives the node, or None where the kernel does not apply and ggml's own ops must do. The parameters of a
node are read whenever its graph is computed: `builder.keep` holds them as long.
"""

from __future__ import annotations

import math
from functools import cache
from typing import TYPE_CHECKING, Any

from hotshoe_core.tensors.dtypes import DType
from hotshoe_ggml._native import ffi, kernels

if TYPE_CHECKING:
    from hotshoe_ggml.lowering import Builder

__all__ = [
    "activation_node", "argmax_node", "attention_node", "cache_types", "few_rows_node", "layer_norm_node", "mask_types",
    "order_node", "pointwise_node", "rms_norm_node", "row_max_node",
]  # fmt: skip

Ptr = Any  # struct ggml_tensor *

_F32 = DType.F32.id
_PLAIN = {_F32: 4}
_I32 = DType.I32.id
_MAX_DIM = 576
_MANY_PIECES = 4  # a thread: what one has more than another is little
_QUERIES_TOGETHER = 64  # from here on several queries are one piece
_FEWEST_KEYS = 256  # of a piece: merging costs a barrier
_FEW_ROWS = 4  # each of them reads all of the other operand
_ALL_THREADS = -1  # GGML_N_TASKS_MAX


@cache
def mask_types() -> dict[int, int]:
    """What masks of attention may be: ggml's type numbers, and bytes. Without F16C ggml is quicker with halves."""
    halves = {} if ffi.string(kernels().hotshoe_kernels_isa()) == b"generic" else {DType.F16.id: 2}
    return _PLAIN | halves


@cache
def cache_types() -> dict[int, int]:
    """What keys and values may be, in the same way; bytes of a block where the type has blocks."""
    if len(mask_types()) == 1:
        return _PLAIN
    return mask_types() | {dtype.id: dtype.block_bytes for dtype in _CACHES}


_CACHES = (DType.BF16, DType.Q8_0, DType.Q4_0, DType.Q4_1, DType.Q5_0, DType.Q5_1, DType.IQ4_NL)


def attention_node(
    builder: Builder, q: Ptr, k: Ptr, v: Ptr, mask: Ptr | None, sinks: Ptr | None, scale: float, softcap: float
) -> Ptr | None:
    """Attention in one pass, or in two where one would leave threads without work.

    Shapes, in ggml's order: q [dim, heads, n, batch], k [dim, kv_heads, m, batch], v [v_dim, kv_heads, m, batch], mask
    broadcast to [m, n, heads, batch], sinks [heads]; gives [v_dim, heads, n, batch]. None unless q is F32, k and v of
    ``cache_types``, the mask of ``mask_types``, all with contiguous rows, the mask has all m columns, and a head
    has at most 576 elements. sinks are F32, contiguous.
    """
    if not _plain(q) or not all(_plain(t, cache_types()) for t in (k, v)) or max(q.ne[0], v.ne[0]) > _MAX_DIM:
        return None
    if mask is not None:
        wanted = (q.ne[2], q.ne[1], q.ne[3])  # the rows, heads and batch of the scores
        if mask.ne[0] != k.ne[2] or any(mask.ne[i + 1] not in (1, size) for i, size in enumerate(wanted)):
            return None
        if not _plain(mask, mask_types()):
            return None
    n_parts = _parts_of_keys(builder, q, k)
    rest = [] if sinks is None else [sinks]
    shown = [q, k, v] if mask is None else [q, k, v, mask]
    flags = (mask is not None, bool(rest) and n_parts == 1)
    params = ffi.new("struct hotshoe_attention_params *", (scale, softcap, *flags))
    _, heads, n, batch = q.ne
    if n_parts == 1:
        return _custom(builder, "hotshoe_attention", [v.ne[0], heads, n, batch], shown + rest, params)
    of_parts = _custom(builder, "hotshoe_attention", [v.ne[0] + 2, heads, n, batch * n_parts], shown, params)
    has_sinks = ffi.new("int32_t *", bool(rest))
    return _custom(builder, "hotshoe_attention_merge", [v.ne[0], heads, n, batch], [of_parts, *rest], has_sinks)


def _parts_of_keys(builder: Builder, q: Ptr, k: Ptr) -> int:
    """How many pieces the keys are cut into, so that the threads have as much to do each.

    A query and a head of keys are one piece of work. With 8 heads, 6 threads take two turns where 1.33 would do; with
    one head and 2 threads, each thread unpacks all keys for its half of the queries' heads.
    """
    pieces = k.ne[1] * q.ne[2] * q.ne[3]
    if pieces % builder.n_threads == 0 or pieces >= _MANY_PIECES * builder.n_threads or q.ne[2] >= _QUERIES_TOGETHER:
        return 1
    wanted = builder.n_threads // math.gcd(pieces, builder.n_threads)
    return int(max(1, min(wanted, k.ne[2] // _FEWEST_KEYS)))


def layer_norm_node(builder: Builder, x: Ptr, weight: Ptr | None, bias: Ptr | None, eps: float) -> Ptr | None:
    """norm(x) * weight + bias over the fastest axis; weight and bias are [ne0]."""
    return _norm(builder, "hotshoe_layer_norm", x, weight, bias, eps)


def rms_norm_node(builder: Builder, x: Ptr, weight: Ptr | None, eps: float) -> Ptr | None:
    """x / sqrt(mean(x²) + eps) * weight over the fastest axis."""
    return _norm(builder, "hotshoe_rms_norm", x, weight, None, eps)


def _norm(builder: Builder, name: str, x: Ptr, weight: Ptr | None, bias: Ptr | None, eps: float) -> Ptr | None:
    given = [t for t in (x, weight, bias) if t is not None]
    if not all(map(_plain, given)):
        return None
    if any(t is not None and list(t.ne) != [x.ne[0], 1, 1, 1] for t in (weight, bias)):
        return None
    flags = (weight is not None, bias is not None)
    return _custom(builder, name, list(x.ne), given, ffi.new("struct hotshoe_norm_params *", (eps, *flags)))


_ACTIVATIONS = {"none": "GELU_ERF", "tanh": "GELU_TANH", "quick": "GELU_QUICK", "softplus": "SOFTPLUS"}


def activation_node(builder: Builder, kind: str, x: Ptr, up: Ptr | None = None) -> Ptr:
    """act(x), or act(x) * up. kind: "softplus", or which gelu ("none", "tanh", "quick"). All F32."""
    params = ffi.new("int32_t *", getattr(kernels(), f"HOTSHOE_{_ACTIVATIONS[kind]}"))
    return _custom(builder, "hotshoe_activation", list(x.ne), [x] if up is None else [x, up], params)


_I32_LIMITS = (-(2**31), 2**31 - 1)


def pointwise_node(
    builder: Builder, op: str, ne: list[int], operands: list[Ptr], *, low: float = -math.inf, high: float = math.inf
) -> Ptr:
    """One of ``enum hotshoe_pointwise_op``, by name. Operands are broadcast to ne; low and high: of "clamp"."""
    limits = (int(min(max(limit, _I32_LIMITS[0]), _I32_LIMITS[1])) for limit in (low, high))
    params = ffi.new("struct hotshoe_pointwise_params *", (getattr(kernels(), f"HOTSHOE_{op.upper()}"), *limits))
    type = _F32 if op in ("equal", "less", "less_equal") else operands[-1].type
    return _custom(builder, "hotshoe_pointwise", ne, operands, params, type)


def row_max_node(builder: Builder, x: Ptr) -> Ptr:
    """The largest of each row: [ne1, ne2, ne3]."""
    return _custom(builder, "hotshoe_row_max", [*list(x.ne)[1:], 1], [x], ffi.NULL)


def argmax_node(builder: Builder, x: Ptr) -> Ptr:
    """Where the largest of each row first stands: [ne1, ne2, ne3]."""
    return _custom(builder, "hotshoe_row_argmax", [*list(x.ne)[1:], 1], [x], ffi.NULL, _I32)


def few_rows_node(builder: Builder, x: Ptr, y: Ptr) -> Ptr | None:
    """x @ y for few rows of x, with y as it lies: x [k, m, ...], F32 with contiguous rows, and y [n, k, ...]."""
    if x.ne[1] > _FEW_ROWS or not _plain(y):
        return None
    ne = [y.ne[0], x.ne[1], *(max(x.ne[i], y.ne[i]) for i in (2, 3))]
    return _custom(builder, "hotshoe_few_rows", ne, [x, y], ffi.NULL)


def order_node(builder: Builder, x: Ptr, k: int, *, descending: bool) -> Ptr:
    """The indices of the first k of each row in order: [k, ne1, ne2, ne3]."""
    params = ffi.new("struct hotshoe_order_params *", (k, descending))
    return _custom(builder, "hotshoe_row_order", [k, *list(x.ne)[1:]], [x], params, _I32)


def _custom(builder: Builder, name: str, ne: list[int], operands: list[Ptr], params: Any, type: int = _F32) -> Ptr:
    builder.keep.append(params)
    function = ffi.addressof(kernels(), name)
    sources = ffi.new("struct ggml_tensor *[]", operands)
    return builder.call("custom_4d", type, *ne, sources, len(operands), function, _ALL_THREADS, params)


def _plain(t: Ptr, types: dict[int, int] = _PLAIN) -> bool:
    """Of one of the types, with contiguous rows, which is what the kernels read."""
    return bool(types.get(t.type) == t.nb[0])
