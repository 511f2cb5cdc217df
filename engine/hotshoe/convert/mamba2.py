"""Convert Mamba 2: layers with a state of fixed size instead of attention.

The names of the tensors are those of state-spaces/mamba in transformers. GGUF stores A itself, where checkpoints store
log(-A). GGUF adds an axis of 1 to A and D, after the axis of heads, and stores the norm by groups.
"""

from __future__ import annotations

import math
from typing import Any

from hotshoe.convert import Checkpoint, FileLayout, Recipe, Rules, make_layout, minus_exp, refuse_quantized

__all__ = ["CONTEXT", "describe", "mamba2_recipes", "padded_vocab", "refuse_time_step_limit"]

CONTEXT = 2**20  # there is no limit, but readers need one; llama.cpp's converter writes this number


def describe(checkpoint: Checkpoint) -> FileLayout:
    """Describe the file. Raises ModelFileError if config.json is invalid, ConversionError if GGUF cannot express it."""
    refuse_quantized(checkpoint)
    checkpoint.expect(hidden_act="silu", use_bias=False, use_conv_bias=True, rms_norm=True, norm_before_gate=False)
    refuse_time_step_limit(checkpoint)
    n_layers, dim = checkpoint.layers(), checkpoint.integer("hidden_size")
    inner, head_dim = checkpoint.integer("expand", 2) * dim, checkpoint.integer("head_dim", 64)
    n_heads, n_groups = inner // head_dim, checkpoint.integer("n_groups", 8)
    if inner % head_dim or checkpoint.integer("num_heads", n_heads) != n_heads or n_heads % n_groups:
        raise checkpoint.refusal(
            f"num_heads is {checkpoint.config.get('num_heads')}, but expand × hidden_size, {inner}, is not that many "
            f"heads of head_dim {head_dim} in n_groups {n_groups}"
        )
    keys = {
        "context_length": CONTEXT,
        "embedding_length": dim,
        # readers need both keys
        "feed_forward_length": 0,
        "attention.head_count": 0,
        "block_count": n_layers,
        "ssm.conv_kernel": checkpoint.integer("conv_kernel", 4),
        "ssm.inner_size": inner,
        "ssm.state_size": checkpoint.integer("state_size", 128),
        "ssm.time_step_rank": n_heads,
        "ssm.group_count": n_groups,
        "attention.layer_norm_rms_epsilon": checkpoint.number("layer_norm_epsilon", 1e-5),
    }
    rules = Rules(
        required=["ssm_conv1d.bias"],
        recipes=mamba2_recipes(inner, n_groups),
    )
    return make_layout(checkpoint, "mamba2", keys, rules, vocab=padded_vocab(checkpoint, 16))


def mamba2_recipes(inner: int, n_groups: int) -> dict[str, Recipe]:
    """How the tensors of the mixer are made. ``inner``: elements of the values of all heads."""
    return {
        "ssm_a": Recipe(minus_exp),
        "ssm_norm.weight": Recipe(lambda value: value.reshape(n_groups, -1), (inner,)),
    }


def padded_vocab(checkpoint: Checkpoint, multiple: int) -> int:
    """The number of rows of the embedding: vocab_size, or vocab_size rounded up to a multiple.

    multiple: the default of pad_vocab_size_multiple.
    """
    vocab, multiple = checkpoint.integer("vocab_size"), checkpoint.integer("pad_vocab_size_multiple", multiple)
    rows = next((t.shape[:1] for name, t in checkpoint.tensors.items() if name.endswith("embeddings.weight")), ())
    larger = -(-vocab // multiple) * multiple
    return larger if rows == (larger,) else vocab


def refuse_time_step_limit(checkpoint: Checkpoint) -> None:
    """Raise ConversionError if time steps have other limits than 0 and infinity."""
    stated: Any = checkpoint.config.get("time_step_limit")
    # JSON has no infinity: transformers 5 writes {"__float__": "Infinity"}, others Infinity
    limits = [e.get("__float__") if isinstance(e, dict) else e for e in stated] if isinstance(stated, list) else stated
    if limits is not None and limits not in ([0.0, "Infinity"], [0.0, math.inf]):
        raise checkpoint.refusal(f"time_step_limit is {stated}; a GGUF file can only express no limit, [0.0, Infinity]")
