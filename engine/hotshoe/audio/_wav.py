"""``read_wav``: the samples of a WAV file that is not compressed.

Source: Microsoft, Multiple Channel Audio Data and WAVE Files (2007); IBM and Microsoft, Multimedia Programming
Interface and Data Specifications 1.0 (1991). Nothing is allocated by what a header claims: samples are views of the
bytes.
"""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

import numpy as np

from hotshoe_core.errors import AudioError

__all__ = ["Wave", "is_wav", "read_wav"]

Array = np.ndarray[Any, Any]

_PCM, _FLOAT, _EXTENSIBLE = 1, 3, 0xFFFE
_UNKNOWN = 0xFFFFFFFF  # the size that programs write which do not know it yet: the data reach to the end
_MAX_CHANNELS = 64
_ELEMENTS = {(_PCM, 8): "u1", (_PCM, 16): "<i2", (_PCM, 24): "u1", (_PCM, 32): "<i4", (_FLOAT, 32): "<f4"} | {
    (_FLOAT, 64): "<f8"
}


class Wave(NamedTuple):
    """The samples of a file as it stores them."""

    stored: Array
    """(n, channels) of uint8, int16, int32 or floats; (n, channels, 3) uint8 for 24 bits."""
    rate: int
    """Samples per second."""

    def samples(self) -> Array:
        """(n, channels) float32, from -1 to 1."""
        stored = self.stored
        if stored.ndim == 3:  # 24 bits: the upper bytes of 32
            wide = np.zeros((*stored.shape[:2], 4), np.uint8)
            wide[..., 1:] = stored
            stored = wide.view("<i4")[..., 0]
        if stored.dtype.kind == "f":
            with np.errstate(over="ignore"):  # infinity is refused later
                return stored.astype(np.float32)
        if stored.dtype == np.uint8:  # without a sign: silence is 128
            return (stored.astype(np.float32) - 128) / 128
        return stored.astype(np.float32) / np.float32(-float(np.iinfo(stored.dtype).min))


def is_wav(data: bytes) -> bool:
    """Whether a file begins as a WAV file does."""
    return data[:4] == b"RIFF" and data[8:12] == b"WAVE"


def read_wav(data: bytes) -> Wave | str:
    """Return the samples of a WAV file, or what its compression is called.

    Raises AudioError if the file is damaged, or holds less than its header says.
    """
    form: _Form | None = None
    at = 12
    while at + 8 <= len(data):
        name, size = struct.unpack_from("<4sI", data, at)
        at += 8
        if name == b"fmt ":
            found = _form(data[at : at + min(size, 40)])
            if isinstance(found, str):
                return found
            form = found
        elif name == b"data":
            if form is None:
                raise AudioError("the WAV file has samples before it says what they are", hint="the file is damaged")
            return _samples(data, at, size, form)
        at += size + size % 2
    what = "no samples" if form is not None else "no description of its samples"
    raise AudioError(f"the WAV file has {what}: it ends after {len(data)} bytes", hint="the file is incomplete")


class _Form(NamedTuple):
    element: str
    n_bytes: int
    channels: int
    rate: int


def _form(chunk: bytes) -> _Form | str:
    if len(chunk) < 16:
        raise AudioError(f"the WAV file describes its samples in {len(chunk)} bytes; expected 16 or more")
    tag, channels, rate, _, align, bits = struct.unpack_from("<HHIIHH", chunk)
    if tag == _EXTENSIBLE and len(chunk) >= 26:
        (tag,) = struct.unpack_from("<H", chunk, 24)
    if tag not in (_PCM, _FLOAT):
        return f"format {tag}"
    element = _ELEMENTS.get((tag, bits))
    if element is None:
        kind = "floats" if tag == _FLOAT else "integers"
        raise AudioError(
            f"the WAV file has {kind} of {bits} bits; expected integers of 8, 16, 24 or 32 bits, or floats of 32 or 64"
        )
    if not 1 <= channels <= _MAX_CHANNELS or align != channels * bits // 8:
        raise AudioError(
            f"the WAV file has {channels} channels of {bits} bits in {align} bytes; expected 1 to {_MAX_CHANNELS} "
            "channels, and their bytes",
            hint="the file is damaged",
        )
    return _Form(element, bits // 8, channels, rate)


def _samples(data: bytes, at: int, size: int, form: _Form) -> Wave:
    left = len(data) - at
    size = left if size == _UNKNOWN else size
    if size > left:
        raise AudioError(
            f"the WAV file says that it has {size} bytes of samples, but it ends after {left}",
            hint="the file is incomplete: download or record it again",
        )
    frame = form.channels * form.n_bytes
    if size % frame:
        raise AudioError(f"the WAV file has {size} bytes of samples, which is not a multiple of {frame}")
    n = size // frame
    axes = (n, form.channels, 3) if form.n_bytes == 3 else (n, form.channels)
    count = n * form.channels * (3 if form.n_bytes == 3 else 1)
    return Wave(np.frombuffer(data, form.element, count, at).reshape(axes), form.rate)
