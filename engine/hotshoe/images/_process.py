"""What encoders do with pictures before they read them: choose a size, resize, pad and normalise."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from hotshoe_core.errors import ImageError

__all__ = [
    "Filter",
    "Size",
    "center_cropped",
    "check_ratio",
    "fit_within",
    "in_tiles",
    "normalized",
    "resized",
    "smart_size",
    "tile_grid",
]

Array = np.ndarray[Any, Any]
Filter = Literal["bilinear", "bicubic", "lanczos"]


_MAX_RATIO = 200  # of the longer side to the shorter one


class Size(NamedTuple):
    """A height and a width, in pixels or patches."""

    height: int
    width: int


def smart_size(height: int, width: int, unit: int, min_pixels: int, max_pixels: int) -> Size:
    """Return the size nearest to a picture's whose sides are multiples of ``unit`` and whose area is within limits.

    Source: smart_resize of Qwen2-VL (Wang et al. 2024, arXiv:2409.12191). Raises ImageError if the longer side is more
    than 200 times the shorter one.
    """
    check_ratio(height, width)
    h, w = max(unit, round(height / unit) * unit), max(unit, round(width / unit) * unit)
    if h * w > max_pixels:
        beta = math.sqrt(height * width / max_pixels)
        h = max(unit, math.floor(height / beta / unit) * unit)
        w = max(unit, math.floor(width / beta / unit) * unit)
    elif h * w < min_pixels:
        beta = math.sqrt(min_pixels / (height * width))
        h, w = math.ceil(height * beta / unit) * unit, math.ceil(width * beta / unit) * unit
    return Size(h, w)


def fit_within(height: int, width: int, limit: int) -> Size:
    """Return the size of a picture made smaller, if need be, so that no side is longer than ``limit``."""
    ratio = max(height / limit, width / limit, 1.0)
    return Size(max(1, math.floor(height / ratio)), max(1, math.floor(width / ratio)))


def resized(pixels: Array, size: Size, filter: Filter) -> Array:
    """Resize a picture: (h, w, 3) uint8 to (*size, 3) uint8, with Pillow's filter."""
    from PIL import Image

    if pixels.shape[:2] == size:
        return pixels
    resampling = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}
    chosen = resampling.get(filter, Image.Resampling.LANCZOS)
    return np.asarray(Image.fromarray(pixels).resize((size.width, size.height), chosen))


def center_cropped(pixels: Array, side: int, filter: Filter) -> Array:
    """Resize a picture so that its shorter side is ``side``, and cut the longer one: (h, w, 3) to (side, side, 3).

    Raises ImageError if the longer side is more than 200 times the shorter one, because it would become too long.
    """
    h, w = pixels.shape[:2]
    check_ratio(h, w)
    size = Size(int(side * h / w), side) if h > w else Size(side, int(side * w / h))
    top, left = (size.height - side) // 2, (size.width - side) // 2
    return resized(pixels, size, filter)[top : top + side, left : left + side]


def tile_grid(height: int, width: int, tile: int, fewest: int, most: int) -> Size:
    """Return the rows and columns of tiles that a picture is cut into: the grid whose shape is nearest to its own.

    tile: the side of a tile, in pixels. fewest, most: limits of the number of tiles. Among grids that are equally near,
    a larger one is taken if the picture has more than half as many pixels. Source: dynamic_preprocess of InternVL 1.5
    (Chen et al. 2024, arXiv:2404.16821).
    """
    sizes = [(w, h) for w in range(1, most + 1) for h in range(1, most // w + 1) if w * h >= fewest]
    best, nearest = Size(1, 1), math.inf
    for w, h in sorted(sizes, key=math.prod):
        distance = abs(width / height - w / h)
        if distance < nearest or (distance == nearest and height * width > 0.5 * tile**2 * w * h):
            best, nearest = Size(h, w), distance
    return best


def in_tiles(pixels: Array, tile: Size) -> Array:
    """Cut a picture into tiles of one size, row by row: (h, w, 3) to (n, *tile, 3)."""
    h, w = pixels.shape[0] // tile.height, pixels.shape[1] // tile.width
    return pixels.reshape(h, tile.height, w, tile.width, 3).swapaxes(1, 2).reshape(-1, *tile, 3)


def normalized(pixels: Array, mean: Sequence[float], std: Sequence[float]) -> Array:
    """``(pixels / 255 - mean) / std`` of each channel: (..., h, w, 3) uint8 to (..., 3, h, w) float32."""
    scaled = (pixels * (1 / 255)).astype(np.float32)
    values = (scaled - np.asarray(mean, np.float32)) / np.asarray(std, np.float32)
    return np.ascontiguousarray(np.moveaxis(values, -1, -3))


def check_ratio(height: int, width: int) -> None:
    """Raise ImageError if the longer side of a picture is more than 200 times the shorter one."""
    if max(height, width) > _MAX_RATIO * min(height, width):
        raise ImageError(
            f"the picture is {width} x {height}; this model reads pictures whose longer side is at most "
            f"{_MAX_RATIO} times the shorter one",
            hint="cut it into pieces",
        )
