"""Attention and rotary position embedding."""

from __future__ import annotations

import functools
import math
import numbers
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import numpy as np

from hotshoe_core.errors import DTypeError, ShapeError
from hotshoe_core.ops.arrange import arange, full
from hotshoe_core.ops.elementwise import where
from hotshoe_core.ops.movement import concat
from hotshoe_core.ops.rules import (
    F32,
    I32,
    broadcast,
    by_row,
    composite,
    leading_rows,
    require_finite,
    require_float,
    require_integer,
)
from hotshoe_core.tensors.dtypes import DType
from hotshoe_core.tensors.tensor import Shape, Tensor, constant


def _query_rows(sources: Sequence[Tensor | None], attrs: Mapping[str, Any], shape: Shape) -> Sequence[int] | None:
    """The queries, and the mask if it has a row for each query. None with a batch axis, or if the mask has heads."""
    mask = sources[3]
    if len(shape) != 3:
        return None
    if mask is None or mask.ndim < 2 or mask.shape[-2] == 1:
        return (0,)
    return (0, 3) if mask.ndim == 2 else None


@by_row(_query_rows)
def _attention_rule(args: tuple[Any, ...], attrs: dict[str, Any]) -> tuple[Shape, DType]:
    q, k, v, mask, sinks, slopes = args
    require_float(q, mask, sinks, slopes)
    _check_options(k, v, attrs)
    if q.ndim < 3 or not q.ndim == k.ndim == v.ndim:
        raise ShapeError("expected q (..., n, heads, dim), k and v (..., m, kv_heads, dim)")
    (*batch, n, heads, _), m = q.shape, k.shape[-3]
    _check_heads(q, k, v)
    scores = (*batch, heads, n, m)
    if mask is not None and (mask.ndim > len(scores) or broadcast(mask.shape, scores) != scores):
        raise ShapeError(f"mask {mask.shape} does not broadcast to (..., heads, n, m) = {scores}")
    _check_by_head(heads, sinks, slopes)
    if slopes is not None and mask is None:
        raise ShapeError("`slopes` given without a `mask`", hint="pass mask = -|i - j|, with -inf for hidden positions")
    return (*batch, n, heads, v.shape[-1]), F32


@composite(_attention_rule)
def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None = None,
    sinks: Tensor | None = None,
    slopes: Tensor | None = None,
    *,
    scale: float,
    softcap: float = 0.0,
) -> Tensor:
    """Scaled dot-product attention with grouped heads (Vaswani et al. 2017; Ainslie et al. 2023).

    Shapes: q (..., n, heads, dim), k (..., m, kv_heads, dim), v (..., m, kv_heads, v_dim), mask broadcast
    to (..., heads, n, m) and added to the scores; gives (..., n, heads, v_dim). Head ``h`` reads key/value
    head ``h // (heads / kv_heads)``.

    scale multiplies the scores. softcap limits them to ``±softcap`` by tanh; 0: no limit. sinks (heads,) are logits
    that take part in the softmax but have no value (gpt-oss). slopes (heads,), above 0: each head multiplies the mask
    by its slope. With a mask of ``-|i - j|`` that is ALiBi (Press et al. 2022, arXiv:2108.12409).
    """
    *batch, n, heads, dim = q.shape
    if mask is not None and slopes is not None:
        mask = mask * slopes.reshape(heads, 1, 1)
    m, kv_heads, v_dim = v.shape[-3:]
    rows = heads // kv_heads * n  # the heads of a group share keys: stack their queries instead of repeating keys
    queries = _heads_first(q).reshape(*batch, kv_heads, rows, dim)
    scores = queries.matmul(_heads_first(k), transpose=True, precision="full").reshape(*batch, heads, n, m)
    if softcap:
        scores = (scores * (scale / softcap)).tanh() * softcap
        scale = 1.0
    if sinks is None:
        weights = scores.softmax(mask, scale=scale)
    else:
        scores = scores * scale if mask is None else scores * scale + mask
        column = sinks.reshape(heads, 1, 1).expand(*batch, heads, n, 1).cast(F32)
        weights = concat(scores, column, axis=-1).softmax()[..., :m]
    values = _heads_first(v)
    values = values.cast(F32) if v.dtype.is_quantized else values
    y = weights.reshape(*batch, kv_heads, rows, m) @ values
    return _heads_first(y.reshape(*batch, heads, n, v_dim))


def _check_options(k: Tensor, v: Tensor, attrs: dict[str, Any]) -> None:
    require_finite(attrs, "scale", "softcap")
    if attrs["softcap"] < 0:
        raise ShapeError(f"softcap is {attrs['softcap']}; expected 0 (none) or more")
    for t in (k, v):
        if t.dtype.is_integer:
            raise DTypeError(f"keys and values must be float or quantized; got {t.dtype.name}")


