"""Cases of recurrences: one step and several, one sequence and several."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from hotshoe_core.tensors.dtypes import DType
from hotshoe_core.tensors.tensor import Shape
from hotshoe_core.testing.cases._shared import BF16, F16, LAYOUTS
from hotshoe_core.testing.operands import Arg, Case, normal, positive, weight
from hotshoe_core.testing.run import F32, Array, Kind, Layout

__all__ = ["cases"]

TIMES = ((1, 1), (1, 7), (3, 1), (2, 5))  # sequences, steps
Rng = np.random.Generator


def decay(rng: Rng, shape: Shape) -> Array:
    """The logarithm of a decay: negative numbers."""
    return -rng.uniform(0.05, 2, shape).astype(np.float32)


def uneven_decay(rng: Rng, shape: Shape) -> Array:
    """The logarithm of a decay, near 0 for most steps, and up to -200: e²⁰⁰ is more than F32 holds."""
    return np.asarray(-200 * rng.random(shape, np.float32) ** 8)


def factor(rng: Rng, shape: Shape) -> Array:
    """A decay: 0 to 1."""
    return np.asarray(np.exp(decay(rng, shape)))


def uneven_factor(rng: Rng, shape: Shape) -> Array:
    """A decay, near 1 for most steps, and 0 for some."""
    return np.asarray(np.exp(uneven_decay(rng, shape)))


def short(rng: Rng, shape: Shape) -> Array:
    """Keys with a norm near 1, so that the state neither explodes nor vanishes."""
    return np.asarray(rng.standard_normal(shape, np.float32) * np.float32(shape[-1] ** -0.5))


def ssm() -> Iterator[Case]:
    for (n, t), kernel in ((times, k) for times in TIMES for k in (2, 4)):
        operands = (Arg((n, t, 6)), Arg((n, kernel - 1, 6), kind="state"), weight((6, kernel)))
        yield Case("ssm_conv", operands)
        yield Case("ssm_conv", (*operands, weight((6,))))
    for layout in LAYOUTS:
        yield Case("ssm_conv", (Arg((2, 5, 6), layout=layout), Arg((2, 3, 6)), weight((6, 4))))
        yield Case("ssm_conv", (Arg((2, 5, 6)), Arg((2, 3, 6), layout=layout), weight((6, 4), layout=layout)))
    for dtype in (F16, BF16):
        yield Case("ssm_conv", (Arg((2, 5, 6)), Arg((2, 3, 6)), weight((6, 4), dtype), weight((6,), dtype)))
        yield Case("ssm_conv", (Arg((2, 5, 6), dtype), Arg((2, 3, 6), dtype), weight((6, 4))))

    def scan(
        times: tuple[int, int] = (2, 5),
        *,
        heads: int = 4,
        head_dim: int = 3,
        groups: int = 1,
        d_state: int = 5,
        a: Shape = (4,),
        layout: Layout = "plain",
        dtype: DType = F32,
        softplus: bool,
    ) -> Case:
        dt = Arg((*times, heads), dtype, layout=layout, values=normal if softplus else positive)
        b = Arg((*times, groups, d_state), dtype, layout=layout)
        state = Arg((times[0], heads, head_dim, d_state), kind="state")
        x = Arg((*times, heads, head_dim), dtype, layout=layout)
        return Case("ssm_scan", (x, dt, Arg(a, values=decay), b, b, state), {"dt_softplus": softplus})

    for softplus in (False, True):
        for times in TIMES:
            yield scan(times, softplus=softplus)
            yield scan(times, groups=2, a=(4, 1), softplus=softplus)
            yield scan(times, heads=6, head_dim=1, a=(6, 5), softplus=softplus)  # Mamba: heads are channels
            yield scan(times, a=(4, 5), groups=4, softplus=softplus)
        for layout in LAYOUTS:
            yield scan(layout=layout, softplus=softplus)
        for dtype in (F16, BF16):
            yield scan(dtype=dtype, softplus=softplus)
        yield scan(head_dim=16, d_state=32, groups=2, softplus=softplus)


def linear_attention() -> Iterator[Case]:
    def case(
        op: str,
        times: tuple[int, int] = (2, 5),
        *,
        heads: int = 4,
        k_heads: int = 0,
        dk: int = 6,
        dv: int = 6,
        per_key: bool = False,
        layout: Layout = "plain",
        dtype: DType = F32,
        kind: Kind = "state",
        **attrs: Any,
    ) -> Case:
        key, value = (*times, k_heads or heads, dk), (*times, heads, dv)
        q = Arg(key, dtype, layout=layout)
        k = Arg(key, dtype, layout=layout, values=short)
        v = Arg(value, dtype, layout=layout)
        square = (dv, dk) if op in ("gated_delta_rule", "rwkv_wkv7") else (dk, dv)
        state = Arg((times[0], heads, *square), kind=kind)
        per_head = (*times, heads)
        w = Arg(key, dtype, layout=layout, values=factor)
        operands: dict[str, tuple[Arg, ...]] = {
            "gated_delta_rule": (
                q, k, v, Arg(key if per_key else per_head, values=decay, layout=layout),
                Arg(per_head, values=factor, layout=layout), state,
            ),
            "gated_linear_attention": (q, k, v, Arg(key, values=decay, layout=layout), state),
            "rwkv_wkv6": (q, k, v, w, weight((heads, dk)), state),
            "rwkv_wkv7": (q, w, k, v, k, k, state),
        }  # fmt: skip
        return Case(op, operands[op], attrs)

    for op in ("gated_delta_rule", "gated_linear_attention", "rwkv_wkv6", "rwkv_wkv7"):
        for times in TIMES:
            yield case(op, times)
            yield case(op, times, dk=16, dv=16)
            yield case(op, times, dk=5, dv=3)
            yield case(op, times, heads=1, kind="input")
        yield case(op, (1, 3), dk=64, dv=64, heads=2)
        for layout in LAYOUTS:
            yield case(op, layout=layout)
        for dtype in (F16, BF16):
            yield case(op, dtype=dtype)
    for op in ("gated_delta_rule", "gated_linear_attention"):
        yield case(op, scale=0.7)
    for times in TIMES:
        yield case("gated_delta_rule", times, k_heads=2)
        yield case("gated_delta_rule", times, k_heads=1, dv=4)
        yield case("gated_delta_rule", times, per_key=True)
        yield case("gated_delta_rule", times, k_heads=2, dk=4, dv=7, tiled=True)
    for layout in LAYOUTS:
        yield case("gated_delta_rule", k_heads=2, layout=layout)
        yield case("gated_delta_rule", per_key=True, dk=3, layout=layout)
        yield case("gated_delta_rule", k_heads=2, tiled=True, layout=layout)


def cases() -> Iterator[Case]:
    yield from ssm()
    yield from linear_attention()
