"""``read_audio``: read a sound, with limits that are checked before anything is decoded."""

from __future__ import annotations

import io
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from hotshoe.audio._wav import is_wav, read_wav
from hotshoe.media import AUDIO, read_source
from hotshoe_core.errors import AudioError, MissingPackageError
from hotshoe_core.errors.arguments import described, integer
from hotshoe_core.errors.text import format_bytes, printable

__all__ = ["MAX_SECONDS", "Sound", "read_audio"]

Array = np.ndarray[Any, Any]

MAX_SECONDS = 3600
"""The longest sound. At 16 kHz it takes 230 MB."""
_MAX_SAMPLES = 1 << 28  # of all channels: 1 GiB decoded
_RATES = 1000, 768_000  # samples per second
_MIN_SECONDS = 0.1
_BLOCK = 1 << 18  # frames that are decoded at once


@dataclass(frozen=True, slots=True, eq=False)
class Sound:
    """A decoded sound with one channel.

    Raises AudioError unless the samples are finite numbers on one axis, 0.1 seconds to one hour of them, at 1,000 to
    768,000 samples per second.
    """

    samples: Array
    """(n,) float32, from -1 to 1 if nothing is louder than full scale."""

    rate: int
    """Samples per second."""

    def __post_init__(self) -> None:
        rate = integer("the samples per second of a sound", self.rate, 1, AudioError)
        samples = self.samples
        if not isinstance(samples, np.ndarray) or samples.ndim != 1 or samples.dtype != np.float32:
            raise AudioError(f"the samples of a sound are {described(samples)}; expected float32 on one axis")
        _check_length(len(samples), 1, rate)
        if not np.isfinite(samples).all():
            raise AudioError("the sound has samples that are NaN or infinite", hint="the file is damaged")
        object.__setattr__(self, "rate", rate)

    @property
    def seconds(self) -> float:
        return len(self.samples) / self.rate


def read_audio(source: Any) -> Sound:
    """Read a sound. Several channels become their mean.

    source: a path, the bytes of a file, an open binary file, a pair (array, samples per second), a mapping with
    ``array`` and ``sampling_rate`` as in data sets of Hugging Face, or a text ``data:audio/wav;base64,…``. An array is
    (n,) or (n, channels): floats, of which 1 is full scale, or integers of 16 or 32 bits. No address is fetched.

    WAV files need no package; FLAC, MP3, OGG and others need ``soundfile``. Raises AudioError if the source is not a
    sound, is damaged, or is larger than 128 MiB, longer than one hour or shorter than 0.1 seconds; MissingPackageError
    if it needs soundfile, which is not installed.
    """
    if isinstance(source, Sound):
        return source
    if isinstance(source, Mapping):
        source = source.get("array"), source.get("sampling_rate")
    if isinstance(source, tuple):
        return _from_array(source)
    if isinstance(source, np.ndarray):
        raise AudioError(
            "the sound is an array without its samples per second", hint="give a pair: (array, samples per second)"
        )
    data = read_source(source, AUDIO)
    name = f"the sound {source}" if isinstance(source, os.PathLike) else "the sound"
    try:
        found = read_wav(data) if is_wav(data) else ""
        if isinstance(found, str):
            return _decoded(data, name, found)
        n, channels = found.stored.shape[:2]
        _check_length(n, channels, found.rate)
        return Sound(_mono(found.samples()), found.rate)
    except AudioError as error:
        raise AudioError(f"{name}: {error.message}", hint=error.hint) from None


def _from_array(pair: tuple[Any, ...]) -> Sound:
    array, rate = pair if len(pair) == 2 else (None, None)
    if not isinstance(array, np.ndarray) or array.ndim not in (1, 2) or array.dtype.kind not in "if":
        raise AudioError(
            f"the sound is {described(pair)}; expected a pair of an array, (n,) or (n, channels), and its samples per "
            "second"
        )
    rate = integer("the samples per second of a sound", rate, 1, AudioError)
    channels = array[:, None] if array.ndim == 1 else array
    _check_length(channels.shape[0], channels.shape[1], rate)
    if array.dtype.kind == "f":
        with np.errstate(over="ignore"):  # infinity is refused by Sound
            return Sound(_mono(channels.astype(np.float32)), rate)
    if array.dtype.itemsize not in (2, 4):
        raise AudioError(f"the sound is an array of {array.dtype}; expected floats, int16 or int32")
    full = np.float32(-float(np.iinfo(array.dtype).min))
    return Sound(_mono(channels.astype(np.float32) / full), rate)


def _mono(samples: Array) -> Array:
    """(n, channels) to (n,)."""
    return samples[:, 0] if samples.shape[1] == 1 else samples.mean(axis=1, dtype=np.float32)


def _check_length(n: int, channels: int, rate: int) -> None:
    if not _RATES[0] <= rate <= _RATES[1]:
        raise AudioError(f"the sound has {rate:,} samples per second; expected {_RATES[0]:,} to {_RATES[1]:,}")
    if n > MAX_SECONDS * rate or n * channels > _MAX_SAMPLES:
        raise AudioError(
            f"the sound has {n / rate:,.1f} seconds in {channels} channels; expected at most {MAX_SECONDS:,} seconds "
            f"and {_MAX_SAMPLES:,} samples",
            hint="cut it into several",
        )
    if channels < 1 or n < _MIN_SECONDS * rate:
        raise AudioError(f"the sound has {n / rate:.3f} seconds; expected {_MIN_SECONDS} or more")


class _Bytes(io.BytesIO):
    """A file for soundfile. To go before the beginning, as damaged files ask for, changes nothing.

    An error would be printed: a C library calls this.
    """

    def seek(self, offset: int, origin: int = 0, /) -> int:
        try:
            return super().seek(offset, origin)
        except (ValueError, OverflowError):
            return self.tell()

    def __repr__(self) -> str:
        return "the bytes"  # errors of soundfile contain it


def _decoded(data: bytes, name: str, what: str) -> Sound:
    """Decode any other file. what: how a WAV file is compressed; "" for other files."""
    try:
        import soundfile  # optional
    except (ImportError, OSError):  # OSError: its library is missing
        start = f"is compressed ({what})" if what else f"begins with '{printable(data[:12].decode('latin-1'), 12)}'"
        raise MissingPackageError(
            f"{name} ({format_bytes(len(data))}) {start}; only WAV files that are not compressed can be read without "
            "the package soundfile",
            hint="pip install soundfile, or save the sound as WAV",
        ) from None
    try:
        with soundfile.SoundFile(_Bytes(data)) as file:
            n, channels, rate = file.frames, file.channels, file.samplerate
            _check_length(n, channels, rate)
            parts, done = [], 0
            while done < n and len(block := file.read(min(_BLOCK, n - done), "float32", always_2d=True)):
                parts.append(_mono(block))
                done += len(block)
    except soundfile.SoundFileError as error:
        start = printable(data[:12].decode("latin-1"), 12)
        raise AudioError(
            f"the file ({format_bytes(len(data))}), which begins with '{start}', cannot be decoded: "
            f"{printable(str(error), 120)}",
            hint="it is not a sound, or it is damaged; formats: WAV, FLAC, MP3, OGG, AIFF",
        ) from None
    if done < n:
        raise AudioError(f"the file says that it has {n / rate:.1f} seconds, but it ends after {done / rate:.1f}")
    return Sound(np.concatenate(parts), rate)