def _check_heads(q: Tensor, k: Tensor, v: Tensor) -> None:
    if q.shape[:-3] != k.shape[:-3] or k.shape[:-1] != v.shape[:-1]:
        raise ShapeError("q, k, v must have the same batch axes, and k and v the same number of rows and heads")
    (heads, dim), kv_heads = q.shape[-2:], k.shape[-2]
    if k.shape[-1] != dim:
        raise ShapeError(f"q and k must have the same head size; got {dim} and {k.shape[-1]}")
    if heads % kv_heads:
        raise ShapeError(f"{heads} heads cannot share {kv_heads} key/value heads: not a multiple")


def _check_by_head(heads: int, sinks: Tensor | None, slopes: Tensor | None) -> None:
    if sinks is not None and sinks.shape != (heads,):
        raise ShapeError(f"sinks must be ({heads},), one logit for each head; got {sinks.shape}")
    if slopes is not None and slopes.shape != (heads,):
        raise ShapeError(f"slopes must be ({heads},), one factor for each head; got {slopes.shape}")


def _heads_first(x: Tensor) -> Tensor:
    """Swap the axes of rows and heads: (..., n, heads, dim) to (..., heads, n, dim), or back."""
    b = x.ndim - 3
    return x.permute(*range(b), b + 1, b, b + 2)


@by_row(leading_rows(0, 4))
def _cached_attention_rule(args: tuple[Any, ...], attrs: dict[str, Any]) -> tuple[Shape, DType]:
    q, k, v, cells, ranges, sinks, slopes = args
    require_float(q, sinks, slopes)
    require_integer(cells)
    require_integer(ranges)
    _check_options(k, v, attrs)
    if not q.ndim == k.ndim == v.ndim == 3:
        raise ShapeError("expected q (n, heads, dim), k and v (m, kv_heads, dim)")
    _check_heads(q, k, v)
    n, heads, _ = q.shape
    if cells.ndim != 1 or ranges.shape != (n, 3):
        raise ShapeError(f"cells must be (l,) and ranges ({n}, 3); got {cells.shape} and {ranges.shape}")
    _check_by_head(heads, sinks, slopes)
    return (n, heads, v.shape[-1]), F32


@composite(_cached_attention_rule, indexed={"cells": ("k", 0)})
def cached_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cells: Tensor,
    ranges: Tensor,
    sinks: Tensor | None = None,
    slopes: Tensor | None = None,
    *,
    scale: float,
    softcap: float = 0.0,
) -> Tensor:
    """Like ``attention``, but each query gets the cells that it reads from a list, not from a mask (paged attention).

    Shapes: q (n, heads, dim), k (m, kv_heads, dim), v (m, kv_heads, v_dim), cells (l,) and ranges (n, 3), both of
    integers; gives (n, heads, v_dim). Row i of ranges is ``list, start, stop``, with ``0 <= list <= start <= stop <=
    l``: query i attends to the cells ``cells[start:stop]``, in this order, and the list of its text begins at ``list``.
    A backend may add up in an order counted from there, so that a text has the same bits wherever its list lies.

    scale, softcap and sinks are as in ``attention``. slopes (heads,), above 0: each head adds its slope times ``j -
    stop + 1`` to the score of the key in ``cells[j]``: ALiBi (Press et al. 2022, arXiv:2108.12409), without gaps.
    """
    number, (start, stop) = arange(cells.shape[0]), (ranges[:, i : i + 1].cast(I32) for i in (1, 2))
    is_read = (start <= number) * (number < stop)  # (n, l)
    scores = full(is_read.shape, 0.0) if slopes is None else number.cast(F32) - (stop.cast(F32) - 1.0)
    mask = where(is_read, scores, full(is_read.shape, -math.inf))
    return attention(q, k.take(cells), v.take(cells), mask, sinks, slopes, scale=scale, softcap=softcap)


_SectionLayout = Literal["contiguous", "interleaved", "restarting"]


