"""Files of pictures with something changed: read as red, green and blue, or refused in words."""

from __future__ import annotations

import io
import random
import struct
import warnings
import zlib
from typing import Any

import numpy as np
import PIL.Image

from hotshoe.images import read_image
from tests.fuzz.fault import Fault
from tests.fuzz.files import damaged_bytes, measured

__all__ = ["SEEDS", "SHARE", "run"]

SEEDS = (
    1010702,  # a BMP of 7 bytes: untyped
    4005592,  # a PNG of 66 million transparent pixels: 1.2 GB of copies
    5004199,  # a WebP of five lines of 16 million pixels: gigabytes of copies, and a minute
)
SHARE = 400
MAX_PIXELS = 100_000_000

_MODES = {
    "PNG": ("RGB", "RGBA", "L", "LA", "P", "1", "I;16"),
    "JPEG": ("RGB", "L", "CMYK"),
    "WEBP": ("RGB", "RGBA"),
    "GIF": ("P", "L"),
    "BMP": ("RGB", "L", "P", "1"),
    "TIFF": ("RGB", "RGBA", "L", "P", "I;16", "F", "CMYK"),
    "PPM": ("RGB", "L"),
}
_SIDES = (0, 1, 2, 255, 9_999, 10_001, 65_535, 2**31 - 1, 2**31, 2**32 - 1)


def run(seed: int) -> str:
    rng = random.Random(seed)
    raw = _changed(_picture(rng), rng)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Pillow's, of what it passes over
        return measured(lambda: _read(raw))


def _read(raw: bytes) -> str:
    pixels = read_image(raw).pixels
    if pixels.dtype != np.uint8 or pixels.ndim != 3 or pixels.shape[2] != 3 or not 0 < pixels.size <= 3 * MAX_PIXELS:
        raise Fault("different", f"{pixels.dtype} {pixels.shape}")
    pixels.sum()
    return "answered"


def _picture(rng: random.Random) -> bytes:
    kind = rng.choice(sorted(_MODES))
    mode = rng.choice(_MODES[kind])
    shape = rng.randrange(1, 40), rng.randrange(1, 40)
    noise = np.random.default_rng(rng.randrange(1 << 30)).integers(0, 256, (*shape, 3), np.uint8)
    if mode == "I;16":
        image = PIL.Image.fromarray(noise[..., 0].astype(np.uint16) * 257)
    else:
        image = PIL.Image.fromarray(noise).convert(mode)
    options: dict[str, Any] = {}
    if kind in ("GIF", "PNG", "WEBP", "TIFF") and rng.random() < 0.3:
        options = {"save_all": True, "append_images": [image.transpose(PIL.Image.Transpose.ROTATE_180)]}
    if rng.random() < 0.2 and kind in ("JPEG", "PNG", "WEBP"):
        exif = PIL.Image.Exif()
        exif[0x0112] = rng.randrange(0, 10)  # the orientation
        options["exif"] = exif
    if kind == "JPEG":
        options["progressive"] = rng.random() < 0.3
    out = io.BytesIO()
    image.save(out, kind, **options)
    return out.getvalue()


def _changed(raw: bytes, rng: random.Random) -> bytes:
    for _ in range(rng.choice((1, 1, 2, 3))):
        raw = _with_odd_number(raw, rng) if rng.random() < 0.4 else damaged_bytes(raw, rng)
        raw = raw or b"\0"
    return _with_checksums(raw) if rng.random() < 0.8 else raw


def _with_odd_number(raw: bytes, rng: random.Random) -> bytes:
    """A size, an offset or a count near the beginning that is small, large or nearly right."""
    form = rng.choice(("<H", ">H", "<I", ">I"))
    size = struct.calcsize(form)
    at = rng.randrange(max(1, min(len(raw) - size, 120)))
    value = rng.choice(_SIDES) % (1 << 8 * size)
    return raw[:at] + struct.pack(form, value) + raw[at + size :]


def _with_checksums(raw: bytes) -> bytes:
    """A PNG whose chunks have the checksums of what they hold, so that decoders look at it."""
    if raw[:8] != b"\x89PNG\r\n\x1a\n":
        return raw
    out, at = bytearray(raw), 8
    while at + 12 <= len(raw):
        stop = at + 8 + int.from_bytes(raw[at : at + 4], "big")
        if stop + 4 > len(raw):
            break
        out[stop : stop + 4] = struct.pack(">I", zlib.crc32(raw[at + 4 : stop]))
        at = stop + 4
    return bytes(out)
