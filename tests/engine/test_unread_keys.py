"""Metadata of the file's architecture that nothing reads: refused, unless the key changes nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hotshoe
from hotshoe import families
from hotshoe.unread_keys import HARMLESS, NEUTRAL, find_unread
from hotshoe_core.errors import ModelFileError
from hotshoe_core.gguf import GGUFFile
from tests.support.forward import Forward
from tests.support.rewrite import rewrite

FILES = sorted(p.stem for p in (Path(__file__).parents[1] / "data/llamacpp").glob("*.gguf"))


def unread(path: Path) -> dict[str, Any]:
    with GGUFFile(path) as file:
        model = families.find_model(file.metadata)
        return find_unread(file.metadata, model(model.config_type().from_metadata(file.metadata)))


def logits(path: Path) -> np.ndarray[Any, Any]:
    with Forward(path, "reference") as model:
        return model.logits(range(10, 40))


@pytest.mark.parametrize("name", FILES)
def test_files_of_llama_cpp_s_converter_have_no_key_that_is_not_read(name: str, data: Path) -> None:
    assert unread(data / f"llamacpp/{name}.gguf") == {}


@pytest.mark.parametrize(
    ("name", "key", "value", "shown"),
    [
        ("LlamaForCausalLM", "llama.attention.clamp_kqv", 8.0, "is 8.0"),
        ("LlamaForCausalLM", "llama.rope.scaling.alpha", 1000.0, "is 1000.0"),
        ("LlamaForCausalLM", "llama.invented", "yes", "is 'yes'"),
        ("LlamaForCausalLM", "llama.layer_weights", [1, 2, 3], "is an array of 3 values"),
        ("LlamaForCausalLM", "llama.attention.causal", False, "is False"),
        ("LlamaForCausalLM", "llama.pooling_type", 3, "is 3"),
        ("Qwen3ForCausalLM", "qwen3.logit_scale", 0.5, "is 0.5"),
        ("Qwen3MoeForCausalLM", "qwen3moe.rope.scaling.yarn_log_multiplier", 0.1, "is 0.1"),
        ("DeepseekV3ForCausalLM", "deepseek2.attention.sliding_window", 16, "is 16"),
        ("Mamba2ForCausalLM", "mamba2.residual_scale", 0.5, "is 0.5"),
        ("BertForSequenceClassification", "bert.attention.causal", True, "is True"),
        ("BertForSequenceClassification", "bert.attention.sliding_window", 16, "is 16"),
    ],
)
def test_a_key_that_is_not_read(name: str, key: str, value: Any, shown: str, data: Path, tmp_path: Path) -> None:
    path = rewrite(data / f"llamacpp/{name}.gguf", tmp_path / "changed.gguf", {key: value})
    for use in (hotshoe.load_model, hotshoe.plan_model):
        with pytest.raises(ModelFileError, match=f"'{key}'.*{shown}.*does not read this key") as e:
            use(path, "reference")
        assert f"--remove-metadata {key}" in (e.value.hint or "")


def test_all_unread_keys_are_named(data: Path, tmp_path: Path) -> None:
    more = {"llama.swin_norm": True, "llama.attention.clamp_kqv": 2.0}
    path = rewrite(data / "llamacpp/LlamaForCausalLM.gguf", tmp_path / "changed.gguf", more)
    with pytest.raises(ModelFileError, match=r"swin_norm.*the same holds for llama\.attention\.clamp_kqv"):
        hotshoe.load_model(path, "reference")


def test_neutral_values_and_harmless_keys_load(data: Path, tmp_path: Path) -> None:
    more: dict[str, Any] = {f"qwen3.{k}": values[-1] for k, values in NEUTRAL.items() if k != "attention.head_count"}
    more |= {f"qwen3.{key}": 1 for key in HARMLESS if key != "attention.layer_norm_rms_epsilon"}
    more |= {"qwen3.attention.causal": True, "qwen3.attention.sliding_window": 0, "qwen3.pooling_type": 0}
    more |= {"qwen3.swiglu_clamp_exp": [0.0, 0.0]}
    path = rewrite(data / "llamacpp/Qwen3ForCausalLM.gguf", tmp_path / "changed.gguf", more)
    np.testing.assert_array_equal(logits(path), logits(data / "llamacpp/Qwen3ForCausalLM.gguf"))
    assert unread(path) == {}


def test_a_family_names_keys_of_its_own(data: Path, tmp_path: Path) -> None:
    class Model(families.find_model(GGUFFile(data / "llamacpp/LlamaForCausalLM.gguf").metadata)):  # type: ignore[misc]
        def unused_keys(self) -> dict[str, str]:
            return super().unused_keys() | {"invented": "it is a test"}

    path = rewrite(data / "llamacpp/LlamaForCausalLM.gguf", tmp_path / "changed.gguf", {"llama.invented": 1})
    assert unread(path) == {"invented": 1}
    with GGUFFile(path) as file:
        assert find_unread(file.metadata, Model(Model.config_type().from_metadata(file.metadata))) == {}


@pytest.mark.parametrize("name", ["rope.scaling.factor", "rope.scale_linear"])
def test_the_factor_of_linear_scaling(name: str, data: Path, tmp_path: Path) -> None:
    """A file without rope.scaling.type scales linearly, and files of 2023 call the factor scale_linear."""
    source = data / "llamacpp/LlamaForCausalLM.gguf"
    named = {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0}
    expected = logits(rewrite(source, tmp_path / "named.gguf", named))
    found = logits(rewrite(source, tmp_path / "plain.gguf", {f"llama.{name}": 4.0}))
    np.testing.assert_array_equal(found, expected)
    assert np.abs(found - logits(source)).max() > 0.1 * np.abs(found).max()


@pytest.mark.parametrize(
    ("kind", "key"),
    [("none", "factor"), ("linear", "yarn_beta_fast"), ("longrope", "factor"), ("yarn", "yarn_log_multiplier")],
)
def test_a_setting_of_rope_that_its_scaling_does_not_use(kind: str, key: str, data: Path, tmp_path: Path) -> None:
    more = {"llama.rope.scaling.type": kind, f"llama.rope.scaling.{key}": 4.0}
    assert unread(rewrite(data / "llamacpp/LlamaForCausalLM.gguf", tmp_path / "m.gguf", more)) == {
        f"rope.scaling.{key}": 4.0
    }
