"""Normalise basic NumPy indexing to one ``slice`` op and at most one ``reshape`` op."""

from __future__ import annotations

import operator
from typing import Any, NamedTuple

from hotshoe_core.errors import ShapeError

__all__ = ["Slice", "normalise"]

Shape = tuple[int, ...]


class Slice(NamedTuple):
    """A normalised slice of one axis: 0 <= start <= stop <= size, step >= 1."""

    start: int
    stop: int
    step: int

    @property
    def size(self) -> int:
        """The number of elements that the slice selects."""
        return -(-(self.stop - self.start) // self.step)


def normalise(indexed: Shape, key: Any, tensor: object) -> tuple[tuple[Slice, ...], Shape]:
    """One slice for each axis of shape ``indexed``, and the shape of ``x[key]``.

    That shape lacks the axes of integers in ``key`` and has a new axis for each None. ``tensor``: what
    errors show. Raises ShapeError for a key that is not basic indexing, or is out of range.
    """
    keys = list(key) if isinstance(key, tuple) else [key]
    n_axes = sum(k is not None and k is not Ellipsis for k in keys)
    if n_axes > len(indexed):
        raise ShapeError(f"{tensor} has {len(indexed)} axes; got {n_axes} indices")
    n_ellipses = sum(k is Ellipsis for k in keys)
    if n_ellipses > 1:
        raise ShapeError(f"an index of {tensor} has {n_ellipses} '...'; expected one at most")
    position = next((i for i, k in enumerate(keys) if k is Ellipsis), len(keys))
    keys[position : position + 1] = [slice(None)] * (len(indexed) - n_axes)

    slices: list[Slice] = []
    shape: list[int] = []
    for k in keys:
        if k is None:
            shape.append(1)
            continue
        size = indexed[len(slices)]
        if isinstance(k, slice):
            start, stop, step = k.indices(size)
            if step < 1:
                raise ShapeError(f"slice {k} of {tensor}: steps must be positive")
            slices.append(Slice(start, max(start, stop), step))
            shape.append(slices[-1].size)
        else:
            slices.append(_single(tensor, k, len(slices), size))
    return tuple(slices), tuple(shape)


def _single(tensor: object, k: Any, axis: int, size: int) -> Slice:
    try:
        i = operator.index(k)
    except TypeError:
        raise ShapeError(
            f"{tensor} indexed with {type(k).__name__}; expected integers, slices, '...' or None",
            hint="use x.take(indices) to gather rows by a tensor of indices",
        ) from None
    if not -size <= i < size:
        raise ShapeError(f"index {i} is out of range for axis {axis} of {tensor}")
    return Slice(i % size, i % size + 1, 1)
