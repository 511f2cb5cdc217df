"""read_audio, resampled and log_mel: every source and kind of sound, limits, damaged files, and transformers."""

from __future__ import annotations

import base64
import io
import struct
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hotshoe.audio import Sound, log_mel, read_audio, resampled
from hotshoe.audio._read import MAX_SECONDS
from hotshoe.media import AUDIO, take_media
from hotshoe_core.errors import AudioError, MissingPackageError
from tests.towers.row import sound

RATE = 16_000
SAMPLES = sound(0.3)
FORMATS = {"u1": (1, 8), "<i2": (1, 16), "i3": (1, 24), "<i4": (1, 32), "<f4": (3, 32), "<f8": (3, 64)}
STEP = {"u1": 2**-7, "<i2": 2**-15, "i3": 2**-23, "<i4": 2**-31, "<f4": 0.0, "<f8": 0.0}


def stored(samples: np.ndarray[Any, Any], element: str) -> bytes:
    if element[1] == "f":
        return samples.astype(element).tobytes()
    whole = np.rint(samples.astype(np.float64) / STEP[element]).astype("<i4")
    if element == "i3":
        return whole.reshape(-1, 1).view("u1")[:, :3].tobytes()
    return (whole + 128).astype("u1").tobytes() if element == "u1" else whole.astype(element).tobytes()


def wav(
    samples: np.ndarray[Any, Any], element: str = "<i2", rate: int = RATE, *, more: bytes = b"", size: int | None = None
) -> bytes:
    """A WAV file of samples (n,) or (n, channels). more: chunks before the samples. size: what it says of them."""
    channels = 1 if samples.ndim == 1 else samples.shape[1]
    tag, bits = FORMATS[element]
    align = channels * bits // 8
    data = stored(samples, element)
    form = struct.pack("<HHIIHH", tag, channels, rate, rate * align, align, bits)
    chunks = b"fmt " + struct.pack("<I", len(form)) + form + more
    chunks += b"data" + struct.pack("<I", len(data) if size is None else size) + data
    return b"RIFF" + struct.pack("<I", 4 + len(chunks)) + b"WAVE" + chunks


WAV = wav(SAMPLES)


@pytest.mark.parametrize("kind", ["path", "str", "bytes", "file", "data", "pair", "mapping", "sound"])
def test_sources(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "a.wav"
    path.write_bytes(WAV)
    exact = np.float32(np.rint(SAMPLES.astype(np.float64) * 2**15) / 2**15)
    source: Any = {
        "path": path,
        "str": str(path),
        "bytes": WAV,
        "file": io.BytesIO(WAV),
        "data": f"data:audio/wav;base64,{base64.b64encode(WAV).decode()}",
        "pair": (exact, RATE),
        "mapping": {"array": exact.astype(np.float64), "sampling_rate": RATE, "path": None},
        "sound": Sound(exact, RATE),
    }[kind]
    found = read_audio(source)
    assert np.array_equal(found.samples, exact)
    assert (found.rate, found.seconds) == (RATE, 0.3)


@pytest.mark.parametrize("element", FORMATS)
@pytest.mark.parametrize("channels", [1, 2])
def test_kinds_of_wav(element: str, channels: int) -> None:
    samples = SAMPLES if channels == 1 else np.stack([SAMPLES, -0.5 * SAMPLES], axis=1)
    more = b"LIST" + struct.pack("<I", 5) + b"INFOx\0"  # of an odd size: a byte follows it
    found = read_audio(wav(samples, element, 44_100, more=more))
    expected = SAMPLES if channels == 1 else 0.25 * SAMPLES
    assert found.rate == 44_100
    assert np.abs(found.samples - expected).max() <= STEP[element] + 1e-7


def test_wav_of_unknown_size_and_extensible_wav() -> None:
    assert len(read_audio(wav(SAMPLES, size=0xFFFFFFFF)).samples) == len(SAMPLES)
    extensible = struct.pack("<HHIIHHHHIH14s", 0xFFFE, 1, RATE, RATE * 2, 2, 16, 22, 16, 4, 1, b"\0" * 14)
    data = stored(SAMPLES, "<i2")
    chunks = b"fmt " + struct.pack("<I", len(extensible)) + extensible + b"data" + struct.pack("<I", len(data)) + data
    found = read_audio(b"RIFF" + struct.pack("<I", 4 + len(chunks)) + b"WAVE" + chunks)
    assert np.array_equal(found.samples, read_audio(WAV).samples)


def test_arrays_of_integers() -> None:
    whole = np.array([[-(2**15), 2**14]] * RATE, np.int16)
    assert np.array_equal(read_audio((whole, RATE)).samples, np.full(RATE, -0.25, np.float32))


def _with(data: bytes, at: int, form: str, value: int) -> bytes:
    return data[:at] + struct.pack(form, value) + data[at + struct.calcsize(form) :]


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (WAV[:1000], "says that it has 9600 bytes of samples, but it ends after 956"),
        (_with(WAV, 40, "<I", 2**31), "says that it has 2147483648 bytes"),
        (WAV[:30], r"describes its samples in 10 bytes"),
        (WAV[:36], "has no samples: it ends after 36 bytes"),
        (b"RIFF" + struct.pack("<I", 4) + b"WAVE", "has no description of its samples"),
        (_with(WAV, 22, "<H", 0), "0 channels of 16 bits"),
        (_with(WAV, 34, "<H", 12), "integers of 12 bits"),
        (_with(WAV, 24, "<I", 7), "7 samples per second; expected 1,000 to 768,000"),
        (_with(WAV, 24, "<I", 2**32 - 1), "samples per second; expected"),
        (WAV[:-1], "says that it has 9600 bytes"),
        (wav(SAMPLES[:100]), "has 0.006 seconds; expected 0.1 or more"),
        (wav(np.full(RATE, np.inf, np.float32), "<f4"), "NaN or infinite"),
        (b"", "empty"),
        (b"\0" * (AUDIO.max_bytes + 1), "more than 128.0 MiB"),
        ("https://example.org/a.wav", "fetches no addresses"),
        ("data:audio/wav;base64,A", "not valid base64"),
        ("none.wav", "cannot be read: No such file"),
        ((np.zeros((MAX_SECONDS + 1) * 1000, np.int16), 1000), "expected at most 3,600 seconds"),
        ((np.zeros(RATE, np.uint8), RATE), "expected a pair of an array"),
        ((np.zeros((2, 3, 4)), RATE), "expected a pair of an array"),
        ((np.zeros(RATE, np.int64), RATE), "int64; expected floats, int16 or int32"),
        ((np.zeros(RATE), "16000"), "samples per second of a sound is '16000'"),
        ((np.full(RATE, 1e300), RATE), "NaN or infinite"),
        (np.zeros(RATE), "without its samples per second"),
        (17, "the sound is 17"),
    ],
)
def test_errors(source: Any, message: str) -> None:
    with pytest.raises(AudioError, match=message):
        read_audio(source)


