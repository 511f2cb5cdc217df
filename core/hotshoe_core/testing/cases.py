"""One op at a time: what is computed, as data. Every op of the table has a row here; the kit fails if one has none."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from hotshoe_core.dtypes import DType
from hotshoe_core.ops import RoPE
from hotshoe_core.tensor import Shape, Slice
from hotshoe_core.testing.operands import (
    Arg,
    Below,
    Case,
    distinct,
    indices,
    mask,
    nonzero,
    normal,
    positive,
    weight,
)
from hotshoe_core.testing.run import F32, I32, Layout

__all__ = ["OP_CASES"]

F16, BF16, F64 = DType.F16, DType.BF16, DType.F64
I64, I16, I8 = DType.I64, DType.I16, DType.I8
Q8_0, Q4_0, Q4_K, Q6_K = DType.Q8_0, DType.Q4_0, DType.Q4_K, DType.Q6_K

# Rows of the table

BINARY: tuple[tuple[Shape, Shape], ...] = (
    ((), ()), ((3,), ()), ((), (3,)), ((1,), (4,)), ((2, 3), (3,)), ((3,), (2, 3)), ((2, 1), (1, 3)),
    ((2, 3, 4, 5), (2, 1, 4, 1)), ((1, 3, 1, 5), (2, 3, 4, 5)), ((2, 1, 4, 1), (1, 3, 1, 5)), ((4, 5), (2, 3, 4, 5)),
)  # fmt: skip
UNARY = {
    "sqr": normal, "sqrt": positive, "rsqrt": positive, "exp": normal, "log": positive, "sin": normal, "cos": normal,
    "tanh": normal, "sigmoid": normal, "softplus": normal, "relu": normal, "silu": normal, "neg": normal,
    "reciprocal": nonzero, "gelu": normal,
}  # fmt: skip
SHAPES: tuple[Shape, ...] = ((5,), (2, 3), (2, 3, 4, 5))
LAYOUTS: tuple[Layout, ...] = ("permuted", "swapped", "sliced", "stepped")


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


def matrix() -> Iterator[Case]:
    for shape in ((64,), (1, 64), (5, 64), (2, 3, 64), (2, 2, 3, 64)):
        for dtype in (F32, F16, BF16, Q8_0, Q4_0):
            yield Case("linear", (Arg(shape), weight((6, 64), dtype)))
    for dtype in (Q4_0, Q8_0, Q4_K, DType.Q5_K, Q6_K, DType.IQ4_NL, F16, F32):
        for n in (1, 5):  # these may be repacked
            yield Case("linear", (Arg((n, 512)), weight((32, 512), dtype, "linear")))
    for dtype in (DType.Q4_1, DType.Q5_0, DType.Q5_1, DType.Q2_K, DType.Q3_K, Q4_K, DType.Q5_K, Q6_K, DType.IQ4_XS):
        yield Case("linear", (Arg((3, 256)), weight((5, 256), dtype)))
    for layout in LAYOUTS:
        yield Case("linear", (Arg((3, 2, 64), layout=layout), weight((6, 64), F16)))
        yield Case("linear", (Arg((3, 64), layout=layout), weight((6, 64), Q8_0)))
        yield Case("linear", (Arg((3, 8)), weight((6, 8), F32, layout=layout)))
        yield Case("linear", (Arg((3, 8)), Arg((6, 8), layout=layout)))
    yield Case("linear", (Arg((3, 64)), weight((6, 64), Q8_0, layout="sliced")))
    yield Case("linear", (Arg((3, 64), F16), weight((6, 64), F16)))
    yield Case("linear", (Arg((3, 64), BF16), weight((6, 64), Q4_0)))
    yield Case("linear", (Arg((3, 64)), Arg((6, 64), Q8_0, "state")))

    pairs: tuple[tuple[Shape, Shape], ...] = (
        ((3, 4), (4, 5)), ((1, 4), (4, 1)), ((2, 3, 4), (2, 4, 5)), ((2, 3, 4), (4, 5)), ((3, 4), (2, 4, 5)),
        ((2, 6, 3, 4), (2, 1, 4, 5)), ((2, 1, 3, 4), (1, 3, 4, 5)), ((1, 3, 3, 4), (2, 1, 4, 5)),
        ((3, 4), (2, 3, 4, 5)),
    )  # fmt: skip
    for a, b in pairs:
        yield Case("matmul", (Arg(a), Arg(b)))
        yield Case("matmul", (Arg(a), Arg((*b[:-2], b[-1], b[-2]))), {"transpose": True})
    yield Case("matmul", (Arg((2, 3, 64)), Arg((2, 64, 5))), {"precision": "full"})
    for transpose, shape in ((False, (2, 8, 5)), (True, (2, 5, 8))):
        t = {"transpose": transpose}
        for layout in LAYOUTS:
            yield Case("matmul", (Arg((2, 3, 8), layout=layout), Arg(shape)), t)
            yield Case("matmul", (Arg((2, 3, 8)), Arg(shape, layout=layout)), t)
        for x, y in ((F16, F32), (F32, F16), (F16, F16), (F32, BF16), (BF16, F32)):
            yield Case("matmul", (Arg((2, 3, 8), x), Arg(shape, y)), t)
        yield Case("matmul", (Arg((2, 3, 8)), Arg(shape, F16, layout="permuted")), t)
        yield Case("matmul", (Arg((2, 3, 8)), Arg(shape, F64)), t, optional=True)
    for dtype in (Q8_0, Q4_0):
        yield Case("matmul", (Arg((2, 3, 64)), weight((5, 64), dtype)), {"transpose": True})
        yield Case("matmul", (Arg((3, 64)), weight((2, 5, 64), dtype)), {"transpose": True})
    yield Case("matmul", (Arg((2, 3, 64)), weight((2, 5, 64), Q8_0, layout="swapped")), {"transpose": True})

    for dtype in (F32, F16, Q8_0, Q4_0):
        for rows in (1, 2):
            yield Case("linear_experts", (Arg((3, rows, 64)), weight((4, 8, 64), dtype), indices((3, 2), 4)))
    for dtype in (Q4_K, Q6_K, Q4_0, Q8_0):
        operands = (Arg((5, 1, 256)), weight((4, 32, 256), dtype, "linear_experts"), indices((5, 2), 4))
        yield Case("linear_experts", operands)
    for layout in LAYOUTS:
        yield Case("linear_experts", (Arg((3, 2, 8), layout=layout), weight((4, 5, 8)), indices((3, 2), 4)))
        yield Case("linear_experts", (Arg((3, 1, 8)), weight((4, 5, 8)), indices((3, 2), 4, layout=layout)))
        yield Case("linear_experts", (Arg((3, 1, 8)), weight((4, 5, 8), F32, layout=layout), indices((3, 2), 4)))
    yield Case("linear_experts", (Arg((3, 1, 8), F16), weight((4, 5, 8), BF16), indices((3, 2), 4)))
    yield Case("linear_experts", (Arg((3, 1, 8)), weight((4, 5, 8)), indices((3, 2), 4, dtype=I64)), optional=True)


def reductions() -> Iterator[Case]:
    for op in ("sum", "mean", "variance"):
        for shape in SHAPES:
            for axis in range(len(shape)):
                yield Case(op, (Arg(shape),), {"axis": axis})
            yield Case(op, (Arg(shape),), {"axis": -1, "keepdims": True})
        yield Case(op, (Arg((2, 3, 4)),), {"axis": 0, "keepdims": True})
        for layout in LAYOUTS:
            yield Case(op, (Arg((2, 3, 4), layout=layout),), {"axis": 1})
            yield Case(op, (Arg((2, 3, 4), layout=layout),), {"axis": -1})
        for dtype in (F16, BF16):
            yield Case(op, (Arg((2, 3, 4), dtype),), {"axis": 0})
    for op in ("cumsum", "l2_norm"):
        attrs = {"eps": 1e-6} if op == "l2_norm" else {}
        for shape in SHAPES:
            yield Case(op, (Arg(shape),), attrs)
        for layout in LAYOUTS:
            yield Case(op, (Arg((2, 3, 4), layout=layout),), attrs)
        yield Case(op, (Arg((2, 4), F16),), attrs)
    x = (2, 3, 4, 5)
    masks: tuple[Shape, ...]
    masks = ((), (5,), (4, 5), (4, 1), (1, 4, 5), (3, 1, 5), (3, 4, 5), (2, 1, 4, 5), (2, 1, 1, 5), x)
    for shape in SHAPES:
        yield Case("softmax", (Arg(shape),), {"scale": 0.3})
        yield Case("softmax", (Arg(shape), Arg(shape[-1:], values=mask)))
    for shape in masks:
        yield Case("softmax", (Arg(x), Arg(shape)), {"scale": 2.0})
        yield Case("softmax", (Arg(x), Arg(shape, F16, values=mask)))
    for layout in LAYOUTS:
        yield Case("softmax", (Arg((2, 3, 4), layout=layout), Arg((3, 4), values=mask)))
        yield Case("softmax", (Arg((2, 3, 4)), Arg((3, 4), layout=layout)), {"scale": 0.5})
    yield Case("softmax", (Arg((2, 3, 4), F16), Arg((3, 4), BF16)))
    for op, vectors in (("rms_norm", 1), ("layer_norm", 2)):
        for shape in ((8,), (3, 8), (2, 3, 4, 8)):
            yield Case(op, (Arg(shape),), {"eps": 1e-5})
            yield Case(op, (Arg(shape), *(weight((8,)),) * vectors), {"eps": 1e-5})
        for layout in LAYOUTS:
            yield Case(op, (Arg((2, 3, 8), layout=layout), *(weight((8,)),) * vectors), {"eps": 1e-6})
        for dtype in (F16, BF16):
            yield Case(op, (Arg((3, 8)), *(weight((8,), dtype),) * vectors), {"eps": 1e-5})
            yield Case(op, (Arg((3, 8), dtype), *(Arg((8,), layout="stepped"),) * vectors), {"eps": 1e-5})
    yield Case("layer_norm", (Arg((3, 8)), None, weight((8,))), {"eps": 1e-5})
    yield Case("layer_norm", (Arg((3, 8)), weight((8,))), {"eps": 1e-5})


def cut(*slices: tuple[int, int, int]) -> dict[str, tuple[Slice, ...]]:
    return {"slices": tuple(Slice(*s) for s in slices)}


def movement() -> Iterator[Case]:
    def moved(op: str, shape: Shape, attrs: dict[str, Any]) -> Iterator[Case]:
        yield Case(op, (Arg(shape),), attrs)
        yield Case(op, (Arg(shape, F16),), attrs)
        yield Case(op, (Arg(shape, BF16),), attrs)
        yield Case(op, (Arg(shape, I32, values=Below(99)),), attrs)
        for layout in LAYOUTS if len(shape) > 1 else LAYOUTS[2:]:
            yield Case(op, (Arg(shape, layout=layout),), attrs)
        yield Case(op, (Arg(shape, F16, layout="sliced"),), attrs)
        for dtype in (F64, I64, I16, I8):
            yield Case(op, (Arg(shape, dtype, values=Below(99)),), attrs, optional=True)
            yield Case(op, (Arg(shape, dtype, layout="permuted", values=Below(99)),), attrs, optional=True)

    yield from moved("reshape", (2, 3, 4), {"shape": (4, 6)})
    yield from moved("reshape", (4, 6), {"shape": (2, 1, -1, 3)})
    yield from moved("permute", (2, 3, 4), {"axes": (2, 0, 1)})
    yield from moved("permute", (2, 3, 4, 5), {"axes": (3, 1, 0, 2)})
    yield from moved("expand", (1, 3, 1), {"shape": (2, 3, 4)})
    yield from moved("expand", (3,), {"shape": (2, 2, 3)})
    yield from moved("slice", (4, 6), cut((1, 3, 1), (0, 6, 1)))
    yield from moved("slice", (4, 6), cut((0, 4, 2), (1, 6, 2)))
    yield from moved("slice", (2, 3, 6), cut((0, 2, 1), (1, 2, 1), (2, 5, 1)))
    for axes in itertools.permutations(range(4)):
        yield Case("permute", (Arg((2, 3, 4, 5)),), {"axes": axes})
    ones: tuple[Shape, ...] = ((1,), (1, 1, 1, 1), ())
    for shape in ones:
        yield Case("reshape", (Arg((1,)),), {"shape": shape})
        yield Case("reshape", (Arg(()),), {"shape": shape})
    yield Case("expand", (Arg(()),), {"shape": (2, 3)})
    yield Case("expand", (Arg((2, 3)),), {"shape": (2, 3)})
    yield Case("permute", (Arg(()),), {"axes": ()})
    yield Case("slice", (Arg((2, 3, 4, 6)),), cut((0, 2, 1), (0, 3, 2), (1, 4, 3), (0, 6, 1)))
    yield Case("slice", (Arg((2, 3, 4, 6)),), cut((0, 2, 1), (0, 3, 2), (1, 4, 3), (1, 6, 3)), optional=True)
    for dtype in (Q8_0, Q4_0):
        yield Case("reshape", (weight((4, 64), dtype),), {"shape": (2, 2, 64)})
        yield Case("reshape", (weight((2, 64), dtype),), {"shape": (4, 32)})
        yield Case("permute", (weight((2, 3, 64), dtype),), {"axes": (1, 0, 2)})
        yield Case("slice", (weight((4, 64), dtype),), cut((1, 4, 2), (0, 64, 1)))
        yield Case("slice", (weight((4, 96), dtype),), cut((1, 3, 1), (32, 96, 1)))
        yield Case("expand", (weight((1, 64), dtype),), {"shape": (3, 64)}, optional=True)
        yield Case("concat", (weight((1, 64), dtype), weight((2, 64), dtype)), {"axis": 0}, optional=True)

    for shape in SHAPES:
        for axis in range(len(shape)):
            wide = tuple(d + (i == axis) for i, d in enumerate(shape))
            yield Case("concat", (Arg(shape), Arg(wide), Arg(shape)), {"axis": axis})
    for dtype, values in ((F16, normal), (BF16, normal), (I32, Below(99))):
        for axis in (0, 1, 2):
            yield Case("concat", (Arg((2, 3, 4), dtype, values=values),) * 2, {"axis": axis})
    for layout in LAYOUTS:
        yield Case("concat", (Arg((2, 3, 4)), Arg((2, 3, 4), layout=layout)), {"axis": 1})
        yield Case("concat", (Arg((2, 3, 4), layout=layout), Arg((2, 3, 4), layout="permuted")), {"axis": -1})
    yield Case("concat", (Arg((2, 3)),), {"axis": 0})
    for dtype in (F64, I64, I16, I8):
        yield Case("concat", (Arg((2, 3), dtype, values=Below(99)),) * 2, {"axis": 0}, optional=True)
        yield Case("concat", (Arg((2, 3), dtype, values=Below(99)),) * 2, {"axis": 1}, optional=True)

    widths: tuple[tuple[tuple[int, int], ...], ...]
    widths = (((0, 2),), ((1, 2),), ((1, 0), (0, 3)), ((0, 0), (2, 1), (0, 0)), ((1, 1), (0, 2), (2, 0), (1, 1)))
    for w in widths:
        yield Case("pad", (Arg((2, 3, 4, 5)[: len(w)]),), {"widths": w})
    for layout in LAYOUTS:
        yield Case("pad", (Arg((2, 3), layout=layout),), {"widths": ((1, 0), (0, 3))})
    yield Case("pad", (Arg((2, 3), F16),), {"widths": ((1, 0), (0, 3))})


def rows() -> Iterator[Case]:
    picked: tuple[Shape, ...] = ((), (5,), (2, 3), (2, 1, 3))
    for dtype, shape in itertools.product((F32, F16, BF16, Q8_0, Q4_0), picked):
        yield Case("take", (weight((7, 64), dtype, "take"), indices(shape, 7)))
    for dtype in (Q4_K, Q6_K, DType.Q5_K, DType.Q5_0):
        yield Case("take", (weight((7, 256), dtype, "take"), indices((5,), 7)))
    for layout in LAYOUTS:
        yield Case("take", (Arg((7, 6), layout=layout), indices((5,), 7)))
        yield Case("take", (Arg((7, 2, 3), F16, layout=layout), indices((5,), 7)))
        yield Case("take", (Arg((7, 6)), indices((2, 3), 7, layout=layout)))
    yield Case("take", (Arg((7, 2, 3)), indices((2, 2), 7)))
    yield Case("take", (Arg((7, 6), I32, values=Below(99)), indices((5,), 7)))
    yield Case("take", (Arg((7, 64), Q8_0, "state"), indices((5,), 7)))
    yield Case("take", (Arg((7, 6), kind="constant"), indices((5,), 7)))
    yield Case("take", (weight((7, 64), Q8_0, layout="sliced"), indices((5,), 7)))
    yield Case("take", (Arg((7, 6)), indices((5,), 7, dtype=I64)), optional=True)
    yield Case("take", (Arg((7, 1, 1, 2, 3)), indices((5,), 7)), optional=True)

    at = indices((3,), 7, unique=True)
    widths: tuple[Shape, ...] = ((64,), (2, 32))
    for dtype, shape in itertools.product((F32, F16, Q8_0, BF16), widths):
        yield Case("set_rows", (Arg((7, *shape), dtype, "state"), at, Arg((3, *shape))))
    for layout in LAYOUTS:
        yield Case("set_rows", (Arg((7, 6)), at, Arg((3, 6), layout=layout)))
        yield Case("set_rows", (Arg((7, 6), layout=layout), at, Arg((3, 6))))
    yield Case("set_rows", (Arg((7, 6)), indices((3,), 7, unique=True, layout="stepped"), Arg((3, 6))))
    yield Case("set_rows", (Arg((7, 6)), at, Arg((3, 6), F16)))
    yield Case("set_rows", (Arg((7, 6), F16), at, Arg((3, 6), BF16)))
    yield Case("set_rows", (Arg((7, 6)), indices((1,), 7), Arg((1, 6))))
    yield Case("set_rows", (weight((7, 6)), at, Arg((3, 6))))
    yield Case("set_rows", (Arg((7, 6), kind="constant"), at, Arg((3, 6))))
    yield Case("set_rows", (Arg((7, 6)), indices((3,), 7, unique=True, dtype=I64), Arg((3, 6))), optional=True)

    for shape, k in (((5,), 2), ((3, 5), 1), ((3, 5), 7), ((2, 3, 4), 2), ((2, 1, 3, 4), 3)):
        yield Case("take_along", (Arg(shape), indices((*shape[:-1], k), shape[-1])))
    for layout in LAYOUTS:
        yield Case("take_along", (Arg((2, 3, 4), layout=layout), indices((2, 3, 2), 4)))
        yield Case("take_along", (Arg((2, 3, 4)), indices((2, 3, 2), 4, layout=layout)))
    yield Case("take_along", (Arg((3, 5), F16), indices((3, 2), 5)))
    yield Case("take_along", (Arg((3, 5)), indices((3, 2), 5, dtype=I64)), optional=True)

    for op, attrs in (("argsort", {}), ("argsort", {"descending": True}), ("top_k", {"k": 2}), ("argmax", {})):
        for shape in SHAPES:
            yield Case(op, (Arg(shape, values=distinct),), attrs)
        for layout in LAYOUTS:
            yield Case(op, (Arg((2, 3, 4), layout=layout, values=distinct),), attrs)
        yield Case(op, (Arg((3, 5), F16, values=distinct),), attrs)
    yield Case("top_k", (Arg((3, 5), values=distinct),), {"k": 5})
    yield Case("top_k", (Arg((3, 5), values=distinct),), {"k": 1})


def rope() -> Iterator[Case]:
    yarn: dict[str, Any] = {"scale": 0.25, "ext_factor": 1.0, "original_context": 64, "base": 10000.0}
    variants: tuple[dict[str, Any], ...] = ({}, {"base": 500.0, "scale": 0.5}, yarn)
    configs = [RoPE(8, interleaved=i, **v) for i in (False, True) for v in variants]
    configs += [RoPE(8, attn_factor=1.25), RoPE(8, beta_fast=16.0, beta_slow=2.0, attn_factor=0.9, **yarn)]
    configs += [RoPE(4), RoPE(4, interleaved=True), RoPE(4, interleaved=True, **yarn)]
    for config in configs:
        c = {"config": config}
        yield Case("rope", (Arg((3, 2, 8)), indices((3,), 300)), c)
        if config.dim == 8:
            f = Arg((4,), kind="weight", values=positive)
            yield Case("rope", (Arg((3, 2, 8)), indices((3,), 300), f), c)
    c = {"config": RoPE(8)}
    for dtype in (F16, BF16):
        yield Case("rope", (Arg((3, 2, 8), dtype), indices((3,), 300)), c)
    for layout in LAYOUTS:
        yield Case("rope", (Arg((3, 2, 8), layout=layout), indices((3,), 300)), c)
        yield Case("rope", (Arg((2, 3, 2, 8), layout=layout), indices((2, 3), 300)), c)
    for interleaved in (False, True):
        b = {"config": RoPE(6, interleaved=interleaved)}
        yield Case("rope", (Arg((2, 3, 2, 8)), indices((3,), 300)), b)
        yield Case("rope", (Arg((2, 3, 2, 8)), indices((2, 3), 300)), b)
    yield Case("rope", (Arg((3, 2, 8)), indices((3,), 300, layout="stepped")), c)
    yield Case("rope", (Arg((3, 2, 8)), indices((3,), 300, dtype=I64)), c, optional=True)


def attention() -> Iterator[Case]:
    def case(
        q: Shape = (5, 4, 16),
        kv: Shape = (7, 2, 16),
        *,
        mask: Arg | None = None,
        sinks: Arg | None = None,
        kv_dtype: DType = F32,
        layout: Layout = "plain",
        **attrs: float,
    ) -> Case:
        operands = (Arg(q, layout=layout), *(Arg(kv, kv_dtype, layout=layout),) * 2, mask, sinks)
        return Case("attention", operands, {"scale": 0.25, **attrs})

    def batched(mask: Arg | None = None, sinks: Arg | None = None, layout: Layout = "plain") -> Case:
        return case((2, 5, 4, 16), (2, 7, 2, 16), mask=mask, sinks=sinks, layout=layout)

    def masked(*shape: int, dtype: DType = F32) -> Arg:
        return Arg(shape, dtype, values=mask)

    sinks = weight((4,))
    yield from (case(), case(kv=(7, 4, 16)), case(kv=(7, 1, 16)), case(q=(1, 4, 16)))
    yield case(q=(33, 4, 64), kv=(70, 2, 64))
    yield from (case(softcap=2.0), case(softcap=2.0, mask=masked(5, 7)), case(sinks=sinks))
    yield from (case(sinks=sinks, mask=masked(5, 7)), case(sinks=Arg((4,), F16), mask=masked(4, 5, 7), softcap=1.5))
    shape: Shape
    masks: tuple[Shape, ...]
    masks = ((7,), (5, 7), (1, 7), (5, 1), (1, 5, 7), (4, 5, 7), (4, 1, 7))
    for shape in masks:
        yield case(mask=masked(*shape) if shape[-1] > 1 else Arg(shape))
    yield case(mask=masked(5, 7, dtype=F16))
    yield case(mask=Arg((5, 7), layout="permuted", values=normal))
    yield batched()
    masks = ((7,), (5, 7), (1, 5, 7), (4, 5, 7), (2, 1, 5, 7), (2, 1, 1, 7), (2, 4, 5, 7))
    for shape in masks:
        yield batched(masked(*shape))
    yield batched(masked(2, 1, 5, 7), sinks)
    for dtype in (F16, BF16):
        yield case(kv_dtype=dtype, mask=masked(5, 7))
    yield case(kv_dtype=F16, q=(1, 4, 64), kv=(32, 2, 64), mask=masked(1, 32))
    for layout in LAYOUTS:
        yield case(layout=layout, mask=masked(5, 7))
        yield batched(layout=layout)
    yield Case("attention", (Arg((5, 4, 16)), Arg((7, 2, 16)), Arg((7, 2, 8)), masked(5, 7)), {"scale": 0.25})
    yield Case("attention", (Arg((5, 4, 16), F16), Arg((7, 2, 16), F16), Arg((7, 2, 16))), {"scale": 0.25})
    for dtype in (F16, Q8_0):  # a cache
        kv = Arg((32, 2, 32), dtype, "state")
        yield Case("attention", (Arg((5, 4, 32)), kv, kv, masked(5, 32)), {"scale": 0.25})
        yield Case("attention", (Arg((1, 4, 32)), kv, kv, masked(32)), {"scale": 0.25})


def _all(*parts: Iterable[Case]) -> tuple[Case, ...]:
    """Cases in order, each once."""
    return tuple({case.id: case for case in itertools.chain(*parts)}.values())


OP_CASES: tuple[Case, ...] = _all(
    binary(), unary(), cast(), gated(), matrix(), reductions(), movement(), rows(), rope(), attention()
)
