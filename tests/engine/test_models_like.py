"""Files of architectures that are like another one, of models that transformers lacks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

import hotshoe
from hotshoe.convert import convert, like
from hotshoe_core.errors import ModelFileError
from tests.families.made import Made
from tests.families.rows import ROWS
from tests.support.file_forms import joined
from tests.support.forward import Forward
from tests.support.rewrite import rewrite


def test_qwen_1_is_a_qwen2_whose_files_say_twice_the_size(data: Path, tmp_path: Path, device: str) -> None:
    source = data / "llamacpp/Qwen2ForCausalLM.gguf"
    fields = gguf.GGUFReader(source).fields
    renamed = {k.replace("qwen2.", "qwen."): f.contents() for k, f in fields.items() if k.startswith("qwen2.")}
    renamed["qwen.feed_forward_length"] *= 2
    changes = dict.fromkeys(k for k in fields if k.startswith("qwen2.")) | renamed
    join = joined("attn_q", "attn_k", "attn_v", whole="attn_qkv")
    path = rewrite(source, tmp_path / "qwen.gguf", {"general.architecture": "qwen"} | changes, edit=join)
    with Forward(source, device) as qwen2, Forward(path, device) as qwen:
        expected = qwen2.logits(range(40, 60))
        np.testing.assert_allclose(qwen.logits(range(40, 60)), expected, atol=1e-5 * np.abs(expected).max())


def test_mistral3_with_experts_is_a_mixtral(data: Path, tmp_path: Path, device: str) -> None:
    source = data / "llamacpp/MixtralForCausalLM.gguf"
    fields = gguf.GGUFReader(source).fields
    keys = {k.replace("llama.", "mistral3."): f.contents() for k, f in fields.items() if k.startswith("llama.")}
    changes = dict.fromkeys(k for k in fields if k.startswith("llama.")) | keys
    path = rewrite(source, tmp_path / "mistral3.gguf", {"general.architecture": "mistral3"} | changes)
    with Forward(source, device) as mixtral, Forward(path, device) as mistral3:
        expected = mixtral.logits(range(40, 60))
        np.testing.assert_allclose(mistral3.logits(range(40, 60)), expected, atol=1e-5 * np.abs(expected).max())


def test_baichuan_with_40_layers_has_alibi(tmp_path: Path) -> None:
    row = ROWS["baichuan"]
    config = dict(row.config) | {"num_hidden_layers": 40, "rms_norm_eps": 1e-3}
    made = Made("13b", replace(row, model="tests.families.oracles:AlibiLlamaForCausalLM", config=config), tmp_path)
    try:
        made.near(made.result(made.file()), made.expected(made.ids))
    finally:
        made.close()


def test_the_output_matrix_of_baichuan_2_is_normalised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = Made("baichuan", replace(ROWS["baichuan"], weights={"lm_head.weight": _without_last}), tmp_path)
    try:
        original = _output(made.file())
        monkeypatch.setattr(like, "_BAICHUAN_2", 320)  # tokens
        normalised = _output(convert(made.folder, tmp_path / "baichuan2.gguf", "f32"))
    finally:
        made.close()
    rows = original[:-1]
    np.testing.assert_allclose(normalised[:-1], rows / np.linalg.norm(rows, axis=1, keepdims=True), rtol=1e-6)
    assert not normalised[-1].any(), "the row of an unused id stays 0"


def _without_last(rows: Any) -> Any:
    return np.append(rows[:-1], 0 * rows[-1:], 0)


@pytest.mark.parametrize("key", ["swiglu_clamp_exp", "swiglu_clamp_shexp"])
def test_a_negative_limit_of_step_3_5_is_named(tmp_path: Path, key: str) -> None:
    made = Made("step35", ROWS["step35"], tmp_path)
    try:
        path = rewrite(made.file(), tmp_path / "negative.gguf", {f"step35.{key}": [-1.0] * 6})
    finally:
        made.close()
    with pytest.raises(ModelFileError, match=f"{key}.*-1.0"):
        hotshoe.load_model(path, "reference")


def _output(path: Path) -> Any:
    return next(t.data for t in gguf.GGUFReader(path).tensors if t.name == "output.weight")
