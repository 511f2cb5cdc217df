"""Errors that appear only beyond a size: in a second block, in its partial end, after many rows. As in ops.py."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from hotshoe_core.testing import OP_CASES
from tests.core.mutants.mutant import Mutant
from tests.core.mutants.ops import of_rows
from tests.core.mutants.patches import f4, i4, operand

__all__ = ["mutants"]

Array = np.ndarray[Any, Any]


def _first(n: int) -> Callable[..., Array]:
    """The op over the first ``n`` elements of the last axis alone."""
    return lambda f, x, *xs, **attrs: f(x[..., :n] if _last_axis(x, attrs) else x, *xs, **attrs)


def _last_axis(x: Array, attrs: Mapping[str, Any]) -> bool:
    return x.ndim > 0 and attrs["axis"] in (-1, x.ndim - 1, (x.ndim - 1,))


def _norm(n: int) -> Callable[..., Array]:
    """rms_norm by the mean of the first ``n`` squares."""
    return lambda f, x, weight=None, *, eps: (
        x / np.sqrt(np.mean(np.square(x[..., :n].astype(f4)), -1, keepdims=True) + f4(eps))
        * (1 if weight is None else weight)
    ).astype(f4)  # fmt: skip


def _softmax(f: Callable[..., Array], x: Array, mask: Array | None = None, *, scale: float) -> Array:
    """The sum of the first 1,024 alone."""
    y = f(x, mask, scale=scale)
    return y / np.sum(y[..., :1024], -1, keepdims=True)


def _restarting(f: Callable[..., Array], x: Array) -> Array:
    return np.concatenate([f(x[..., i : i + 256]) for i in range(0, x.shape[-1], 256)], -1)


def _last_block_of_equals(f: Callable[..., Array], x: Array) -> Array:
    """The first of equals in a block of 256, but the last of equal blocks."""
    best = np.zeros(x.shape[:-1], i4)
    for i in range(0, x.shape[-1], 256):
        at = f(x[..., i : i + 256]) + i
        values = (np.take_along_axis(x, y[..., None], -1)[..., 0] for y in (at, best))
        best = np.where(np.greater_equal(*values), at, best).astype(i4)
    return best


def _sorted_start(f: Callable[..., Array], x: Array, *, descending: bool) -> Array:
    """The first 1,024 are sorted; the rest stays where it is."""
    rest = np.broadcast_to(np.arange(x.shape[-1], dtype=i4), x.shape)
    return np.concatenate([f(x[..., :1024], descending=descending), rest[..., 1024:]], -1)


def _zeroed(n: int) -> Callable[..., Array]:
    """The result without the rows from ``n`` on."""

    def body(f: Callable[..., Array], *xs: Array, **attrs: Any) -> Array:
        y = np.array(f(*xs, **attrs))
        if y.ndim:
            y[n:] = 0
        return y

    return body


def _moved(n: int) -> Callable[..., Array]:
    """The last axis from element ``n`` on, moved by one."""

    def body(f: Callable[..., Array], *xs: Array, **attrs: Any) -> Array:
        y = np.array(f(*xs, **attrs))
        y[..., n:] = np.roll(y[..., n:], 1, -1)
        return y

    return body


def _short_product(f: Callable[..., Array], a: Array, b: Array, *, transpose: bool, precision: str) -> Array:
    """The inner axis ends after 640."""
    b = b[..., :640] if transpose else b[..., :640, :]
    return f(a[..., :640], b, transpose=transpose, precision=precision)


def _last_row(f: Callable[..., Array], x: Array, w: Array) -> Array:
    """The last of more than 64 rows is the first."""
    y = np.array(f(x, w))
    if y.ndim == 2 and len(y) > 64:
        y[-1] = y[0]
    return y


def _unscaled(f: Callable[..., Array], q: Array, k: Array, v: Array, *rest: Array, **attrs: Any) -> Array:
    """Blocks of 128 keys, whose sums are added although each has a maximum of its own."""
    mask, *others = (*rest, None, None, None)[:3]
    if k.ndim != 3 or any(x is not None for x in others) or attrs["softcap"]:
        return f(q, k, v, *rest, **attrs)
    groups = q.shape[1] // k.shape[1]
    scores = np.einsum("qhd,khd->hqk", q.astype(f4), np.repeat(k, groups, 1).astype(f4)) * f4(attrs["scale"])
    scores = scores if mask is None else scores + mask
    total, y = f4(0), f4(0)
    for i in range(0, k.shape[0], 128):
        part = scores[..., i : i + 128]
        part = np.exp(part - np.nan_to_num(part.max(-1, keepdims=True)))
        y = y + np.einsum("hqk,khd->qhd", part, np.repeat(v[i : i + 128], groups, 1).astype(f4))
        total = total + part.sum(-1).T[..., None]
    return np.asarray(y / total, f4)


def _keys(n: int) -> Callable[..., Array]:
    """Attention to the first ``n`` keys."""

    def body(
        f: Callable[..., Array], q: Array, k: Array, v: Array, mask: Any = None, *rest: Any, **attrs: Any
    ) -> Array:
        k, v = (x[..., :n, :, :] for x in (k, v))
        return f(q, k, v, mask if mask is None or mask.shape[-1] == 1 else mask[..., :n], *rest, **attrs)

    return body


def _last_query_free(
    f: Callable[..., Array], q: Array, k: Array, v: Array, mask: Any = None, *rest: Any, **attrs: Any
) -> Array:
    """The last of more than 48 queries sees every key."""
    if mask is not None and mask.ndim > 1 and mask.shape[-2] > 48:
        mask = np.array(mask)
        mask[..., -1, :] = 0
    return f(q, k, v, mask, *rest, **attrs)


def _forgetful(f: Callable[..., Array], *xs: Array, **attrs: Any) -> Array:
    """A recurrence that starts again after 64 steps."""
    *operands, state = xs
    t = operands[0].shape[1]
    if t <= 64 or len(operands[0]) != 1:
        return f(*xs, **attrs)
    parts = [
        f(
            *(x[:, i : i + 64] if x.ndim > 2 and x.shape[1] == t else x for x in operands),
            state if i == 0 else np.zeros_like(state),
            **attrs,
        )
        for i in range(0, t, 64)
    ]
    return np.concatenate([*(p[: -state.size] for p in parts), parts[-1][-state.size :]])


def _divided(f: Callable[..., Array], *xs: Array, **attrs: Any) -> Array:
    """A chunk's decays as quotients: the divisor is 0, and its inverse infinite, after strong decays."""
    with np.errstate(all="ignore"):
        return f(*xs, **attrs) + 0 * np.exp(-np.cumsum(xs[3][:, :64], 1, dtype=f4)).sum(dtype=f4)


