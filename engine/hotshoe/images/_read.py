"""``read_image``: read a picture, with limits that are checked before anything is decoded."""

from __future__ import annotations

import io
import os
import struct
import threading
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from hotshoe.media import IMAGE, read_source
from hotshoe_core.errors import ImageError, MissingPackageError
from hotshoe_core.errors.text import format_bytes, printable

if TYPE_CHECKING:
    import PIL.Image

__all__ = ["MAX_PIXELS", "Image", "read_image"]

Array = np.ndarray[Any, Any]

MAX_PIXELS = 100_000_000
"""The most pixels of a picture. Decoded, they take 300 MB."""
_MAX_WEBP_PIXELS = 32_000_000  # its decoder keeps several copies: 30 bytes for each pixel
_FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "PPM")
_DAMAGED = (
    *(OSError, ValueError, SyntaxError, EOFError, MemoryError, ArithmeticError, LookupError, TypeError, struct.error),
)
"""What decoders of damaged files raise."""
_FILTERS = threading.Lock()  # Python's filters of warnings belong to all threads
_WHITE = (255, 255, 255, 255)
_ORIENTATION = 0x0112  # a tag of EXIF
_AT_ONCE = 1 << 20  # pixels that are converted: copies of the largest picture would take gigabytes


@dataclass(frozen=True, slots=True, eq=False)
class Image:
    """A decoded picture."""

    pixels: Array
    """(height, width, 3) uint8: red, green and blue."""

    notes: tuple[str, ...] = ()
    """What of the picture is not used, one sentence each: for example, the later frames of an animation."""

    @property
    def height(self) -> int:
        return int(self.pixels.shape[0])

    @property
    def width(self) -> int:
        return int(self.pixels.shape[1])


def read_image(source: Any) -> Image:
    """Read a picture as red, green and blue.

    source: a path, the bytes of a file, an open binary file, a PIL image, an array (height, width), (…, 3) or (…, 4) of
    uint8 or of floats from 0 to 1, or a text ``data:image/png;base64,…``. No address is fetched.

    The camera's orientation (EXIF) is applied. Transparent pixels are laid over white. Of an animation, the first frame
    is read, and ``notes`` says so. Raises ImageError if the source is not a picture, is damaged, or is larger than
    64 MiB or 100 million pixels (32 million for WebP); MissingPackageError without Pillow.
    """
    if isinstance(source, Image):
        return source
    if isinstance(source, np.ndarray):
        return Image(_from_array(source))
    pillow = _pillow()
    if isinstance(source, pillow.Image):
        _check_size(*source.size)
        return _decoded(source)
    data = read_source(source, IMAGE)
    name = f"the picture {source}" if isinstance(source, os.PathLike) else "the picture"
    what = name
    try:
        with _opened(pillow, data) as opened:
            what = f"{name} ({opened.format}, {opened.width} x {opened.height})"
            _check_size(opened.width, opened.height, _MAX_WEBP_PIXELS if opened.format == "WEBP" else MAX_PIXELS)
            # Pillow joins blocks until it has a line, and copies what it has for each: a wide picture takes seconds
            opened.decodermaxblock = min(max(opened.decodermaxblock, 8 * opened.width), IMAGE.max_bytes)  # type: ignore[attr-defined]
            return _decoded(opened)
    except pillow.UnidentifiedImageError:
        start = printable(data[:12].decode("latin-1"), 12)
        raise ImageError(
            f"{name} ({format_bytes(len(data))}) is not a picture; it begins with '{start}'",
            hint=f"formats: {', '.join(_FORMATS)}",
        ) from None
    except ImageError:
        raise
    except _DAMAGED as error:
        raise ImageError(
            f"{what} cannot be decoded: {printable(str(error), 200)}", hint="the file is damaged or incomplete"
        ) from error
    except (pillow.DecompressionBombError, pillow.DecompressionBombWarning) as error:
        raise ImageError(f"{what} is too large: {error}") from error


def _opened(pillow: Any, data: bytes) -> PIL.Image.Image:
    """Read the header. Pillow warns of large pictures before their size can be read: let it raise an error instead."""
    with _FILTERS, warnings.catch_warnings():
        warnings.simplefilter("error", pillow.DecompressionBombWarning)
        opened: PIL.Image.Image = pillow.open(io.BytesIO(data), formats=_FORMATS)
        return opened


def _pillow() -> Any:
    try:
        import PIL.Image  # few processes read pictures
    except ImportError:
        raise MissingPackageError("pictures need the package Pillow", hint="pip install pillow") from None
    return PIL.Image


def _check_size(width: int, height: int, most: int = MAX_PIXELS) -> None:
    if width * height > most:
        raise ImageError(
            f"the picture has {width} x {height} pixels; expected at most {most:,} in all", hint="make it smaller"
        )
    if width < 1 or height < 1:
        raise ImageError(f"the picture has {width} x {height} pixels; expected 1 x 1 or more")


def _decoded(image: PIL.Image.Image) -> Image:
    from PIL import ImageOps

    notes: tuple[str, ...] = ()
    n_frames = getattr(image, "n_frames", 1)
    if n_frames > 1:
        image.seek(0)
        notes = (f"the picture is an animation of {n_frames} frames; the first one is used",)
    if image.getexif().get(_ORIENTATION, 1) != 1:  # otherwise it would be copied
        image = ImageOps.exif_transpose(image)
    width, height = image.size
    pixels = np.empty((height, width, 3), np.uint8)
    rows = max(1, _AT_ONCE // width)
    for top in range(0, height, rows):
        pixels[top : top + rows] = _as_rgb(image.crop((0, top, width, min(height, top + rows))))
    return Image(pixels, notes)


def _as_rgb(image: PIL.Image.Image) -> Array:
    if image.mode.startswith("I") or image.mode == "F":  # 16 bits; convert() would cut values off at 255
        return _from_grey(np.asarray(image))
    if image.has_transparency_data:
        image = image.convert("RGBA")
        image = _pillow().alpha_composite(_pillow().new("RGBA", image.size, _WHITE), image)
    return np.asarray(image.convert("RGB"))


def _from_grey(values: Array) -> Array:
    """Grey values of 16 or 32 bits, or floats from 0 to 1, as three equal channels."""
    if values.dtype.kind == "f":
        grey = np.clip(np.nan_to_num(values), 0, 1) * 255
    else:
        grey = np.clip(values, 0, 65535) / 257
    return np.repeat(np.rint(grey).astype(np.uint8)[..., None], 3, axis=-1)


def _from_array(array: Array) -> Array:
    shape, kind = array.shape, array.dtype
    if array.ndim not in (2, 3) or 0 in shape or (array.ndim == 3 and shape[2] not in (1, 3, 4)):
        raise ImageError(f"the picture is an array of shape {shape}; expected (height, width) or (height, width, 3)")
    _check_size(shape[1], shape[0])
    if kind == np.uint8:
        values = array
    elif kind.kind == "f":
        if not np.isfinite(array).all() or array.min() < 0 or array.max() > 1:
            raise ImageError("the picture is an array of floats that are not all from 0 to 1")
        values = np.rint(array * 255).astype(np.uint8)
    else:
        raise ImageError(f"the picture is an array of {kind}; expected uint8, or floats from 0 to 1")
    if values.ndim == 2 or values.shape[2] == 1:
        return np.repeat(values.reshape(*shape[:2], 1), 3, axis=-1)
    if values.shape[2] == 4:
        alpha = values[..., 3:].astype(np.float32) / 255
        return np.rint(values[..., :3] * alpha + 255 * (1 - alpha)).astype(np.uint8)
    return np.ascontiguousarray(values)
