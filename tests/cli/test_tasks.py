"""Commands and the tasks of models: each command names the right one for a file of another task."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import hotshoe
from hotshoe.cli import main
from hotshoe.convert import convert
from hotshoe.runner.reranker import RerankModel
from tests.support.recorded import make_recorded

DOCUMENTS = ["the quick fox", "a dog is lazy", "hello world"]


@pytest.fixture(scope="module")
def reranker(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("reranker")
    return str(convert(make_recorded("BertForSequenceClassification", folder / "hf"), folder / "m.gguf", "f32"))


def test_rerank_prints_the_best_first(reranker: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rerank", reranker, "the dog", *DOCUMENTS, "-v"]) == 0
    out = capsys.readouterr()
    rows = [json.loads(line) for line in out.out.splitlines()]
    with hotshoe.load_model(reranker) as model:
        assert isinstance(model, RerankModel)
        expected = model.rank("the dog", DOCUMENTS)
    assert [row["index"] for row in rows] == [i for i, _ in expected]
    assert [row["score"] for row in rows] == pytest.approx([s for _, s in expected], abs=1e-5)
    assert [row["text"] for row in rows] == [DOCUMENTS[i] for i, _ in expected]
    assert len(out.err.splitlines()) == 1
    assert main(["rerank", reranker, "the dog", *DOCUMENTS, "--top", "1"]) == 0
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == rows[:1]


def test_each_command_names_the_right_one(reranker: str, data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text, embedding = str(data / "llamacpp" / "LlamaForCausalLM.gguf"), str(data / "bert-tiny-llamacpp.gguf")
    for command, model, words in (
        ("run", embedding, ("is an embedding model; expected a text model", "hotshoe embed")),
        ("run", reranker, ("is a reranker; expected a text model", "hotshoe rerank")),
        ("chat", embedding, ("is an embedding model", "hotshoe embed")),
        ("embed", text, ("is a text model; expected an embedding model", "hotshoe run")),
        ("embed", reranker, ("is a reranker", "hotshoe rerank")),
        ("rerank", text, ("is a text model; expected a reranker", "hotshoe run")),
        ("rerank", embedding, ("is an embedding model", "hotshoe embed")),
        ("bench", reranker, ("is a reranker", "bench measures text and embedding models")),
    ):
        given = [] if command in ("bench", "chat") else ["x", "y"]
        assert main([command, model, *given]) == 2
        out = capsys.readouterr()
        assert out.out == ""
        for word in words:
            assert word in out.err, (command, out.err)


def test_options_reach_the_runner_and_the_backend(
    data: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: dict[str, object] = {}
    inner = hotshoe.load_model

    def load_model(*args: object, **options: object) -> object:
        seen.update(options)
        return inner(*args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(hotshoe, "load_model", load_model, raising=False)
    model = str(data / "llamacpp" / "LlamaForCausalLM.gguf")
    options = ["--kv-dtype", "f32", "--n-batch", "8", "--n-ubatch", "4", "--max-sequences", "3", "--sequences", "2"]
    command = [
        "run",
        model,
        "the",
        "--max-tokens",
        "2",
        "--ctx",
        "32",
        "--device",
        "reference",
        "--flash-attention",
        "off",
        "--matmul-precision",
        "bf16",
    ]
    assert main([*command, *options]) == 0
    seen.pop("progress")
    assert seen == {
        "task": "text",
        "projector": None,
        "n_ctx": 32,
        "flash_attention": "off",
        "matmul_precision": "bf16",
        "kv_dtype": "f32",
        "n_batch": 8,
        "n_ubatch": 4,
        "max_sequences": 3,
        "n_sequences": 2,
    }
    capsys.readouterr()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--n-batch", "0"), "--n-batch is 0"),
        (("--n-batch", "8", "--n-ubatch", "16"), "--n-ubatch is 16"),
        (("--max-sequences", "2000"), "--max-sequences is 2000"),
        (("--sequences", "-1"), "--sequences is -1"),
        (
            ("--sequences", "99999"),
            "--sequences is 99999; expected at most 256, as the cache holds --max-",
        ),
        (("--kv-dtype", "q9_0"), "--kv-dtype is 'q9_0' (str); expected an element type\n  hint: use f16, f32, q8_0"),
        (("--ctx", "0"), "--ctx is 0"),
    ],
)
def test_options_that_make_no_sense(
    options: tuple[str, ...], words: str, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", str(data / "llamacpp" / "LlamaForCausalLM.gguf"), "x", "--device", "reference", *options]) == 2
    assert words in capsys.readouterr().err


def test_options_that_an_encoder_has_no_use_for_are_refused(data: Path) -> None:
    path = data / "bert-tiny-llamacpp.gguf"
    for name, value in (
        ("kv_dtype", "f32"),
        ("n_sequences", 2),
        ("max_sequences", 2),
        ("n_ubatch", 8),
        ("max_step_seconds", 1),
    ):
        option: Any = {name: value}
        with pytest.raises(hotshoe.errors.ModelError, match=rf"{name} is .*, but this option is for text models only"):
            hotshoe.load_model(path, "reference", **option)
