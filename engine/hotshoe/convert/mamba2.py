"""Convert Mamba 2: layers with a state of fixed size instead of attention.

The names of the tensors are those of state-spaces/mamba in transformers. GGUF stores A itself, where checkpoints store
log(-A). GGUF adds an axis of 1 to A and D, after the axis of heads, and stores the norm by groups.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from hotshoe.convert import TensorSource, as_is, has, linear, make_layout, refuse_quantized, reshaped
from hotshoe_core.errors import ConversionError

if TYPE_CHECKING:
    from hotshoe.convert import Array, Checkpoint, FileLayout

__all__ = ["describe"]

ARCH = "mamba2"

_CONTEXT = 2**20  # there is no limit, but readers need one; llama.cpp's converter writes this number


def describe(checkpoint: Checkpoint) -> FileLayout:
    """Describe the file. Raises ModelFileError if config.json is invalid, ConversionError if GGUF cannot express it."""
    refuse_quantized(checkpoint)
    checkpoint.require("hidden_act", "silu", "silu")
    checkpoint.require("use_bias", False, False)
    checkpoint.require("use_conv_bias", True, True)
    checkpoint.require("rms_norm", True, True)
    checkpoint.require("norm_before_gate", False, False)
    _refuse_time_step_limit(checkpoint)
    n_layers, dim, vocab = checkpoint.layers(), checkpoint.integer("hidden_size"), _vocab(checkpoint)
    inner = checkpoint.integer("expand", 2) * dim
    head_dim, state = checkpoint.integer("head_dim", 64), checkpoint.integer("state_size", 128)
    n_groups, kernel = checkpoint.integer("n_groups", 8), checkpoint.integer("conv_kernel", 4)
    n_heads = inner // head_dim
    if inner % head_dim or checkpoint.integer("num_heads", n_heads) != n_heads or n_heads % n_groups:
        raise ConversionError(
            f"{checkpoint.model / 'config.json'}: num_heads is {checkpoint.config.get('num_heads')}, but expand × "
            f"hidden_size, {inner}, is not that many heads of head_dim {head_dim} in n_groups {n_groups}"
        )
    channels = inner + 2 * n_groups * state  # channels of the convolution: x, B and C
    tensors = _outer(checkpoint, vocab, dim)
    for i in range(n_layers):
        block, source = f"blk.{i}", f"model.backbone.layers.{i}"
        mixer = f"{source}.mixer"
        norm = (n_groups, inner // n_groups)
        tensors += [
            as_is(f"{block}.attn_norm.weight", f"{source}.norm.weight", (dim,)),
            *linear(f"{block}.ssm_in", f"{mixer}.in_proj", inner + channels + n_heads, dim),
            reshaped(f"{block}.ssm_conv1d.weight", f"{mixer}.conv1d.weight", (channels, 1, kernel), (channels, kernel)),
            as_is(f"{block}.ssm_conv1d.bias", f"{mixer}.conv1d.bias", (channels,)),
            as_is(f"{block}.ssm_dt.bias", f"{mixer}.dt_bias", (n_heads,)),
            TensorSource(f"{block}.ssm_a", (n_heads, 1), ((f"{mixer}.A_log", (n_heads,)),), _negative_exp),
            reshaped(f"{block}.ssm_d", f"{mixer}.D", (n_heads,), (n_heads, 1)),
            reshaped(f"{block}.ssm_norm.weight", f"{mixer}.norm.weight", (inner,), norm),
            *linear(f"{block}.ssm_out", f"{mixer}.out_proj", dim, inner),
        ]
    metadata = {
        f"{ARCH}.context_length": _CONTEXT,
        f"{ARCH}.embedding_length": dim,
        # readers need both keys
        f"{ARCH}.feed_forward_length": 0,
        f"{ARCH}.attention.head_count": 0,
        f"{ARCH}.block_count": n_layers,
        f"{ARCH}.ssm.conv_kernel": kernel,
        f"{ARCH}.ssm.inner_size": inner,
        f"{ARCH}.ssm.state_size": state,
        f"{ARCH}.ssm.time_step_rank": n_heads,
        f"{ARCH}.ssm.group_count": n_groups,
        f"{ARCH}.attention.layer_norm_rms_epsilon": checkpoint.number("layer_norm_epsilon", 1e-5),
    }
    return make_layout(checkpoint, ARCH, tensors, metadata, vocab=vocab)


def _outer(checkpoint: Checkpoint, vocab: int, dim: int) -> list[TensorSource]:
    tensors = [
        as_is("token_embd.weight", "model.backbone.embeddings.weight", (vocab, dim)),
        as_is("output_norm.weight", "model.backbone.norm_f.weight", (dim,)),
    ]
    # Codestral has the prefix "model." here too
    head = next((name for name in ("model.lm_head.weight", "lm_head.weight") if has(checkpoint, name)), None)
    if head is not None or not checkpoint.config.get("tie_word_embeddings"):
        tensors.append(as_is("output.weight", head or "lm_head.weight", (vocab, dim)))
    return tensors


def _vocab(checkpoint: Checkpoint) -> int:
    """The number of rows of the embedding: vocab_size, or vocab_size rounded up to a multiple."""
    vocab, multiple = checkpoint.integer("vocab_size"), checkpoint.integer("pad_vocab_size_multiple", 16)
    rows = next((t.shape[:1] for name, t in checkpoint.tensors.items() if name.endswith("embeddings.weight")), ())
    larger = -(-vocab // multiple) * multiple
    return larger if rows == (larger,) else vocab


def _negative_exp(parts: Iterator[Array]) -> Array:
    logarithm = next(parts).astype(np.float64)
    if logarithm.max(initial=0.0) > 88:
        raise ConversionError(f"A_log reaches {logarithm.max():.4g}; its exponential is too large for float32")
    return -np.exp(logarithm).astype(np.float32)[:, np.newaxis]


def _refuse_time_step_limit(checkpoint: Checkpoint) -> None:
    stated: Any = checkpoint.config.get("time_step_limit")
    # JSON has no infinity: transformers 5 writes {"__float__": "Infinity"}, others Infinity
    limits = [e.get("__float__") if isinstance(e, dict) else e for e in stated] if isinstance(stated, list) else stated
    if limits is not None and limits not in ([0.0, "Infinity"], [0.0, math.inf]):
        raise ConversionError(
            f"{checkpoint.model / 'config.json'}: time_step_limit is {stated}; a GGUF file can only express no limit, "
            "[0.0, Infinity]"
        )
