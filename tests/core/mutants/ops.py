"""A table of errors in the results of ops.

A row is a wrong version of an op: ``lambda f, *operands, **attributes``, where ``f`` is the op over arrays (its body or
the decomposition of a composite). Its name begins with the name of the op. The kit's cases of that op must find the
error, or else the graph that ALSO names.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from hotshoe_core.contract.backend import Backend
from hotshoe_core.contract.device import BackendParams
from hotshoe_core.tensors.dtypes import DType
from hotshoe_core.tensors.quants import round_to
from hotshoe_core.testing import GRAPH_CASES, OP_CASES, Case
from hotshoe_core.testing.run import AnyCase
from tests.core.mutants.mutant import Mutant
from tests.core.mutants.patches import (
    bf16,
    channels_strided,
    f2,
    f4,
    first_axis_only,
    flags_through_floats,
    given,
    grouped_by_stride,
    heads_strided,
    i4,
    in_half,
    l2_norm,
    last_of_equals,
    layer_norm,
    nan_first,
    nothing_where,
    one_sided,
    opened,
    operand,
    order_with_repeats,
    other_axis,
    padded,
    reset,
    right,
    rms_norm,
    rope,
    rounded,
    rows_written_through,
    scalar,
    scan,
    steps_ignored,
    tail_lost,
    taps_exchanged,
    through_floats,
    to,
    truncated,
    undilated,
    with_mask,
    without_last,
    written_through,
)

__all__ = ["mutants", "of_rows"]

Array = np.ndarray[Any, Any]

INVERSE_ROOT = {
    "no eps": lambda v, eps: 1 / np.sqrt(v),
    "eps is always 1e-6": lambda v, eps: 1 / np.sqrt(v + f4(1e-6)),
    "eps outside the root": lambda v, eps: 1 / (np.sqrt(v) + f4(eps)),
    "eps as a floor": lambda v, eps: 1 / np.sqrt(np.maximum(v, f4(eps))),
}

ROWS: Mapping[str, Callable[..., Any]] = {
    # arithmetic
    "add: integers through F32": through_floats,
    "add: repeated by element, not by axis": lambda f, a, b: f(a, np.resize(b, np.broadcast_shapes(a.shape, b.shape))),
    "add: F16 in F16": in_half,
    "sub: the other way round where the second is smaller": lambda f, a, b: -f(a, b) if b.size < a.size else f(a, b),
    "sub: integers through F32": through_floats,
    "mul: F16 in F16, up to 65504": in_half,
    "mul: integers through F32": through_floats,
    "div: by a rough reciprocal": lambda f, a, b: a * f(f4(1), b).astype(f2).astype(f4),
    "div: by 0 gives 0": lambda f, a, b: np.where(b == 0, f4(0), f(a, b)),
    "floor_divide: towards zero": lambda f, a, b: np.trunc(a / b).astype(a.dtype),
    "floor_divide: integers through F32": through_floats,
    "mod: with the sign of the first": lambda f, a, b: np.fmod(a, b),
    "mod: by a quotient that is rounded": lambda f, a, b: a - np.floor(a.astype(f4) / b).astype(a.dtype) * b,
    "minimum: drops NaN": lambda f, a, b: np.fmin(a, b),
    "maximum: drops NaN": lambda f, a, b: np.fmax(a, b),
    "maximum: integers through F32": through_floats,
    "affine: the bias first": lambda f, x, *, scale, bias: f(x + f4(bias), scale=scale, bias=0.0),
    "affine: no bias": given(bias=0.0),
    "neg: of the amount": lambda f, x: f(np.abs(x)),
    "abs: integers through F32": through_floats,
    "sqr: F16 in F16, up to 65504": in_half,
    "sqrt: 0 below zero": nothing_where(lambda x: x < 0, 0),
    "rsqrt: a rough estimate": rounded(DType.F16),
    "reciprocal: of 0 is the largest": lambda f, x: np.nan_to_num(f(x)),
    # comparison and choice
    "equal: integers through F32": flags_through_floats,
    "not_equal: NaN equals itself": lambda f, a, b: f(a, b) * ~(np.isnan(a) & np.isnan(b)),
    "less: not greater or equal": lambda f, a, b: 1 - np.greater_equal(a, b).astype(f4),
    "less: integers through F32": flags_through_floats,
    "less_equal: less": lambda f, a, b: right("less")(a, b),
    "less_equal: integers through F32": flags_through_floats,
    "greater: greater or equal": lambda f, a, b: np.greater_equal(a, b).astype(f4),
    "greater: integers through F32": flags_through_floats,
    "greater_equal: not less": lambda f, a, b: 1 - np.less(a, b).astype(f4),
    "where: by arithmetic": lambda f, c, a, b: ((c != 0) * a + (c == 0) * b).astype(a.dtype),
    "where: with a threshold": lambda f, c, a, b: np.where(c > 0, a, b),
    "where: exactly 1": lambda f, c, a, b: np.where(c == 1, a, b),
    "where: integers through F32": lambda f, c, a, b: f(c, a.astype(f4), b.astype(f4)).astype(a.dtype),
    "clamp: the lower limit only": given(max=np.inf),
    "clamp: the upper limit only": given(min=-np.inf),
    "clamp: integers through F32": through_floats,
    # rounding
    "floor: towards zero": lambda f, x: np.trunc(x.astype(f4)),
    "ceil: floor and one more": lambda f, x: np.floor(x.astype(f4)) + f4(1),
    "round: halves up": lambda f, x: np.floor(x.astype(f4) + f4(0.5)),
    "round: by way of I32": lambda f, x: np.clip(f(x), -(2.0**31), 2.0**31 - 1).astype(f4),
    "sign: 1 at 0": nothing_where(lambda x: x == 0, 1),
    "sign: 0 for NaN": nothing_where(np.isnan, 0),
    # functions
    "exp: ends at 88": lambda f, x: f(np.minimum(x, f4(88))),
    "exp: F16 in F16, up to 65504": in_half,
    "exp: in F16": rounded(DType.F16),
    "log: NaN at 0": nothing_where(lambda x: x == 0, np.nan),
    "log: of 1 + x": lambda f, x: np.log1p(x.astype(f4)),
    "sin: of degrees": lambda f, x: f(np.deg2rad(x.astype(f4))),
    "sin: a series, right near 0": lambda f, x: x - x**3 / 6 + x**5 / 120 - x**7 / 5040 + x**9 / 362880,
    "sin: in F16 before it is reduced": lambda f, x: f(x.astype(f2).astype(f4)),
    "cos: in F16 before it is reduced": lambda f, x: f(x.astype(f2).astype(f4)),
    "tanh: overflows": lambda f, x: ((np.exp(2 * x.astype(f4)) - 1) / (np.exp(2 * x.astype(f4)) + 1)).astype(f4),
    "tanh: a fraction": lambda f, x: np.clip(x * (27 + x * x) / (27 + 9 * x * x), -1, 1).astype(f4),
    "sigmoid: by a tanh, which loses what is small": lambda f, x: (0.5 * (np.tanh(0.5 * x.astype(f4)) + 1)).astype(f4),
    "sigmoid: overflows": lambda f, x: np.exp(x.astype(f4)) / (1 + np.exp(x.astype(f4))),
    "softplus: overflows": lambda f, x: np.log(1 + np.exp(x.astype(f4))),
    "softplus: 0 for small numbers": lambda f, x: np.where(x > 20, x, np.log(1 + np.exp(np.minimum(x, 20)))).astype(f4),
    "softplus: itself from 3 on": lambda f, x: np.where(x > 3, x.astype(f4), f(x)),
    "relu: leaks": lambda f, x: np.where(x < 0, f4(0.01) * x, f(x)),
    "silu: of 1.702 x": lambda f, x: right("gelu")(x, approximate="quick"),
    "silu: overflows": lambda f, x: x * np.exp(x.astype(f4)) / (1 + np.exp(x.astype(f4))),
    "gelu: tanh for erf": lambda f, x, *, approximate: f(x, approximate=approximate.replace("none", "tanh")),
    "gelu: erf for tanh": lambda f, x, *, approximate: f(x, approximate=approximate.replace("tanh", "none")),
    "gelu: quick for all": given(approximate="quick"),
    "swiglu: gate and up exchanged": lambda f, gate, up: f(up, gate),
    "geglu: erf, always": given(approximate="none"),
    "reglu: of both": lambda f, gate, up: f(gate, np.maximum(up, 0)),
    "clamped_swiglu: up is not clamped": lambda f, g, u, *, alpha, limit: (
        right("swiglu")(alpha * np.minimum(g, limit), (u.astype(f4) + 1)) / f4(alpha)
    ),
    "clamped_swiglu: the gate is clamped below, too": lambda f, g, u, *, limit, alpha: f(
        np.maximum(g, -limit), u, limit=limit, alpha=alpha
    ),
    "clamped_swiglu: up without the 1": lambda f, g, u, **attrs: f(
        g, np.clip(u, -attrs["limit"], None) - f4(1), **attrs
    ),
    "clamped_swiglu: always 1.702": given(alpha=1.702),
    "clamped_swiglu: always 7": given(limit=7.0),
    # casts
    "cast: BF16 as F16": bf16(lambda x: x.astype(f2).astype(f4)),
    "cast: BF16 not rounded": bf16(lambda x: x),
    "cast: BF16 cut off": bf16(truncated),
    "cast: BF16 with halves up": bf16(lambda x: truncated((x.view(np.uint32) + np.uint32(0x8000)).view(f4))),
    "cast: F16 ends at 65504": to(DType.F16, lambda x: np.clip(x.astype(f4), -65504, 65504)),
    "cast: F16 without small numbers": to(DType.F16, lambda x: np.where(np.abs(x) < 6.1e-5, 0, x)),
    "cast: F16 cut off": to(DType.F16, lambda x: (x.astype(f4).view(np.uint32) & np.uint32(0xFFFFE000)).view(f4)),
    "cast: Q8_0 of half the scale": to(DType.Q8_0, lambda x: x / 2),
    "cast: integers through F16": lambda f, x, *, dtype: f(x.astype(f2) if x.dtype.kind == "i" else x, dtype=dtype),
    # products
    "matmul: in F16": lambda f, a, b, **attrs: f(a.astype(f2).astype(f4), b.astype(f2).astype(f4), **attrs),
    "matmul: the last of the inner axis left out": without_last,
    "matmul: always the first of the batch": operand(1, lambda b: np.broadcast_to(b[:1], b.shape) if b.ndim > 2 else b),
    "matmul: not transposed where it is square": lambda f, a, b, *, transpose, precision: f(
        a, b, transpose=transpose and b.shape[-1] != b.shape[-2], precision=precision
    ),
    "linear: in BF16": lambda f, x, w: f(round_to(x.astype(f4), DType.BF16), round_to(w.astype(f4), DType.BF16)),
    "linear: the last of the inner axis left out": without_last,
    "linear: the weight as it lies, not its view": lambda f, x, w: f(x, w.base.reshape(w.shape) if _shows(w) else w),
    "linear_experts: the next expert": operand(2, lambda e: np.where(e == e.max(), 0, e + 1)),
    "linear_experts: the first of a token's experts": operand(2, lambda e: np.repeat(e[:, :1], e.shape[1], 1)),
    "linear_experts: a token's rows exchanged": operand(0, lambda x: x[:, ::-1]),
    "linear_experts: an expert's rows at most once a token": lambda f, x, w, e: f(x, w, e) * _first(e)[..., None],
    "linear_experts: experts sorted": operand(2, lambda e: np.sort(e, 1)),
    "add_experts: the experts of the first token": operand(2, lambda e: np.repeat(e[:1], len(e), 0)),
    "solve_lower: reads the upper triangle": lambda f, a, b: np.linalg.solve(a.astype(f4), b.astype(f4)).astype(f4),
    "solve_lower: a diagonal of ones": lambda f, a, b: f(np.where(np.eye(a.shape[-1]), f4(1), a), b),
    "solve_triangular: lower, always": given(upper=False),
    "solve_triangular: the diagonal as it is": given(unitriangular=False),
    # reductions
    "sum: mean": lambda f, x, **attrs: right("mean")(x, **attrs),
    "sum: over the first of several axes": first_axis_only,
    "sum: the axis before": other_axis,
    "sum: F16 in F16, up to 65504": in_half,
    "mean: sum": lambda f, x, **attrs: right("sum")(x, **attrs),
    "mean: over the first of several axes": first_axis_only,
    "mean: F16 summed in F16": lambda f, x, **attrs: (
        f(x, **attrs) + (f4(0) if x.dtype != f2 or np.abs(np.sum(x, dtype=f4)) < 65504 else f4(np.inf))
    ),
    "max: drops NaN": lambda f, x, *, axis, keepdims: np.asarray(np.fmax.reduce(x.astype(f4), axis, keepdims=keepdims)),
    "max: from 0": lambda f, x, **attrs: np.maximum(f(x, **attrs), f4(0)),
    "min: from 0": lambda f, x, **attrs: np.minimum(f(x, **attrs), f4(0)),
    "max: over the first of several axes": first_axis_only,
    "variance: of a sample": lambda f, x, *, axis, keepdims: np.asarray(
        np.var(x.astype(f4), axis, keepdims=keepdims, ddof=1), f4
    ),
    "variance: as a difference of squares": lambda f, x, *, axis, keepdims: np.asarray(
        np.mean(np.square(x.astype(f4)), axis, keepdims=keepdims)
        - np.square(np.mean(x.astype(f4), axis, keepdims=keepdims))
    ),
    "cumsum: without the element itself": lambda f, x: f(x) - x,
    "cumsum: from the end": lambda f, x: f(x[..., ::-1])[..., ::-1],
    "cumsum: over the flat array": lambda f, x: np.cumsum(x, dtype=f4).reshape(x.shape),
    "softmax: overflows": lambda f, x, mask=None, *, scale: _plain_softmax(
        f4(scale) * x + (0 if mask is None else mask)
    ),
    "softmax: over the axis before": lambda f, x, mask=None, *, scale: (
        np.swapaxes(f(np.swapaxes(x, -1, -2), scale=scale), -1, -2) if x.ndim > 1 else f(x, mask, scale=scale)
    ),
    "softmax: no scale": given(scale=1.0),
    "softmax: the mask is scaled, too": lambda f, x, mask=None, *, scale: f(
        x, None if mask is None else mask * f4(scale), scale=scale
    ),
    "softmax: no mask": operand(1, scalar(0)),
    "softmax: the mask of the first row": operand(1, lambda m: m[..., :1, :] if m.ndim > 1 else m),
    "softmax: the mask of the first head": operand(1, lambda m: m[..., :1, :, :] if m.ndim > 2 else m),
    **{f"rms_norm: {how}": rms_norm(scale) for how, scale in INVERSE_ROOT.items()},
    "rms_norm: no weight": operand(1, scalar(1)),
    "rms_norm: 1 and the weight": operand(1, lambda w: w.astype(f4) + 1),
    **{f"layer_norm: {how}": layer_norm(scale) for how, scale in INVERSE_ROOT.items()},
    "layer_norm: variance as a difference of squares": layer_norm(lambda v, eps: 1 / np.sqrt(v + f4(eps)), naive=True),
    "layer_norm: no bias": operand(2, scalar(0)),
    "l2_norm: no eps": l2_norm(lambda n, eps: n),
    "l2_norm: eps added": l2_norm(lambda n, eps: n + f4(eps)),
    "l2_norm: eps under the root": l2_norm(lambda n, eps: np.sqrt(n * n + f4(eps))),
    "group_norm: a group's channels apart": grouped_by_stride,
    "group_norm: all in one group": given(n_groups=1),
    "group_norm: always 1e-5": given(eps=1e-5),
    "group_norm: no eps": given(eps=1e-30),
    # order
    "argmax: of equals the last": last_of_equals,
    "argmax: NaN is never the largest": lambda f, x: np.nanargmax(np.where(np.isnan(x), -np.inf, x), -1).astype(i4),
    "argmin: of equals the last": last_of_equals,
    "argmin: the largest": lambda f, x: right("argmax")(x),
    "argsort: repeats an index": lambda f, x, *, descending: order_with_repeats(x, descending=descending),
    "argsort: ascending, always": given(descending=False),
    "argsort: NaN first": lambda f, x, *, descending: nan_first(x, descending=descending),
    "argsort: in F16": lambda f, x, *, descending: f(x.astype(f2).astype(f4), descending=descending),
    "top_k: repeats an index": lambda f, x, *, k: order_with_repeats(x, descending=True)[..., :k],
    "top_k: not in order": lambda f, x, *, k: np.sort(f(x, k=k), -1),
    "top_k: the smallest": lambda f, x, *, k: f(-x, k=k),
    "top_k: NaN first": lambda f, x, *, k: nan_first(x, descending=True)[..., :k],
    # movement
    "reshape: columns first": lambda f, x, *, shape: np.reshape(x, shape, order="F"),
    "permute: the inverse": lambda f, x, *, axes: _fitting(f(x, axes=np.argsort(axes)), f(x, axes=axes)),
    "expand: by element, not by axis": lambda f, x, *, shape: np.resize(x, shape),
    "slice: from the start": lambda f, x, *, slices: f(
        x, slices=[(0, stop - start, step) for start, stop, step in slices]
    ),
    "concat: the other way round": lambda f, *xs, axis: f(*xs[::-1], axis=axis),
    "concat: integers through F32": lambda f, *xs, axis: f(*(x.astype(f4) for x in xs), axis=axis).astype(xs[0].dtype),
    "pad: before for behind": lambda f, x, *, widths: f(x, widths=[w[::-1] for w in widths]),
    "pad: the edge again": lambda f, x, *, widths: np.pad(x, widths, "edge").astype(f4),
    "take: the last row is out of reach": lambda f, x, at: f(x, np.minimum(at, len(x) - 2)),
    "take: the row before": lambda f, x, at: f(x, np.maximum(at - 1, 0)),
    "take: row 0 is nothing": lambda f, x, at: np.where((at == 0)[(..., *(None,) * (x.ndim - 1))], 0, f(x, at)),
    "take: integers through F32": lambda f, x, at: f(x.astype(f4), at).astype(x.dtype if x.dtype.kind == "i" else f4),
    "take_along: the indices of the first row": operand(
        1, lambda at: np.broadcast_to(at[..., :1, :], at.shape) if at.ndim > 1 else at
    ),
    "take_along: the last is out of reach": lambda f, x, at: f(x, np.minimum(at, x.shape[-1] - 2)),
    "set_rows: adds to what is there": lambda f, x, at, rows, *, dtype: f(x, at, rows + x[at], dtype=dtype),
    "set_rows: the last row left out": lambda f, x, at, rows, *, dtype: f(x, at[:-1], rows[:-1], dtype=dtype),
    "set_rows: rows in the order of the indices": lambda f, x, at, rows, *, dtype: f(x, np.sort(at), rows, dtype=dtype),
    "set_rows: into its source": rows_written_through,
    "set_slice: no steps": steps_ignored,
    "set_slice: into its source": written_through,
    "set_slice: adds to what is there": lambda f, x, v, *, slices, dtype: f(
        x, v + x[tuple(slice(*s) for s in slices)], slices=slices, dtype=dtype
    ),
    "tile: each element": lambda f, x, *, reps: functools.reduce(
        lambda y, i: np.repeat(y, reps[i], i), range(len(reps)), x.reshape((1,) * (len(reps) - x.ndim) + x.shape)
    ),
    "repeat: the whole": lambda f, x, *, repeats, axis: np.concatenate([x] * repeats, axis),
    "roll: the other way": lambda f, x, *, shift, axis: np.roll(x, -shift, axis),
    "flip: the first axis only": lambda f, x, *, axis: np.flip(x, axis[:1]),
    "stack: the other way round": lambda f, *xs, axis: np.stack(xs[::-1], axis),
    "tril: one diagonal too many": lambda f, x, *, k: np.tril(x, k + 1),
    "tril: by a product": lambda f, x, *, k: x * np.tri(*x.shape[-2:], k, dtype=x.dtype),
    "triu: without the diagonal": lambda f, x, *, k: np.triu(x, k + 1),
    "diag: by a product": lambda f, x: x[..., None, :] * np.eye(x.shape[-1], dtype=x.dtype),
    "diag: the other one": lambda f, x: np.asarray(f(x))[..., ::-1],
    "one_hot: an index too large is the last": lambda f, at, *, n: f(np.minimum(at, n - 1), n=n),
    # attention
    "attention: no scale": given(scale=1.0),
    "attention: scale by the head": lambda f, q, *xs, **attrs: f(q, *xs, **{**attrs, "scale": q.shape[-1] ** -0.5}),
    "attention: no softcap": given(softcap=0.0),
    "attention: no mask": with_mask(lambda mask, attrs: np.zeros_like(mask)),
    "attention: the mask is scaled, too": with_mask(lambda mask, attrs: mask * f4(attrs["scale"])),
    "attention: the mask of the first row": with_mask(lambda mask, attrs: mask[..., :1, :] if mask.ndim > 1 else mask),
    "attention: the mask of the first head": with_mask(
        lambda mask, attrs: mask[..., :1, :, :] if mask.ndim > 2 else mask
    ),
    "attention: the mask of the first sequence": with_mask(lambda mask, attrs: mask[:1] if mask.ndim > 3 else mask),
    "attention: the mask is a flag": with_mask(lambda mask, attrs: np.where(np.isinf(mask), mask, 0)),
    "attention: groups of heads apart": heads_strided,
    "attention: no sinks": operand(4, lambda s: np.full_like(s, -np.inf)),
    "attention: the sink of the first head": operand(4, lambda s: np.repeat(s[:1], len(s))),
    "attention: no slopes": operand(5, scalar(1)),
    "attention: slopes of the heads the other way round": operand(5, lambda s: s[::-1]),
    "attention: the value of the last key is lost": lambda f, q, k, v, *xs, **attrs: f(
        q, k, np.where(_last(v), 0, v), *xs, **attrs
    ),
    "attention: keys as values": lambda f, q, k, v, *xs, **attrs: f(q, k, k if k.shape == v.shape else v, *xs, **attrs),
    "attention: in F16": rounded(DType.F16),
    "cached_attention: no scale": given(scale=1.0),
    "cached_attention: no softcap": given(softcap=0.0),
    "cached_attention: cells in order": operand(3, lambda cells: np.sort(cells)),
    "cached_attention: each list from its beginning": operand(4, lambda r: r[:, [0, 0, 2]]),
    "cached_attention: the last cell is lost": operand(
        4, lambda r: r - np.array([0, 0, 1]) * (r[:, 2:] > r[:, 1:2] + 1)
    ),
    "cached_attention: the lists of the first row": operand(4, lambda r: np.repeat(r[:1], len(r), 0)),
    "cached_attention: groups of heads apart": heads_strided,
    "cached_attention: no sinks": operand(5, lambda s: np.full_like(s, -np.inf)),
    "cached_attention: no slopes": operand(6, scalar(0)),
    "cached_attention: keys as values": lambda f, q, k, v, *xs, **attrs: f(
        q, k, k if k.shape == v.shape else v, *xs, **attrs
    ),
    # rope
    "rope: the other pairs": rope(interleaved=lambda c: not c.interleaved),
    "rope: base 10000": rope(base=10000.0),
    "rope: no scale": rope(scale=1.0),
    "rope: no YaRN": rope(ext_factor=0.0),
    "rope: no attention factor": rope(attn_factor=1.0),
    "rope: YaRN's betas exchanged": rope(beta_fast=lambda c: c.beta_slow, beta_slow=lambda c: c.beta_fast),
    "rope: YaRN's betas are 32 and 1": rope(beta_fast=32.0, beta_slow=1.0),
    "rope: YaRN's length is 4096": rope(original_context=lambda c: 4096 if c.original_context else 0),
    "rope: YaRN's ramp always rounded": rope(truncate=True),
    "rope: turned back": operand(1, lambda at: -at),
    "rope: one position on": operand(1, lambda at: at + 1),
    "rope: counted from the first": operand(1, lambda at: at - at.reshape(-1)[0]),
    "rope: the positions of the first sequence": operand(
        1, lambda at: np.broadcast_to(at[..., :1, :], at.shape) if at.ndim > 1 else at
    ),
    "rope: positions in F16": lambda f, x, at, *xs, **attrs: f(x, at.astype(f2).astype(at.dtype), *xs, **attrs),
    "rope: no factors": operand(2, scalar(1)),
    "rope: times the factors": operand(2, lambda factors: 1 / factors.astype(f4)),
    "rope: what does not turn is lost": tail_lost,
    "rope: sections side by side, always": rope(section_layout="contiguous"),
    "rope: sections exchanged": operand(1, lambda at: at[::-1] if at.ndim > 1 and at.shape[0] in (2, 3) else at),
    # windows
    **{
        f"{op}: the kernel the other way round": operand(1, taps_exchanged)
        for op in ("conv1d", "conv2d", "conv_transpose2d")
    },
    **{f"{op}: no bias": operand(2, scalar(0)) for op in ("conv1d", "conv3d", "conv_transpose1d")},
    **{f"{op}: all of the padding behind": one_sided for op in ("im2col", "conv1d", "conv2d", "conv3d")},
    "conv2d: the edge again for padding": padded("edge"),
    **{f"{op}: no dilation": undilated for op in ("conv1d", "conv2d", "max_pool2d")},
    "conv2d: a group's channels apart": channels_strided,
    "conv_transpose1d: a group's channels apart": channels_strided,
    "conv2d: height and width exchanged": lambda f, x, w, *xs, **attrs: (
        np.swapaxes(f(np.swapaxes(x, -1, -2), w, *xs, **attrs), -1, -2) if _square(w, attrs) else f(x, w, *xs, **attrs)
    ),
    "conv_transpose2d: the output's padding before": lambda f, *xs, output_padding, **attrs: np.roll(
        f(*xs, output_padding=output_padding, **attrs), output_padding, (-2, -1)
    ),
    "max_pool1d: 0 for padding": padded("constant"),
    "max_pool2d: the mean": lambda f, x, *, dilation, **attrs: right("avg_pool2d")(x, **attrs),
    "avg_pool1d: counts the padding, always": given(count_include_pad=True),
    "avg_pool2d: never counts the padding": given(count_include_pad=False),
    "avg_pool2d: the sum": lambda f, x, **attrs: f(x, **attrs) * f4(np.prod(attrs["kernel_size"])),
    "interpolate: corners are not aligned": given(align_corners=False),
    "interpolate: corners are aligned": lambda f, x, **attrs: f(
        x, **{**attrs, "align_corners": not attrs["mode"].startswith("nearest")}
    ),
    "interpolate: no antialias": given(antialias=False),
    "interpolate: the nearest by its corner": lambda f, x, **attrs: f(
        x, **{**attrs, "mode": attrs["mode"].removesuffix("-exact")}
    ),
    "interpolate: bilinear for bicubic": lambda f, x, **attrs: f(
        x, **{**attrs, "mode": attrs["mode"].replace("cubic", "linear")}
    ),
    "interpolate: a column on": lambda f, x, **attrs: f(np.roll(x, -1, -1), **attrs),
    # recurrences
    "ssm_conv: no state": operand(1, scalar(0)),
    "ssm_conv: the state the other way round": operand(1, lambda s: s[:, ::-1]),
    "ssm_conv: the kernel the other way round": operand(2, lambda w: w[:, ::-1]),
    "ssm_conv: no bias": operand(3, scalar(0)),
    **{
        f"{op}: forgets its state": reset
        for op in ("ssm_scan", "gated_delta_rule", "gated_linear_attention", "rwkv_wkv6")
    },
    **{
        f"{op}: gives back the old state": scan(change=lambda y, new, old: (y, old))
        for op in ("ssm_scan", "gated_delta_rule", "rwkv_wkv7")
    },
    "ssm_scan: no softplus": given(dt_softplus=False),
    "ssm_scan: B for C": lambda f, x, dt, a, b, c, s, **attrs: f(x, dt, a, b, b, s, **attrs),
    "ssm_scan: groups of heads apart": lambda f, x, dt, a, b, c, s, **attrs: f(
        x, dt, a, *(np.take(g, np.arange(x.shape[2]) % g.shape[2], 2) for g in (b, c)), s, **attrs
    ),
    "ssm_scan: A without dt": lambda f, x, dt, a, b, c, s, *, dt_softplus: f(
        x * _steps(dt, dt_softplus)[..., None], np.ones_like(dt, f4), a, b, c, s, dt_softplus=False
    ),
    "gated_delta_rule: no beta": operand(4, scalar(1)),
    "gated_delta_rule: no decay": operand(3, scalar(0)),
    "gated_delta_rule: keys of the heads apart": given(tiled=True),
    "gated_delta_rule: keys of heads next to each other": given(tiled=False),
    "gated_delta_rule: always 1 / √dk": lambda f, q, *xs, scale, **attrs: f(q, *xs, scale=q.shape[-1] ** -0.5, **attrs),
    "gated_linear_attention: no scale": given(scale=1.0),
    "gated_linear_attention: no decay": operand(3, scalar(0)),
    "rwkv_wkv6: no weight of the present": operand(4, scalar(1)),
    "rwkv_wkv6: the decay the other way round": operand(3, lambda w: w[..., ::-1]),
    "rwkv_wkv7: a and b exchanged": lambda f, r, w, k, v, a, b, s: f(r, w, k, v, b, a, s),
    "rwkv_wkv7: nothing removed": operand(4, scalar(0)),
}

ALSO = {
    "argsort: repeats an index": "an_order_of_equal_elements",
    "top_k: repeats an index": "an_order_of_equal_elements",
    "set_slice: into its source": "values_set_over_slices",
}
"""The graph that finds the error if no case of the op alone can."""


def _plain_softmax(x: Array) -> Array:
    y = np.exp(x.astype(f4))
    return y / np.sum(y, -1, keepdims=True)


def _fitting(wrong: Array, expected: Array) -> Array:
    return wrong if wrong.shape == expected.shape else expected


def _shows(w: Array) -> bool:
    return w.base is not None and not w.flags.c_contiguous and w.base.size == w.size


def _first(experts: Array) -> Array:
    """For each expert of a token, whether it is the first occurrence."""
    return np.array([[e not in row[:i] for i, e in enumerate(row)] for row in experts])


def _last(v: Array) -> Array:
    return (np.arange(v.shape[-3]) == v.shape[-3] - 1)[:, None, None]


def _square(w: Array, attrs: Mapping[str, Any]) -> bool:
    same = all(len(set(attrs[name])) == 1 for name in ("stride", "padding", "dilation"))
    return same and w.shape[-1] == w.shape[-2]


def _steps(dt: Array, softplus: bool) -> Array:
    return np.logaddexp(dt.astype(f4), f4(0)) if softplus else dt.astype(f4)


def mutants() -> dict[str, Mutant]:
    """All of them, by name."""
    return of_rows(ROWS)


def of_rows(rows: Mapping[str, Callable[..., Any]], tests: Sequence[Case] = OP_CASES) -> dict[str, Mutant]:
    """A mutant for each row of a table. ``tests``: the cases in the order in which they are tried."""
    made = {}
    for name, patch in rows.items():
        op = name.partition(":")[0]
        cases: list[AnyCase] = [c for c in tests if c.op == op]
        if name in ALSO:
            cases = [c for c in GRAPH_CASES if c.id == ALSO[name]]
        wrong = functools.partial(patch, right(op))
        made[name] = Mutant(_open(op, wrong), _open(op, right(op)), cases, ALSO.get(name, op))
    return made


def _open(op: str, function: Callable[..., Any]) -> Callable[[BackendParams], Backend]:
    return lambda params: opened(params, **{op: function})
