"""Check the name, element type, layer and sizes of a new leaf."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from hotshoe_core.errors import DTypeError, GraphError, ShapeError
from hotshoe_core.errors.arguments import described, integer
from hotshoe_core.tensors.dtypes import DType

__all__ = ["MAX_ELEMENTS", "require_leaf", "require_sizes"]

MAX_ELEMENTS = 2**48
"""The most elements of one tensor. Then the bytes of all tensors of a graph are still less than 2^63."""


def require_sizes(what: str, shape: Sequence[int], dtype: DType | None = None) -> None:
    """Raise ShapeError unless all sizes are positive and their product is at most MAX_ELEMENTS.

    Empty tensors are refused because backends treat them differently. dtype: the last axis must be a whole number of
    its blocks.
    """
    if not isinstance(shape, Sequence):
        raise ShapeError(f"{what}: the shape is {described(shape)}; expected a tuple of integers")
    for d in shape:
        if isinstance(d, bool) or not isinstance(d, (int, np.integer)):
            raise ShapeError(f"{what}: sizes must be integers, got {described(d)}")
    if any(d < 1 for d in shape):
        raise ShapeError(f"{what}: sizes must be positive, got {tuple(shape)}")
    if math.prod(map(int, shape)) > MAX_ELEMENTS:
        raise ShapeError(f"{what}: sizes {tuple(shape)} make more than 2^48 elements")
    if dtype is not None:
        dtype.nbytes(tuple(shape))


def require_leaf(op: str, name: str, shape: Sequence[int], dtype: DType, layer: int = -1) -> None:
    """Raise GraphError, DTypeError or ShapeError if an argument of a new leaf is invalid."""
    if not isinstance(name, str):
        raise GraphError(f"the name of a new {op} is {described(name)}; expected a str")
    if not isinstance(dtype, DType):
        raise DTypeError(f"{op} {name!r}: the element type is {described(dtype)}; expected a DType, such as DType.F32")
    integer(f"{op} {name!r}: layer", layer, -1, GraphError)
    require_sizes(f"{op} {name!r}", shape, dtype)
