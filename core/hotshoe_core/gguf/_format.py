"""Constants of the GGUF format, our limits, and signatures of files that are not GGUF.

Source: the GGUF specification (docs/gguf.md of ggml), and llama.cpp's reader where the two differ.
"""

from __future__ import annotations

import enum

__all__ = [
    "DAMAGED",
    "DEFAULT_ALIGNMENT",
    "HEADER_BYTES",
    "LAZY_STRING_BYTES",
    "MAGIC",
    "MAX_DEPTH",
    "MAX_DIMS",
    "MAX_ITEMS",
    "MAX_KEYS",
    "MAX_NAME_BYTES",
    "MAX_TENSORS",
    "REMOVED_TYPES",
    "VALUE_TYPES",
    "ValueType",
    "looks_like",
    "quoted",
]

MAGIC = b"GGUF"
HEADER_BYTES = 24  # magic, version, tensor count, key count
DEFAULT_ALIGNMENT = 32
MAX_DIMS = 4  # GGML_MAX_DIMS

# A file may claim any count that its size allows, so a large hostile file could keep us busy for minutes.
# Each limit is far above any real model: about 100 keys, 10 thousand tensors, one million strings.
MAX_KEYS = 1 << 16
MAX_TENSORS = 1 << 20
MAX_ITEMS = 1 << 24  # strings and nested arrays in all metadata arrays together
MAX_DEPTH = 4  # array of array of …; llama.cpp refuses nesting, the specification allows it
MAX_NAME_BYTES = (1 << 16) - 1  # the specification's limit for keys
LAZY_STRING_BYTES = 1 << 16  # a longer string is decoded when it is used, so opening allocates little

DAMAGED = "the file is damaged or incomplete: compare its size or checksum with the source, or download it again"

REMOVED_TYPES = {
    4: "Q4_2, removed from ggml in 2023",
    5: "Q4_3, removed from ggml in 2023",
    31: "Q4_0_4_4, replaced by Q4_0, which is repacked when it is loaded",
    32: "Q4_0_4_8, replaced by Q4_0, which is repacked when it is loaded",
    33: "Q4_0_8_8, replaced by Q4_0, which is repacked when it is loaded",
    36: "IQ4_NL_4_4, replaced by IQ4_NL, which is repacked when it is loaded",
    37: "IQ4_NL_4_8, replaced by IQ4_NL, which is repacked when it is loaded",
    38: "IQ4_NL_8_8, replaced by IQ4_NL, which is repacked when it is loaded",
}


class ValueType(enum.Enum):
    """Types of metadata values: ``(number in the file, short name, struct and NumPy code, bytes)``."""

    UINT8 = (0, "u8", "B", 1)
    INT8 = (1, "i8", "b", 1)
    UINT16 = (2, "u16", "H", 2)
    INT16 = (3, "i16", "h", 2)
    UINT32 = (4, "u32", "I", 4)
    INT32 = (5, "i32", "i", 4)
    FLOAT32 = (6, "f32", "f", 4)
    BOOL = (7, "bool", "B", 1)  # read as a byte: any value but 0 is true, as in llama.cpp
    STRING = (8, "str", "", 8)  # bytes: the least that an item takes, for its length
    ARRAY = (9, "arr", "", 12)  # bytes: the least that an item takes, for its element type and count
    UINT64 = (10, "u64", "Q", 8)
    INT64 = (11, "i64", "q", 8)
    FLOAT64 = (12, "f64", "d", 8)

    def __init__(self, id: int, label: str, code: str, nbytes: int) -> None:
        self.id = id
        self.label = label
        self.code = code
        self.nbytes = nbytes

    def __repr__(self) -> str:
        return self.label


VALUE_TYPES = {t.id: t for t in ValueType}


def quoted(name: str) -> str:
    """A name from a file for a message: escaped, so that it cannot control a terminal, and of limited length."""
    return repr(name if len(name) <= 100 else f"{name[:60]}…{name[-30:]}")


_CONVERT = "convert it first: hotshoe convert"
_UNPACK = "unpack it first"
_SIGNATURES = (
    (b"PK\x03\x04", "a zip archive, such as a PyTorch checkpoint", _CONVERT),
    (b"\x80\x02", "a Python pickle, such as an old PyTorch checkpoint", _CONVERT),
    (b"version https://git-lfs", "a Git LFS pointer, not the model itself", "fetch the model: git lfs pull"),
    (b"lmgg", "a llama.cpp model older than GGUF (GGML)", "get the model as GGUF; this format ended in August 2023"),
    (b"fmgg", "a llama.cpp model older than GGUF (GGMF)", "get the model as GGUF; this format ended in August 2023"),
    (b"tjgg", "a llama.cpp model older than GGUF (GGJT)", "get the model as GGUF; this format ended in August 2023"),
    (b"\x1f\x8b", "gzip data", _UNPACK),
    (b"BZh", "bzip2 data", _UNPACK),
    (b"\xfd7zXZ", "xz data", _UNPACK),
    (b"\x28\xb5\x2f\xfd", "zstandard data", _UNPACK),
    (b"7z\xbc\xaf", "a 7-Zip archive", _UNPACK),
    (b"\x89HDF", "an HDF5 file, such as a Keras checkpoint", "get the model as GGUF or as safetensors"),
    (b"\x93NUMPY", "a NumPy array", "get the model as GGUF or as safetensors"),
)


def looks_like(head: bytes) -> tuple[str, str | None]:
    """Describe a file by its first bytes, which are not ``GGUF``; also the next step, or None."""
    for magic, what, step in _SIGNATURES:
        if head.startswith(magic):
            return f"it looks like {what}", step
    if len(head) > 9 and int.from_bytes(head[:8], "little") < 1 << 32 and head[8:9] == b"{":
        return "it looks like a safetensors file", _CONVERT
    text = head.lstrip().lower()
    if text.startswith((b"<!doctype", b"<html", b"<?xml")):
        return (
            "it looks like a web page, not the model itself",
            "download the file by its direct link; a gated model needs a login",
        )
    if text.startswith(b"{"):
        return "it looks like JSON text", "name the .gguf file itself"
    if head and not any(head):
        return "it begins with zeros, as after an interrupted download", "download it again"
    return f"its first bytes are {head[:4]!r}, not {MAGIC!r}", "check that this is the right file"