@dataclass(frozen=True, slots=True)
class RoPE:
    """Parameters of a rotary position embedding. YaRN is arXiv:2309.00071."""

    dim: int
    """The number of elements of a head that rotate; even."""

    base: float = 10000.0
    """θ: pair i turns by ``base ** (-2 i / dim)`` for each position."""

    interleaved: bool = False
    """Pairs are (0, 1), (2, 3), … as in the paper; if False, (0, dim/2), (1, dim/2 + 1), … as in GPT-NeoX."""

    scale: float = 1.0
    """Multiplies the positions (linear interpolation, arXiv:2306.15595)."""

    ext_factor: float = 0.0
    """YaRN: weight of the extrapolated frequencies. 0 turns YaRN off."""

    attn_factor: float = 1.0
    """Multiplies sine and cosine."""

    beta_fast: float = 32.0
    """YaRN: pairs with more turns than this over ``original_context`` keep their frequency."""

    beta_slow: float = 1.0
    """YaRN: pairs with fewer turns than this over ``original_context`` are interpolated by ``scale``."""

    original_context: int = 0
    """YaRN: the number of positions the model was trained with."""

    truncate: bool = True
    """YaRN: the ends of the ramp between kept and interpolated frequencies are rounded to whole pairs."""

    sections: tuple[int, ...] = ()
    """For tokens with several positions (time, row, column): how many pairs each position turns; dim / 2 in all."""

    section_layout: _SectionLayout = "contiguous"
    """Which pairs each position turns.

    "contiguous": the first pairs belong to the first position, the next ones to the second, and so on (Qwen2-VL,
    arXiv:2409.12191). "interleaved": with k positions, pairs 1, 1 + k, … belong to the second, pairs 2, 2 + k, … to the
    third, all others to the first (Qwen3-VL). "restarting": as contiguous, but the frequencies of each section start at
    1 again, as in a RoPE of its own (the vision encoder of Qwen2-VL).
    """

    def frequencies(self) -> np.ndarray[Any, Any]:
        """Radians per position of each pair, float32 of shape (dim / 2,)."""
        pairs = np.arange(self.dim // 2)
        if self.sections and self.section_layout == "restarting":
            by_section = [self.base ** (-np.arange(n) / n) for n in self.sections if n]
            return (np.concatenate(by_section) * self.scale).astype(np.float32)
        extrapolated = self.base ** (-2.0 * pairs / self.dim)
        if not self.ext_factor:
            return (extrapolated * self.scale).astype(np.float32)
        low, high = self._pair_turning(self.beta_fast), self._pair_turning(self.beta_slow)
        if self.truncate:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(0, low), min(self.dim - 1, high)
        ramp = np.clip((pairs - low) / max(0.001, high - low), 0, 1)
        mix = (1 - ramp) * self.ext_factor
        return (extrapolated * (self.scale * (1 - mix) + mix)).astype(np.float32)

    def streams(self) -> np.ndarray[Any, Any]:
        """For each pair, the index of the position that turns it: integers of shape (dim / 2,)."""
        k = len(self.sections)
        if self.section_layout != "interleaved":
            return np.repeat(np.arange(k), self.sections)
        found = np.zeros(self.dim // 2, np.int64)
        for i, n in enumerate(self.sections[1:], 1):
            found[i : k * n : k] = i
        return found

    def magnitude(self) -> float:
        """The factor of sine and cosine: attn_factor, and with YaRN its attention temperature."""
        if not self.ext_factor:
            return self.attn_factor
        return self.attn_factor * (1.0 + 0.1 * math.log(1.0 / self.scale))

    def _pair_turning(self, turns: float) -> float:
        """The (fractional) index of the pair that makes this many turns over the original context."""
        return self.dim * math.log(self.original_context / (turns * 2 * math.pi)) / (2 * math.log(self.base))


def _rope_rows(sources: Sequence[Tensor | None], attrs: Mapping[str, Any], shape: Shape) -> Sequence[int] | None:
    """x and its positions; None with several sections or a batch axis."""
    return (0, 1) if len(shape) == 3 and not attrs["config"].sections else None


@by_row(_rope_rows)
def _rope_rule(args: tuple[Any, ...], attrs: dict[str, Any]) -> tuple[Shape, DType]:
    x, positions, factors = args
    config: RoPE = attrs["config"]
    if not isinstance(config, RoPE):
        raise ShapeError(f"config is of type {type(config).__name__}; expected a RoPE")
    require_float(x, factors)
    require_integer(positions)
    if x.ndim < 3:
        raise ShapeError("x must be (..., n, heads, dim)")
    k = (len(config.sections),) if config.sections else ()
    if positions.shape not in ((*k, *x.shape[-3:-2]), (*k, *x.shape[:-2])):
        raise ShapeError(f"positions must be {(*k, *x.shape[-3:-2])} or {(*k, *x.shape[:-2])}; got {positions.shape}")
    known, head_dim = _checked_last[0]
    if known is not config or head_dim != x.shape[-1]:
        _check_config(config, x.shape[-1])
        _checked_last[0] = config, x.shape[-1]
    if factors is not None and factors.shape != (config.dim // 2,):
        raise ShapeError(f"factors must be ({config.dim // 2},); got {factors.shape}")
    return x.shape, F32


_checked_last: list[tuple[RoPE | None, int]] = [(None, 0)]  # most layers of a model share their RoPE

_NUMBERS = ("base", "scale", "ext_factor", "attn_factor", "beta_fast", "beta_slow")


def _check_config(config: RoPE, head_dim: int) -> None:
    for name in _NUMBERS:
        if not isinstance(getattr(config, name), numbers.Real):
            raise ShapeError(f"{name} is {getattr(config, name)!r}; expected a number")
    if not all(isinstance(n, numbers.Integral) for n in (config.dim, config.original_context, *config.sections)):
        raise ShapeError(f"{config}: expected integers as dim, original_context and sections")
    if not isinstance(config.section_layout, str) or config.section_layout not in get_args(_SectionLayout):
        known = ", ".join(get_args(_SectionLayout))
        raise ShapeError(f"section_layout is {config.section_layout!r}; expected one of {known}")
    if not -(2**31) <= config.original_context < 2**31:
        raise ShapeError(f"original_context is {config.original_context}; expected an integer of 32 bits")
    if config.dim % 2 or not 0 < config.dim <= head_dim:
        raise ShapeError(f"dim is {config.dim}; expected an even number from 2 to {head_dim}, the head size")
    for name in _NUMBERS:
        value = getattr(config, name)
        if not math.isfinite(value) or (name in ("base", "scale") and value <= 0):
            raise ShapeError(f"{name} is {value}; expected a finite number{' above 0' if name in 'base scale' else ''}")
    if config.ext_factor and (
        config.original_context < 1 or config.base == 1 or min(config.beta_fast, config.beta_slow) <= 0
    ):
        raise ShapeError("YaRN (ext_factor) needs original_context, a base other than 1, and betas above 0")
    if not config.sections:
        return
    if min(config.sections) < 0 or sum(config.sections) != config.dim // 2:
        raise ShapeError(f"sections {config.sections} must add up to {config.dim // 2}, half of dim")
    if config.section_layout == "interleaved":
        k = len(config.sections)
        if any(n and i + k * (n - 1) >= config.dim // 2 for i, n in enumerate(config.sections[1:], 1)):
            raise ShapeError(f"sections {config.sections} cannot interleave in {config.dim // 2} pairs")
    elif config.section_layout == "restarting" and config.ext_factor:
        raise ShapeError("YaRN (ext_factor) cannot be used with section_layout 'restarting'")


@composite(_rope_rule)
def rope(x: Tensor, positions: Tensor, factors: Tensor | None = None, *, config: RoPE) -> Tensor:
    """Rotary position embedding (Su et al. 2021, arXiv:2104.09864).

    Shapes: x (..., n, heads, dim), positions (n,) or (..., n), factors (dim / 2,); gives x's shape. A negative position
    turns back. The factors divide the frequencies (Llama 3, LongRoPE). With k sections, positions are (k, n) or
    (k, ..., n): see RoPE.
    """
    if config.ext_factor and not config.truncate:  # with factors, as backends round the ends of YaRN's ramp
        plain = replace(config, scale=1.0, ext_factor=0.0, attn_factor=config.magnitude())
        ratios = constant(plain.frequencies() / config.frequencies(), "rope_ratios")
        return rope(x, positions, ratios if factors is None else ratios * factors, config=plain)
    half, dim = config.dim // 2, config.dim
    angles = _angles(positions.cast(F32), factors, config)  # (n, 1, dim / 2)
    cos, sin = angles.cos() * config.magnitude(), angles.sin() * config.magnitude()
    if config.interleaved:
        a, b = x[..., 0:dim:2], x[..., 1:dim:2]
        parts = [(a * cos - b * sin).reshape(-1, 1), (a * sin + b * cos).reshape(-1, 1)]
        y = concat(*parts, axis=-1).reshape(*x.shape[:-1], dim)
    else:
        a, b = x[..., :half], x[..., half:dim]
        y = concat(a * cos - b * sin, a * sin + b * cos, axis=-1)
    return y if dim == x.shape[-1] else concat(y, x[..., dim:].cast(F32), axis=-1)


def _angles(positions: Tensor, factors: Tensor | None, config: RoPE) -> Tensor:
    """The angle of each pair: (..., 1, dim / 2) for positions (...), or for (k, ...) with k sections."""
    frequencies = config.frequencies()
    if not config.sections:
        return positions.reshape(*positions.shape, 1, 1) * _divided(frequencies, factors)
    streams, shape = config.streams(), positions.shape[1:]
    parts = [
        positions[i].reshape(*shape, 1, 1) * _divided(frequencies * (streams == i), factors)
        for i in range(len(config.sections))
    ]
    return functools.reduce(operator.add, parts)


def _divided(frequencies: np.ndarray[Any, Any], factors: Tensor | None) -> Tensor:
    leaf = constant(frequencies, "rope_frequencies")
    return leaf if factors is None else leaf / factors
