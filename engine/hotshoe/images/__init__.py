"""Images: read pictures from files, bytes and arrays, and make them what an encoder expects."""

from hotshoe.images._process import Size, center_cropped, fit_within, normalized, resized, smart_size
from hotshoe.images._read import Image, read_image

__all__ = [
    "Image",
    "Size",
    "center_cropped",
    "fit_within",
    "normalized",
    "read_image",
    "resized",
    "smart_size",
]
