"""Cases of convolution."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hotshoe_core.tensors.dtypes import DType
from hotshoe_core.tensors.tensor import Shape
from hotshoe_core.testing.cases._shared import BF16, F16, LAYOUTS
from hotshoe_core.testing.operands import Arg, Case, weight
from hotshoe_core.testing.run import F32, Layout

__all__ = ["cases"]

SIZES = (9, 7, 5)
UNLIKE: tuple[dict[str, Any], ...] = (
    {"stride": (3,), "padding": (1,), "dilation": (2,)},
    {"stride": (3, 1), "padding": (0, 4), "dilation": (1, 2)},
    {"stride": (2, 1, 3), "padding": (0, 3, 1), "dilation": (1, 3, 2)},
)
"""Attributes of windows over one, two and three axes that differ from axis to axis, and from one another."""


def im2col() -> Iterator[Case]:
    variants: tuple[dict[str, Any], ...]
    variants = (
        {}, {"stride": 3, "padding": 1}, {"padding": 2, "dilation": 2}, {"stride": 2, "padding": 1, "dilation": 3},
    )  # fmt: skip
    for dims in (1, 2, 3):
        kernel = (3, 2, 2)[:dims]
        for attrs in variants:
            yield Case("im2col", (Arg((3, *SIZES[:dims])),), {"kernel_size": kernel, **attrs})
            yield Case("im2col", (Arg((2, 3, *SIZES[:dims])),), {"kernel_size": kernel, **attrs}, optional=dims == 3)
        yield Case("im2col", (Arg((3, *SIZES[:dims])),), {"kernel_size": (1,) * dims})
        yield Case("im2col", (Arg((1, *SIZES[:dims])),), {"kernel_size": SIZES[:dims]})
        yield Case("im2col", (Arg((2, *(6,) * dims)),), {"kernel_size": (3,) * dims, "stride": 3})  # side by side
        for layout in LAYOUTS:
            yield Case("im2col", (Arg((3, *SIZES[:dims]), layout=layout),), {"kernel_size": kernel, "padding": 1})
        yield Case("im2col", (Arg((3, *SIZES[:dims]), F16),), {"kernel_size": kernel})
    yield Case("im2col", (Arg((3, 9, 7), BF16),), {"kernel_size": (2, 2)})
    for kernel, attrs in zip(((2,), (2, 3), (3, 1, 2)), UNLIKE):
        yield Case("im2col", (Arg((3, *SIZES[: len(kernel)])),), {"kernel_size": kernel, **attrs})


def conv() -> Iterator[Case]:
    def case(
        dims: int,
        batch: Shape = (2,),
        *,
        kernel: int = 3,
        out: int = 6,
        bias: bool = True,
        dtype: DType = F32,
        x_dtype: DType = F32,
        layout: Layout = "plain",
        weight_layout: Layout = "plain",
        folded: bool = False,
        **attrs: Any,
    ) -> Case:
        taken = 4 // attrs.get("groups", 1)
        leading = (out * taken,) if folded else (out, taken)
        w = weight((*leading, *(kernel,) * dims), dtype, layout=weight_layout)
        x = Arg((*batch, 4, *SIZES[:dims]), x_dtype, layout=layout)
        five = x.shape[4:] or w.shape[4:]  # a backend need not hold tensors of five axes
        return Case(f"conv{dims}d", (x, w, weight((out,)) if bias else None), attrs, optional=bool(five))

    for dims in (1, 2, 3):
        folded = dims == 3
        for batch in ((), (2,)):
            yield case(dims, batch, folded=folded)
            yield case(dims, batch, folded=folded, bias=False, kernel=2, stride=3, padding=2, dilation=2)
            yield case(dims, batch, folded=folded, kernel=10, padding=5)  # wider than the input
            yield case(dims, batch, folded=folded, kernel=1)
            yield case(dims, batch, folded=folded, groups=2, padding=1)
            yield case(dims, batch, folded=folded, groups=4, out=4, padding=1, stride=2)  # depthwise
            yield case(dims, batch, folded=folded, groups=4, out=8, dilation=2)
        for layout in LAYOUTS:
            yield case(dims, (), folded=folded, layout=layout)
            yield case(dims, (), folded=folded, layout=layout, groups=4, out=4)
            yield case(dims, (), folded=folded, weight_layout=layout)
            yield case(dims, (), folded=folded, weight_layout=layout, groups=4, out=4)
        for dtype in (F16, BF16):
            yield case(dims, (), folded=folded, dtype=dtype)
            yield case(dims, (), folded=folded, dtype=dtype, groups=4, out=4)
            yield case(dims, (), folded=folded, x_dtype=dtype)
            yield case(dims, (), folded=folded, x_dtype=dtype, groups=4, out=4)
        yield case(dims, (), bias=False)  # dims 3: a weight of five axes
    for dims, unlike in enumerate(UNLIKE, 1):
        yield case(dims, (), folded=dims == 3, **unlike)
        yield case(dims, (), folded=dims == 3, groups=4, out=4, **unlike)
        kernel = (2, 3, 1)[:dims]
        operands = Arg((4, *SIZES[:dims])), weight((24, *kernel) if dims == 3 else (6, 4, *kernel))
        yield Case(f"conv{dims}d", operands, unlike)
    yield Case("conv2d", (Arg((1, 3, 28, 28)), weight((20, 3, 14, 14), F16)), {"stride": 14})  # patches of an image
    yield Case("conv1d", (Arg((1, 12, 40)), weight((16, 12, 3)), weight((16,))), {"stride": 2, "padding": 1})
    yield Case("conv2d", (Arg((3, 5, 5)), Arg((4, 3, 2, 2)), Arg((4,), layout="stepped")))


def conv_transpose() -> Iterator[Case]:
    variants: tuple[dict[str, Any], ...] = (
        {"kernel": 3},
        {"kernel": 2, "stride": 2},
        {"kernel": 3, "stride": 2, "padding": 1, "output_padding": 1, "groups": 2},
        {"kernel": 4, "stride": 3, "padding": 2, "dilation": 2, "groups": 4},
        {"kernel": 2, "stride": 5},
        {"kernel": 10, "padding": 5},
    )
    unlike = {"stride": (3, 2), "padding": (2, 1), "output_padding": (1, 0), "dilation": (1, 2)}
    for groups in (1, 2):
        operands = Arg((4, 9, 7)), weight((4, 3, 4, 3))
        yield Case("conv_transpose2d", operands, {**unlike, "groups": groups})
        operands = Arg((4, 9)), weight((4, 3, 4))
        yield Case("conv_transpose1d", operands, {**UNLIKE[0], "output_padding": 2, "groups": groups})
    for dims in (1, 2):
        op = f"conv_transpose{dims}d"
        for variant in variants:
            attrs = {k: v for k, v in variant.items() if k != "kernel"}
            kernel = weight((4, 3, *(variant["kernel"],) * dims))
            for batch in ((), (2,)):
                yield Case(op, (Arg((*batch, 4, *SIZES[:dims])), kernel), attrs)
            yield Case(op, (Arg((4, *SIZES[:dims])), kernel, weight((3 * attrs.get("groups", 1),))), attrs)
        x, w = (4, *SIZES[:dims]), (4, 3, *(3,) * dims)
        for layout in LAYOUTS:
            yield Case(op, (Arg(x, layout=layout), weight(w)), {"stride": 2})
            yield Case(op, (Arg(x), weight(w, layout=layout)), {"stride": 2})
        for dtype in (F16, BF16):
            yield Case(op, (Arg(x), weight(w, dtype)), {"stride": 2})
            yield Case(op, (Arg(x, dtype), weight(w)), {"stride": 2})


def cases() -> Iterator[Case]:
    yield from im2col()
    yield from conv()
    yield from conv_transpose()
