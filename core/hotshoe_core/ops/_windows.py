"""Which elements a sliding window reads: index arithmetic in NumPy, done once when a graph is built."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hotshoe_core.errors import ShapeError
from hotshoe_core.ops.movement import concat
from hotshoe_core.ops.rules import F32, Array
from hotshoe_core.tensors.tensor import Shape, Tensor, constant


def integers(name: str, value: Any, n: int, *, least: int) -> tuple[int, ...]:
    """``value`` as ``n`` integers of at least ``least``; one integer stands for all axes."""
    values = tuple(value) if isinstance(value, Sequence) else (value,) * n
    if len(values) != n:
        raise ShapeError(f"{name} is {value!r}; expected one integer, or {n}")
    if any(isinstance(v, bool) or not isinstance(v, (int, np.integer)) or not least <= v < 2**31 for v in values):
        raise ShapeError(f"{name} is {value!r}; expected integers of at least {least} that fit into 32 bits")
    return tuple(int(v) for v in values)


def split_batch(shape: Shape, dims: int) -> tuple[Shape, Shape]:
    """(n, channels, *sizes) or (channels, *sizes) as the batch axis, if there is one, and the others."""
    if len(shape) not in (dims + 1, dims + 2):
        raise ShapeError(
            f"x must have {dims + 2} axes, (n, channels, *sizes), or {dims + 1} without the batch's; got {len(shape)}"
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
    """How many windows fit along each axis. ``ceil``: also one that begins inside and ends beyond the padding."""
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
    """Which element each tap of each window reads: (prod(out), prod(kernel)), flat; -1 beyond the edge."""
    axes = []
    for size, k, s, p, d, n in zip(sizes, kernel, stride, padding, dilation, out):
        at = (np.arange(n) * s - p)[:, None] + np.arange(k) * d
        axes.append(np.where((at >= 0) & (at < size), at, -1))
    return _flat(axes, sizes)


def transposed_windows(
    sizes: Sequence[int],
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    out: Sequence[int],
) -> tuple[Array, Array]:
    """Which elements reach each element of a transposed convolution, and by which taps.

    Both (prod(out), m) and flat, where m is the most that reach one; -1 where there are fewer.
    """
    sources, taps = [], []
    for size, k, s, p, d, n in zip(sizes, kernel, stride, padding, dilation, out):
        tap = np.broadcast_to(np.arange(k), (n, k))
        position = np.arange(n)[:, None] + p - tap * d  # where the tap's source lies, times the stride
        reaches = (position >= 0) & (position % s == 0) & (position < size * s)
        most = max(1, int(reaches.sum(1).max()))
        first = np.argsort(~reaches, axis=1, kind="stable")[:, :most]  # those that reach come first
        reaches, position, tap = (np.take_along_axis(a, first, 1) for a in (reaches, position, tap))
        sources.append(np.where(reaches, position // s, -1))
        taps.append(np.where(reaches, tap, -1))
    return _flat(sources, sizes), _flat(taps, kernel)


def gather(rows: Tensor, at: Array, fill: float = 0.0) -> Tensor:
    """``rows[at]``, and ``fill`` where ``at`` is -1: (m, width) and (n, k) give (n, k, width)."""
    m, width = rows.shape
    if np.array_equal(at.reshape(-1), np.arange(m)):
        return rows.cast(F32).reshape(*at.shape, width)
    if at.min() < 0:
        rows = concat(rows.cast(F32), constant(np.full((1, width), fill, np.float32), "fill"))
        at = np.where(at < 0, m, at)
    return rows.take(constant(at.astype(np.int32), "windows"))


def _flat(axes: Sequence[Array], sizes: Sequence[int]) -> Array:
    """Indices of each axis, (out, taps), as those of the flattened axes: (prod(out), prod(taps))."""
    out: Array = np.zeros((1, 1), np.int64)
    taps: Array = np.ones((1, 1), bool)
    for axis, size in zip(axes, sizes):
        out = (out[:, None, :, None] * size + axis[None, :, None, :]).reshape(len(out) * len(axis), -1)
        inside = taps[:, None, :, None] & (axis >= 0)[None, :, None, :]
        taps = inside.reshape(out.shape)
    return np.where(taps, out, -1)
