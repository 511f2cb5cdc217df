"""Convert Gemma 3n, text only."""

from __future__ import annotations

import math
from dataclasses import replace
from statistics import NormalDist

import numpy as np

from hotshoe.convert import (
    Checkpoint,
    FileLayout,
    Recipe,
    Rules,
    Settings,
    make_layout,
    read_rope,
    read_sizes,
    windowed_layers,
)

__all__ = ["describe"]

_TABLES = {"token_embd": "embed_tokens", "per_layer_token_embd": "embed_tokens_per_layer"}


def describe(checkpoint: Checkpoint) -> FileLayout:
    """Describe the file. Raises ModelFileError if config.json is invalid, ConversionError if GGUF cannot express it."""
    checkpoint = checkpoint.text()
    ff = checkpoint.config.get("intermediate_size", 16_384)
    if isinstance(ff, list) and ff:
        checkpoint = replace(checkpoint, config=Settings(checkpoint.config | {"intermediate_size": ff[0]}))
    checkpoint.expect(hidden_activation="gelu_pytorch_tanh", attention_bias=False, altup_correct_scale=True)
    sizes = read_sizes(checkpoint, head_dim=256, n_kv_heads=2, default_eps=1e-6)
    rope = read_rope(checkpoint, theta=1_000_000.0, local_theta=10_000.0)
    n = sizes.n_layers
    shares = checkpoint.config.get("activation_sparsity_pattern") or [0.95] * min(n, 10) + [0.0] * max(0, n - 10)
    fine = isinstance(shares, list) and all(type(share) in (int, float) and 0 <= share < 1 for share in shares)
    if not fine or len(shares) != n:
        raise checkpoint.invalid("activation_sparsity_pattern", shares, f"a list of {n} numbers from 0 to 1")
    keys = sizes.keys() | {
        "feed_forward_length": ff,
        "attention.sliding_window": checkpoint.integer("sliding_window", 512),
        "attention.sliding_window_pattern": windowed_layers(checkpoint, n, period=5),
        "attention.shared_kv_layers": checkpoint.count("num_kv_shared_layers", 15),
        "altup.active_idx": checkpoint.count("altup_active_idx"),
        "altup.num_inputs": checkpoint.integer("altup_num_inputs", 4),
        "embedding_length_per_layer_input": checkpoint.integer("hidden_size_per_layer_input", 256),
        "activation_sparsity_scale": [NormalDist().inv_cdf(share) if share else -math.inf for share in shares],
        "final_logit_softcapping": checkpoint.number("final_logit_softcapping", 30.0),
    }
    rules = Rules(
        names={"layers.post_attention_layernorm": "post_attention_norm"},
        recipes={f"{name}.weight": _padded(checkpoint, source, sizes.vocab) for name, source in _TABLES.items()},
        rows={"per_layer_token_embd.weight": sizes.vocab},
    )
    return make_layout(checkpoint, "gemma3n", keys | rope.keys(), rules, vocab=sizes.vocab, tied=True)


def _padded(checkpoint: Checkpoint, table: str, n: int) -> Recipe:
    """Add rows of zeros to a table up to ``n``, for the ids that stand for images and sound."""
    shape = next((t.shape for name, t in checkpoint.tensors.items() if name.endswith(f"{table}.weight")), ())
    if not shape or shape[0] >= n:
        return Recipe()
    return Recipe(lambda values: np.pad(values, ((0, n - len(values)), (0, 0))), stored=shape)
