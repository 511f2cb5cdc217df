"""Basic NumPy indexing, normalised to one ``slice`` and at most one ``reshape``."""

from __future__ import annotations

import operator
from typing import Any

from hotshoe_core.errors import ShapeError
from hotshoe_core.tensor import TABLE, Shape, Slice, Tensor


def index(x: Tensor, key: Any) -> Tensor:
    """``x[key]``. Raises ShapeError for what symbolic basic indexing cannot do."""
    slices, shape = _normalised(x, key)
    if all(s == (0, size, 1) for s, size in zip(slices, x.shape)):
        cut = x
    else:
        cut = TABLE["slice"](x, slices=slices)
    return cut if cut.shape == shape else cut.reshape(*shape)


def replace(x: Tensor, key: Any, values: Tensor) -> Tensor:
    """``x`` with ``x[key] = values``. Raises ShapeError where ``index`` does, and for values that do not broadcast."""
    slices, shape = _normalised(x, key)
    values = values if values.shape == shape else TABLE["expand"](values, shape=shape)
    sizes = tuple(-(-(s.stop - s.start) // s.step) for s in slices)
    return TABLE["set_slice"](x, values if values.shape == sizes else values.reshape(*sizes), slices=slices)


def _normalised(x: Tensor, key: Any) -> tuple[tuple[Slice, ...], Shape]:
    """One slice an axis, and the shape of what they select once integers have dropped axes and None has added some."""
    keys = list(key) if isinstance(key, tuple) else [key]
    n_axes = sum(k is not None and k is not Ellipsis for k in keys)
    if n_axes > x.ndim:
        raise ShapeError(f"{x!r} has {x.ndim} axes; got {n_axes} indices")
    n_ellipses = sum(k is Ellipsis for k in keys)
    if n_ellipses > 1:
        raise ShapeError("an index may have one '...'")
    at = next((i for i, k in enumerate(keys) if k is Ellipsis), len(keys))
    keys[at : at + 1] = [slice(None)] * (x.ndim - n_axes)

    slices: list[Slice] = []
    shape: list[int] = []
    for k in keys:
        if k is None:
            shape.append(1)
            continue
        size = x.shape[len(slices)]
        if isinstance(k, slice):
            start, stop, step = k.indices(size)
            if step < 1:
                raise ShapeError(f"slice {k} of {x!r}: steps must be positive")
            stop = max(start, stop)
            slices.append(Slice(start, stop, step))
            shape.append(-(-(stop - start) // step))
        else:
            slices.append(_single(x, k, len(slices), size))
    return tuple(slices), tuple(shape)


def _single(x: Tensor, k: Any, axis: int, size: int) -> Slice:
    try:
        i = operator.index(k)
    except TypeError:
        raise ShapeError(
            f"{x!r} indexed with a {type(k).__name__}; expected integers, slices, '...' or None",
            hint="to gather rows by a tensor of indices, use x.take(indices)",
        ) from None
    if not -size <= i < size:
        raise ShapeError(f"index {i} is out of range for axis {axis} of {x!r}")
    return Slice(i % size, i % size + 1, 1)
