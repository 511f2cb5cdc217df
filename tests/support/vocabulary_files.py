"""Vocabularies of real models with the ids that their own tokenizers give: llama.cpp's test files."""

from __future__ import annotations

import atexit
import lzma
import shutil
import tempfile
from functools import cache
from pathlib import Path

import pytest

__all__ = ["vocabulary_file"]

_PACKED = Path(__file__).parents[1] / "data" / "vocab"
_MORE = Path(__file__).parents[3] / "shared" / "data" / "vocab"  # next to the checkout of the project's developers


def vocabulary_file(name: str) -> Path:
    """``ggml-vocab-<name>.gguf``, next to its ``.inp`` and ``.out``. Skips the test if the file is missing.

    tests/data has one of each kind: "bert-bge" (WordPiece), "llama-spm" (SentencePiece) and "qwen2" (BPE).
    """
    path = _unpacked() / f"ggml-vocab-{name}.gguf"
    if not path.exists():
        path = _MORE / path.name
    if not path.exists():
        pytest.skip(f"llama.cpp's {path.name} is not next to this checkout")
    return path


@cache
def _unpacked() -> Path:
    """A folder with all files of tests/data/vocab, which is removed at the end of the process."""
    folder = Path(tempfile.mkdtemp(prefix="hotshoe-vocab-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    for path in _PACKED.iterdir():
        if path.suffix == ".xz":
            (folder / path.stem).write_bytes(lzma.decompress(path.read_bytes()))
        else:
            shutil.copy(path, folder)
    return folder
