"""read_image: every source and kind of picture, limits, and damaged files."""

from __future__ import annotations

import base64
import io
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import pytest

from hotshoe.images import Image, Size, center_cropped, read_image, resized, smart_size
from hotshoe.media import IMAGE, take_media
from hotshoe_core.errors import ImageError

PIXELS = np.random.default_rng(0).integers(0, 256, (5, 7, 3), dtype=np.uint8)


def _encoded(image: PIL.Image.Image, format: str = "PNG", **options: Any) -> bytes:
    out = io.BytesIO()
    image.save(out, format, **options)
    return out.getvalue()


PNG = _encoded(PIL.Image.fromarray(PIXELS))


def _sources(tmp_path: Path) -> dict[str, Any]:
    path = tmp_path / "a.png"
    path.write_bytes(PNG)
    return {
        "path": path,
        "str": str(path),
        "bytes": PNG,
        "bytearray": bytearray(PNG),
        "file": io.BytesIO(PNG),
        "pil": PIL.Image.fromarray(PIXELS),
        "array": PIXELS,
        "floats": PIXELS / 255,
        "data": f"data:image/png;base64,{base64.b64encode(PNG).decode()}",
        "image": Image(PIXELS),
    }


@pytest.mark.parametrize("kind", [
    "path", "str", "bytes", "bytearray", "file", "pil", "array", "floats", "data", "image",
])  # fmt: skip
def test_sources(kind: str, tmp_path: Path) -> None:
    image = read_image(_sources(tmp_path)[kind])
    assert np.array_equal(image.pixels, PIXELS)
    assert (image.height, image.width, image.notes) == (5, 7, ())


def test_orientation_of_the_camera() -> None:
    exif = PIL.Image.Exif()
    exif[0x0112] = 6  # turned to the right
    turned = read_image(_encoded(PIL.Image.fromarray(PIXELS), exif=exif))
    assert np.array_equal(turned.pixels, np.rot90(PIXELS, -1))


def test_transparent_pixels_are_laid_over_white() -> None:
    rgba = np.dstack([PIXELS, np.full((5, 7), 255, np.uint8)])
    rgba[0, 0, 3] = 0
    rgba[1, 1] = (0, 0, 0, 128)
    for source in (_encoded(PIL.Image.fromarray(rgba)), rgba):
        pixels = read_image(source).pixels
        assert pixels[0, 0].tolist() == [255, 255, 255]
        assert pixels[1, 1].tolist() == [127, 127, 127]
        assert np.array_equal(pixels[2:], PIXELS[2:])


def test_palettes_and_greys() -> None:
    palette = PIL.Image.fromarray(PIXELS).quantize(4)
    assert np.array_equal(read_image(_encoded(palette)).pixels, np.asarray(palette.convert("RGB")))
    grey = PIXELS[..., 0]
    for source in (_encoded(PIL.Image.fromarray(grey)), grey, grey[..., None]):
        assert np.array_equal(read_image(source).pixels, np.repeat(grey[..., None], 3, -1))


def test_16_bits() -> None:
    values = PIXELS[..., 0].astype(np.uint16) * 257
    assert np.array_equal(read_image(_encoded(PIL.Image.fromarray(values))).pixels[..., 1], PIXELS[..., 0])


def test_an_animation_says_that_its_first_frame_is_used() -> None:
    frames = [PIL.Image.new("RGB", (4, 3), color) for color in ("red", "blue")]
    image = read_image(_encoded(frames[0], "GIF", save_all=True, append_images=frames[1:]))
    assert image.pixels[0, 0].tolist() == [255, 0, 0]
    assert image.notes == ("the picture is an animation of 2 frames; the first one is used",)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("https://example.org/a.png", "is an address"),
        ("file:///a.png", "is an address"),
        ("/does/not/exist.png", "cannot be read"),
        ("data:image/png,abc", "expected data:image"),
        ("data:image/png;base64,@@@", "not valid base64"),
        (b"", "is empty"),
        (b"<html>", "is not a picture; it begins with '<html>'"),
        (PNG[:50], "cannot be decoded"),
        (PNG[:-30], "cannot be decoded"),
        (b"\0" * (IMAGE.max_bytes + 1), "has more than 64.0 MiB"),
        (17, "expected a path"),
        (None, "expected a path"),
        (np.zeros((3, 3, 2), np.uint8), r"shape \(3, 3, 2\)"),
        (np.zeros((0, 3, 3), np.uint8), r"shape \(0, 3, 3\)"),
        (np.full((3, 3), np.nan), "floats that are not all from 0 to 1"),
        (np.zeros((3, 3), np.int64), "array of int64"),
        (io.StringIO("a"), "returned str"),
    ],
)
def test_invalid_sources(source: Any, message: str) -> None:
    with pytest.raises(ImageError, match=message):
        read_image(source)


