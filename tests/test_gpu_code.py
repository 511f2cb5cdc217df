"""The GPUs that a CUDA library has code for, read from its file."""

from __future__ import annotations

import os
import struct
import zipfile
from pathlib import Path

import pytest

from tests.support.fatbin import GpuCode, gpu_code

ROOT = Path(__file__).parents[1]
RELEASE = frozenset({75, 80, 86, 89, 90, 100, 120})


def entry(kind: int, capability: int, content: bytes) -> bytes:
    return struct.pack("<HHIQIIHHI32x", kind, 0, 64, len(content), 0, 0, 0, 0, capability) + content


def container(*entries: bytes) -> bytes:
    content = b"".join(entries)
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(content)) + content


def test_containers_and_their_entries(tmp_path: Path) -> None:
    first = container(entry(2, 75, b"ELF" + bytes(5)), entry(1, 75, bytes(16)))
    library = tmp_path / "libggml-cuda.so"
    library.write_bytes(bytes(64) + first + bytes(8) + container(entry(2, 90, bytes(24))) + bytes(8))
    assert gpu_code(library) == GpuCode(frozenset({75, 90}), frozenset({75}))
    library.write_bytes(bytes(8) + first[:-1])
    with pytest.raises(ValueError, match="cut off"):
        gpu_code(library)


def test_our_wheel(tmp_path: Path) -> None:
    """A release has machine code for every GPU since Turing: compiling PTX takes minutes at the first start."""
    wheel = next((ROOT / "dist").glob("hotshoe_ggml_cuda-*.whl"), None)
    if wheel is None:
        pytest.skip("no wheel of hotshoe-ggml-cuda in dist: make wheels CUDA=1")
    with zipfile.ZipFile(wheel) as archive:
        name = next(name for name in archive.namelist() if name.endswith(("libggml-cuda.so", "ggml-cuda.dll")))
        found = gpu_code(Path(archive.extract(name, tmp_path)))
    assert found.machine
    assert found.ptx <= {90}
    if os.environ.get("HOTSHOE_CUDA_ARCHITECTURES", "release") == "release":
        assert found.machine == RELEASE