@pytest.mark.parametrize("data", [b"ID3 of an MP3", _with(WAV, 20, "<H", 7)])
def test_other_files_need_soundfile(data: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "soundfile", None)
    with pytest.raises(MissingPackageError, match=r"need|without the package soundfile"):
        read_audio(data)


@pytest.mark.parametrize("kind", ["FLAC", "OGG", "MP3", "AIFF"])
def test_files_of_soundfile(kind: str) -> None:
    soundfile = pytest.importorskip("soundfile", reason="FLAC, OGG and MP3 are read with soundfile")
    samples, out = sound(1.0), io.BytesIO()
    soundfile.write(out, np.stack([samples, samples], axis=1), 48_000, format=kind)
    data = out.getvalue()
    found = read_audio(data)
    assert found.rate == 48_000
    assert abs(len(found.samples) - len(samples)) < 3000  # MP3 begins and ends with silence
    if kind in ("FLAC", "AIFF"):
        assert np.abs(found.samples - samples).max() < 1e-4
    with pytest.raises(AudioError):
        read_audio(data[:20])
    with pytest.raises(AudioError, match=r"it is not a sound|cannot be decoded"):
        read_audio(b"nothing of a sound" * 9)


def test_a_damaged_file_is_refused_and_nothing_is_printed(capfd: pytest.CaptureFixture[str]) -> None:
    """The decoder goes before the beginning of this file."""
    soundfile = pytest.importorskip("soundfile", reason="AIFF is read with soundfile")
    out = io.BytesIO()
    soundfile.write(out, SAMPLES, RATE, format="AIFF")
    with pytest.raises(AudioError, match=r"begins with 'FORM.*cannot be decoded: Error opening the bytes: "):
        read_audio(out.getvalue().replace(b"SSND", b"\1SND"))
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("rate", [8000, 11_025, 16_000, 16_001, 22_050, 44_100, 48_000, 96_000])
def test_resampled_tones_are_tones(rate: int) -> None:
    n = rate // 2 + 7
    tone = np.sin(2 * np.pi * 1234 * np.arange(n) / rate)
    found = resampled(Sound(tone.astype(np.float32), rate), RATE)
    expected = np.sin(2 * np.pi * 1234 * np.arange(len(found)) / RATE)
    assert len(found) == -(-n * RATE // rate)
    assert np.abs(found - expected)[400:-400].max() < 1e-5
    if rate > 20_000:  # what is higher than 8 kHz is not mirrored
        high = np.sin(2 * np.pi * 8600 * np.arange(n) / rate)
        assert np.abs(resampled(Sound(high.astype(np.float32), rate), RATE))[400:-400].max() < 1e-5


@pytest.mark.parametrize("n_mels", [80, 128])
def test_spectrum_is_that_of_transformers(n_mels: int) -> None:
    transformers = pytest.importorskip("transformers", reason="its feature extractor is compared")
    extractor = transformers.WhisperFeatureExtractor(feature_size=n_mels)
    for seconds in (0.1, 3.3331, 31.0):
        samples = sound(seconds)
        theirs = extractor._np_extract_fbank_features(samples[None], "cpu")[0]
        ours = log_mel(samples, n_mels)
        assert ours.shape == theirs.shape
        assert np.abs(ours - theirs).max() <= 1e-5
        rounded = extractor(samples, sampling_rate=RATE, padding="longest", truncation=False).input_features[0]
        assert np.abs(ours - rounded[:, : ours.shape[1]]).max() <= 1e-4  # in float32


def test_sounds_in_messages() -> None:
    url = "data:audio/wav;base64,AAAA"
    content = [
        {"type": "text", "text": "a"},
        {"type": "audio", "audio": "a.wav"},
        {"type": "audio_url", "audio_url": {"url": url}},
        {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}},
        {"type": "audio", "base64": "AAAA"},
    ]
    taken, found = take_media([{"role": "user", "content": content}])
    assert found == {AUDIO: ["a.wav", url, "data:audio/any;base64,AAAA", "data:audio/any;base64,AAAA"]}
    assert taken == [{"role": "user", "content": [content[0], *[{"type": "audio"}] * 4]}]
    for part, message in (
        ({"type": "audio"}, "none of audio"),
        ({"type": "input_audio", "input_audio": {"format": "wav"}}, "has no 'data'"),
        ({"type": "audio_url", "audio_url": {"url": "https://a"}}, "fetches no addresses"),
    ):
        with pytest.raises(AudioError, match=message):
            take_media([{"role": "user", "content": [part]}])
