"""Fixtures for several folders: real and recorded BERT models, Ctrl-C. A conftest imports the ones it wants."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.minilm import Reference, load_reference, require_minilm

__all__ = ["ctrl_c_raises", "data", "minilm_folder", "minilm_gguf", "minilm_reference"]


@pytest.fixture(scope="session")
def data() -> Path:
    """tests/data."""
    return Path(__file__).parents[1] / "data"


@pytest.fixture(scope="session")
def minilm_folder() -> Path:
    """all-MiniLM-L6-v2 as a Hugging Face folder; skips where it is not installed."""
    return require_minilm()


@pytest.fixture(scope="session")
def minilm_gguf(minilm_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """``minilm_gguf("q8_0")``: the path of all-MiniLM-L6-v2 converted by hotshoe, once in a session."""
    from hotshoe.convert import convert

    folder = tmp_path_factory.mktemp("minilm")

    def get(dtype: str) -> Path:
        path = folder / f"minilm-{dtype}.gguf"
        return path if path.exists() else convert(minilm_folder, path, dtype)

    return get


@pytest.fixture(scope="session")
def minilm_reference(minilm_folder: Path) -> Reference:
    """all-MiniLM-L6-v2 in transformers; skips where torch or transformers is missing."""
    return load_reference(minilm_folder)


@pytest.fixture
def ctrl_c_raises() -> Iterator[None]:
    """SIGINT raises KeyboardInterrupt. In a process that was started in the background of a script it is ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
