"""Lowerings of attention and rotary position embedding."""

from __future__ import annotations

from hotshoe_core.tensors.dtypes import DType
from hotshoe_core.tensors.tensor import Tensor
from hotshoe_ggml.lowering.builder import Builder, Ptr
from hotshoe_ggml.lowering.table import always, indices_are_i32, lowers
from hotshoe_ggml.native import ffi, kernels
from hotshoe_ggml.native.context import extents


def _can_rotate(node: Tensor) -> bool:
    """Whether ggml has this rotation.

    It moves the elements that do not rotate in pairs: in a head of odd size it would write one past the end.
    """
    c = node.attrs["config"]
    if not indices_are_i32(0, 1)(node) or node.shape[-1] % 2 or (c.ext_factor and not c.truncate):
        return False
    if not c.sections:
        return True
    if c.interleaved:
        return False
    if c.section_layout == "restarting":  # ggml has it for two halves of a whole head
        return c.dim == node.shape[-1] and len(c.sections) == 2 and c.sections[0] == c.sections[1]
    return len(c.sections) == 3 if c.section_layout == "interleaved" else len(c.sections) <= _STREAMS


_STREAMS = 4  # positions that ggml's M-RoPE takes for each token, used or not
_LAYOUTS = {"contiguous": "MROPE", "interleaved": "IMROPE", "restarting": "VISION"}


@lowers("rope", when=_can_rotate)
def _rope(b: Builder, node: Tensor, x: Ptr, positions: Ptr, factors: Ptr | None) -> Ptr:
    c, source = node.attrs["config"], node.source(1)
    x, positions = b.f32(x), b.cont(positions)
    n_streams = len(c.sections) or 1
    rows = node.size // (node.shape[-1] * node.shape[-2])
    if source.size < n_streams * rows:  # all sequences of the batch have the same positions
        n = source.shape[-1]
        positions = b.reshape(positions, (n_streams, 1, n))
        positions = b.repeat(positions, extents((n_streams, rows // n, n)))
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
    """Four streams, the rest equal to the first: ggml rotates elements outside interleaved sections by the last."""
    first = b.call("view_1d", positions, rows, 0)
    for _ in range(_STREAMS - n):
        positions = b.call("concat", positions, first, 0)
    return positions


@lowers("attention", nodes=lambda node: 32)
def _attention(
    b: Builder, node: Tensor, q: Ptr, k: Ptr, v: Ptr, mask: Ptr | None, sinks: Ptr | None, slopes: Ptr | None
) -> Ptr:
    sinks = None if sinks is None else b.cont(b.f32(sinks))  # ggml takes them as contiguous without a check
    if mask is not None and slopes is not None:
        heads = node.shape[-2]
        mask_of_heads = b.repeat(b.f32(mask), [mask.ne[0], mask.ne[1], heads, mask.ne[3]])
        mask = b.call("mul", mask_of_heads, b.reshape(b.f32(slopes), (heads, 1, 1)))
    q, k, v = b.rows(b.f32(q)), b.rows(k), b.rows(v)
    return b.attention(q, k, v, mask, sinks, node.attrs["scale"], node.attrs["softcap"])


def _reads_lists(node: Tensor) -> bool:
    """Whether our kernel reads these heads and lists."""
    q, v, cells, ranges = (node.source(i) for i in (0, 2, 3, 4))
    limits = kernels()
    fits = q.shape[0] <= limits.HOTSHOE_MAX_TEXTS and max(q.shape[-1], v.shape[-1]) <= limits.HOTSHOE_MAX_HEAD
    return fits and cells.dtype is ranges.dtype is DType.I32


@lowers("cached_attention", when=_reads_lists, ggml_lacks=always)
def _cached_attention(
    b: Builder, node: Tensor, q: Ptr, k: Ptr, v: Ptr, cells: Ptr, ranges: Ptr, sinks: Ptr | None, slopes: Ptr | None
) -> Ptr:
    by_head = [None if t is None else b.cont(b.f32(t)) for t in (sinks, slopes)]
    lists = b.cont(cells), b.cont(ranges)
    return b.cached_attention(b.rows(b.f32(q)), b.rows(k), b.rows(v), lists, *by_head, **node.attrs)
