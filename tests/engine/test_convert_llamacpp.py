"""Our converter against llama.cpp's, on the same folders: every key, those of the tokenizer too.

The table of tests/families compares the tensors; here are those of models that it does not have.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hotshoe.convert import convert
from tests.support.converted import f16_digests, keys, tensors
from tests.support.recorded import MODELS, make_recorded

TOKENS = ("tokenizer.ggml.tokens", "tokenizer.ggml.token_type")

# Keys that are meant to differ, and what ours says. ``...`` stands for a value that another test looks at.
MEANT: dict[str, dict[str, Any]] = {
    # theirs asks transformers, whose class for Qwen2 adds an <|endoftext|> that these files do not name
    "Qwen2ForCausalLM": dict.fromkeys(TOKENS, ...),
    "Qwen3Embedding": {
        "hotshoe.embedding.normalize": True,
        "hotshoe.embedding.max_seq_length": 128,
        # theirs writes no key where none is added, and readers go by the pre-tokenizer then
        "tokenizer.ggml.add_bos_token": False,
    },
    "BertForSequenceClassification": {
        # theirs leaves this to an option of llama.cpp's server
        "bert.pooling_type": 4,
        "general.size_label": "25K",  # with the pooler
        "tokenizer.ggml.cls_token_id": 2,
    },
    "XLMRobertaForSequenceClassification": {"bert.pooling_type": 4, "tokenizer.ggml.cls_token_id": 0},
}
NOT_IN_TABLE = ("Qwen3Embedding", "BertForSequenceClassification", "XLMRobertaForSequenceClassification")
# Tensors that theirs leaves out. Without the pooler a reranker's scores are not those of transformers; llama.cpp reads
# these names, which its converter writes for other architectures.
LEFT_OUT = {"BertForSequenceClassification": {"cls.weight", "cls.bias"}}


@pytest.fixture(scope="module", params=MODELS)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def folder(name: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_recorded(name, tmp_path_factory.mktemp("recorded") / name)


def test_the_same_keys(name: str, folder: Path, data: Path, tmp_path: Path) -> None:
    mine, recorded = keys(convert(folder, tmp_path / "ours.gguf", "f32")), keys(data / "llamacpp" / f"{name}.gguf")
    differing = {key: mine.get(key) for key in mine.keys() | recorded.keys() if mine.get(key) != recorded.get(key)}
    meant = MEANT.get(name, {})
    assert differing == {key: differing.get(key) if value is ... else value for key, value in meant.items()}


@pytest.mark.parametrize("name", NOT_IN_TABLE, scope="module")
def test_the_same_tensors(name: str, folder: Path, data: Path, tmp_path: Path) -> None:
    a = tensors(convert(folder, tmp_path / "f32.gguf", "f32"))
    b = tensors(data / "llamacpp" / f"{name}.gguf")
    assert [tensor for tensor in a if tensor not in LEFT_OUT.get(name, ())] == list(b)
    for tensor, (kind, values) in b.items():
        assert a[tensor][0] == kind == "F32", tensor
        np.testing.assert_array_equal(a[tensor][1], values, err_msg=tensor)
    recorded = json.loads((data / "llamacpp" / "f16.json").read_text())[name]
    found = f16_digests(convert(folder, tmp_path / "f16.gguf", "f16"))
    assert {t: v for t, v in found.items() if t not in LEFT_OUT.get(name, ())} == recorded
