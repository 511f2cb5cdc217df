"""Cases of reductions, softmax and norms."""

from __future__ import annotations

from collections.abc import Iterator

from hotshoe_core.tensor import Shape
from hotshoe_core.testing.cases._shared import BF16, F16, LAYOUTS, SHAPES
from hotshoe_core.testing.operands import Arg, Case, mask, weight

__all__ = ["cases"]


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


def cases() -> Iterator[Case]:
    yield from reductions()
