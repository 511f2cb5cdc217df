"""Cases of reductions, softmax and norms."""

from __future__ import annotations

from collections.abc import Iterator

from hotshoe_core.tensors.tensor import Shape
from hotshoe_core.testing.cases._shared import BF16, F16, LAYOUTS, SHAPES
from hotshoe_core.testing.operands import Arg, Case, Cycle, Rows, mask, weight

__all__ = ["cases"]


def reductions() -> Iterator[Case]:
    for op in ("sum", "mean", "variance"):
        for shape in SHAPES:
            for axis in range(len(shape)):
                yield Case(op, (Arg(shape),), {"axis": axis})
            yield Case(op, (Arg(shape),), {"axis": -1, "keepdims": True})
        yield Case(op, (Arg((2, 3, 4)),), {"axis": 0, "keepdims": True})
        for axis in range(3):
            yield Case(op, (Arg((4, 4, 4)),), {"axis": axis})
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


def several_axes() -> Iterator[Case]:
    some: tuple[tuple[Shape, int | tuple[int, ...] | None], ...] = (
        ((2, 3), (0, 1)), ((2, 3, 4), (0, 2)), ((2, 3, 4), (1, 2)), ((2, 3, 4), (0, -2)), ((2, 3, 4, 5), (1, 2)),
        ((2, 3, 4, 5), (0, 3)), ((2, 3, 4, 5), (0, 1, 3)), ((2, 3, 4, 5), None), ((5,), None), ((), None), ((2, 3), ()),
    )  # fmt: skip
    for op in ("sum", "mean", "max", "min", "variance"):
        for shape, axis in some:
            yield Case(op, (Arg(shape),), {"axis": axis})
            yield Case(op, (Arg(shape),), {"axis": axis, "keepdims": True})
        for layout in LAYOUTS:
            yield Case(op, (Arg((2, 3, 4), layout=layout),), {"axis": (0, 2)})
    for op in ("max", "min"):
        for shape in SHAPES:
            for axis in range(len(shape)):
                yield Case(op, (Arg(shape),), {"axis": axis})
        for layout in LAYOUTS:
            yield Case(op, (Arg((2, 3, 4), layout=layout),), {"axis": 1})
        for dtype in (F16, BF16):
            yield Case(op, (Arg((2, 3, 4), dtype),), {"axis": 0})
        nan = Cycle((1.0, float("nan"), -2.0, 3.0, float("inf"), -float("inf")))
        yield Case(op, (Arg((2, 3), values=nan, note="nan"),), {"axis": -1})
        yield Case(op, (Arg((2, 3), values=Rows((1.0, 1.0), -9.0), note="negative"),), {"axis": -1})


def extremes() -> Iterator[Case]:
    """Rows of zeros, tiny and huge numbers: the eps of a norm matters, and a careless formula fails."""
    tiny, small, huge, mixed = Rows((1e-6,)), Rows((1e-3,)), Rows((1e4,)), Rows((0.0, 1.0, 1e-3, 1e4))
    kinds = (("zero", Rows((0.0,))), ("tiny", tiny), ("small", small), ("huge", huge), ("mixed", mixed))
    for note, values in kinds:
        x = Arg((4, 8), values=values, note=note)
        for eps in (1e-5, 1e-12):
            yield Case("rms_norm", (x,), {"eps": eps})
            yield Case("layer_norm", (x,), {"eps": eps})
            yield Case("rms_norm", (x, weight((8,))), {"eps": eps})
            yield Case("layer_norm", (x, weight((8,)), weight((8,))), {"eps": eps})
        for eps in (1e-12, 1e-4, 0.1):
            yield Case("l2_norm", (x,), {"eps": eps})
        yield Case("group_norm", (Arg((2, 4, 6), values=values, note=note),), {"n_groups": 2})
    yield Case("layer_norm", (Arg((4, 64), values=Rows((1.0,), 1000.0), note="offset"),), {"eps": 1e-5})
    yield Case("variance", (Arg((4, 64), values=Rows((1.0,), 1000.0), note="offset"),), {"axis": -1})
    yield Case("softmax", (Arg((4, 8), values=huge, note="huge"),), {"scale": 1.0})
    for eps in (1e-2, 1.0):
        yield Case("group_norm", (Arg((2, 4, 6), values=mixed, note="mixed"),), {"n_groups": 2, "eps": eps})
    for op in ("sum", "mean"):  # the sum is too large for F16
        yield Case(op, (Arg((2, 16), F16, values=Cycle((30000.0, 20000.0)), note="large"),), {"axis": -1})


def group_norm() -> Iterator[Case]:
    for shape, n_groups in (((2, 6), 2), ((2, 6), 6), ((2, 6, 5), 3), ((1, 4, 3, 5), 2), ((3, 4, 2, 2), 1)):
        attrs, vector = {"n_groups": n_groups, "eps": 1e-5}, weight(shape[1:2])
        yield Case("group_norm", (Arg(shape),), attrs)
        yield Case("group_norm", (Arg(shape), vector, vector), attrs)
        yield Case("group_norm", (Arg(shape, F16), None, weight(shape[1:2], F16)), attrs)
    for layout in LAYOUTS:
        yield Case("group_norm", (Arg((2, 4, 6), layout=layout), weight((4,))), {"n_groups": 2})


def cases() -> Iterator[Case]:
    yield from reductions()
    yield from several_axes()
    yield from group_norm()
    yield from extremes()
