"""The options of load_model: their names and types, checks, the class of the model, and the memory of a cache."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import hotshoe
from hotshoe.load_options import LoadOptions, group_options
from hotshoe.placement.params import PlacementParams
from hotshoe.runner.params import RunnerParams
from hotshoe_core import BackendParams
from hotshoe_core.errors import BackendError, InsufficientMemoryError, ModelError, ModelFileError, PlacementError
from hotshoe_core.gguf import GGUFFile

ROOT = Path(__file__).parents[2]
VERSE = ROOT / "examples" / "models" / "kjv-3m-q8_0.gguf"


def test_every_field_of_the_groups_is_an_option() -> None:
    fields = [f.name for group in (BackendParams, RunnerParams, PlacementParams) for f in dataclasses.fields(group)]
    assert list(LoadOptions.__annotations__) == [name for name in fields if name != "allocate"]  # plan_model's own


def test_options_reach_their_group() -> None:
    backend, runner, placement = group_options(
        {"n_threads": 2, "kv_dtype": "q8_0", "n_batch": None, "n_gpu_layers": "all", "tensor_split": [3, 1]}, ()
    )
    assert backend == BackendParams(n_threads=2)
    assert runner == RunnerParams(kv_dtype="q8_0")
    assert placement == PlacementParams(n_gpu_layers="all", tensor_split=(3, 1))


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"n_threads": 0}, BackendError, "n_threads is 0; expected 1 or more"),
        ({"flash_attention": "fast"}, BackendError, r"flash_attention is 'fast' .*; expected auto, on or off"),
        ({"n_sequences": 99_999}, ModelError, "n_sequences is 99999; expected at most 256"),
        ({"n_sequences": 3, "max_sequences": 2}, ModelError, "n_sequences is 3; expected at most 2"),
        ({"n_gpu_layers": -1}, PlacementError, "n_gpu_layers is"),
        ({"n_ctx": 0}, ModelError, "n_ctx is 0; expected 1 or more"),
        ({"n_ctx": 10**9}, ModelError, "trained for at most"),
    ],
    ids=str,
)
def test_values_are_checked_on_every_device(options: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        hotshoe.load_model(VERSE, "reference", **options)
    with pytest.raises(error, match=words):
        hotshoe.plan_model(VERSE, "reference", **options)


def test_a_cache_that_does_not_fit_is_not_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """The system would give the memory, and end the process when it is used."""
    from hotshoe_core.eager.adapter import EagerBackend

    monkeypatch.setattr(EagerBackend, "memory_free", lambda self: {"reference": 1 << 20})
    expected = r"reference: the cache takes .* MiB; 1.0 MiB are free(.|\n)*use a smaller n_ctx or n_sequences"
    with pytest.raises(InsufficientMemoryError, match=expected) as caught:
        hotshoe.load_model(VERSE, "reference", n_sequences=8)
    assert caught.value.memory.on("reference").failed
    assert not hotshoe.plan_model(VERSE, "reference", n_sequences=8).fits


_TYPED = """
from typing import assert_type
import hotshoe
from hotshoe.runner.embedder import EmbeddingModel
from hotshoe.runner.reranker import RerankModel
from hotshoe.runner.text import TextModel

assert_type(hotshoe.load_model("a", task="text", n_threads=1, kv_dtype="q8_0"), TextModel)
assert_type(hotshoe.load_model("a", "cpu", task=hotshoe.Task.EMBEDDING), EmbeddingModel)
assert_type(hotshoe.load_model("a", task="rerank"), RerankModel)
assert_type(hotshoe.load_model("a"), TextModel | EmbeddingModel | RerankModel)
options: hotshoe.LoadOptions = {"n_gpu_layers": "all"}
hotshoe.load_model("a", **options)
hotshoe.load_model("a", n_threads="4")  # type: ignore[call-overload]
hotshoe.load_model("a", threads=4)  # type: ignore[call-overload]
"""


def test_type_checkers_know_the_options_and_the_class_of_the_model(tmp_path: Path) -> None:
    pytest.importorskip("mypy")
    (tmp_path / "typed.py").write_text(_TYPED)
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(tmp_path), str(tmp_path / "typed.py")]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("path", ["x" * 5000, "x/" * 5000, "a\0b", "\ud800", "~nobody-of-this-name/x", b"x"])
def test_paths_that_no_file_can_have(path: Any) -> None:
    for use in (hotshoe.load_model, hotshoe.plan_model, hotshoe.load_tokenizer, GGUFFile):
        with pytest.raises(
            ModelFileError, match=r"the path of a .* is .*(, which cannot be the name of a file: |; expected a str or)"
        ):
            use(path)
