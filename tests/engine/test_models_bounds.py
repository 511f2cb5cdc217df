"""Numbers in a file's metadata that would break a model are refused, whatever reads them."""

from __future__ import annotations

import importlib
import math
import re
from pathlib import Path
from typing import Any

import pytest

from hotshoe.models import apertus
from hotshoe.nn import Config, GatedMLP
from hotshoe_core.errors import ModelFileError
from hotshoe_core.gguf import Metadata

SIZES = {
    "block_count": 2,
    "embedding_length": 8,
    "context_length": 64,
    "feed_forward_length": 16,
    "attention.head_count": 2,
    "attention.layer_norm_rms_epsilon": 1e-6,
    "attention.layer_norm_epsilon": 1e-6,
    "attention.sliding_window": 8,
}
EXPERTS = {"expert_count": 4, "expert_used_count": 2, "expert_feed_forward_length": 4}
LATENT = EXPERTS | {
    "attention.kv_lora_rank": 4,
    "rope.dimension_count": 2,
    "attention.key_length_mla": 4,
    "attention.value_length_mla": 4,
    "attention.indexer.top_k": 16,
}
STATES = {f"ssm.{name}": 4 for name in ("conv_kernel", "inner_size", "state_size", "time_step_rank", "group_count")}
SPARSITY = {"activation_sparsity_scale": 0.0}


def read(module: str, keys: dict[str, Any], name: str = "Config") -> Any:
    made = {f"x.{key}": value for key, value in (SIZES | keys).items()} | {"general.architecture": "x"}
    config: type[Config] = getattr(importlib.import_module(f"hotshoe.models.{module}"), name)
    return config.from_metadata(Metadata(made, {}, Path("m")))


@pytest.mark.parametrize(
    ("module", "base", "key", "value"),
    [
        *(("deepseek2", LATENT, "attention.key_length_mla", value) for value in (0, -4, 2**40)),
        *(("deepseek2", LATENT, "attention.value_length_mla", value) for value in (0, -4, 2**40)),
        *(("deepseek32", LATENT, "attention.indexer.top_k", value) for value in (0, -5)),
        ("deepseek32", LATENT, "context_length", 2**31),
        ("nemotron_h", STATES, "attention.layer_norm_rms_epsilon", -1.0),
        ("nemotron_h", STATES, "attention.layer_norm_rms_epsilon", math.nan),
        *(("hunyuan_dense", {}, "rope.scaling.alpha", value) for value in (-1.0, math.nan, math.inf, 1e308)),
        ("hunyuan_dense", {"attention.key_length": 2}, "rope.scaling.alpha", 1000.0),
        ("gemma3n", SPARSITY, "attention.shared_kv_layers", 2),
        ("gemma3n", SPARSITY, "altup.active_idx", 4),
        ("gemma4", EXPERTS, "attention.shared_kv_layers", 2),
        *(
            ("mpt", {}, f"attention.{key}", value)
            for key in ("max_alibi_bias", "clamp_kqv")
            for value in (-1.0, math.nan)
        ),
        ("dbrx", EXPERTS, "attention.clamp_kqv", -1.0),
    ],
    ids=str,
)
def test_a_number_outside_its_bounds(module: str, base: dict[str, Any], key: str, value: Any) -> None:
    read(module, base)
    with pytest.raises(ModelFileError, match=re.escape(f"{key}': is {value}")):
        read(module, base | {key: value})


@pytest.mark.parametrize("value", [1000.0, -1000.0, math.nan, math.inf])
def test_numbers_of_an_activation(value: float) -> None:
    """Their keys are without the name of the architecture. exp(1000) would be an OverflowError in Python."""
    made = {f"x.{key}": value for key, value in SIZES.items()} | {"general.architecture": "x"}
    made |= {f"xielu.{name}": 0.5 for name in ("alpha_p", "alpha_n", "beta", "eps")}
    assert apertus.Config.from_metadata(Metadata(made, {}, Path("m"))).alpha_p == (0.5, 0.5)
    with pytest.raises(ModelFileError, match=f"'xielu.alpha_p': is {value}"):
        apertus.Config.from_metadata(Metadata(made | {"xielu.alpha_p": value}, {}, Path("m")))


def test_a_negative_size_of_an_mlp() -> None:
    assert read("like", {}, "QwenConfig").mlp_dim == (8, 8)
    with pytest.raises(ModelFileError, match="feed_forward_length': is -8; expected 0"):
        read("like", {"feed_forward_length": -8}, "QwenConfig")


@pytest.mark.parametrize(("module", "n_layers"), [("gemma2", 46), ("gemma3", 62)])
def test_no_heads_do_not_divide(module: str, n_layers: int) -> None:
    assert read(module, {"block_count": n_layers}).scale == 0.5
    assert read(module, {"block_count": n_layers, "attention.head_count": 0}).n_heads[0] == 0


def test_heads_of_two_elements_without_alpha() -> None:
    assert read("hunyuan_dense", {"attention.key_length": 2}).rope.base == 10000.0


def test_no_expert_is_used() -> None:
    with pytest.raises(ModelFileError, match="0 of 4 experts are used; expected 1 to 4"):
        read("deepseek2", LATENT | {"expert_used_count": 0})
    with pytest.raises(ModelFileError, match="2 of 0 experts are used; expected 0 to 0"):
        read("deepseek2", LATENT | {"expert_count": 0})


@pytest.mark.parametrize("module", ["deepseek2", "mistral3", "granitehybrid", "gemma4"])
def test_a_model_without_experts(module: str) -> None:
    keys = (LATENT | STATES | {"logit_scale": 1.0}).items()
    config = read(module, {k: v for k, v in keys if k not in ("expert_count", "expert_used_count")})
    assert not any(map(config.has_experts, range(2)))
    assert read(module, dict(keys)).has_experts(1)


def test_an_unknown_activation() -> None:
    from hotshoe.models.modern_bert import Model

    assert isinstance(Model(read("modern_bert", {})).blocks[0].mlp, GatedMLP)
    with pytest.raises(ModelFileError, match="hidden_activation is 'relu'; expected gelu or silu"):
        Model(read("modern_bert", {"hidden_activation": "relu"}))


def test_what_a_file_of_llama4_says_of_its_router() -> None:
    config = read("llama4", EXPERTS)
    assert (config.gating, config.normalize_experts) == ("sigmoid_of_chosen", False)
    config = read("llama4", EXPERTS | {"expert_gating_func": 1, "expert_weights_norm": True})
    assert (config.gating, config.normalize_experts) == ("softmax", True)
