"""Lowerings of attention and rotary position embedding."""

from __future__ import annotations

from hotshoe_core.dtypes import DType
from hotshoe_core.tensor import Tensor
from hotshoe_ggml._kernels import attention_node, attention_types
from hotshoe_ggml._native import ffi
from hotshoe_ggml.lowering.builder import F32, Builder, Ptr, extents, indices_are_i32, lowers
from hotshoe_ggml.lowering.reduce import softmax


@lowers("rope", when=indices_are_i32(0, 1))
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
