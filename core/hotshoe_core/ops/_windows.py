"""Compute which elements a sliding window reads: index arithmetic in NumPy, done once when a graph is built."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hotshoe_core.errors import ShapeError
from hotshoe_core.ops.movement import concat
from hotshoe_core.ops.rules import F32, Array
from hotshoe_core.tensors.tensor import Shape, Tensor, constant


def integers(name: str, value: Any, n: int, *, least: int) -> tuple[int, ...]:
    """``value`` as ``n`` integers of ``least`` or more; a single integer is used for all axes. Raises ShapeError."""
    values = tuple(value) if isinstance(value, Sequence) else (value,) * n
    if len(values) != n:
        raise ShapeError(f"{name} is {value!r}; expected one integer, or {n}")
    if any(isinstance(v, bool) or not isinstance(v, (int, np.integer)) or not least <= v < 2**31 for v in values):
        raise ShapeError(f"{name} is {value!r}; expected integers of at least {least} that fit into 32 bits")
    return tuple(int(v) for v in values)


def split_batch(shape: Shape, dims: int) -> tuple[Shape, Shape]:
    """Split (n, channels, *sizes) into (n,) and the rest; (channels, *sizes) into () and itself."""
    if len(shape) not in (dims + 1, dims + 2):
        raise ShapeError(
            f"x must have {dims + 2} axes, (n, channels, *sizes), or {dims + 1} without the batch; got {len(shape)}"
        )
    return shape[: len(shape) - dims - 1], shape[len(shape) - dims - 1 :]


def window_sizes(
    sizes: Sequence[int],
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    *,
    ceil: bool = False,
) -> Shape:
    """The number of windows along each axis.

    ``ceil``: count a window that begins inside and ends beyond the padding.
    """
    out = []
    for size, k, s, p, d in zip(sizes, kernel, stride, padding, dilation):
        room = size + 2 * p - d * (k - 1) - 1
        if room < 0:
            raise ShapeError(
                f"the kernel spans {d * (k - 1) + 1} elements, more than the {size + 2 * p} of the padded axis"
            )
        n = (-(-room // s) if ceil else room // s) + 1
        out.append(n - 1 if ceil and (n - 1) * s >= size + p else n)
    return tuple(out)


def windows(
    sizes: Sequence[int],
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    out: Sequence[int],
) -> Array:
    """The flat index of the element that each tap of each window reads, or -1: (prod(out), prod(kernel))."""
    axes = []
    for size, k, s, p, d, n in zip(sizes, kernel, stride, padding, dilation, out):
        position = (np.arange(n) * s - p)[:, None] + np.arange(k) * d
        axes.append(np.where((position >= 0) & (position < size), position, -1))
    return _flat(axes, sizes)


def transposed_windows(
    sizes: Sequence[int],
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    out: Sequence[int],
) -> tuple[Array, Array]:
    """For each element of a transposed convolution: the flat indices of the inputs that add to it, and of their taps.

    Both are (prod(out), m), where m is the largest number of inputs for one element; -1 fills the rest.
    """
    sources, taps = [], []
    for size, k, s, p, d, n in zip(sizes, kernel, stride, padding, dilation, out):
        tap = np.broadcast_to(np.arange(k), (n, k))
        position = np.arange(n)[:, None] + p - tap * d  # the position of the tap's source, times the stride
        reaches = (position >= 0) & (position % s == 0) & (position < size * s)
        most = max(1, int(reaches.sum(1).max()))
        first = np.argsort(~reaches, axis=1, kind="stable")[:, :most]  # inputs that reach the element come first
        reaches, position, tap = (np.take_along_axis(a, first, 1) for a in (reaches, position, tap))
        sources.append(np.where(reaches, position // s, -1))
        taps.append(np.where(reaches, tap, -1))
    return _flat(sources, sizes), _flat(taps, kernel)


def gather(rows: Tensor, indices: Array, fill: float = 0.0) -> Tensor:
    """``rows[indices]``, and ``fill`` where an index is -1: (m, width) and (n, k) give (n, k, width)."""
    m, width = rows.shape
    if np.array_equal(indices.reshape(-1), np.arange(m)):
        return rows.cast(F32).reshape(*indices.shape, width)
    if indices.min() < 0:
        rows = concat(rows.cast(F32), constant(np.full((1, width), fill, np.float32), "fill"))
        indices = np.where(indices < 0, m, indices)
    return rows.take(constant(indices.astype(np.int32), "windows"))


def _flat(axes: Sequence[Array], sizes: Sequence[int]) -> Array:
    """Combine the indices of each axis, (out, taps), to indices of the flattened axes: (prod(out), prod(taps))."""
    out: Array = np.zeros((1, 1), np.int64)
    taps: Array = np.ones((1, 1), bool)
    for axis, size in zip(axes, sizes):
        out = (out[:, None, :, None] * size + axis[None, :, None, :]).reshape(len(out) * len(axis), -1)
        inside = taps[:, None, :, None] & (axis >= 0)[None, :, None, :]
        taps = inside.reshape(out.shape)
    return np.where(taps, out, -1)
