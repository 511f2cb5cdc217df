"""Rows of models whose code transformers lacks: it computes similar ones, whose folders are then changed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from tests.families.checkpoints import Weights, interleaved, joined, renamed, save
from tests.families.dense import LLAMA3
from tests.families.row import Row

_UNSTATED = {"architectures": None, "model_type": None, "mlp_layer_types": None, "topk_method": None}
_DEEPSEEK: dict[str, Any] = {
    "n_routed_experts": 6,
    "num_experts_per_tok": 2,
    "n_shared_experts": 2,
    "moe_intermediate_size": 32,
    "mlp_layer_types": ["dense", "sparse", "sparse"],
    "routed_scaling_factor": 1.0,
}


def _split_experts(weights: Weights) -> None:
    """Give each expert tensors of its own."""
    for name in [name for name in weights if name.endswith(("experts.gate_up_proj", "experts.down_proj"))]:
        start, value = name.rpartition(".")[0], weights.pop(name)
        for i, expert in enumerate(value):
            if name.endswith("down_proj"):
                weights[f"{start}.{i}.down_proj.weight"] = expert
            else:
                gate, up = np.split(expert, 2)
                weights |= {f"{start}.{i}.gate_proj.weight": gate, f"{start}.{i}.up_proj.weight": up}


def _as_deepseek(folder: Path) -> None:
    more = _UNSTATED | {"architectures": ["DeepseekForCausalLM"], "first_k_dense_replace": 1, "norm_topk_prob": False}
    weights = renamed(folder, {}, {}, **more)
    _split_experts(weights)
    save(weights, folder)


def _as_ling(folder: Path) -> None:
    config = {"n_routed_experts": "num_experts", "n_shared_experts": "num_shared_experts"}
    more = _UNSTATED | {"architectures": ["BailingMoeForCausalLM"], "first_k_dense_replace": 0, "norm_topk_prob": True}
    names = {"self_attn": "attention", "embed_tokens": "word_embeddings", "attention.o_proj": "attention.dense"}
    weights = renamed(folder, config, names, **more, head_dim=None, routed_scaling_factor=None)
    joined(weights, ("q_proj.weight", "k_proj.weight", "v_proj.weight"), "query_key_value.weight")
    _split_experts(weights)
    save(weights, folder)


def _ling2(architecture: str) -> Any:
    def prepare(folder: Path) -> None:
        config = {"n_routed_experts": "num_experts", "n_shared_experts": "num_shared_experts"}
        more = {"architectures": [architecture], "model_type": None, "score_function": "sigmoid"}
        names = {"self_attn": "attention", "embed_tokens": "word_embeddings", "attention.o_proj": "attention.dense"}
        names |= {"q_norm": "query_layernorm", "k_norm": "key_layernorm"}
        names |= {"gate.e_score_correction_bias": "gate.expert_bias"}
        weights = renamed(folder, config, names, **more)
        joined(weights, ("q_proj.weight", "k_proj.weight", "v_proj.weight"), "query_key_value.weight")
        if architecture.startswith("Sarvam"):
            for name in weights:
                if name.endswith("expert_bias"):
                    weights[name] += np.float32(3.0)
        _split_experts(weights)
        save(weights, folder)

    return prepare


_DERIVED = {"head_dim": "config.json cannot state it"}
_SQUARE = "llama.cpp reads only files in which the heads together are as wide as the hidden state"
_LING2: dict[str, Any] = {
    "head_dim": 16,
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 32,
    "n_shared_experts": 1,
    "routed_scaling_factor": 2.5,
    "norm_topk_prob": True,
    "first_k_dense_replace": 1,
    "use_qk_norm": True,
    "attention_bias": False,
    "num_nextn_predict_layers": 0,
}


def _as_maincoder(folder: Path) -> None:
    more = {"architectures": ["MaincoderForCausalLM"], "model_type": None}
    weights = renamed(folder, {}, {"query_layernorm": "q_norm", "key_layernorm": "k_norm"}, **more)
    heads = {"q_proj.weight": 4, "k_proj.weight": 2, "q_norm.weight": 1, "k_norm.weight": 1}
    for name in weights:
        for ending, n in heads.items():
            if name.endswith(ending):
                weights[name] = interleaved(weights[name], n)
    save(weights, folder)


def _as_baichuan(folder: Path) -> None:
    more = {"architectures": ["BaichuanForCausalLM"], "model_type": "baichuan", "head_dim": None}
    weights = renamed(folder, {"max_position_embeddings": "model_max_length"}, {}, **more)
    joined(weights, ("q_proj.weight", "k_proj.weight", "v_proj.weight"), "W_pack.weight")
    save(weights, folder)


def _as_pangu(folder: Path) -> None:
    more = {"architectures": ["PanguEmbeddedForCausalLM"], "model_type": None, "attention_bias": None, "bias": True}
    save(renamed(folder, {}, {}, **more), folder)


def _as_deci(folder: Path) -> None:
    more: dict[str, Any] = {"architectures": ["DeciLMForCausalLM"], "model_type": "nemotron-nas"}
    more |= dict.fromkeys(("intermediate_size", "num_key_value_heads", "head_dim"))
    save(renamed(folder, {}, {}, **more), folder)


def _block(group: int | None, multiplier: float | None, *, is_linear: bool = False) -> dict[str, Any]:
    attention = {"n_heads_in_group": group, "replace_with_linear": is_linear}
    return {"attention": attention, "ffn": {"ffn_mult": multiplier}}


_STEP_TYPES = ["full_attention", "sliding_attention", "sliding_attention", "sliding_attention"]
_STEP: dict[str, Any] = {
    "pad_token_id": 1,
    "num_hidden_layers": 6,
    "head_dim": 24,
    "layer_types": (_STEP_TYPES * 2)[:6],
    "sliding_window": 8,
    "attention_other_setting": {"num_attention_heads": 6, "num_attention_groups": 2},
    "num_sliding_attention_heads": 6,
    "mlp_layer_types": ["dense", "dense", *["sparse"] * 4],
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "share_expert_dim": 40,
    "moe_router_scaling_factor": 2.5,
    "rms_norm_eps": 1e-3,
    "swiglu_limits": [0.0, 0.0, 0.0, 0.0, 0.5, 0.7],
    "swiglu_limits_shared": [0.0, 0.6, 0.0, 0.5, 0.0, 0.8],
    "rope_parameters": {
        "full_attention": LLAMA3 | {"partial_rotary_factor": 0.5},
        "sliding_attention": {"rope_type": "default", "rope_theta": 5e3, "partial_rotary_factor": 1.0},
    },
}


def _as_step35(folder: Path) -> None:
    kinds = _STEP["layer_types"]
    more = {
        "architectures": ["Step3p5ForCausalLM"],
        "num_attention_groups": 2,
        "attention_other_setting": _STEP["attention_other_setting"],
        "rope_theta": [1e4 if kind == "full_attention" else 5e3 for kind in kinds],
        "rope_scaling": {name: value for name, value in LLAMA3.items() if name != "rope_theta"},
        "partial_rotary_factors": [0.5 if kind == "full_attention" else 1.0 for kind in kinds],
        "moe_layers_enum": "2,3,4,5",
        "moe_num_experts": 4,
        "moe_top_k": 2,
        "norm_expert_weight": True,
        "moe_router_activation": "sigmoid",
    }
    unused = ("rope_parameters", "mlp_layer_types")
    names = {"mlp.gate.weight": "moe.gate.weight", "mlp.gate.e_score_correction_bias": "moe.router_bias"}
    names |= {"mlp.shared_experts.": "share_expert.", "mlp.experts.down_proj": "moe.down_proj.weight"}
    weights = renamed(folder, {}, names, **more, **dict.fromkeys(unused))
    for name in [name for name in weights if name.endswith("experts.gate_up_proj")]:
        gate, up = np.split(weights.pop(name), 2, axis=1)
        start = name.replace("mlp.experts.gate_up_proj", "moe")
        weights |= {f"{start}.gate_proj.weight": gate, f"{start}.up_proj.weight": up}
    save(weights, folder)


_ALL_HEADS = {"kv heads": "the matrix of queries, keys and values has three equal parts"}

ROWS: dict[str, Row] = {
    "baichuan": Row(
        "LlamaForCausalLM",
        "baichuan",
        {"num_key_value_heads": 4},
        prepare=_as_baichuan,
        llamacpp="it rotates queries and keys only in models of 32 layers",
        excused=_ALL_HEADS | _DERIVED,
    ),
    "deci": Row(
        "tests.families.oracles:DeciLMForCausalLM",
        "deci",
        {
            "rope_parameters": LLAMA3,
            "num_hidden_layers": 5,
            "block_configs": [
                _block(2, 2.0),
                _block(None, 8.0),
                _block(None, 2.0, is_linear=True),
                _block(None, None),
                _block(4, 2.0),
            ],
        },
        prepare=_as_deci,
        excused=_DERIVED,
    ),
    "step35": Row("tests.families.oracles:Step35ForCausalLM", "step35", _STEP, n_tokens=60, prepare=_as_step35),
    "maincoder": Row(
        "HunYuanDenseV1ForCausalLM",
        "maincoder",
        {"head_dim": 24, "tie_word_embeddings": True},
        prepare=_as_maincoder,
        no_shift="shiftable is False",
    ),
    "pangu-embedded": Row(
        "LlamaForCausalLM", "pangu-embedded", {"attention_bias": True, "head_dim": 24}, prepare=_as_pangu
    ),
    "deepseek": Row(
        "tests.families.oracles:DeepseekForCausalLM",
        "deepseek",
        _DEEPSEEK,
        n_tokens=32,
        prepare=_as_deepseek,
        keys={"deepseek.expert_weights_norm": False},
        excused=_DERIVED,
    ),
    "bailingmoe": Row(
        "tests.families.oracles:LingForCausalLM",
        "bailingmoe",
        _DEEPSEEK | {"mlp_layer_types": ["sparse"] * 3},
        n_tokens=32,
        weights={"experts.down_proj": lambda w: w / 2},
        prepare=_as_ling,
        excused=_DERIVED,
    ),
    "bailingmoe2": Row(
        "Glm4MoeForCausalLM",
        "bailingmoe2",
        _LING2 | {"n_group": 4, "topk_group": 2, "partial_rotary_factor": 0.5},
        n_tokens=60,
        prepare=_ling2("BailingMoeV2ForCausalLM"),
        excused={"head_dim": _SQUARE},
    ),
    "sarvam": Row(
        "Glm4MoeForCausalLM",
        "bailingmoe2",
        _LING2 | {"partial_rotary_factor": 1.0},
        n_tokens=60,
        weights={"correction_bias": lambda w: np.round(w * 8) / 8},  # their mean is exact
        prepare=_ling2("SarvamMoEForCausalLM"),
        excused={"head_dim": _SQUARE},
    ),
}
