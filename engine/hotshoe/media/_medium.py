"""Medium: what a model may read besides texts."""

from __future__ import annotations

from dataclasses import dataclass

from hotshoe_core.errors import AudioError, HotshoeError, ImageError

__all__ = ["AUDIO", "IMAGE", "MEDIA", "Medium"]


@dataclass(frozen=True, slots=True)
class Medium:
    """Pictures or sounds."""

    name: str
    """The type of its parts in a content: "image", "audio"."""
    one: str
    """What messages call one of them."""
    many: str
    option: str
    """The argument of ``generate``."""
    section: str
    """What the keys ``clip.….`` of its encoders begin with."""
    block: str
    """What the tensors of its encoders' layers begin with."""
    error: type[HotshoeError]
    max_bytes: int
    """The largest file, or text in base64."""
    types: tuple[str, ...]
    """The types of parts that hold one."""
    keys: tuple[str, ...]
    """Where such a part may hold it."""
    expected: str
    """What a source may be."""
    example: str
    """The beginning of an address that holds the file itself."""


IMAGE = Medium(
    name="image",
    one="picture",
    many="pictures",
    option="images",
    section="vision",
    block="v.blk.",
    error=ImageError,
    max_bytes=64 << 20,
    types=("image", "image_url", "input_image"),
    keys=("image", "image_url", "path", "url", "base64", "data"),
    expected="a path, bytes, an open file, a PIL image, an array, or a text that begins with data:",
    example="data:image/png;base64,…",
)
AUDIO = Medium(
    name="audio",
    one="sound",
    many="sounds",
    option="audio",
    section="audio",
    block="a.blk.",
    error=AudioError,
    max_bytes=128 << 20,
    types=("audio", "input_audio", "audio_url"),
    keys=("audio", "input_audio", "audio_url", "path", "url", "base64", "data"),
    expected="a path, bytes, an open file, a pair (array, samples per second), or a text that begins with data:",
    example="data:audio/wav;base64,…",
)
MEDIA = (IMAGE, AUDIO)