def _png_that_claims(width: int, height: int) -> bytes:
    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"\0" * 100)) + chunk(b"IEND", b"")
    )


@pytest.mark.parametrize("size", [(20_000, 20_000), (9_600, 10_500), (1, 2**31 - 1)])
def test_a_bomb_is_refused_before_it_is_decoded(size: tuple[int, int]) -> None:
    import tracemalloc

    tracemalloc.start()
    with pytest.raises(ImageError, match=r"too large|pixels|cannot be decoded"):
        read_image(_png_that_claims(*size))
    assert tracemalloc.get_traced_memory()[1] < 5 << 20
    tracemalloc.stop()


def test_smart_size_is_that_of_transformers() -> None:
    pytest.importorskip("transformers", reason="its smart_resize is the oracle")
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize

    draw = np.random.default_rng(3)
    for _ in range(300):
        h, w = (int(n) for n in draw.integers(1, 3000, 2))
        if max(h, w) > 200 * min(h, w):
            continue
        assert smart_size(h, w, 28, 3136, 1_000_000) == smart_resize(h, w, 28, 3136, 1_000_000)
    with pytest.raises(ImageError, match="at most 200 times the shorter one"):
        smart_size(1, 201, 28, 3136, 1_000_000)


def test_a_picture_of_its_size_is_not_copied() -> None:
    assert resized(PIXELS, Size(5, 7), "bicubic") is PIXELS


@pytest.mark.parametrize("mode", ["RGB", "RGBA", "P", "LA", "I;16", "CMYK"])
def test_pictures_are_converted_in_strips(monkeypatch: pytest.MonkeyPatch, mode: str) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (23, 17, 3), np.uint8)
    image = PIL.Image.fromarray(noise).convert("RGBA" if mode == "P" else "L" if mode == "I;16" else mode)
    if mode == "P":
        image.putalpha(PIL.Image.fromarray(noise[..., 0]))
        image = image.quantize(40)
    if mode == "I;16":
        image = PIL.Image.fromarray(noise[..., 0].astype(np.uint16) * 200)
    whole = read_image(image).pixels
    monkeypatch.setattr("hotshoe.images._read._AT_ONCE", 40)  # two rows
    assert np.array_equal(read_image(image).pixels, whole)


def test_a_webp_picture_may_have_fewer_pixels(monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.BytesIO()
    PIL.Image.new("RGB", (5, 4)).save(out, "WEBP")
    assert read_image(out.getvalue()).width == 5
    monkeypatch.setattr("hotshoe.images._read._MAX_WEBP_PIXELS", 19)
    with pytest.raises(ImageError, match="5 x 4 pixels; expected at most 19 in all"):
        read_image(out.getvalue())


def test_a_very_long_picture_is_refused_before_it_is_enlarged() -> None:
    with pytest.raises(ImageError, match="at most 200 times the shorter one"):
        center_cropped(np.zeros((1, 1_000_000, 3), np.uint8), 336, "bicubic")


def test_pictures_are_taken_out_of_messages() -> None:
    url = "data:image/png;base64,AAAA"
    content = [
        {"type": "text", "text": "a"},
        {"type": "image", "image": "a.png"},
        {"type": "image_url", "image_url": {"url": url}},
        {"type": "input_image", "image_url": url},
        {"type": "image", "base64": "AAAA"},
    ]
    messages = [{"role": "user", "content": content}]
    taken, found = take_media(messages)
    assert found[IMAGE] == ["a.png", url, url, "data:image/any;base64,AAAA"]
    assert taken == [{"role": "user", "content": [content[0], *[{"type": "image"}] * 4]}]
    assert messages[0]["content"] is content
    for part, message in (
        ({"type": "image"}, "none of image"),
        ({"type": "image", "image": "a", "url": "b"}, "'image' and 'url'"),
        ({"type": "image_url", "image_url": {"url": "https://a"}}, "fetches no addresses"),
    ):
        with pytest.raises(ImageError, match=message):
            take_media([{"role": "user", "content": [part]}])
