"""Cases of pooling and interpolation."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from hotshoe_core.tensors.tensor import Shape
from hotshoe_core.testing.cases._shared import BF16, F16, LAYOUTS
from hotshoe_core.testing.operands import Arg, Case
from hotshoe_core.testing.run import Array

__all__ = ["cases"]

SIZES = (9, 7)


def below_zero(rng: np.random.Generator, shape: Shape) -> Array:
    """Mostly negative numbers: a padding of zeros would be the largest."""
    return np.asarray(rng.standard_normal(shape, np.float32) - np.float32(3))


def pools() -> Iterator[Case]:
    variants: tuple[dict[str, Any], ...] = (
        {"kernel_size": 3},
        {"kernel_size": 3, "stride": 2, "padding": 1},
        {"kernel_size": 2, "stride": 3, "padding": 1, "ceil_mode": True},
        {"kernel_size": 5, "stride": 3, "padding": 2, "ceil_mode": True},
        {"kernel_size": 4, "stride": 1, "padding": 2},
    )
    for dims in (1, 2):
        for attrs in variants:
            for batch in ((), (2,)):
                x = (*batch, 3, *SIZES[:dims])
                yield Case(f"max_pool{dims}d", (Arg(x, values=below_zero),), attrs)
                yield Case(f"avg_pool{dims}d", (Arg(x),), attrs)
                yield Case(f"avg_pool{dims}d", (Arg(x),), {**attrs, "count_include_pad": False})
            yield Case(f"max_pool{dims}d", (Arg((3, *SIZES[:dims]), values=below_zero),), {**attrs, "dilation": 2})
        for op in (f"max_pool{dims}d", f"avg_pool{dims}d"):
            for layout in LAYOUTS:
                yield Case(op, (Arg((3, *SIZES[:dims]), layout=layout),), {"kernel_size": 3, "padding": 1})
            for dtype in (F16, BF16):
                yield Case(op, (Arg((3, *SIZES[:dims]), dtype),), {"kernel_size": 2})
    for op in ("max_pool2d", "avg_pool2d"):
        yield Case(op, (Arg((2, 3, 9, 7)),), {"kernel_size": (3, 2), "stride": (1, 3), "padding": (0, 1)})
    attrs = {"kernel_size": (2, 3), "stride": (3, 1), "padding": (0, 1), "dilation": (1, 2)}
    yield Case("max_pool2d", (Arg((3, 9, 7), values=below_zero),), attrs)


def interpolate() -> Iterator[Case]:
    for size in ((9, 7), (18, 21), (4, 3), (13, 2), (1, 1)):
        for mode in ("nearest", "nearest-exact", "bilinear", "bicubic"):
            yield Case("interpolate", (Arg((2, 3, 9, 7)),), {"size": size, "mode": mode})
        for mode in ("bilinear", "bicubic"):
            for option in ("align_corners", "antialias"):
                yield Case("interpolate", (Arg((2, 3, 9, 7)),), {"size": size, "mode": mode, option: True})
    for mode in ("nearest", "bilinear"):
        for shape in ((9, 7), (3, 9, 7)):
            yield Case("interpolate", (Arg(shape),), {"size": (5, 8), "mode": mode})
        for layout in LAYOUTS:
            yield Case("interpolate", (Arg((3, 9, 7), layout=layout),), {"size": (5, 8), "mode": mode})
        for dtype in (F16, BF16):
            yield Case("interpolate", (Arg((3, 9, 7), dtype),), {"size": 6, "mode": mode})


def cases() -> Iterator[Case]:
    yield from pools()
    yield from interpolate()
