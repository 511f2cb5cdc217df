"""Cases whose numbers are what they test: wide integers, overflow, rounding, small and large numbers, NaN."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from hotshoe_core.ops import RoPE
from hotshoe_core.tensors.indexing import Slice
from hotshoe_core.tensors.tensor import Shape
from hotshoe_core.testing.cases._shared import BF16, F16, I64
from hotshoe_core.testing.cases.elementwise import COMPARISONS, OTHER, SPECIAL
from hotshoe_core.testing.operands import Arg, Case, Cycle, indices, mask, nonzero, weight
from hotshoe_core.testing.run import F32, I32, Array

__all__ = ["cases"]

Rng = np.random.Generator
NAN, INF = float("nan"), float("inf")


def huge(rng: Rng, shape: Shape) -> Array:
    """Integers of 62 bits. The lower halves of many are equal, so that arithmetic of 32 bits cannot tell them apart."""
    return np.asarray((rng.integers(-(2**29), 2**29, shape) << 32) + rng.integers(1, 3, shape))


def integers() -> Iterator[Case]:
    """I64 beyond 2^31, and results that wrap around."""
    wide = Arg((3, 5), I64, values=huge, note="huge")
    other, few = Arg((1, 5), I64, values=huge, note="huge"), Arg((5,), I64, values=Cycle((7, -1, -(2**40), 3, 2**33)))
    for op in ("add", "sub", "mul", "minimum", "maximum", *COMPARISONS):
        yield Case(op, (wide, other), optional=True)
    for op in ("floor_divide", "mod"):
        yield Case(op, (wide, few), optional=True)
        yield Case(op, (wide, Arg((), I64, values=Cycle((0,)), note="zero")), optional=True)
    yield Case("abs", (wide,), optional=True)
    yield Case("clamp", (wide,), {"min": -(2**50), "max": 2**40 + 1}, optional=True)
    yield Case("where", (Arg((5,), values=Cycle((0, 1))), wide, other), optional=True)
    yield Case("where", (wide, other, wide), optional=True)
    limits = Cycle((2**31 - 1, -(2**31), 2**24 + 1, -5))
    yield Case("cast", (Arg((4,), I32, values=limits),), {"dtype": I64}, optional=True)
    yield Case("cast", (Arg((4,), I64, values=limits),), {"dtype": I32}, optional=True)
    yield Case("cast", (wide,), {"dtype": F32}, optional=True)
    moves: tuple[tuple[str, dict[str, Any]], ...] = (
        ("reshape", {"shape": (5, 3)}), ("permute", {"axes": (1, 0)}), ("expand", {"shape": (2, 3, 5)}),
        ("slice", {"slices": (Slice(0, 3, 2), Slice(1, 5, 1))}), ("tile", {"reps": (2,)}), ("flip", {"axis": 1}),
    )  # fmt: skip
    for op, attrs in moves:
        yield Case(op, (wide,), attrs, optional=True)
    yield Case("concat", (wide, wide), {"axis": 0}, optional=True)
    yield Case("take", (wide, indices((4,), 3)), optional=True)
    yield Case("set_slice", (wide, other), {"slices": (Slice(1, 2, 1), Slice(0, 5, 1))}, optional=True)
    most, least = 2**31 - 1, -(2**31)
    a = Arg((4,), I32, values=Cycle((most, least, most, 70_001)), note="overflow")
    b = Arg((5, 1), I32, values=Cycle((1, -1, most, least, 70_001)), note="overflow")
    for op in ("add", "sub", "mul", "floor_divide", "mod", "minimum", *COMPARISONS):
        yield Case(op, (a, b))
    yield Case("abs", (a,))


def small_and_large() -> Iterator[Case]:
    """Each element counts, so a function that gives 0 where its result is small is found."""
    down = Cycle((20.0, -16.0, -40.0, -80.0, 1e-3, -1e-5, 1e-20, 0.0))
    for op in ("exp", "sigmoid", "silu", "softplus", "tanh", "sqr", "relu", "neg", "sin"):
        yield Case(op, (Arg((3, 8), values=down, note="down"),))
    tiny = Cycle((1e-3, 1e-6, 1e-30, 1.0, 1e30, 7.0))
    for op in ("log", "sqrt", "rsqrt", "reciprocal"):
        yield Case(op, (Arg((3, 6), values=tiny, note="tiny"),))
    mixed = Arg((6,), values=Cycle((1e8, 1e-8, -1e-20, 3.0, 1e20, -1.0)), note="mixed")
    for op in ("add", "sub", "mul", "div"):
        yield Case(op, (mixed, Arg((4, 1), values=Cycle((1e-8, -3.0, 1e8, 1e-15)), note="mixed")))
    for op in ("swiglu", "geglu", "reglu", "clamped_swiglu"):
        yield Case(op, (Arg((3, 8), values=down, note="down"), Arg((3, 8), values=nonzero)))
    far = Cycle((8191.0, -20000.0, 131071.0, 40.0, 1e6, -3e5))
    for op in ("sin", "cos"):
        yield Case(op, (Arg((6,), values=far, note="farther"),))


def quotients() -> Iterator[Case]:
    """Floats whose quotient is next to a whole number: ``a / b`` rounds to it, and its floor is one too large."""
    a = Arg((6,), values=Cycle((1.0, 3.0, 7.0, -1.0, 0.3, 1e6)), note="near")
    b = Arg((4, 1), values=Cycle((0.1, -0.1, 0.3, 0.7)), note="near")
    for op in ("floor_divide", "mod"):
        yield Case(op, (a, b))
        yield Case(op, (Arg((7,), values=SPECIAL, note="special"), Arg((5, 1), values=OTHER, note="special")))


def rounding() -> Iterator[Case]:
    """What is written into F16 and BF16 is rounded to nearest, ties to even; what is too large becomes infinite."""
    half = (1.00048828125, 1.00146484375, 2049.0, 65519.0, 65520.0, 1e6, -1e6, 6e-8)
    brain = (1.00390625, 1.01171875, 257.0, 1e30, -3e38, 3.4e38, 0.1, 1e-39)
    part = {"slices": (Slice(2, 5, 1), Slice(0, 8, 1))}
    for dtype, numbers in ((F16, half), (BF16, brain)):
        rows = Arg((3, 8), values=Cycle(numbers), note="ties")
        for x in (Arg((7, 8), dtype), Arg((7, 8), dtype, "state")):
            yield Case("set_rows", (x, indices((3,), 7, unique=True), rows))
            yield Case("set_slice", (x, rows), part)
        yield Case("cast", (rows,), {"dtype": dtype})


def far() -> Iterator[Case]:
    """Positions beyond 4,096, and below 0, which move keys back. Few frequencies: rounding them has no effect."""
    at = Arg((5,), I32, values=Cycle((4099, 32771, 131071, -1, -300)), note="far")
    for config in (RoPE(4, base=1e6), RoPE(4, base=1e6, interleaved=True)):
        yield Case("rope", (Arg((5, 2, 6)), at), {"config": config})
    at = Arg((2, 3), I32, values=Cycle((8193, 70001, 5, 131071)), note="far")
    for factor in (1.0, 1.25):
        config = RoPE(4, base=1e6, sections=(1, 1), attn_factor=factor)
        yield Case("rope", (Arg((3, 2, 4)), at), {"config": config})
    sinks = Arg((4,), values=Cycle((200.0, -200.0, 20.0, 0.0)), note="large")
    kv = Arg((7, 2, 16))
    yield Case("attention", (Arg((5, 4, 16)), kv, kv, None, sinks), {"scale": 0.25})
    yield Case("attention", (Arg((5, 4, 16)), kv, kv, Arg((5, 7), values=mask), sinks), {"scale": 0.25})


def not_a_number() -> Iterator[Case]:
    """NaN stays NaN, in the rows that it is in and no others, and a product of 0 and infinity is NaN."""
    bad = Arg((4, 3), values=Cycle((NAN, 1.0, 0.5, 2.0, NAN)), note="nan")
    for op in (
        "neg", "abs", "floor", "ceil", "round", "sign", "sqr", "sqrt", "rsqrt", "reciprocal", "exp", "log", "sin",
        "cos", "tanh", "sigmoid", "softplus", "silu",
    ):  # fmt: skip
        yield Case(op, (bad,))
    yield Case("affine", (bad,), {"scale": 2.0, "bias": 1.0})
    for op in ("add", "sub", "mul", "div", "mod", "floor_divide"):
        yield Case(op, (bad, Arg((3,), values=Cycle((1.0, NAN, 2.0)), note="nan")))
    for op in ("add", "sub", "mul", "div"):
        yield Case(op, (Arg((5,), values=SPECIAL, note="special"), Arg((5, 1), values=SPECIAL, note="special")))
    yield Case("swiglu", (bad, Arg((4, 3), values=Cycle((NAN, 2.0)), note="nan")))
    for dtype in (F16, BF16):
        yield Case("cast", (bad,), {"dtype": dtype})
        yield Case("add", (Arg((4, 3), dtype, values=bad.values, note="nan"), Arg((3,))))
    rows = Arg((4, 5), values=Cycle((1.0,) * 6 + (NAN,) + (2.0,) * 5 + (INF,) + (0.5,) * 7), note="nan")
    for op in ("sum", "mean", "max", "min", "variance"):
        for axis in (-1, 0):
            yield Case(op, (rows,), {"axis": axis})
    for op, attrs in (("cumsum", {}), ("softmax", {}), ("rms_norm", {"eps": 1e-5}), ("layer_norm", {"eps": 1e-5})):
        yield Case(op, (rows,), attrs)
    zeros = Cycle((0.0, 1.0))
    for w in (weight((3, 5)), weight((3, 5), F16), weight((8, 5), F32, "linear"), Arg((3, 5), values=zeros)):
        yield Case("linear", (rows, w))
        yield Case("matmul", (rows, replace(w, uses=("matmul",) if w.uses else ())), {"transpose": True})
    yield Case("set_rows", (bad, indices((2,), 4, unique=True), Arg((2, 3), values=SPECIAL, note="special")))


def cases() -> Iterator[Case]:
    yield from integers()
    yield from small_and_large()
    yield from quotients()
    yield from rounding()
    yield from far()
    yield from not_a_number()
