"""Cases of ops that arrange elements: repeating, rolling, reversing, stacking, triangles and diagonals."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hotshoe_core.tensors.dtypes import DType
from hotshoe_core.tensors.tensor import Axis, Shape
from hotshoe_core.testing.cases._shared import BF16, F16, I64, LAYOUTS, Q8_0, SHAPES
from hotshoe_core.testing.operands import Arg, Below, Case, Cycle, indices, integers, normal, weight
from hotshoe_core.testing.run import F32, I32

__all__ = ["cases"]


def arranged(op: str, shape: Shape, attrs: dict[str, Any], *, n: int = 1) -> Iterator[Case]:
    """Operands of every type that the op keeps, and of every layout."""
    for dtype in (F32, F16, BF16, I32):
        yield Case(op, (Arg(shape, dtype, values=_numbers(dtype)),) * n, attrs)
    for layout in LAYOUTS if len(shape) > 1 else LAYOUTS[2:]:
        yield Case(op, (Arg(shape, layout=layout),) * n, attrs)
    yield Case(op, (Arg(shape, I64, values=integers),) * n, attrs, optional=True)


def _numbers(dtype: DType) -> Any:
    return integers if dtype is I32 else normal


def moved() -> Iterator[Case]:
    for reps in ((2,), (3, 1), (1, 2), (2, 3)):
        yield from arranged("tile", (3, 4), {"reps": reps})
    yield Case("tile", (Arg(()),), {"reps": (3,)})
    yield Case("tile", (Arg((3,)),), {"reps": (2, 2, 2)})
    yield Case("tile", (Arg((2, 3, 4, 5)),), {"reps": (1, 2, 1, 2)})
    for shape in SHAPES:
        for axis in range(-len(shape), 0):
            yield Case("repeat", (Arg(shape),), {"repeats": 3, "axis": axis})
            yield Case("roll", (Arg(shape),), {"shift": 2, "axis": axis})
            yield Case("flip", (Arg(shape),), {"axis": axis})
            yield Case("stack", (Arg(shape),) * 2, {"axis": axis}, optional=len(shape) > 3)
    for axis in (0, 1):
        yield from arranged("repeat", (3, 4), {"repeats": 2, "axis": axis})
        yield from arranged("roll", (3, 4), {"shift": -1, "axis": axis})
        yield from arranged("flip", (3, 4), {"axis": axis})
        yield from arranged("stack", (3, 4), {"axis": axis}, n=3)
    yield Case("repeat", (weight((2, 64), Q8_0),), {"repeats": 2, "axis": 0}, optional=True)
    yield Case("roll", (weight((3, 64), Q8_0),), {"shift": 1, "axis": 0}, optional=True)
    for shift in (0, 3, 7, -8):
        yield Case("roll", (Arg((3, 2)),), {"shift": shift, "axis": 0})
    several: tuple[Axis, ...] = (None, (0, 2), ())
    for axes in several:
        yield Case("flip", (Arg((2, 3, 4)),), {"axis": axes})
    yield Case("stack", (Arg(()), Arg(())), {"axis": 0})


def triangles() -> Iterator[Case]:
    shape: Shape
    hidden = Cycle((float("inf"), float("nan"), 1.0, -float("inf")))
    for op in ("tril", "triu"):
        for k in (-5, -1, 0, 1, 2):
            for shape in ((4, 4), (3, 5), (5, 3), (2, 3, 4, 4)):
                yield Case(op, (Arg(shape),), {"k": k})
        for layout in LAYOUTS:
            yield Case(op, (Arg((4, 4), layout=layout),), {"k": 0})
        yield Case(op, (Arg((4, 4), F16),), {"k": 0})
        yield Case(op, (Arg((4, 4), I32, values=integers),), {"k": 1})
        yield Case(op, (Arg((5, 5), values=hidden, note="not finite"),), {"k": 0})
    for shape in ((1,), (5,), (2, 3), (2, 3, 4)):
        yield Case("diag", (Arg(shape),))
    for layout in LAYOUTS:
        yield Case("diag", (Arg((3, 4), layout=layout),))
        yield Case("diag", (Arg((1, 4), layout=layout),))
    yield Case("diag", (Arg((3,), F16),))
    yield Case("diag", (Arg((3,), I32, values=integers),))
    yield Case("diag", (Arg((4,), values=hidden, note="not finite"),))
    for shape in ((), (5,), (2, 3)):
        yield Case("one_hot", (indices(shape, 4),), {"n": 4})
    yield Case("one_hot", (Arg((6,), I32, values=Below(9)),), {"n": 4})
    yield Case("one_hot", (indices((6,), 4, dtype=I64),), {"n": 4}, optional=True)


def cases() -> Iterator[Case]:
    yield from moved()
    yield from triangles()
