"""Convert Jamba."""

from __future__ import annotations

from hotshoe.convert import Checkpoint, FileLayout, Recipe, Rules, expert_keys, make_layout, minus_exp, read_sizes

__all__ = ["describe"]


def describe(checkpoint: Checkpoint) -> FileLayout:
    """Describe the file. Raises ModelFileError if config.json is invalid, ConversionError if GGUF cannot express it."""
    checkpoint.expect(hidden_act="silu", mamba_proj_bias=False, mamba_conv_bias=True)
    sizes = read_sizes(checkpoint, n_kv_heads=8, default_eps=1e-6)
    n, rank = sizes.n_layers, checkpoint.config.get("mamba_dt_rank", "auto")
    period, offset = checkpoint.integer("attn_layer_period", 8), checkpoint.count("attn_layer_offset", 4)
    keys = (
        sizes.keys()
        | expert_keys(checkpoint, "num_experts", default=16, used=2)
        | {
            "attention.head_count_kv": [sizes.n_kv_heads if i % period == offset else 0 for i in range(n)],
            "ssm.conv_kernel": checkpoint.integer("mamba_d_conv", 4),
            "ssm.inner_size": checkpoint.integer("mamba_expand", 2) * sizes.dim,
            "ssm.state_size": checkpoint.integer("mamba_d_state", 16),
            "ssm.time_step_rank": -(-sizes.dim // 16) if rank == "auto" else checkpoint.integer("mamba_dt_rank"),
        }
    )
    names = {f"layers.mamba.{n}_layernorm": f"ssm_{n}_norm" for n in ("dt", "b", "c")}
    rules = Rules(
        names=names
        | {"layers.pre_ff_layernorm": "ffn_norm", "layers.mamba.x_proj": "ssm_x", "layers.mamba.dt_proj": "ssm_dt"},
        required=["ssm_conv1d.bias", "ssm_dt.bias"],
        recipes={"ssm_a": Recipe(minus_exp)},
    )
    return make_layout(checkpoint, "jamba", keys, rules, vocab=sizes.vocab)
