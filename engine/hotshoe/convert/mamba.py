"""Convert Mamba and Falcon-Mamba."""

from __future__ import annotations

from hotshoe.convert import Checkpoint, FileLayout, Recipe, Rules, make_layout, minus_exp, refuse_quantized
from hotshoe.convert.mamba2 import CONTEXT, padded_vocab

__all__ = ["describe"]


def describe(checkpoint: Checkpoint) -> FileLayout:
    """Describe the file. Raises ModelFileError if config.json is invalid, ConversionError if GGUF cannot express it."""
    refuse_quantized(checkpoint)
    checkpoint.expect(hidden_act="silu", use_bias=False, use_conv_bias=True, mixer_rms_eps=1e-6)
    dim = checkpoint.integer("hidden_size")
    inner = checkpoint.integer("intermediate_size", checkpoint.integer("expand", 2) * dim)
    rank = checkpoint.config.get("time_step_rank", "auto")
    keys = {
        "context_length": CONTEXT,
        "embedding_length": dim,
        # readers need both keys
        "feed_forward_length": 0,
        "attention.head_count": 0,
        "block_count": checkpoint.layers(),
        "ssm.conv_kernel": checkpoint.integer("conv_kernel", 4),
        "ssm.inner_size": inner,
        "ssm.state_size": checkpoint.integer("state_size", 16),
        "ssm.time_step_rank": -(-dim // 16) if rank == "auto" else checkpoint.integer("time_step_rank"),
        "ssm.dt_b_c_rms": checkpoint.config.get("model_type") == "falcon_mamba",
        "attention.layer_norm_rms_epsilon": checkpoint.number("layer_norm_epsilon", 1e-5),
    }
    rules = Rules(required=["ssm_conv1d.bias", "ssm_dt.bias"], recipes={"ssm_a": Recipe(minus_exp)})
    return make_layout(checkpoint, "mamba", keys, rules, vocab=padded_vocab(checkpoint, 8), tied=True)
