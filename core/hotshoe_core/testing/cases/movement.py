"""Cases of ops that move elements: shapes, slices, rows, order."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np

from hotshoe_core.tensors.dtypes import DType
from hotshoe_core.tensors.indexing import Slice
from hotshoe_core.tensors.tensor import Shape
from hotshoe_core.testing.cases._shared import BF16, F16, F64, I8, I16, I64, LAYOUTS, Q4_0, Q4_K, Q6_K, Q8_0, SHAPES
from hotshoe_core.testing.operands import (
    Arg,
    Below,
    Case,
    Cycle,
    distinct,
    few,
    indices,
    integers,
    large,
    normal,
    weight,
)
from hotshoe_core.testing.run import F32, I32

__all__ = ["cases"]


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
    yield from moved("reshape", (4, 6), {"shape": (4, 2, 3)})
    yield from moved("permute", (2, 3, 4), {"axes": (2, 0, 1)})
    yield from moved("permute", (2, 3, 4, 5), {"axes": (3, 1, 0, 2)})
    yield from moved("expand", (1, 3, 1), {"shape": (2, 3, 4)})
    yield from moved("expand", (3, 4), {"shape": (3, 3, 4)})
    yield from moved("expand", (3,), {"shape": (2, 2, 3)})
    yield from moved("slice", (4, 6), cut((1, 3, 1), (0, 6, 1)))
    yield from moved("slice", (4, 6), cut((0, 4, 2), (1, 6, 2)))
    yield from moved("slice", (2, 3, 6), cut((0, 2, 1), (1, 2, 1), (2, 5, 1)))
    yield Case("permute", (Arg((3, 3, 3)),), {"axes": (2, 0, 1)})
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
    yield Case("concat", (Arg((2, 3), I32, values=large, note="large"),) * 2, {"axis": 1})
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
    yield Case("take", (Arg((7, 6), I32, values=large, note="large"), indices((5,), 7)))
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

    for op, attrs in (
        ("argsort", {}),
        ("argsort", {"descending": True}),
        ("top_k", {"k": 2}),
        ("argmax", {}),
        ("argmin", {}),
    ):
        for shape in SHAPES:
            yield Case(op, (Arg(shape, values=distinct),), attrs)
        for layout in LAYOUTS:
            yield Case(op, (Arg((2, 3, 4), layout=layout, values=distinct),), attrs)
        yield Case(op, (Arg((3, 5), F16, values=distinct),), attrs)
    yield Case("top_k", (Arg((3, 5), values=distinct),), {"k": 5})
    yield Case("top_k", (Arg((3, 5), values=distinct),), {"k": 1})


def set_slice() -> Iterator[Case]:
    parts: tuple[tuple[Shape, tuple[tuple[int, int, int], ...]], ...] = (
        ((5,), ((1, 3, 1),)), ((5,), ((0, 5, 2),)), ((4, 6), ((1, 3, 1), (0, 6, 1))), ((4, 6), ((0, 4, 1), (2, 5, 1))),
        ((4, 6), ((0, 4, 2), (1, 6, 2))), ((4, 6), ((0, 4, 1), (0, 6, 1))), ((4, 6), ((3, 4, 1), (5, 6, 1))),
        ((2, 3, 6), ((0, 2, 1), (1, 2, 1), (2, 5, 1))), ((2, 3, 4, 6), ((0, 2, 1), (0, 3, 2), (1, 4, 2), (0, 6, 1))),
        ((2, 3, 4, 6), ((0, 2, 1), (0, 3, 2), (1, 4, 2), (1, 6, 3))),
    )  # fmt: skip
    for shape, slices in parts:
        part = tuple(-(-(stop - start) // step) for start, stop, step in slices)
        for dtype in (F32, F16, BF16, I32):
            values = integers if dtype is I32 else normal
            operands = (Arg(shape, dtype, values=values), Arg(part, dtype, values=values))
            yield Case("set_slice", operands, cut(*slices))
    rows = cut((1, 3, 1), (0, 6, 1))
    for layout in LAYOUTS:
        yield Case("set_slice", (Arg((4, 6), layout=layout), Arg((2, 6))), rows)
        yield Case("set_slice", (Arg((4, 6)), Arg((2, 6), layout=layout)), rows)
    yield Case("set_slice", (Arg((4, 6), F16), Arg((2, 6))), rows)
    yield Case("set_slice", (Arg((4, 6)), Arg((2, 6), BF16)), rows)
    for kind in ("weight", "constant", "state"):
        yield Case("set_slice", (Arg((4, 6), kind=kind), Arg((2, 6))), rows)
    yield Case("set_slice", (Arg((4, 6), I64, values=integers), Arg((2, 6), I64, values=integers)), rows, optional=True)


def ties() -> Iterator[Case]:
    """argmax takes the first of equal elements. Their order in a sort is undefined: ``graphs`` checks sorted values."""
    for op in ("argmax", "argmin"):
        for shape in ((7,), (9, 5), (2, 3, 8)):
            yield Case(op, (Arg(shape, values=few, note="ties"),))
        yield Case(op, (Arg((2, 40), values=Cycle((1.0,)), note="equal"),))
        for layout in LAYOUTS:
            yield Case(op, (Arg((3, 4, 6), layout=layout, values=few, note="ties"),))
    for op in ("argsort", "top_k"):
        for n in (1, 2, 33, 1000):
            for k in {1, min(n, 5), min(n, 40), n} if op == "top_k" else (n,):
                attrs = {"k": k} if op == "top_k" else {}
                yield Case(op, (Arg((2, n), values=distinct),), attrs)


def order() -> Iterator[Case]:
    """NaN, and values that only F32 distinguishes."""
    nan = Arg((2, 5), values=Cycle((3.0, float("nan"), -float("inf"), 2.0, 1.0)), note="nan")
    near = Arg((2, 9), values=_near, note="near")
    for x in (nan, near):
        for op in ("argmax", "argmin"):
            yield Case(op, (x,))
        for descending in (False, True):
            yield Case("argsort", (x,), {"descending": descending})
        for k in (1, 4):
            yield Case("top_k", (x,), {"k": k})


def _near(rng: np.random.Generator, shape: Shape) -> np.ndarray[Any, Any]:
    """Different numbers, as ``distinct``, but many are equal in half precision."""
    return np.asarray(distinct(rng, shape) + np.float32(5000))


def cases() -> Iterator[Case]:
    yield from movement()
    yield from rows()
    yield from set_slice()
    yield from ties()
    yield from order()
