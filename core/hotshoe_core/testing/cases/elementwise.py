"""Cases of elementwise ops."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np

from hotshoe_core.dtypes import DType
from hotshoe_core.tensor import Shape
from hotshoe_core.testing.cases._shared import BF16, F16, F64, I8, I16, I64, LAYOUTS, Q4_0, Q8_0
from hotshoe_core.testing.operands import Arg, Below, Case, indices, nonzero, normal, positive, weight
from hotshoe_core.testing.run import F32, I32

__all__ = ["cases"]

BINARY: tuple[tuple[Shape, Shape], ...] = (
    ((), ()), ((3,), ()), ((), (3,)), ((1,), (4,)), ((2, 3), (3,)), ((3,), (2, 3)), ((2, 1), (1, 3)),
    ((2, 3, 4, 5), (2, 1, 4, 1)), ((1, 3, 1, 5), (2, 3, 4, 5)), ((2, 1, 4, 1), (1, 3, 1, 5)), ((4, 5), (2, 3, 4, 5)),
)  # fmt: skip
UNARY = {
    "sqr": normal, "sqrt": positive, "rsqrt": positive, "exp": normal, "log": positive, "sin": normal, "cos": normal,
    "tanh": normal, "sigmoid": normal, "softplus": normal, "relu": normal, "silu": normal, "neg": normal,
    "reciprocal": nonzero, "gelu": normal,
}  # fmt: skip


def binary() -> Iterator[Case]:
    for op in ("add", "sub", "mul", "div"):
        for a, b in BINARY:
            yield Case(op, (Arg(a), Arg(b, values=nonzero)))
        for layout in LAYOUTS:
            yield Case(op, (Arg((2, 3, 4), layout=layout), Arg((2, 3, 4), values=nonzero)))
            yield Case(op, (Arg((2, 3, 4)), Arg((3, 4), layout=layout, values=nonzero)))
        for x, y in ((F16, F32), (F32, F16), (F16, F16), (BF16, F32), (F32, BF16)):
            yield Case(op, (Arg((2, 4), x), Arg((4,), y, values=nonzero)))
        yield Case(op, (Arg((2, 4)), Arg((4,), F16, "weight", values=nonzero)))
        yield Case(op, (Arg((4,), kind="constant"), Arg((2, 4), values=nonzero)))
        yield Case(op, (Arg((2, 4), F64), Arg((4,), values=nonzero)), optional=True)
        yield Case(op, (Arg((1, 2, 1, 2, 4)), Arg((3, 1, 2, 1, 4), values=nonzero)), optional=True)


def unary() -> Iterator[Case]:
    for op, values in UNARY.items():
        for shape in ((), (5,), (2, 3, 4, 5)):
            yield Case(op, (Arg(shape, values=values),))
        for layout in LAYOUTS:
            yield Case(op, (Arg((3, 2, 4), layout=layout, values=values),))
        for dtype in (F16, BF16):
            yield Case(op, (Arg((2, 4), dtype, values=values),))
        yield Case(op, (Arg((2, 4), F64, values=values),), optional=True)
    for approximate in ("tanh", "quick"):
        yield Case("gelu", (Arg((3, 70)),), {"approximate": approximate})
        yield Case("gelu", (Arg((3, 4), F16, layout="permuted"),), {"approximate": approximate})
    yield Case("sigmoid", (Arg((4,), values=lambda rng, shape: np.array([-200.0, -30, 30, 200])),))
    for arg in (Arg(()), Arg((2, 3, 4)), *(Arg((2, 3, 4), layout=layout) for layout in LAYOUTS)):
        yield Case("affine", (arg,), {"scale": -1.5, "bias": 0.25})
    yield Case("affine", (Arg((2, 3), F16),), {"scale": 0.0, "bias": 2.0})
    for limits in ({"min": -0.5}, {"max": 0.5}, {"min": -0.5, "max": 0.5}):
        yield Case("clamp", (Arg((2, 3, 4)),), limits)
    yield Case("clamp", (Arg((2, 3, 4), layout="permuted"),), {"min": 0.0})
    yield Case("clamp", (Arg((2, 3), F16),), {"min": 0.0})
    yield Case("clamp", (Arg((2, 3), kind="weight"),), {"min": 0.0})
    yield Case("clamp", (Arg(()),), {"min": 0.0})


def cast() -> Iterator[Case]:
    floats = (F32, F16, BF16)
    for source, to in itertools.product(floats, floats):
        yield Case("cast", (Arg((2, 3), source),), {"dtype": to})
        yield Case("cast", (Arg((2, 3), source, layout="permuted"),), {"dtype": to})
    yield Case("cast", (Arg((), F32),), {"dtype": F16})
    yield Case("cast", (Arg((2, 64)),), {"dtype": Q8_0})
    yield Case("cast", (Arg((64, 2), layout="permuted"),), {"dtype": F16})
    for dtype in (Q4_0, DType.Q4_1, DType.Q5_0, DType.MXFP4):
        yield Case("cast", (Arg((2, 256)),), {"dtype": dtype}, optional=True)
    for dtype in (Q8_0, Q4_0):
        yield Case("cast", (weight((3, 64), dtype),), {"dtype": F32})
        yield Case("cast", (weight((2, 3, 64), dtype, layout="swapped"),), {"dtype": F32})
    yield Case("cast", (indices((5,), 100),), {"dtype": F32})
    yield Case("cast", (indices((2, 5), 100, layout="permuted"),), {"dtype": F32})
    exotic = ((I64, F32), (I32, I64), (I16, F32), (I8, F16), (I32, I8), (F64, F32), (F32, F64), (I32, F16))
    for dtype, to in exotic:
        yield Case("cast", (Arg((2, 5), dtype, values=Below(9)),), {"dtype": to}, optional=True)


def gated() -> Iterator[Case]:
    for op in ("swiglu", "geglu", "reglu"):
        for shape in ((), (5,), (2, 3, 6), (2, 3, 4, 5)):
            yield Case(op, (Arg(shape), Arg(shape)))
        for layout in LAYOUTS:
            yield Case(op, (Arg((3, 2, 4), layout=layout), Arg((3, 2, 4))))
            yield Case(op, (Arg((3, 2, 4)), Arg((3, 2, 4), layout=layout)))
        yield Case(op, (Arg((2, 4), F16), Arg((2, 4))))
        yield Case(op, (Arg((2, 4)), Arg((2, 4), BF16)))
    for approximate in ("none", "quick"):
        yield Case("geglu", (Arg((2, 66)), Arg((2, 66))), {"approximate": approximate})


def cases() -> Iterator[Case]:
    yield from binary()
    yield from unary()
    yield from cast()
    yield from gated()
