"""Convert Kimi Linear: most layers have delta attention, the others latent attention without RoPE."""

from __future__ import annotations

import gguf

from hotshoe.convert import Checkpoint, FileLayout, Recipe, Rules, make_layout, minus_exp, refuse_quantized
from hotshoe.convert.deepseek2 import latent_recipes

__all__ = ["describe"]


def describe(checkpoint: Checkpoint) -> FileLayout:
    """Describe the file. Raises ModelFileError if config.json is invalid, ConversionError if GGUF cannot express it."""
    refuse_quantized(checkpoint)
    checkpoint.expect(hidden_act="silu", attention_bias=False, mla_use_nope=True, moe_renormalize=True)
    checkpoint.expect(moe_router_activation_func="sigmoid", moe_layer_freq=1)
    # readers take one group, whatever the file says
    checkpoint.expect(num_expert_group=1, topk_group=1)
    n_layers, heads = checkpoint.layers(), checkpoint.integer("num_attention_heads")
    rotated, plain = checkpoint.integer("qk_rope_head_dim"), checkpoint.integer("qk_nope_head_dim")
    v, kv, vocab = (checkpoint.integer(name) for name in ("v_head_dim", "kv_lora_rank", "vocab_size"))
    linear = checkpoint.config.get("linear_attn_config")
    if not isinstance(linear, dict) or linear.get("num_heads") != heads:
        raise checkpoint.invalid("linear_attn_config", linear, f"an object whose num_heads is {heads}")
    latent, sizes = linear.get("full_attn_layers"), [linear.get("short_conv_kernel_size"), linear.get("head_dim")]
    if not all(isinstance(size, int) and size > 0 for size in sizes):
        raise checkpoint.invalid("linear_attn_config", linear, "sizes in short_conv_kernel_size and head_dim")
    if not isinstance(latent, list) or not all(isinstance(i, int) and 0 < i <= n_layers for i in latent):
        raise checkpoint.invalid("linear_attn_config", linear, f"full_attn_layers, a list of numbers 1 to {n_layers}")
    rank = checkpoint.config.get("q_lora_rank")
    theta, head_dim = checkpoint.config.get("rope_theta"), checkpoint.config.get("head_dim")
    keys = {
        "block_count": n_layers,
        "context_length": checkpoint.integer("model_max_length"),
        "embedding_length": checkpoint.integer("hidden_size"),
        "feed_forward_length": checkpoint.integer("intermediate_size"),
        "vocab_size": vocab,
        "attention.head_count": heads,
        # readers recognise delta attention by 0 key/value heads
        "attention.head_count_kv": [int(i + 1 in latent) for i in range(n_layers)],
        "attention.layer_norm_rms_epsilon": checkpoint.number("rms_norm_eps", 1e-5),
        **({} if rank is None else {"attention.q_lora_rank": checkpoint.integer("q_lora_rank")}),
        "attention.kv_lora_rank": kv,
        "attention.key_length": kv + rotated,
        "attention.key_length_mla": plain + rotated,
        "attention.value_length_mla": v,
        **({} if head_dim is None else {"attention.value_length": checkpoint.integer("head_dim")}),
        "rope.dimension_count": rotated,
        **({} if theta is None else {"rope.freq_base": checkpoint.number("rope_theta")}),
        "ssm.conv_kernel": sizes[0],
        "kda.head_dim": sizes[1],
        "leading_dense_block_count": checkpoint.integer("first_k_dense_replace"),
        "expert_count": checkpoint.integer("num_experts"),
        "expert_used_count": checkpoint.integer("num_experts_per_token"),
        "expert_shared_count": checkpoint.integer("num_shared_experts"),
        "expert_feed_forward_length": checkpoint.integer("moe_intermediate_size"),
        "expert_weights_scale": checkpoint.number("routed_scaling_factor"),
        "expert_gating_func": int(gguf.ExpertGatingFuncType.SIGMOID),
        "expert_group_used_count": 1,
    }
    convs = {f"ssm_conv1d_{x}.weight": Recipe(full_precision=True) for x in "qkv"}
    rules = Rules(
        required=["exp_probs_b.bias"],
        recipes=latent_recipes(heads, plain, v, kv) | {"ssm_a": Recipe(minus_exp)} | convs,
    )
    return make_layout(checkpoint, "kimi-linear", keys, rules, vocab=vocab)