ROWS: Mapping[str, Callable[..., Any]] = {
    "add: no more than 65,536 rows": _zeroed(65_536),
    "silu: the first 4,096 columns": lambda f, x: np.where(np.arange(x.shape[-1] if x.ndim else 1) < 4096, f(x), 0),
    "sum: the first 1,024 columns": _first(1024),
    "mean: the first 1,024 columns": _first(1024),
    "max: the first 1,024 columns": _first(1024),
    "softmax: divides by the sum of the first 1,024": _softmax,
    "softmax: no more than 65,536 rows": _zeroed(65_536),
    "rms_norm: by the first 1,024 columns": _norm(1024),
    "rms_norm: no more than 65,536 rows": _zeroed(65_536),
    "layer_norm: no more than 65,536 rows": _zeroed(65_536),
    "cumsum: starts again after 256": _restarting,
    "argmax: of equals in two blocks the last": _last_block_of_equals,
    "argsort: the first 1,024 alone": _sorted_start,
    "top_k: of the first 1,024": lambda f, x, *, k: f(x[..., : max(1024, k)], k=k),
    "take: index modulo 65,536": operand(1, lambda at: at % 65_536),
    "take: index modulo 4,096": operand(1, lambda at: at % 4096),
    "take: the first 4,096 indices": _zeroed(4096),
    "take_along: index modulo 256": operand(1, lambda at: at % 256),
    "set_rows: index modulo 128": operand(1, lambda at: at % 128),
    "concat: the last operand moved beyond 4,096": _moved(4096),
    "linear: outputs moved beyond 512": _moved(512),
    "linear: the last of many rows is the first": _last_row,
    "matmul: the inner axis ends at 640": _short_product,
    "linear_experts: expert modulo 8": operand(2, lambda e: e % 8),
    "linear_experts: the first 16 tokens": _zeroed(16),
    "attention: blocks of 128 keys are not scaled": _unscaled,
    "attention: the first 512 keys": _keys(512),
    "attention: the last of many queries has no mask": _last_query_free,
    "im2col: the first 1,024 windows": _zeroed(1024),
    **{
        f"{op}: starts again after 64 steps": _forgetful
        for op in ("ssm_scan", "gated_delta_rule", "gated_linear_attention", "rwkv_wkv6", "rwkv_wkv7")
    },
    "gated_delta_rule: divides by the decay of all steps before": _divided,
    "gated_linear_attention: divides by the decay of all steps before": _divided,
    "gated_delta_rule: decays by e⁻⁸ at most": operand(3, lambda g: np.maximum(g, f4(-8))),
    "rwkv_wkv6: decays by e⁻⁸ at most": operand(3, lambda w: np.maximum(w, f4(np.exp(-8)))),
    "rwkv_wkv7: decays by e⁻⁸ at most": operand(1, lambda w: np.maximum(w, f4(np.exp(-8)))),
    "ssm_scan: decays at a rate of 8 at most": operand(2, lambda rates: np.maximum(rates, f4(-8))),
}  # fmt: skip


def mutants() -> dict[str, Mutant]:
    """All of them, by name."""
    return of_rows(ROWS, OP_CASES[::-1])
