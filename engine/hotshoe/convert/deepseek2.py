"""Convert DeepSeek V2 and V3: latent attention (MLA), shared and routed experts, and first layers without experts.

GGUF splits the matrix that expands the latent to keys and values into two tensors. The part for keys is transposed, so
that it projects queries to the latent, instead of each latent to a key. So GGUF describes one key/value head.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gguf

from hotshoe.convert import Checkpoint, FileLayout, Recipe, Rope, Rules, expert_keys, make_layout, read_rope, read_sizes

__all__ = ["describe", "describe_latent", "latent_recipes"]

_GATING = {"softmax": gguf.ExpertGatingFuncType.SOFTMAX, "sigmoid": gguf.ExpertGatingFuncType.SIGMOID}


def describe(checkpoint: Checkpoint) -> FileLayout:
    """Describe the file. Raises ModelFileError if config.json is invalid, ConversionError if GGUF cannot express it."""
    return describe_latent(checkpoint, "deepseek2", {})


def describe_latent(
    checkpoint: Checkpoint,
    arch: str,
    more: dict[str, Any],
    names: Mapping[str, str] | None = None,
    recipes: dict[str, Recipe] | None = None,
) -> FileLayout:
    """Describe the file of a model with this attention. ``more``, ``names``, ``recipes``: what variants add."""
    checkpoint.expect(hidden_act="silu", attention_bias=False, mlp_bias=False, rope_interleave=True)
    checkpoint.expect(moe_layer_freq=1)
    # elements of a head: those that RoPE rotates, the others, and those of a value; kv: the rank of the latent
    rotated, plain = checkpoint.integer("qk_rope_head_dim", 64), checkpoint.integer("qk_nope_head_dim", 128)
    v, kv = checkpoint.integer("v_head_dim", 128), checkpoint.integer("kv_lora_rank", 512)
    sizes, rope = read_sizes(checkpoint, head_dim=rotated), read_rope(checkpoint, "yarn")
    n_experts, q_rank = checkpoint.count("n_routed_experts"), checkpoint.config.get("q_lora_rank")
    n_dense = min(checkpoint.count("first_k_dense_replace"), sizes.n_layers) if n_experts else sizes.n_layers
    if checkpoint.config.get("mlp_layer_types") is not None:
        n_dense = checkpoint.leading("mlp_layer_types", sizes.n_layers, "dense", "sparse")
    keys = {
        **sizes.keys(heads=False),
        "vocab_size": sizes.vocab,
        **({} if q_rank is None else {"attention.q_lora_rank": checkpoint.integer("q_lora_rank")}),
        "attention.kv_lora_rank": kv,
        # sizes in the cache: a key is the latent and the rotated elements, a value is the latent
        "attention.head_count_kv": 1,
        "attention.key_length": kv + rotated,
        "attention.value_length": kv,
        # sizes of a head
        "attention.key_length_mla": plain + rotated,
        "attention.value_length_mla": v,
        "rope.dimension_count": rotated,
        **_mixture_keys(checkpoint, n_experts),
        "leading_dense_block_count": n_dense,
        **_yarn_keys(rope),
        **rope.keys(),
        **more,
    }
    share = rope.number("partial_rotary_factor", rotated / (plain + rotated))
    if share not in (1.0, rotated / (plain + rotated)):
        raise checkpoint.refusal(f"partial_rotary_factor is {share}, but RoPE rotates {rotated} of {plain + rotated}")
    rules = Rules(
        required=["exp_probs_b.bias"] if _is_v3(checkpoint) else (),
        recipes=latent_recipes(sizes.n_heads, plain, v, kv) | (recipes or {}),
        names={**(names or {})},
        ignored=checkpoint.drafting("num_nextn_predict_layers", sizes.n_layers),
    )
    return make_layout(checkpoint, arch, keys, rules, vocab=sizes.vocab)


def latent_recipes(n_heads: int, plain: int, v: int, kv: int) -> dict[str, Recipe]:
    """Split the matrix that expands a latent of ``kv`` elements to ``plain`` of each key and ``v`` of each value."""
    heads, stored = (n_heads, plain + v, kv), (n_heads * (plain + v), kv)
    return {
        "attn_k_b.weight": Recipe(lambda value: value.reshape(heads)[:, :plain].swapaxes(1, 2), stored),
        "attn_v_b.weight": Recipe(lambda value: value.reshape(heads)[:, plain:], stored),
    }


def _mixture_keys(checkpoint: Checkpoint, n_experts: int) -> dict[str, Any]:
    keys: dict[str, Any] = {
        "expert_shared_count": checkpoint.count("n_shared_experts"),
        "expert_feed_forward_length": checkpoint.integer("moe_intermediate_size" if n_experts else "intermediate_size"),
    }
    if not n_experts:
        return keys
    keys |= expert_keys(checkpoint, "n_routed_experts", used=8 if _is_v3(checkpoint) else 6)
    # with "greedy", experts are chosen from all groups, whatever config.json says about groups
    if checkpoint.config.get("n_group") is not None and checkpoint.config.get("topk_group") is not None:
        greedy = checkpoint.config.get("topk_method") == "greedy"
        keys["expert_group_count"] = 1 if greedy else checkpoint.integer("n_group")
        keys["expert_group_used_count"] = 1 if greedy else checkpoint.integer("topk_group")
    # llama.cpp's converter writes no key if config.json has none, and readers then use softmax; but V3 uses a sigmoid
    scores = checkpoint.config.get("scoring_func") or ("sigmoid" if _is_v3(checkpoint) else None)
    if scores is not None:
        checkpoint.require("scoring_func", scores, *_GATING)
        keys["expert_gating_func"] = int(_GATING[scores])
    if checkpoint.config.get("routed_scaling_factor") is not None:
        keys["expert_weights_scale"] = checkpoint.number("routed_scaling_factor")
    if checkpoint.config.get("norm_topk_prob"):
        keys["expert_weights_norm"] = True
    return keys


def _is_v3(checkpoint: Checkpoint) -> bool:
    kinds = ("deepseek_v3", "deepseek_v32", "glm_moe_dsa", "glm4_moe_lite")
    return "V3" in (checkpoint.architecture or "") or checkpoint.config.get("model_type") in kinds


def _yarn_keys(rope: Rope) -> dict[str, Any]:
    if rope.kind != "yarn" or rope.settings.get("mscale_all_dim") is None:
        return {}
    magnitude = float(rope.number("mscale_all_dim"))
    if rope.number("mscale", magnitude) != magnitude:
        raise rope.checkpoint.refusal(
            f"RoPE's mscale is {rope.settings['mscale']} and mscale_all_dim {magnitude}; a GGUF file can only express "
            "equal values"
        )
    return {"rope.scaling.yarn_log_multiplier": 0.1 * magnitude}
