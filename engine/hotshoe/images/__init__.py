"""Images: read pictures from files, bytes and arrays, and make them what an encoder expects."""

from hotshoe.images._process import (
    Size,
    center_cropped,
    check_ratio,
    fit_within,
    in_tiles,
    normalized,
    resized,
    smart_size,
    tile_grid,
)
from hotshoe.images._read import Image, read_image

__all__ = [
    "Image",
    "Size",
    "center_cropped",
    "check_ratio",
    "fit_within",
    "in_tiles",
    "normalized",
    "read_image",
    "resized",
    "smart_size",
    "tile_grid",
]
