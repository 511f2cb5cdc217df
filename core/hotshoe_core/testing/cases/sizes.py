"""Cases whose size is what they test: axes longer than one block, and many rows, keys, experts and cells.

A kernel may be right on small operands and still lose a second block, the partial block at the end, or the rows beyond
a grid of 16 bits.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any

from hotshoe_core.ops import RoPE
from hotshoe_core.tensors.indexing import Slice
from hotshoe_core.tensors.tensor import Shape
from hotshoe_core.testing.cases._shared import F16, Q4_0, Q4_K, Q6_K, Q8_0
from hotshoe_core.testing.cases.elementwise import COMPARISONS, UNARY
from hotshoe_core.testing.cases.matrix import well_conditioned
from hotshoe_core.testing.cases.recurrent import decay, factor, short, uneven_decay, uneven_factor
from hotshoe_core.testing.operands import Arg, Case, Cycle, distinct, few, indices, integers, mask, nonzero, weight
from hotshoe_core.testing.run import F32, I32

__all__ = ["cases"]

LONG = 4099
"""A prime: several blocks of any usual size, and a partial one at the end."""

MANY = 65_539
"""A prime: more rows than 16 bits count."""

WIDE = Arg((5, LONG))
TALL = Arg((MANY, 3))


def elementwise() -> Iterator[Case]:
    for op, values in UNARY.items():
        yield Case(op, (Arg((5, LONG), values=values),))
    for op in ("floor", "ceil", "round", "sign", "abs"):
        yield Case(op, (WIDE,))
    for op in ("add", "sub", "mul", "div", "mod", "floor_divide", "minimum", "maximum", *COMPARISONS):
        yield Case(op, (WIDE, Arg((LONG,), values=nonzero)))
    for op in ("add", "div", "less"):
        yield Case(op, (TALL, Arg((MANY, 1), values=nonzero)))
    for op in ("add", "mul", "less"):
        yield Case(op, (Arg((5, LONG), I32, values=integers), Arg((5, 1), I32, values=integers)))
    for op in ("swiglu", "geglu", "reglu", "clamped_swiglu"):
        yield Case(op, (WIDE, WIDE))
    yield Case("where", (Arg((LONG,), values=few), WIDE, Arg((5, 1))))
    yield Case("affine", (WIDE,), {"scale": -1.5, "bias": 0.25})
    yield Case("clamp", (WIDE,), {"min": -0.5, "max": 0.5})
    yield Case("cast", (WIDE,), {"dtype": F16})
    yield Case("cast", (Arg((5, 4128)),), {"dtype": Q8_0})


def reductions() -> Iterator[Case]:
    for op in ("sum", "mean", "max", "min", "variance"):
        for x, axis in ((WIDE, -1), (TALL, -1), (Arg((LONG, 3)), 0), (Arg((67, 263)), None)):
            yield Case(op, (x,), {"axis": axis})
    for x in (WIDE, TALL):
        yield Case("cumsum", (x,))
        yield Case("softmax", (x,), {"scale": 0.5})
        yield Case("rms_norm", (x, weight(x.shape[1:])), {"eps": 1e-5})
        yield Case("layer_norm", (x, weight(x.shape[1:]), weight(x.shape[1:])), {"eps": 1e-5})
        yield Case("l2_norm", (x,), {"eps": 1e-6})
    yield Case("softmax", (Arg((3, 67, 263)), Arg((67, 263), values=mask)), {"scale": 0.5})
    yield Case("group_norm", (Arg((2, 6, 1031)), weight((6,)), weight((6,))), {"n_groups": 2})


def order() -> Iterator[Case]:
    for op in ("argmax", "argmin"):
        for values, note in ((distinct, ""), (few, "ties")):
            yield Case(op, (Arg((5, LONG), values=values, note=note),))
        yield Case(op, (Arg((MANY, 3), values=few, note="ties"),))
        for n in (32_000, 50_257, 10_007):  # the last one is prime
            yield Case(op, (Arg((3, n), values=distinct),))
            yield Case(op, (Arg((3, n), values=few, note="ties"),))
            yield Case(op, (Arg((2, n), values=Cycle((-math.inf,)), note="hidden"),))
    numbers = Arg((2, LONG), values=distinct)
    yield Case("argsort", (numbers,))
    yield Case("argsort", (numbers,), {"descending": True})
    for k in (3, 1031):
        yield Case("top_k", (numbers,), {"k": k})
    yield Case("take_along", (WIDE, indices((5, 1031), LONG)))


def rows() -> Iterator[Case]:
    for dtype in (F32, F16):
        yield Case("take", (Arg((MANY, 4), dtype), indices((10_000,), MANY)))
    for dtype in (Q8_0, Q4_0):
        yield Case("take", (weight((LONG, 32), dtype, "take"), indices((10_000,), LONG)))
    for dtype in (F32, F16, Q8_0):
        operands = (Arg((4096, 32), dtype, "state"), indices((1031,), 4096, unique=True), Arg((1031, 32)))
        yield Case("set_rows", operands)
    part = {"slices": (Slice(1, 4096, 3), Slice(1, 5, 1))}
    yield Case("set_slice", (Arg((LONG, 6)), Arg((1365, 4))), part)
    yield Case("slice", (Arg((LONG, 6)),), part)
    yield Case("slice", (WIDE,), {"slices": (Slice(0, 5, 1), Slice(7, 4098, 2))})


def movement() -> Iterator[Case]:
    yield Case("reshape", (Arg((67, 1031)),), {"shape": (1031, 67)})
    yield Case("permute", (Arg((67, 1031)),), {"axes": (1, 0)})
    yield Case("permute", (Arg((5, 67, 131)),), {"axes": (2, 0, 1)})
    yield Case("expand", (Arg((1, LONG)),), {"shape": (17, LONG)})
    yield Case("expand", (Arg((LONG, 1)),), {"shape": (LONG, 17)})
    yield Case("concat", (WIDE, Arg((5, 7)), WIDE), {"axis": 1})
    yield Case("concat", (TALL, Arg((5, 3))), {"axis": 0})
    yield Case("pad", (WIDE,), {"widths": ((1, 0), (3, 2))})
    yield Case("tile", (Arg((2, LONG)),), {"reps": (3, 2)})
    yield Case("repeat", (WIDE,), {"repeats": 3, "axis": 1})
    yield Case("roll", (WIDE,), {"shift": 1031, "axis": 1})
    yield Case("flip", (WIDE,), {"axis": 1})
    yield Case("stack", (WIDE, WIDE), {"axis": -1})
    for op in ("tril", "triu"):
        yield Case(op, (Arg((263, 259)),), {"k": -3})
    yield Case("diag", (Arg((263,)),))
    yield Case("one_hot", (indices((1031,), 300),), {"n": 300})


def products() -> Iterator[Case]:
    for dtype in (F32, F16, Q8_0, Q4_0, Q4_K, Q6_K):
        uses = ("linear",) if dtype.is_quantized else ()
        for n in (1, 67):  # rows of several blocks, with a number of rows that no block divides
            yield Case("linear", (Arg((n, 4352)), weight((67, 4352), dtype, *uses)))
    for dtype in (F32, Q8_0):
        yield Case("linear", (Arg((3, 64)), weight((LONG, 64), dtype, "linear")))
        yield Case("linear", (Arg((1031, 64)), weight((70, 64), dtype, "linear")))
    for transpose in (False, True):
        for a, b in (((67, 1031), (1031, 131)), ((70, 3, 64), (70, 64, 5)), ((3, 64), (64, LONG))):
            b = (*b[:-2], b[-1], b[-2]) if transpose else b
            yield Case("matmul", (Arg(a), Arg(b)), {"transpose": transpose})
    chosen = indices((131, 4), 64)
    for dtype, k in ((F32, 64), (Q8_0, 64), (Q4_K, 256)):
        operands = (Arg((131, 1, k)), weight((64, 40, k), dtype, "linear_experts"), chosen)
        yield Case("linear_experts", operands)
    yield Case("add_experts", (Arg((131, 4, 64)), weight((64, 64)), chosen))
    yield Case("solve_lower", (Arg((67, 67), values=well_conditioned), Arg((67, 131))))
    for upper in (False, True):
        yield Case("solve_triangular", (Arg((67, 67), values=well_conditioned), Arg((67, 5))), {"upper": upper})


def attention() -> Iterator[Case]:
    sinks = weight((4,))
    for n, m in ((1, 4096), (67, 300), (300, 67)):
        for dtype in (F32, F16):
            kv, hidden = Arg((m, 2, 32), dtype), Arg((n, m), values=mask)
            yield Case("attention", (Arg((n, 4, 32)), kv, kv, hidden), {"scale": 0.5})
        yield Case("attention", (Arg((n, 4, 32)), kv, kv, hidden, sinks), {"scale": 0.5})
    cache = Arg((1024, 1, 32), Q8_0, "state")
    yield Case("attention", (Arg((5, 4, 32)), cache, cache, Arg((5, 1024), values=mask)), {"scale": 0.5})
    many = [(500, 500, 1100), *((0, max(0, i - 40), i + 1) for i in range(130, 230))]  # a text, and one with a window
    for rows in ([(0, 0, 1500)], many):
        ranges = Arg((len(rows), 3), I32, values=Cycle(tuple(itertools.chain(*rows))), note="lists")
        for dtype in (F32, F16):
            kv, cells = Arg((700, 2, 32), dtype), indices((1500,), 700)
            yield Case("cached_attention", (Arg((len(rows), 4, 32)), kv, kv, cells, ranges), {"scale": 0.5})
    for interleaved in (False, True):
        config = {"config": RoPE(8, interleaved=interleaved)}
        yield Case("rope", (Arg((1031, 2, 8)), indices((1031,), 300)), config)
        yield Case("rope", (Arg((3, 131, 8)), indices((3,), 300)), config)


def windows() -> Iterator[Case]:
    yield Case("im2col", (Arg((2, LONG)),), {"kernel_size": (3,), "padding": 1})
    yield Case("im2col", (Arg((3, 67, 131)),), {"kernel_size": (3, 3), "padding": 1})
    yield Case("conv1d", (Arg((3, LONG)), weight((70, 3, 3)), weight((70,))), {"padding": 1})
    yield Case("conv1d", (Arg((131, 67)), weight((131, 1, 4))), {"groups": 131})
    yield Case("conv2d", (Arg((67, 17, 37)), weight((70, 67, 3, 3))), {"padding": 1})
    yield Case("conv3d", (Arg((3, 7, 17, 37)), weight((70 * 3, 3, 3, 3))), {"padding": 1})
    yield Case("conv_transpose1d", (Arg((67, 131)), weight((67, 70, 3))), {"stride": 2})
    yield Case("conv_transpose2d", (Arg((67, 9, 19)), weight((67, 5, 3, 3))), {"stride": 2})
    for op in ("max_pool", "avg_pool"):
        yield Case(f"{op}1d", (Arg((3, LONG)),), {"kernel_size": 3, "stride": 2})
        yield Case(f"{op}2d", (Arg((3, 67, 131)),), {"kernel_size": 3, "stride": 2})
    for mode in ("nearest", "bilinear", "bicubic"):
        yield Case("interpolate", (Arg((3, 67, 131)),), {"size": (131, 260), "mode": mode})


def recurrences() -> Iterator[Case]:
    """Many steps of one sequence: two chunks of 64, and a few steps more."""
    n, t, heads, dim = 1, 131, 4, 8
    yield Case("ssm_conv", (Arg((n, t, 131)), Arg((n, 3, 131), kind="state"), weight((131, 4))))
    x, dt, b = Arg((n, t, heads, dim)), Arg((n, t, heads)), Arg((n, t, 1, 16))
    state = Arg((n, heads, dim, 16), kind="state")
    for rates in ((heads,), (heads, 16)):
        yield Case("ssm_scan", (x, dt, Arg(rates, values=decay), b, b, state), {"dt_softplus": True})
        yield Case(
            "ssm_scan", (x, dt, Arg(rates, values=uneven_decay, note="uneven"), b, b, state), {"dt_softplus": True}
        )
    key: Shape = (n, t, heads, dim)
    q, k, v = Arg(key), Arg(key, values=short), Arg(key)
    state = Arg((n, heads, dim, dim), kind="state")
    decays, w = Arg(key, values=decay), Arg(key, values=factor)
    beta = Arg(key[:-1], values=factor)
    operands: dict[str, tuple[Any, ...]] = {
        "gated_delta_rule": (q, k, v, Arg(key[:-1], values=decay), beta, state),
        "gated_linear_attention": (q, k, v, decays, state),
        "rwkv_wkv6": (q, k, v, w, weight((heads, dim)), state),
        "rwkv_wkv7": (q, w, k, v, k, k, state),
    }
    for op, xs in operands.items():
        yield Case(op, xs)
    for shape in (key[:-1], key):
        yield Case("gated_delta_rule", (q, k, v, Arg(shape, values=uneven_decay, note="uneven"), beta, state))
    few, fewer = Arg((n, t, 2, dim)), Arg((n, t, 2, dim), values=short)
    yield Case("gated_delta_rule", (few, fewer, v, Arg(key[:-1], values=decay), beta, state), {"tiled": True})
    uneven = Arg(key, values=uneven_factor, note="uneven")
    yield Case("rwkv_wkv6", (q, k, v, uneven, weight((heads, dim)), state))
    yield Case("rwkv_wkv7", (q, uneven, k, v, k, k, state))
    yield Case("gated_linear_attention", (q, k, v, Arg(key, values=uneven_decay, note="uneven"), state))


def cases() -> Iterator[Case]:
    yield from elementwise()
    yield from reductions()
    yield from order()
    yield from rows()
    yield from movement()
    yield from products()
    yield from attention()
    yield from windows()
    yield from recurrences()
