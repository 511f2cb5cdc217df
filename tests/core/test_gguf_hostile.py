"""Invalid files raise only ModelFileError, at once, and it says where."""

from __future__ import annotations

import os
import random
import struct
import tracemalloc
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from hotshoe_core.errors import ModelFileError
from hotshoe_core.gguf import GGUFArray, GGUFFile
from tests.support.gguf_files import array, gguf_bytes, key, put, tensor, text, write_gguf


def read_everything(path: Path) -> None:
    """Read everything that a caller can reach."""
    with GGUFFile(path) as f:
        for k, v in f.metadata.items():
            f.metadata.value_type(k)
            if isinstance(v, GGUFArray):
                assert len(v.tolist()) == len(v)
        for name in f.tensors:
            assert f.data(name).size == f.tensors[name].nbytes


U32 = struct.Struct("<I").pack
DEEP = array(9, 1) * 5 + array(0, 0)
NOT_GGUF = {
    b"PK\x03\x04rest": "zip archive.*\n.*hotshoe convert",
    b"\x80\x02}q": "pickle.*\n.*hotshoe convert",
    struct.pack("<Q", 20) + b'{"a":{"dtype":"F32"}': "safetensors.*\n.*hotshoe convert",
    b"version https://git-lfs.github.com/spec/v1\noid": "Git LFS pointer.*\n.*git lfs pull",
    b"<!DOCTYPE html><html>": "web page",
    b'{"error": "Repository not found"}': "JSON",
    b"tjgg\1\0\0\0": "older than GGUF",
    b"\x1f\x8b\x08": "gzip.*\n.*unpack",
    bytes(64): "zeros.*\n.*download it again",
    b"what?": r"first bytes are b'what'",
    b"GG": r"first bytes are b'GG'",
    b"": "empty",
}
HOSTILE: dict[str, tuple[bytes, str]] = {
    **{f"not GGUF {i}": item for i, item in enumerate(NOT_GGUF.items())},
    "only magic": (b"GGUF\3\0\0\0", "8 bytes, but a GGUF header"),
    "version 0": (gguf_bytes(version=0), "byte 4: GGUF version 0; expected 2 or 3"),
    "version 1": (gguf_bytes(version=1), "version 1.*\n.*ended"),
    "version 4": (gguf_bytes(version=4), "version 4.*\n.*newer than this hotshoe"),
    "version huge": (gguf_bytes(version=0xDEADBEEF), "version 3735928559"),
    "version 4 swapped": (gguf_bytes(version=0x04000000), "version 4"),
    "keys 2**60": (gguf_bytes(n_keys=2**60), "number of keys, byte 16: 1152921504606846976 items.*cannot fit"),
    "keys 2**64-1": (gguf_bytes(n_keys=2**64 - 1), "number of keys.*cannot fit"),
    "tensors 2**60": (gguf_bytes(n_tensors=2**60), "number of tensors, byte 8: .*cannot fit"),
    "too many keys": (gguf_bytes(n_keys=70_000, data=bytes(1_000_000)), "number of keys.* 70000; expected at most"),
    "one key too few": (gguf_bytes([key("a", 0, b"\1")], n_keys=2) + bytes(20), "name of key 1.*0 bytes"),
    "key empty": (gguf_bytes([key("", 0, b"\1")]), "name of key 0, byte 24: a name of 0 bytes"),
    "key long": (gguf_bytes([key("k" * 65_536, 0, b"\1")]), "a name of 65536 bytes"),
    "key length": (gguf_bytes([struct.pack("<Q", 2**63) + b"abc" + bytes(40)]), "length of name of key 0.*cannot fit"),
    "key UTF-8": (gguf_bytes([key(b"ab\xff", 0, b"\1")]), "name of key 0, byte 34: .*not valid UTF-8"),
    "key twice": (gguf_bytes([key("a", 0, b"\1"), key("a", 0, b"\1")]), "key 'a', byte 38: a second key"),
    "key escapes": (gguf_bytes([key("\x1b[31m\n", 99, b"")]), r"key '\\x1b\[31m\\n', type"),
    "type": (gguf_bytes([key("a", 13, b"\1")]), "key 'a', type, byte 33: 13 is not a value type; expected 0 to 12"),
    "value cut": (gguf_bytes([key("a", 10, b"\1")], alignment=1), "key 'a', byte 37: 8 bytes .* ends after 1"),
    "string length": (gguf_bytes([key("a", 8, struct.pack("<Q", 2**62))]), "key 'a', length.*cannot fit"),
    "string UTF-8": (gguf_bytes([key("a", 8, text(b"ok\xc3("))]), "key 'a', byte 47: .*not valid UTF-8"),
    "array type": (gguf_bytes([key("a", 9, array(77, 0))]), "key 'a', element type, byte 37: 77"),
    "array count": (gguf_bytes([key("a", 9, array(0, 2**60))]), "number of items, byte 41: .*cannot fit"),
    "array wraps": (gguf_bytes([key("a", 9, array(10, 2**61))]), "number of items.*cannot fit"),
    "strings count": (gguf_bytes([key("a", 9, array(8, 2**60))]), "number of items.*cannot fit"),
    "strings cut": (
        gguf_bytes([key("a", 9, array(8, 2, text("x") * 1))], data=b"\xff" * 8),
        r"key 'a'\[1\].*ends after",
    ),
    "strings length": (
        gguf_bytes([key("a", 9, array(8, 1, struct.pack("<Q", 2**63)))]),
        r"'a'\[0\].*9223372036854775808",
    ),
    "nested count": (gguf_bytes([key("a", 9, array(9, 2**50))]), "number of items.*cannot fit"),
    "nested deep": (gguf_bytes([key("a", 9, DEEP)]), "nested more than 4 deep"),
    "alignment 0": (gguf_bytes([key("general.alignment", 4, U32(0))]), "0 is not a power of two"),
    "alignment 24": (gguf_bytes([key("general.alignment", 4, U32(24))]), "alignment'.* 24 is not a power of two"),
    "alignment type": (
        gguf_bytes([key("general.alignment", 8, text("32"))]),
        "alignment'.*'32' of type str; expected int",
    ),
    "alignment big": (
        gguf_bytes([key("general.alignment", 4, U32(2**31))], [tensor("t", [1])]),
        "but the file has only",
    ),
    "name UTF-8": (gguf_bytes((), [tensor(b"\xff", [1])], bytes(32)), "name of tensor 0, byte 32.*UTF-8"),
    "name empty": (gguf_bytes((), [tensor("", [1])], bytes(32)), "name of tensor 0.* 0 bytes"),
    "name twice": (
        gguf_bytes((), [tensor("t", [1]), tensor("t", [1], 0, 32)], bytes(64)),
        "tensor 't', byte 57: a second",
    ),
    "dims 5": (
        gguf_bytes((), [tensor("t", [1] * 5)], bytes(32)),
        "number of dimensions, byte 33: 5; expected at most 4",
    ),
    "dims many": (gguf_bytes((), [tensor("t", [], n_dims=2**32 - 1)], bytes(32)), "4294967295; expected at most 4"),
    "dims wrap": (gguf_bytes((), [tensor("t", [2**32, 2**32])], bytes(32)), "too many elements"),
    "dims wrap to 0": (gguf_bytes((), [tensor("t", [2**62, 4, 4])], bytes(32)), "too many elements"),
    "dims empty": (gguf_bytes((), [tensor("t", [0, 2**62])], bytes(32)), "too many elements"),
    "dims large": (
        gguf_bytes((), [tensor("t", [2**40])], bytes(32)),
        "tensor 't', offset, byte 49: .* but the file has only",
    ),
    "dtype": (
        gguf_bytes((), [tensor("t", [1], 99)], bytes(32)),
        "'t', type, byte 45: type number 99.*\n.*newer than this hotshoe",
    ),
    "dtype huge": (gguf_bytes((), [tensor("t", [1], 2**31)], bytes(32)), "2147483648.*\n.*damaged"),
    "dtype removed": (gguf_bytes((), [tensor("t", [32], 31)], bytes(32)), "Q4_0_4_4, replaced by Q4_0"),
    "block": (gguf_bytes((), [tensor("t", [33], 2)], bytes(64)), "rows of 33 elements; expected a multiple of 32"),
    "block scalar": (gguf_bytes((), [tensor("t", [], 2)], bytes(64)), "rows of 1 elements"),
    "offset align": (gguf_bytes((), [tensor("t", [1], 0, 4)], bytes(64)), "byte 49: 4 is not a multiple of 32"),
    "offset far": (gguf_bytes((), [tensor("t", [1], 0, 2**63)], bytes(64)), "but the file has only"),
    "offset wraps": (gguf_bytes((), [tensor("t", [1], 0, 2**64 - 32)], bytes(64)), "but the file has only"),
    "offset of nothing": (gguf_bytes((), [tensor("t", [0], 0, 2**63)], bytes(64)), "but the file has only 128"),
    "no data": (gguf_bytes((), [tensor("t", [1])]), "4 bytes .* but the file has only"),
    "overlap": (gguf_bytes((), [tensor("a", [9]), tensor("b", [9], 0, 32)], bytes(99)), "'b'.*overlaps that of 'a'"),
    "overlap first": (
        gguf_bytes((), [tensor("a", [9], 0, 32), tensor("b", [9])], bytes(99)),
        "'a'.*overlaps that of 'b'",
    ),
    "split count": (gguf_bytes([key("split.count", 4, U32(3))]), "should end in -0000N-of-00003"),
    "split type": (
        gguf_bytes([key("split.count", 8, text("3"))]),
        "'split.count': found '3' of type str; expected int",
    ),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_file(tmp_path: Path, case: str) -> None:
    raw, message = HOSTILE[case]
    path = put(tmp_path, raw)
    with pytest.raises(ModelFileError, match=message) as e:
        GGUFFile(path)
    assert str(e.value).startswith(str(path))
    assert e.value.path == path


def test_what_is_not_a_file(tmp_path: Path) -> None:
    put(tmp_path, gguf_bytes(), "qwen2.gguf")
    with pytest.raises(ModelFileError, match=r"does not exist\n.*did you mean 'qwen2\.gguf'"):
        GGUFFile(tmp_path / "qwen.gguf")
    with pytest.raises(ModelFileError, match=r"a folder.*\n.*qwen2\.gguf"):
        GGUFFile(tmp_path)
    with pytest.raises(ModelFileError, match="embedded null"):
        GGUFFile("x\0y.gguf")
    (tmp_path / "model").mkdir()
    put(tmp_path / "model", b"{}", "config.json")
    with pytest.raises(ModelFileError, match="Hugging Face"):
        GGUFFile(tmp_path / "model")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no FIFOs")
def test_fifo_does_not_hang(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "x.gguf")
    with pytest.raises(ModelFileError, match="pipe"):
        GGUFFile(tmp_path / "x.gguf")


@pytest.mark.skipif(os.name == "nt", reason="links need a right there")
def test_links_that_lead_to_no_file(tmp_path: Path) -> None:
    for name, target, words in (
        ("zero.gguf", "/dev/zero", "a pipe, socket or device"),
        ("loop.gguf", "loop.gguf", "cannot be opened: .*symbolic links"),
        ("lost.gguf", "nothing", "does not exist"),
    ):
        (tmp_path / name).symlink_to(target)
        with pytest.raises(ModelFileError, match=words):
            GGUFFile(tmp_path / name)


@pytest.mark.skipif(os.name == "nt" or os.geteuid() == 0, reason="permissions do not bind this user")
def test_permission(tmp_path: Path) -> None:
    put(tmp_path, gguf_bytes()).chmod(0)
    with pytest.raises(ModelFileError, match="no permission to read"):
        GGUFFile(tmp_path / "x.gguf")


@pytest.mark.skipif(os.name == "nt", reason="a mapped file cannot be shortened there")
def test_file_shortened_after_opening(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "x.gguf", {"words": ["a"]}, {"t": np.zeros(4096, np.float32)})
    with GGUFFile(path) as f:
        os.truncate(path, 4096)
        for look in (lambda: f.data("t"), lambda: f.metadata["words"][0]):
            with pytest.raises(ModelFileError, match=r"has shrunk from \d+ to 4096 bytes"):
                look()


def test_claims_allocate_nothing(tmp_path: Path) -> None:
    """A sparse file as large as it claims: opening must neither read nor allocate that much."""
    size = 1 << 38
    head = gguf_bytes([key("zeros", 9, array(0, 1 << 36))], alignment=1, n_keys=2)
    path = put(tmp_path, head)
    with path.open("r+b") as f:
        f.seek(len(head) + (1 << 36))
        f.write(key("text", 8, struct.pack("<Q", 1 << 36)))
        try:
            f.truncate(size)
        except OSError:
            pytest.skip("this file system has no files with holes")
    tracemalloc.start()
    try:
        with GGUFFile(path) as g:
            assert len(g.metadata["zeros"]) == 1 << 36
            assert g.metadata["zeros"][1 << 35] == 0
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
    strings = gguf_bytes([key("k", 9, array(8, 1 << 32))], alignment=1)
    with path.open("r+b") as f:
        f.write(strings)
    with pytest.raises(ModelFileError, match="more than 16777216 strings"):
        GGUFFile(path)


# --- fuzzing --------------------------------------------------------------------------------------------------------


def small_file() -> bytes:
    keys = [
        key("general.architecture", 8, text("llama")),
        key("general.alignment", 4, U32(32)),
        key("n", 10, struct.pack("<Q", 7)),
        key("words", 9, array(8, 3, text("a") + text("") + text("ccc"))),
        key("nested", 9, array(9, 2, array(8, 1, text("x")) + array(0, 2, b"ab"))),
        key("floats", 9, array(6, 2, struct.pack("<2f", 1, 2))),
    ]
    rows = [tensor("a", [32, 2], 2, 0), tensor("b", [3, 2, 1], 0, 64), tensor("c", [], 1, 96)]
    return gguf_bytes(keys, rows, bytes(128))


def test_every_prefix_is_refused(tmp_path: Path) -> None:
    raw = small_file()
    path = put(tmp_path, raw)
    read_everything(path)
    for n in range(len(raw) - 30):  # of the last 32 bytes two hold tensor "c", the rest is padding
        path.write_bytes(raw[:n])
        with pytest.raises(ModelFileError):
            GGUFFile(path)


def test_mutations_raise_only_model_file_errors(tmp_path: Path) -> None:
    raw, rng = small_file(), random.Random(0)
    path = tmp_path / "x.gguf"
    special = [0, 1, 2, 7, 8, 9, 0x7F, 0x80, 0xFF]
    refused, longest = 0, 0
    for _ in range(3000):
        b = bytearray(raw)
        for _ in range(rng.choice([1, 1, 1, 2, 4])):
            at = rng.randrange(len(b))
            match rng.randrange(5):
                case 0:
                    b[at] ^= 1 << rng.randrange(8)
                case 1:
                    b[at] = rng.choice(special)
                case 2:
                    b[at : at + 8] = struct.pack("<Q", rng.choice([0, 1, 2**31, 2**32, 2**60, 2**63, 2**64 - 1]))
                case 3:
                    del b[at : at + rng.choice([1, 4, 8, 40])]
                case 4:
                    b[at:at] = b[at : at + rng.choice([1, 4, 8, 40])]
            if len(b) < 2:
                break
        path.write_bytes(b)
        try:
            read_everything(path)
        except ModelFileError as e:
            refused += 1
            longest = max(longest, len(str(e)) - len(str(path)))
    assert 1000 < refused < 3000  # the fuzzer reaches both sides
    assert longest < 1000


def test_tensor_rows_do_not_overlap_in_the_table(tmp_path: Path) -> None:
    with GGUFFile(put(tmp_path, small_file())) as f:
        places = sorted((t.offset, t.offset + t.nbytes) for t in f.tensors.values())
        assert all(end <= start for (_, end), (start, _) in pairwise(places))
