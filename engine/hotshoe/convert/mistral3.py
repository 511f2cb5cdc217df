"""Convert the text models of Mistral Small 3.1 and later, Ministral 3, Devstral 2 and Mistral Small 4."""

from __future__ import annotations

from typing import Any

from hotshoe.convert import Checkpoint, FileLayout, Rope, read_rope
from hotshoe.convert.deepseek2 import describe_latent
from hotshoe.convert.llama import describe_llama

__all__ = ["describe"]

_N_KV_HEADS = 8  # default of num_key_value_heads in transformers' Ministral3Config


def describe(checkpoint: Checkpoint) -> FileLayout:
    """Describe the file. Raises ModelFileError if config.json is invalid, ConversionError if GGUF cannot express it."""
    checkpoint = checkpoint.text()
    if checkpoint.config.get("model_type") == "mistral4":
        return _describe_mistral4(checkpoint)
    rope = read_rope(checkpoint, "linear", "llama3", "yarn")
    keys = _temperature_keys(rope)
    if rope.settings.get("mscale_all_dim") is not None:
        if rope.number("mscale", 1.0) != 1.0:
            raise checkpoint.refusal(f"RoPE's mscale is {rope.settings['mscale']}; a GGUF file can only express 1")
        keys["rope.scaling.yarn_log_multiplier"] = float(rope.number("mscale_all_dim"))
    return describe_llama(checkpoint, _N_KV_HEADS, keys, arch="mistral3")


def _describe_mistral4(checkpoint: Checkpoint) -> FileLayout:
    checkpoint.expect(n_group=1)  # it ranks groups in another way than DeepSeek's models
    rope = read_rope(checkpoint, "yarn")
    keys = _temperature_keys(rope)
    if keys:  # llama.cpp's converter writes neither key, although its reader knows them
        keys["attention.temperature_length"] = rope.original_context()
    return describe_latent(checkpoint, "mistral4", keys, {"layers.mlp.experts.gate_up_proj": "ffn_gate_up_exps"})


def _temperature_keys(rope: Rope) -> dict[str, Any]:
    if rope.settings.get("llama_4_scaling_beta") is None:
        return {}
    return {"attention.temperature_scale": float(rope.number("llama_4_scaling_beta"))}
