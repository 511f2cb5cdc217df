"""Basic NumPy indexing, normalised to one ``slice`` and at most one ``reshape``."""

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
        """How many elements it selects."""
        return -(-(self.stop - self.start) // self.step)


def normalise(of: Shape, key: Any, name: str) -> tuple[tuple[Slice, ...], Shape]:
    """One slice an axis, and the shape of what they select once integers have dropped axes and None has added some.

    of: the shape indexed, of the tensor that errors call ``name``. Raises ShapeError for what symbolic basic indexing
    cannot do.
    """
    keys = list(key) if isinstance(key, tuple) else [key]
    n_axes = sum(k is not None and k is not Ellipsis for k in keys)
    if n_axes > len(of):
        raise ShapeError(f"{name} has {len(of)} axes; got {n_axes} indices")
    n_ellipses = sum(k is Ellipsis for k in keys)
    if n_ellipses > 1:
        raise ShapeError("an index may have one '...'")
    at = next((i for i, k in enumerate(keys) if k is Ellipsis), len(keys))
    keys[at : at + 1] = [slice(None)] * (len(of) - n_axes)

    slices: list[Slice] = []
    shape: list[int] = []
    for k in keys:
        if k is None:
            shape.append(1)
            continue
        size = of[len(slices)]
        if isinstance(k, slice):
            start, stop, step = k.indices(size)
            if step < 1:
                raise ShapeError(f"slice {k} of {name}: steps must be positive")
            slices.append(Slice(start, max(start, stop), step))
            shape.append(slices[-1].size)
        else:
            slices.append(_single(name, k, len(slices), size))
    return tuple(slices), tuple(shape)


def _single(name: str, k: Any, axis: int, size: int) -> Slice:
    try:
        i = operator.index(k)
    except TypeError:
        raise ShapeError(
            f"{name} indexed with a {type(k).__name__}; expected integers, slices, '...' or None",
            hint="to gather rows by a tensor of indices, use x.take(indices)",
        ) from None
    if not -size <= i < size:
        raise ShapeError(f"index {i} is out of range for axis {axis} of {name}")
    return Slice(i % size, i % size + 1, 1)
