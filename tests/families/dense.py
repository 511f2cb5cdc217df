"""Rows of dense decoders."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy as safetensors

from tests.families.checkpoints import renamed, save
from tests.families.row import COMMON, Row

YARN = {"rope_theta": 1e4, "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
LLAMA3 = {
    "rope_theta": 1e4,
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}

MINISTRAL = YARN | {"mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.1, "max_position_embeddings": 256}


def _with_vision(folder: Path) -> None:
    """Make the folder that of a model which also reads images, without most of its vision encoder."""
    config = json.loads((folder / "config.json").read_text()) | {"architectures": None}
    whole = {"architectures": ["Mistral3ForConditionalGeneration"], "model_type": "mistral3", "text_config": config}
    (folder / "config.json").write_text(json.dumps(whole))
    weights = safetensors.load_file(folder / "model.safetensors")
    weights = {f"language_model.{name}": value for name, value in weights.items()}
    others = ("vision_tower.ln_pre.weight", "multi_modal_projector.norm.weight")
    weights |= dict.fromkeys(others, np.ones(8, np.float32))
    save(weights, folder)


def _as_exaone(folder: Path) -> None:
    config = {"num_hidden_layers": "num_layers", "rms_norm_eps": "layer_norm_epsilon"}
    config |= {"hidden_act": "activation_function"}
    names = {"model.embed_tokens": "transformer.wte", "model.norm": "transformer.ln_f", "model.layers": "transformer.h"}
    names |= {"input_layernorm": "ln_1", "post_attention_layernorm": "ln_2", "self_attn.o_proj": "self_attn.out_proj"}
    names |= {"self_attn": "attn.attention", "gate_proj": "c_fc_0", "up_proj": "c_fc_1", "down_proj": "c_proj"}
    weights = renamed(folder, config, names, architectures=["ExaoneForCausalLM"], model_type=None, head_dim=None)
    save(weights, folder)


def _as_internlm2(folder: Path) -> None:
    names = {"embed_tokens": "tok_embeddings", "lm_head": "output", "input_layernorm": "attention_norm"}
    names |= {"post_attention_layernorm": "ffn_norm", "mlp.gate_proj": "feed_forward.w1"}
    names |= {"mlp.up_proj": "feed_forward.w3", "mlp.down_proj": "feed_forward.w2", "self_attn.o_proj": "attention.wo"}
    more = {"architectures": ["InternLM2ForCausalLM"], "model_type": "internlm2", "bias": False, "head_dim": None}
    weights = renamed(folder, {}, names, **more)
    groups = COMMON["num_key_value_heads"]
    for i in range(COMMON["num_hidden_layers"]):
        parts = [weights.pop(f"model.layers.{i}.self_attn.{n}_proj.weight") for n in "qkv"]
        rows = np.concatenate([part.reshape(groups, -1, part.shape[-1]) for part in parts], axis=1)
        weights[f"model.layers.{i}.attention.wqkv.weight"] = rows.reshape(-1, rows.shape[-1])
    save(weights, folder)


def _as_orion(folder: Path) -> None:
    config = {"layer_norm_eps": "rms_norm_eps"}
    unused = {
        "use_qkv_bias": None,
        "partial_rotary_factor": None,
        "rope_parameters": None,
        "use_parallel_residual": None,
    }
    weights = renamed(folder, config, {}, architectures=["OrionForCausalLM"], model_type="orion", **unused)
    save(weights, folder)


def _as_xverse(folder: Path) -> None:
    weights = renamed(folder, {}, {}, architectures=["XverseForCausalLM"], model_type="xverse", head_dim=None)
    save(weights, folder)


def _as_minicpm(folder: Path) -> None:
    config = {"embedding_multiplier": "scale_emb"}
    more = {"scale_depth": 1.4, "dim_model_base": 16, "residual_multiplier": None, "logits_scaling": None}
    more |= {"architectures": ["MiniCPMForCausalLM"], "model_type": "minicpm", "attention_multiplier": None}
    save(renamed(folder, config, {}, **more), folder)


_MINICPM = {"embedding_multiplier": 12.0, "residual_multiplier": 1.4 / 3**0.5, "logits_scaling": 4.0}
_MINICPM |= {"attention_multiplier": 0.25, "rms_norm_eps": 1e-2}
_LONGROPE = {"rope_theta": 1e4, "rope_type": "longrope", "original_max_position_embeddings": 256}
_LONGROPE |= {"short_factor": [1 + i / 8 for i in range(8)], "long_factor": [2 + i / 8 for i in range(8)]}
_MINICPM3: dict[str, Any] = {
    "num_key_value_heads": 4,
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "scale_emb": 12,
    "scale_depth": 1.4,
    "dim_model_base": 256,
    "rms_norm_eps": 1e-6,  # transformers takes it in two norms, whatever config.json says
    "tie_word_embeddings": False,
}
_MLA_HEADS = {
    "kv heads": "all heads read one latent",
    "epsilon": "transformers knows one value only, which is too small to show",
}
_NORM_AFTER_ROPE = "shiftable is False"
_DERIVED = {"head_dim": "config.json cannot state it"}

ROWS: dict[str, Row] = {
    "hunyuan": Row("HunYuanDenseV1ForCausalLM", "hunyuan-dense", {"head_dim": 24}, no_shift=_NORM_AFTER_ROPE),
    "hunyuan-alpha": Row(
        "HunYuanDenseV1ForCausalLM",
        "hunyuan-dense",
        {"head_dim": 24, "max_position_embeddings": 32768}
        | {"rope_parameters": {"rope_theta": 1e4, "rope_type": "dynamic", "alpha": 50.0, "factor": 1.0}},
        no_shift=_NORM_AFTER_ROPE,
    ),
    "ernie4_5": Row("Ernie4_5ForCausalLM", "ernie4_5", {"head_dim": 24}),
    "exaone": Row(
        "LlamaForCausalLM",
        "exaone",
        {"rope_parameters": LLAMA3},
        prepare=_as_exaone,
        # llama.cpp's converter writes the key of another norm, and its reader then misses that of its own
        keys={
            "exaone.attention.layer_norm_epsilon": None,
            "exaone.attention.layer_norm_rms_epsilon": float(np.float32(1e-6)),
        },
        excused=_DERIVED,
    ),
    "internlm2": Row("LlamaForCausalLM", "internlm2", {}, prepare=_as_internlm2, excused=_DERIVED),
    "seed_oss": Row("SeedOssForCausalLM", "seed_oss", {"head_dim": 24}),
    "mistral-small-3.1": Row(
        "MistralForCausalLM", "mistral3", {"head_dim": 24, "sliding_window": None}, prepare=_with_vision
    ),
    "ministral3": Row("Ministral3ForCausalLM", "mistral3", {"head_dim": 24, "rope_parameters": MINISTRAL}, n_tokens=60),
    "llama": Row("LlamaForCausalLM", "llama", {"head_dim": 24}),
    "llama-3.1": Row(
        "LlamaForCausalLM",
        "llama",
        {"head_dim": 24, "rope_parameters": LLAMA3, "attention_bias": True, "mlp_bias": True},
    ),
    "mistral": Row("MistralForCausalLM", "llama", {"head_dim": 24, "sliding_window": None}),
    "qwen2": Row("Qwen2ForCausalLM", "qwen2"),
    "qwen2-yarn": Row("Qwen2ForCausalLM", "qwen2", {"rope_parameters": YARN}),
    "qwen3": Row("Qwen3ForCausalLM", "qwen3", {"head_dim": 32}),
    "qwen3-tied": Row("Qwen3ForCausalLM", "qwen3", {"head_dim": 32, "tie_word_embeddings": True}),
    "arcee": Row("ArceeForCausalLM", "arcee", {"head_dim": 24}),
    "apertus": Row(
        "ApertusForCausalLM", "apertus", {"rope_parameters": LLAMA3, "attention_bias": True, "rms_norm_eps": 1e-3}
    ),
    "orion": Row(
        "StableLmForCausalLM",
        "orion",
        {"partial_rotary_factor": 1.0, "rope_parameters": {"rope_theta": 1e4, "rope_type": "default"}},
        prepare=_as_orion,
    ),
    "xverse": Row(
        "LlamaForCausalLM",
        "xverse",
        prepare=_as_xverse,
        keys={"xverse.vocab_size": 320},  # our converter writes it for all models like Llama
        excused=_DERIVED,
    ),
    "minicpm": Row("GraniteForCausalLM", "minicpm", _MINICPM, prepare=_as_minicpm),
    "minicpm4": Row(
        "GraniteForCausalLM",
        "minicpm",
        _MINICPM | {"rope_parameters": _LONGROPE},
        prepare=_as_minicpm,
        optional=("rope_factors_*",),
        excused={"original context": "it is the whole context, as in published models"},
    ),
    "minicpm3": Row("MiniCPM3ForCausalLM", "minicpm3", _MINICPM3, excused=_MLA_HEADS),
    "minicpm3-longrope": Row(
        "MiniCPM3ForCausalLM",
        "minicpm3",
        _MINICPM3 | {"rope_parameters": _LONGROPE | {k: _LONGROPE[k][:4] for k in ("short_factor", "long_factor")}},
        optional=("rope_factors_*",),
        excused=_MLA_HEADS | {"original context": "it is the whole context, as in published models"},
    ),
    "jais2": Row("Jais2ForCausalLM", "jais2", {"layer_norm_eps": 1e-3}, excused=_DERIVED),
    "phi3": Row("Phi3ForCausalLM", "phi3", {"original_max_position_embeddings": 256, "sliding_window": None}),
}
