"""Convert GLM-4.5 to 4.7 and the text model of GLM-4.5V: partial RoPE, sigmoid experts with a correction."""

from __future__ import annotations

from hotshoe.convert import Checkpoint, FileLayout, Rules, make_layout, mixture_keys, read_rope, read_sizes
from hotshoe.convert.glm4 import section_keys

__all__ = ["describe"]


def describe(checkpoint: Checkpoint) -> FileLayout:
    """Describe the file. Raises ModelFileError if config.json is invalid, ConversionError if GGUF cannot express it."""
    checkpoint = checkpoint.text()
    checkpoint.expect(hidden_act="silu", scoring_func="sigmoid")
    sizes, rope = read_sizes(checkpoint, n_kv_heads=8), read_rope(checkpoint, "linear", "yarn")
    keys = sizes.keys() | mixture_keys(
        checkpoint,
        "n_routed_experts",
        used=8,
        defaults={"expert_weights_norm": True, "leading_dense_block_count": 1, "expert_shared_count": 1},
    )
    keys |= {"rope.dimension_count": rope.n_rotated(sizes.head_dim, 0.5), "expert_gating_func": 2} | rope.keys()
    keys |= section_keys(rope)
    if checkpoint.config.get("num_nextn_predict_layers") is not None:
        keys["nextn_predict_layers"] = 0  # drafting layers are not written
    norms = ("attn_q_norm.weight", "attn_k_norm.weight") if checkpoint.config.get("use_qk_norm") else ()
    rules = Rules(
        names={"layers.post_attention_layernorm": "post_attention_norm"},
        required=["exp_probs_b.bias", *norms, *checkpoint.biases(attention_bias=("attn_q", "attn_k", "attn_v"))],
        ignored=checkpoint.drafting("num_nextn_predict_layers", sizes.n_layers),
    )
    return make_layout(checkpoint, "glm4moe", keys, rules, vocab=sizes.vocab)
