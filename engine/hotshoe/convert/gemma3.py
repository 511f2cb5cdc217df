"""Convert Gemma 3: norms that add 1 to their weights, layers with a sliding window or with none."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hotshoe.convert import (
    Checkpoint,
    FileLayout,
    Rules,
    Settings,
    make_layout,
    plus,
    read_rope,
    read_sizes,
)

__all__ = ["describe", "describe_gemma3"]

_DEFAULTS = {"num_attention_heads": 8, "vocab_size": 262_208, "max_position_embeddings": 131_072}
_PATTERN = 6  # every sixth layer is global: the default of readers
_NORMS = ("attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm", "attn_q_norm", "attn_k_norm", "output_norm")


def describe(checkpoint: Checkpoint) -> FileLayout:
    """Describe the file. Raises ModelFileError if config.json is invalid, ConversionError if GGUF cannot express it."""
    checkpoint = checkpoint.text()
    # what config.json leaves out for models that also read images
    checkpoint = replace(checkpoint, config=Settings(_DEFAULTS | checkpoint.config))
    checkpoint.expect(use_bidirectional_attention=False)
    return describe_gemma3(checkpoint, "gemma3")


def describe_gemma3(checkpoint: Checkpoint, arch: str, more: dict[str, Any] | None = None) -> FileLayout:
    """Describe the file of a model with the blocks of Gemma 3. more: further keys."""
    checkpoint.expect(hidden_activation="gelu_pytorch_tanh")
    checkpoint.require("attn_logit_softcapping", None)
    checkpoint.expect(attention_bias=False)
    sizes = read_sizes(checkpoint, head_dim=256, n_kv_heads=4, default_eps=1e-6)
    rope = read_rope(checkpoint, "linear", "yarn", theta=1_000_000.0, local_theta=10_000.0)
    keys, pattern = sizes.keys(), _pattern(checkpoint)
    if pattern != 1:
        keys["attention.sliding_window"] = checkpoint.integer("sliding_window", 4096)
    if pattern != _PATTERN:
        keys["attention.sliding_window_pattern"] = pattern
    scalar = checkpoint.number("query_pre_attn_scalar", 256)
    if scalar != sizes.head_dim:
        # llama.cpp's converter writes no key: readers recognise the only such model (27B) by its number of layers
        keys["attention.scale"] = scalar**-0.5 if scalar > 0 else 1.0
    if checkpoint.config.get("final_logit_softcapping"):
        keys["final_logit_softcapping"] = checkpoint.number("final_logit_softcapping")
    rules = Rules(
        required=[f"dense_{folder[:1]}.weight" for folder in checkpoint.sentence.dense],
        names={"layers.post_attention_layernorm": "post_attention_norm"},
        # transformers multiplies by 1 + weight; a GGUF file contains the factor itself
        recipes={f"{name}.weight": plus(1.0) for name in _NORMS},
    )
    return make_layout(checkpoint, arch, keys | rope.keys() | (more or {}), rules, vocab=sizes.vocab, tied=True)


def _pattern(checkpoint: Checkpoint) -> int:
    """The n for which every n-th layer is global; 1 if all are. Raises ConversionError for an irregular list."""
    kinds = checkpoint.config.get("layer_types")
    stated = checkpoint.integer("sliding_window_pattern", checkpoint.integer("_sliding_window_pattern", _PATTERN))
    if not isinstance(kinds, list):
        return stated
    n = kinds.index("full_attention") + 1 if "full_attention" in kinds else max(stated, len(kinds) + 1)
    # if no layer is global, the pattern is longer than the list, and config.json decides
    n = stated if n > len(kinds) else n
    expected = ["sliding_attention" if (i + 1) % n else "full_attention" for i in range(len(kinds))]
    if kinds != expected:
        raise checkpoint.refusal(
            f"layer_types is {kinds}; a GGUF file can only express that every n-th layer has full_attention"
        )
    return n
