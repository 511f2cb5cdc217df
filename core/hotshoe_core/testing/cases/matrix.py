"""Cases of matrix products."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from hotshoe_core.tensors.dtypes import DType
from hotshoe_core.tensors.tensor import Shape
from hotshoe_core.testing.cases._shared import BF16, F16, F64, I64, LAYOUTS, Q4_0, Q4_K, Q6_K, Q8_0
from hotshoe_core.testing.operands import Arg, Below, Case, indices, weight
from hotshoe_core.testing.run import F32, I32

__all__ = ["cases"]


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
        ((3, 4), (2, 3, 4, 5)), ((9, 4), (4, 5)), ((2, 9, 4), (2, 4, 5)), ((9, 4), (2, 4, 5)), ((1, 40), (40, 300)),
    )  # fmt: skip  # few rows and many: a backend may have a different product for each
    for a, b in pairs:
        yield Case("matmul", (Arg(a), Arg(b)))
        yield Case("matmul", (Arg(a), Arg((*b[:-2], b[-1], b[-2]))), {"transpose": True})
    yield Case("matmul", (Arg((2, 3, 64)), Arg((2, 64, 5))), {"precision": "full"})
    yield Case("matmul", (Arg((9, 1, 4)), Arg((9, 4, 6))))  # sums with weights, as of experts
    for layout in LAYOUTS:
        yield Case("matmul", (Arg((9, 1, 4), layout=layout), Arg((9, 4, 6))))
        yield Case("matmul", (Arg((9, 1, 4)), Arg((9, 4, 6), layout=layout)))
    for transpose, shape in ((False, (2, 8, 5)), (True, (2, 5, 8))):
        t = {"transpose": transpose}
        for layout in LAYOUTS:
            yield Case("matmul", (Arg((2, 3, 8), layout=layout), Arg(shape)), t)
            for rows in (3, 9):
                yield Case("matmul", (Arg((2, rows, 8)), Arg(shape, layout=layout)), t)
        yield Case("matmul", (Arg((2, 4, 4)), Arg((2, 4, 4))), t)
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


def experts() -> Iterator[Case]:
    same = Arg((5, 3), I32, values=Below(2), note="repeated")  # two experts, each chosen more often than there are rows
    for dtype in (F32, Q4_0, Q8_0, Q4_K):
        for rows in (1, 3):
            operands = (Arg((5, rows, 256)), weight((4, 32, 256), dtype, "linear_experts"), same)
            yield Case("linear_experts", operands)
    for dtype in (F32, F16, Q8_0):
        yield Case("add_experts", (Arg((3, 2, 64)), weight((4, 64), dtype), indices((3, 2), 4)))
    for layout in LAYOUTS:
        yield Case("add_experts", (Arg((3, 2, 8), layout=layout), weight((4, 8)), indices((3, 2), 4)))
        yield Case("add_experts", (Arg((3, 2, 8)), Arg((4, 8), layout=layout), indices((3, 2), 4, layout=layout)))
    yield Case("add_experts", (Arg((3, 2, 8), F16), weight((4, 8), BF16), indices((3, 2), 4)))
    yield Case("add_experts", (Arg((3, 2, 8)), weight((4, 8)), indices((3, 2), 4, dtype=I64)), optional=True)


def triangular() -> Iterator[Case]:
    for batch in ((), (2,), (2, 3)):
        for n, k in ((1, 1), (4, 1), (5, 3)):
            a, b = Arg((*batch, n, n), values=well_conditioned), Arg((*batch, n, k))
            yield Case("solve_lower", (a, b))
            for upper in (False, True):
                for unit in (False, True):
                    yield Case("solve_triangular", (a, b), {"upper": upper, "unitriangular": unit})
    for upper in (False, True):
        operands = (Arg((2, 4, 4), values=well_conditioned), Arg((2, 3, 4)))
        yield Case("solve_triangular", operands, {"left": False, "upper": upper})
    for layout in LAYOUTS:
        operands = (Arg((4, 4), layout=layout, values=well_conditioned), Arg((4, 3), layout=layout))
        yield Case("solve_lower", operands)
    yield Case("solve_lower", (Arg((4, 4), F16, values=well_conditioned), Arg((4, 3), BF16)))


def well_conditioned(rng: np.random.Generator, shape: Shape) -> np.ndarray[Any, Any]:
    """1 to 1.5: the triangles of such a matrix can be solved, for every layout."""
    return rng.uniform(1, 1.5, shape).astype(np.float32)


def cases() -> Iterator[Case]:
    yield from matrix()
    yield from experts()
    yield from triangular()
