"""Convert Nemotron-H and Nemotron 3: a layer is Mamba-2, attention without RoPE, or an MLP, which may have experts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hotshoe.convert import Checkpoint, FileLayout, Rules, Settings, expert_keys, interleave, make_layout, read_sizes
from hotshoe.convert.mamba2 import CONTEXT, mamba2_recipes, refuse_time_step_limit

__all__ = ["describe"]

_KINDS = {
    "mamba": ("M", "mamba", "linear_attention"),
    "attention": ("*", "attention", "full_attention"),
    "mlp": ("-", "mlp"),
    "moe": ("E", "moe"),
}
_KIND_OF = {name: kind for kind, names in _KINDS.items() for name in names}


def describe(checkpoint: Checkpoint) -> FileLayout:
    """Describe the file. Raises ModelFileError if config.json is invalid, ConversionError if GGUF cannot express it."""
    kinds = _kinds(checkpoint)
    checkpoint = replace(checkpoint, config=Settings(checkpoint.config | {"num_hidden_layers": len(kinds)}))
    checkpoint.expect(mlp_hidden_act="relu2", mamba_hidden_act="silu", use_bias=False, mamba_proj_bias=False)
    refuse_time_step_limit(checkpoint)
    experts = "moe" in kinds
    if experts and "mlp" in kinds:
        raise checkpoint.refusal("some layers have experts and others an MLP; a GGUF file can only express one of them")
    sizes = read_sizes(checkpoint, eps="layer_norm_epsilon", head_dim=128, n_kv_heads=8)
    heads, groups = checkpoint.integer("mamba_num_heads", 128), checkpoint.integer("n_groups", 8)
    keys = sizes.keys() | _expert_keys(checkpoint) if experts else sizes.keys()
    width = keys["expert_feed_forward_length"] if experts else sizes.ff
    del keys["attention.layer_norm_rms_epsilon"]
    keys |= {
        "context_length": CONTEXT,
        "feed_forward_length": [width if kind in ("mlp", "moe") else 0 for kind in kinds],
        "attention.head_count_kv": [sizes.n_kv_heads if kind == "attention" else 0 for kind in kinds],
        "attention.layer_norm_epsilon": sizes.eps,
        "attention.key_length": sizes.head_dim,
        "attention.value_length": sizes.head_dim,
        "rope.dimension_count": sizes.dim // sizes.n_heads,  # no layer has RoPE, but readers need the key
        "rope.scaling.finetuned": False,
        "vocab_size": sizes.vocab,
        "ssm.conv_kernel": checkpoint.integer("conv_kernel", 4),
        "ssm.state_size": checkpoint.integer("ssm_state_size", 128),
        "ssm.group_count": groups,
        "ssm.inner_size": heads * checkpoint.integer("mamba_head_dim", 64),
        "ssm.time_step_rank": heads,
    }
    biases = checkpoint.biases(
        attention_bias=("attn_q", "attn_k", "attn_v", "attn_output"), mlp_bias=("ffn_up", "ffn_down")
    )
    if checkpoint.config.get("use_conv_bias", True):
        biases.append("ssm_conv1d.bias")
    if experts:
        biases.append("exp_probs_b.bias")
    # as llama.cpp's converter has them; without RoPE, any order that queries and keys share is right
    orders = {"q": interleave(sizes.n_heads), "k": interleave(sizes.n_kv_heads)}
    recipes = {f"attn_{x}.{kind}": order for x, order in orders.items() for kind in ("weight", "bias")}
    recipes |= mamba2_recipes(keys["ssm.inner_size"], groups)
    rules = Rules(required=biases, recipes=recipes, ignored=("mtp.",))  # those layers only draft tokens
    return make_layout(checkpoint, "nemotron_h_moe" if experts else "nemotron_h", keys, rules, vocab=sizes.vocab)


def _kinds(checkpoint: Checkpoint) -> list[str]:
    """The kind of each layer. Raises ModelFileError if one is unknown."""
    name = "hybrid_override_pattern" if "hybrid_override_pattern" in checkpoint.config else "layers_block_type"
    stated = checkpoint.config.get(name)
    if not isinstance(stated, (str, list)) or not 0 < len(stated) <= len(checkpoint.tensors):
        raise checkpoint.invalid(name, stated, "the kind of each layer")
    if unknown := [kind for kind in stated if kind not in list(_KIND_OF)]:
        raise checkpoint.invalid(name, unknown[0], f"one of {', '.join(_KIND_OF)} for each layer")
    return [_KIND_OF[kind] for kind in stated]


def _expert_keys(checkpoint: Checkpoint) -> dict[str, Any]:
    checkpoint.expect(n_group=1, mlp_bias=False)
    keys = expert_keys(checkpoint, "n_routed_experts", used=2) | {
        "expert_feed_forward_length": checkpoint.integer("moe_intermediate_size"),
        "expert_shared_count": checkpoint.integer("n_shared_experts", 1),
        "expert_shared_feed_forward_length": checkpoint.integer("moe_shared_expert_intermediate_size"),
        "expert_weights_norm": bool(checkpoint.config.get("norm_topk_prob", True)),
        "expert_weights_scale": checkpoint.number("routed_scaling_factor", 1.0),
        "expert_group_count": 1,
        "expert_group_used_count": 1,
    }
    if checkpoint.config.get("moe_latent_size") is not None:
        keys["moe_latent_size"] = checkpoint.integer("moe_latent_size")
    return keys
