"""What encoders do with sounds before they read them: another number of samples per second, and log-mel spectrums."""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from hotshoe.audio._read import Sound

__all__ = ["HOP", "log_mel", "resampled"]

Array = np.ndarray[Any, Any]

_ZEROS = 64  # zero crossings on each side of the filter
_BETA = 10.0  # of its Kaiser window: what would be mirrored is 100 dB lower
_CUTOFF = 0.95  # as a part of the highest frequency

HOP = 160
"""Samples from a frame of the spectrum to the next."""
_FRAME = 400
_RATE = 16_000
_BLOCK = 3000  # frames at once


def resampled(sound: Sound, rate: int) -> Array:
    """Return the samples of a sound at another rate: (n,) float32.

    A windowed sinc in polyphase form (Smith, Digital Audio Resampling, 2002): frequencies above 95 % of half the lower
    rate fade out, and those that would be mirrored are 100 dB lower.
    """
    if sound.rate == rate:
        return sound.samples
    shared = math.gcd(sound.rate, rate)
    up, down = rate // shared, sound.rate // shared
    cutoff = _CUTOFF * min(1.0, up / down)
    half = math.ceil(_ZEROS / cutoff)
    n_out = -(-len(sound.samples) * up // down)
    # the last output may need all taps after the last sample
    padded = np.concatenate([np.zeros(half - 1, np.float32), sound.samples, np.zeros(half + down + 1, np.float32)])
    out = np.empty(n_out, np.float32)
    taps = np.arange(1 - half, half + 1)
    for phase in range(min(up, n_out)):
        first, rest = divmod(phase * down, up)
        distance = taps - rest / up
        weights = np.sinc(cutoff * distance) * np.interp(np.abs(distance) / half, *_kaiser())
        count = len(range(phase, n_out, up))
        step = padded.strides[0]
        rows = as_strided(padded[first:], (count, len(taps)), (down * step, step), writeable=False)
        out[phase::up] = rows @ (weights / weights.sum()).astype(np.float32)
    return out


@functools.cache
def _kaiser() -> tuple[Array, Array]:
    """Places from the middle to the edge, 0 to 1, and the Kaiser window there. A rate may need it at 16,000 places."""
    places = np.linspace(0.0, 1.0, 1 << 14)
    return places, np.i0(_BETA * np.sqrt(1 - places**2)) / np.i0(_BETA)


@functools.cache
def _filters(n_mels: int) -> Array:
    """Triangular filters on the mel scale, each of area 1: (n_mels, frequencies).

    Source: Slaney, Auditory Toolbox (1998): the scale is linear below 1000 Hz and logarithmic above.
    """
    step, corner, ratio = 200 / 3, 1000.0, math.log(6.4) / 27
    highest = corner / step + math.log(_RATE / 2 / corner) / ratio
    mels = np.linspace(0.0, highest, n_mels + 2)
    edges = np.where(mels < corner / step, mels * step, corner * np.exp(ratio * (mels - corner / step)))
    frequencies = np.linspace(0.0, _RATE / 2, _FRAME // 2 + 1)
    below, middle, above = edges[:-2, None], edges[1:-1, None], edges[2:, None]
    rising = (frequencies - below) / (middle - below)
    falling = (above - frequencies) / (above - middle)
    filters: Array = np.maximum(0.0, np.minimum(rising, falling)) * 2 / (above - below)
    return filters


def log_mel(samples: Array, n_mels: int) -> Array:
    """Return the log-mel spectrum that Whisper reads: (n_mels, n // 160) float32.

    samples: (n,) at 16 kHz, n at least 201. Frames of 25 ms begin every 10 ms; powers of 10 lower than 8 below the
    largest are cut off. Source: Radford et al. 2022, arXiv:2212.04356, and the code that they published with it.
    """
    n = len(samples) // HOP
    padded = np.pad(samples.astype(np.float64), _FRAME // 2, mode="reflect")
    window = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(_FRAME) / _FRAME)
    step = padded.strides[0]
    frames = as_strided(padded, (n, _FRAME), (HOP * step, step), writeable=False)
    filters = _filters(n_mels)
    spectrum = np.empty((n_mels, n), np.float32)
    for start in range(0, n, _BLOCK):
        power = np.abs(np.fft.rfft(frames[start : start + _BLOCK] * window)) ** 2
        spectrum[:, start : start + _BLOCK] = np.log10(np.maximum(filters @ power.T, 1e-10))
    scaled: Array = (np.maximum(spectrum, spectrum.max() - 8) + 4) / 4
    return scaled
