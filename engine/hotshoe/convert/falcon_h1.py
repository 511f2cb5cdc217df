"""Convert Falcon-H1. Its many multipliers become part of the matrices."""

from __future__ import annotations

import numpy as np

from hotshoe.convert import Array, Checkpoint, FileLayout, Recipe, Rules, make_layout, read_rope, read_sizes
from hotshoe.convert.mamba2 import mamba2_recipes, refuse_time_step_limit

__all__ = ["describe"]


def describe(checkpoint: Checkpoint) -> FileLayout:
    """Describe the file. Raises ModelFileError if config.json is invalid, ConversionError if GGUF cannot express it."""
    checkpoint.expect(hidden_act="silu")
    checkpoint.expect(tie_word_embeddings=False)  # embedding and output have different multipliers
    checkpoint.expect(attention_bias=False, mlp_bias=False, projectors_bias=False, mamba_proj_bias=False)
    if checkpoint.config.get("mamba_rms_norm"):
        checkpoint.require("mamba_norm_before_gate", True, False)
    refuse_time_step_limit(checkpoint)
    sizes, rope = read_sizes(checkpoint), read_rope(checkpoint)
    heads, groups = checkpoint.integer("mamba_n_heads", 128), checkpoint.integer("mamba_n_groups", 1)
    inner = checkpoint.integer("mamba_d_ssm", heads * checkpoint.integer("mamba_d_head", 64))
    state = checkpoint.integer("mamba_d_state", 256)
    keys = sizes.keys() | rope.keys() | {
        "attention.key_length": sizes.head_dim,
        "attention.value_length": sizes.head_dim,
        "vocab_size": sizes.vocab,
        "ssm.conv_kernel": checkpoint.integer("mamba_d_conv", 4),
        "ssm.state_size": state,
        "ssm.group_count": groups,
        "ssm.inner_size": inner,
        "ssm.time_step_rank": heads,
    }  # fmt: skip
    of_rows = np.repeat(
        np.array(_numbers(checkpoint, "ssm_multipliers", 5), np.float32),
        [inner, inner, groups * state, groups * state, heads],
    )[:, None]
    gate, down = _numbers(checkpoint, "mlp_multipliers", 2)
    attention = checkpoint.number("attention_in_multiplier", 1.0)
    ssm_in = times(checkpoint.number("ssm_in_multiplier", 1.0))
    recipes = {
        "token_embd.weight": times(checkpoint.number("embedding_multiplier", 1.0)),
        "output.weight": times(checkpoint.number("lm_head_multiplier", 1.0)),
        "attn_q.weight": times(attention),
        "attn_k.weight": times(checkpoint.number("key_multiplier", 1.0), attention),
        "attn_v.weight": times(attention),
        "attn_output.weight": times(checkpoint.number("attention_out_multiplier", 1.0)),
        "ssm_in.weight": Recipe(lambda v: ssm_in.make(v) * of_rows),
        "ssm_out.weight": times(checkpoint.number("ssm_out_multiplier", 1.0)),
        "ffn_gate.weight": times(gate),
        "ffn_down.weight": times(down),
    }
    mixer = mamba2_recipes(inner, groups)
    required = [
        *(["ssm_conv1d.bias"] if checkpoint.config.get("mamba_conv_bias", True) else []),
        *(["ssm_norm.weight"] if checkpoint.config.get("mamba_rms_norm") else []),
    ]
    rules = Rules(required=required, recipes=recipes | mixer)
    return make_layout(checkpoint, "falcon-h1", keys, rules, vocab=sizes.vocab)


def times(*numbers: float) -> Recipe:
    """Multiply every value by each of the numbers, one after the other."""

    def make(value: Array) -> Array:
        for number in numbers:
            value = value * np.float32(number)
        return value

    return Recipe(make)


def _numbers(checkpoint: Checkpoint, name: str, n: int) -> list[float]:
    value = checkpoint.config.get(name)
    if value is None:
        return [1.0] * n
    if not isinstance(value, list) or len(value) != n or not all(type(v) in (int, float) for v in value):
        raise checkpoint.invalid(name, value, f"a list of {n} numbers")
    return value
