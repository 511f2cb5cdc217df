"""Files of sounds with something changed: read as finite samples, or refused in words."""

from __future__ import annotations

import io
import random
import struct
from typing import Any

import numpy as np

from hotshoe.audio import read_audio
from tests.engine.test_audio import FORMATS, wav
from tests.fuzz.fault import Fault
from tests.fuzz.files import damaged_bytes, measured

__all__ = ["SEEDS", "SHARE", "run"]

SEEDS: tuple[int, ...] = ()
SHARE = 400
_NUMBERS = (0, 1, 2, 3, 7, 24, 255, 999, 768_001, 2**15, 2**31 - 1, 2**31, 2**32 - 2, 2**32 - 1)
_OTHERS = ("FLAC", "OGG", "MP3", "AIFF", "CAF", "W64", "AU")


def run(seed: int) -> str:
    rng = random.Random(seed)
    raw = _changed(_sound(rng), rng)
    return measured(lambda: _read(raw))


def _read(raw: bytes) -> str:
    samples = read_audio(raw).samples
    if samples.dtype != np.float32 or samples.ndim != 1 or not np.isfinite(samples).all():
        raise Fault("different", f"{samples.dtype} {samples.shape}")
    return "answered"


def _sound(rng: random.Random) -> bytes:
    n, channels = rng.randrange(1600, 9000), rng.randrange(1, 4)
    noise = np.random.default_rng(rng.randrange(1 << 30)).uniform(-0.5, 0.5, (n, channels))
    rate = rng.choice((8000, 16_000, 44_100))
    if rng.random() < 0.6:
        more = b"LIST" + struct.pack("<I", 5) + b"INFOx\0" if rng.random() < 0.3 else b""
        return wav(noise, rng.choice(sorted(FORMATS)), rate, more=more)
    try:
        import soundfile  # optional
    except ImportError:
        return wav(noise, "<i2", rate)
    out: Any = io.BytesIO()
    soundfile.write(out, noise[:, :2], rate, format=rng.choice(_OTHERS))
    found: bytes = out.getvalue()
    return found


def _changed(raw: bytes, rng: random.Random) -> bytes:
    for _ in range(rng.choice((1, 1, 2, 3))):
        raw = _with_odd_number(raw, rng) if rng.random() < 0.5 else damaged_bytes(raw, rng)
        raw = raw or b"\0"
    return raw


def _with_odd_number(raw: bytes, rng: random.Random) -> bytes:
    """A size, a rate or a count near the beginning that is small, large or nearly right."""
    form = rng.choice(("<H", ">H", "<I", ">I"))
    size = struct.calcsize(form)
    at = rng.randrange(max(1, min(len(raw) - size, 60)))
    value = rng.choice(_NUMBERS) % (1 << 8 * size)
    return raw[:at] + struct.pack(form, value) + raw[at + size :]
