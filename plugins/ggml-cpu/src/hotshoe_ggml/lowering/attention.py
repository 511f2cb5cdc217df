"""Lowerings of attention and rotary position embedding."""

from __future__ import annotations

from hotshoe_core.tensors.dtypes import DType
from hotshoe_core.tensors.tensor import Tensor
from hotshoe_ggml._native import ffi
from hotshoe_ggml.cpu.kernels import attention_node, mask_types
from hotshoe_ggml.lowering.builder import F32, Builder, Ptr, extents, indices_are_i32, lowers
from hotshoe_ggml.lowering.reduce import softmax


def _can_rotate(node: Tensor) -> bool:
    """Not odd heads, for ggml moves the elements that do not rotate in pairs, and writes one beyond the end."""
    c = node.attrs["config"]
    if not indices_are_i32(0, 1)(node) or node.shape[-1] % 2:
        return False
    if not c.sections:
        return True
    if c.interleaved:
        return False
    if c.section_layout == "restarting":  # ggml has it for two halves of a whole head
        return c.dim == node.shape[-1] and len(c.sections) == 2 and c.sections[0] == c.sections[1]
    return len(c.sections) == 3 if c.section_layout == "interleaved" else len(c.sections) <= _STREAMS


_STREAMS = 4  # ggml's M-RoPE takes as many positions for each token, used or not
_LAYOUTS = {"contiguous": "MROPE", "interleaved": "IMROPE", "restarting": "VISION"}


@lowers("rope", when=_can_rotate)
def _rope(b: Builder, node: Tensor, x: Ptr, positions: Ptr, factors: Ptr | None) -> Ptr:
    c, at = node.attrs["config"], node.sources[1]
    assert at is not None
    x, positions = b.f32(x), b.cont(positions)
    n_streams = len(c.sections) or 1
    rows = node.size // (node.shape[-1] * node.shape[-2])
    if at.size < n_streams * rows:  # one position a row of the batch too
        each = at.shape[-1]
        positions = b.reshape(positions, (n_streams, 1, each))
        positions = b.repeat(positions, extents((n_streams, rows // each, each)))
    if node.ndim > 3:
        x = b.reshape(x, (rows, *node.shape[-2:]))
    x, factors = b.rows(x), ffi.NULL if factors is None else b.cont(b.f32(factors))
    yarn = (c.original_context, c.base, c.scale, c.ext_factor, c.attn_factor, c.beta_fast, c.beta_slow)
    if not c.sections:
        mode = b.g.GGML_ROPE_TYPE_NORMAL if c.interleaved else b.g.GGML_ROPE_TYPE_NEOX
        y = b.call("rope_ext", x, b.reshape(positions, (rows,)), factors, c.dim, mode, *yarn)
    else:
        mode = getattr(b.g, f"GGML_ROPE_TYPE_{_LAYOUTS[c.section_layout]}")
        sections = ffi.new("int[]", [*c.sections, *(0,) * (_STREAMS - n_streams)])
        streams = _four_streams(b, b.reshape(positions, (n_streams * rows,)), rows, n_streams)
        dim = c.dim // 2 if c.section_layout == "restarting" else c.dim
        y = b.call("rope_multi", x, streams, factors, dim, sections, mode, *yarn)
    return b.reshape(y, node.shape)


def _four_streams(b: Builder, positions: Ptr, rows: int, n: int) -> Ptr:
    """The last is the first again: interleaved sections turn what they leave over by it."""
    first = b.call("view_1d", positions, rows, 0)
    for _ in range(_STREAMS - n):
        positions = b.call("concat", positions, first, 0)
    return positions


@lowers("attention", nodes=lambda node: 32)
def _attention(
    b: Builder, node: Tensor, q: Ptr, k: Ptr, v: Ptr, mask: Ptr | None, sinks: Ptr | None, slopes: Ptr | None
) -> Ptr:
    scale, softcap = node.attrs["scale"], node.attrs["softcap"]
    sinks = None if sinks is None else b.cont(b.f32(sinks))  # ggml reads them as if they were
    if mask is not None and slopes is not None:
        heads = node.shape[-2]
        each = b.repeat(b.f32(mask), [mask.ne[0], mask.ne[1], heads, mask.ne[3]])
        mask = b.call("mul", each, b.reshape(b.f32(slopes), (heads, 1, 1)))
    q, k, v = b.rows(b.f32(q)), b.rows(k), b.rows(v)  # (dim, heads, rows, batch)
    if b.custom and b.flash == "auto":
        read = mask if mask is None else b.rows(mask if mask.type in mask_types() else b.f32(mask))
        ours = attention_node(b, q, k, v, read, sinks, scale, softcap)
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
        b.g.ggml_soft_max_add_sinks(weights, sinks)
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
        b.g.ggml_flash_attn_ext_add_sinks(y, sinks)
    return y
