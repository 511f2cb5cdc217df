"""Audio: read sounds from files, bytes and arrays, and make them what an encoder expects."""

from hotshoe.audio._process import HOP, log_mel, resampled
from hotshoe.audio._read import Sound, read_audio

__all__ = ["HOP", "Sound", "log_mel", "read_audio", "resampled"]
