"""Cases of elementwise ops."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np

from hotshoe_core.tensors.dtypes import DType
from hotshoe_core.tensors.tensor import Shape
from hotshoe_core.testing.cases._shared import BF16, F16, F64, I8, I16, I64, LAYOUTS, Q4_0, Q8_0
from hotshoe_core.testing.operands import (
    Arg,
    Below,
    Case,
    Cycle,
    Rows,
    halves,
    indices,
    integers,
    large,
    nonzero,
    normal,
    positive,
    weight,
)
from hotshoe_core.testing.run import F32, I32, Layout

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


COMPARISONS = ("equal", "not_equal", "less", "less_equal", "greater", "greater_equal")
NAN, INF = float("nan"), float("inf")
SPECIAL = Cycle((NAN, INF, -INF, 0.0, -0.0, 1.0, -1.5))
OTHER = Cycle((0.0, 1.0, INF, NAN, -INF))


def compared() -> Iterator[Case]:
    def operand(shape: Shape, dtype: DType = F32, layout: Layout = "plain") -> Arg:
        return Arg(shape, dtype, layout=layout, values=integers if dtype.is_integer else halves)

    for op in (*COMPARISONS, "minimum", "maximum", "mod", "floor_divide"):
        divides = op in ("mod", "floor_divide")
        for a, b in BINARY:
            yield Case(op, (operand(a), Arg(b, values=nonzero) if divides else operand(b)))
        for layout in LAYOUTS:
            yield Case(op, (operand((2, 3, 4), layout=layout), Arg((2, 3, 4), values=integers)))
            yield Case(op, (operand((2, 3, 4), I32), operand((3, 4), I32, layout)))
        for x, y in ((F16, F32), (F32, BF16)):
            yield Case(op, (operand((2, 4), x), Arg((4,), y, values=integers)))
        yield Case(op, (operand((3, 1, 40), I32), operand((2, 40), I32)))
        yield Case(op, (operand((5,), I64), operand((5,), I64)), optional=True)
        if not divides:
            yield Case(op, (Arg((7,), values=SPECIAL, note="special"), Arg((5, 1), values=OTHER, note="special")))
    for op in ("add", "sub", "mul"):
        for a, b in BINARY:
            yield Case(op, (operand(a, I32), operand(b, I32)))
        for layout in LAYOUTS:
            yield Case(op, (operand((2, 3, 4), I32, layout), operand((3, 4), I32)))
        yield Case(op, (operand((5,), I64), operand((5,), I64)), optional=True)
    wide = Arg((4,), I32, values=large, note="large")  # not exact in F32
    for op in ("add", "sub", "mul", *COMPARISONS, "minimum", "maximum", "mod", "floor_divide"):
        yield Case(op, (wide, Arg((3, 1), I32, values=integers)))
        if op != "mul":
            yield Case(op, (wide, Arg((30, 1), I32, values=large, note="large")))
    yield Case("where", (Arg((3, 1), values=Cycle((1, 0, 2))), wide, wide))
    yield Case("abs", (wide,))
    yield Case("clamp", (wide,), {"min": 2**24 + 11, "max": 2**24 + 77})


def chosen() -> Iterator[Case]:
    flags = Cycle((1, 0, 0, 1, 2, -1))
    triples: tuple[tuple[Shape, Shape, Shape], ...] = (
        ((), (), ()), ((4,), (4,), (4,)), ((3, 4), (4,), ()), ((3, 1), (1, 4), (2, 1, 1)), ((), (2, 3), (3,)),
        ((2, 1, 4, 1), (1, 3, 1, 5), (2, 3, 4, 5)),
    )  # fmt: skip
    for c, a, b in triples:
        yield Case("where", (Arg(c, values=flags), Arg(a), Arg(b)))
        yield Case("where", (Arg(c, I32, values=flags), Arg(a, I32, values=integers), Arg(b, I32, values=integers)))
    yield Case("where", (Arg((6,), values=flags), Arg((6,), values=SPECIAL, note="special"), Arg((6,))))
    yield Case("where", (Arg((6,), values=flags), Arg((6,)), Arg((6,), values=OTHER, note="special")))
    for layout in LAYOUTS:
        yield Case("where", (Arg((2, 3, 4), layout=layout, values=flags), Arg((3, 4), layout=layout), Arg((2, 1, 4))))
    yield Case("where", (Arg((2, 4), F16, values=flags), Arg((4,), BF16), Arg((2, 1))))


def rounded() -> Iterator[Case]:
    shapes: tuple[Shape, ...] = ((), (5,), (2, 3, 4, 5))
    for op in ("floor", "ceil", "round", "sign", "abs"):
        for shape in shapes:
            yield Case(op, (Arg(shape, values=halves),))
        for layout in LAYOUTS:
            yield Case(op, (Arg((3, 2, 4), layout=layout, values=halves),))
        for dtype in (F16, BF16):
            yield Case(op, (Arg((2, 4), dtype, values=halves),))
        yield Case(op, (Arg((7,), values=SPECIAL, note="special"),))
        yield Case(op, (Arg((4,), values=Cycle((0.49999997, -0.49999997, 8388609.0, -3e9)), note="near"),))
    for layout in ("plain", *LAYOUTS):
        yield Case("abs", (Arg((2, 3), I32, layout=layout, values=integers),))
        yield Case("clamp", (Arg((2, 3), I32, layout=layout, values=integers),), {"min": -3, "max": 5})
    yield Case("clamp", (Arg((2, 3), I32, values=integers),), {"min": 0})
    for wide in (Arg((5,)), Arg((2, 3, 6), values=Rows((1.0, 6.0)), note="wide")):
        yield Case("clamped_swiglu", (wide, wide))
        yield Case("clamped_swiglu", (wide, wide), {"alpha": 1.0, "limit": 2.0})
    for layout in LAYOUTS:
        yield Case("clamped_swiglu", (Arg((3, 2, 4), layout=layout), Arg((3, 2, 4), F16, layout=layout)))


def extremes() -> Iterator[Case]:
    """Values for which a simple formula overflows or loses all digits."""
    far = Cycle((-200.0, -90.0, -30.0, 30.0, 90.0, 200.0))
    for op in ("softplus", "sigmoid", "silu", "tanh", "relu"):
        yield Case(op, (Arg((6,), values=far, note="far"),))
    for approximate in ("none", "tanh", "quick"):
        yield Case("gelu", (Arg((6,), values=far, note="far"),), {"approximate": approximate})
    yield Case("softplus", (Arg((4,), values=Cycle((-20.0, -19.0, -18.5, -21.0)), note="small"),))
    yield Case("sigmoid", (Arg((4,), values=Cycle((-20.0, -19.0, -18.5, -21.0)), note="small"),))
    wide = Arg((2, 4), values=Cycle((1e30, -3e38, 70000.0, 1.00390625, 1.01171875, 1e-30, -65520.0, 0.1)), note="wide")
    yield Case("cast", (wide,), {"dtype": BF16})
    yield Case("cast", (Arg((2, 4), BF16, values=wide.values, note="wide"),), {"dtype": F32})
    fine = Cycle((1.0, 1.0009765625, 65504.0, 6.1e-5, 0.33325195, -2.001))
    yield Case("cast", (Arg((6,), values=fine, note="fine"),), {"dtype": F16})


def edges() -> Iterator[Case]:
    """Zero, negative numbers, infinity, and numbers that a type cannot hold."""
    edge = Cycle((0.0, -1.0, 4.0, INF, NAN))
    for op in ("sqrt", "log", "rsqrt", "reciprocal"):
        yield Case(op, (Arg((5,), values=edge, note="edge"),))
    yield Case("div", (Arg((4,), values=Cycle((1.0, -1.0, 0.0, INF)), note="edge"), Arg((2, 1), values=Cycle((0, 2)))))
    yield Case("exp", (Arg((7,), values=Cycle((-200.0, 20.0, 88.0, 89.0, 200.0, INF, -INF)), note="far"),))
    for op in ("sin", "cos"):
        yield Case(op, (Arg((4,), values=Cycle((-40.0, 7.0, 100.0, 2049.0)), note="far"),))
    # F16 is only the storage: the result is F32
    wide = Arg((2, 4), F16, values=Cycle((300.0, -400.0, 60000.0, 3.0)), note="large")
    yield Case("sqr", (wide,))
    for op in ("add", "mul"):
        yield Case(op, (wide, wide))
    yield Case("exp", (Arg((4,), F16, values=Cycle((12.0, 20.0, 1.0, -3.0)), note="large"),))
    beyond = Cycle((70000.0, -1e6, 65519.0, 65520.0, 6e-8, -2.5e-5, 1e-9, INF))
    yield Case("cast", (Arg((8,), values=beyond, note="beyond"),), {"dtype": F16})
    yield Case("cast", (Arg((5,), I32, values=Below(2**20), note="wide"),), {"dtype": F32})


def cases() -> Iterator[Case]:
    yield from binary()
    yield from unary()
    yield from cast()
    yield from gated()
    yield from compared()
    yield from chosen()
    yield from rounded()
    yield from extremes()
    yield from edges()
