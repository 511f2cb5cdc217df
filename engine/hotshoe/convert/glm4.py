"""Convert GLM-4: GLM-4-9B, which GGUF calls "chatglm", GLM-4-0414, and the text models of GLM-4.1V and GLM-OCR."""

from __future__ import annotations

from typing import Any

import numpy as np

from hotshoe.convert import Array, Checkpoint, FileLayout, Recipe, Rope, Rules, make_layout, read_rope, read_sizes

__all__ = ["describe", "describe_chatglm", "describe_vision", "section_keys"]


def describe(checkpoint: Checkpoint) -> FileLayout:
    """Describe the file. Raises ModelFileError if config.json is invalid, ConversionError if GGUF cannot express it."""
    return _describe(checkpoint, "glm4")


def describe_chatglm(checkpoint: Checkpoint) -> FileLayout:
    """Describe the file. Raises ModelFileError if config.json is invalid, ConversionError if GGUF cannot express it."""
    return _describe(checkpoint, "chatglm")


def describe_vision(checkpoint: Checkpoint) -> FileLayout:
    """Describe the text model of GLM-4.1V or GLM-OCR. Raises as ``describe`` does."""
    text = checkpoint.text()
    if checkpoint.architecture == "GlmOcrForConditionalGeneration":
        text.config["attention_bias"] = False  # config.json does not say it
    return _describe(text, "glm4", head_dim=None)


def section_keys(rope: Rope) -> dict[str, Any]:
    """The key of the sections of M-RoPE; none for checkpoints that read texts only."""
    stated = rope.settings.get("mrope_section") is not None
    return {"rope.dimension_sections": rope.sections(interleaved=False)} if stated else {}


def _describe(checkpoint: Checkpoint, arch: str, *, head_dim: int | None = 128) -> FileLayout:
    checkpoint.expect(hidden_act="silu")
    sizes, rope = read_sizes(checkpoint, head_dim=head_dim, n_kv_heads=2), read_rope(checkpoint)
    n_rotated = rope.n_rotated(sizes.head_dim, 0.5)
    # readers of "chatglm" derive the size of heads, unless a file states it
    keys = sizes.keys(heads=arch == "glm4" or sizes.q != sizes.dim)
    keys |= rope.keys() | {"rope.dimension_count": n_rotated} | section_keys(rope)
    has_bias = checkpoint.config.get("attention_bias", True)
    recipes = {
        f"{name}.{kind}": _separated(n, n_rotated)
        for name, n in (("attn_q", sizes.n_heads), ("attn_k", sizes.n_kv_heads))
        for kind in ("weight", "bias")
    }
    rules = Rules(
        required=[f"attn_{x}.bias" for x in "qkv"] if has_bias else [],
        recipes=recipes if "rope.dimension_sections" in keys else {},
        ignored=checkpoint.drafting("num_nextn_predict_layers", sizes.n_layers),
    )
    return make_layout(checkpoint, arch, keys, rules, vocab=sizes.vocab)


def _separated(n_heads: int, n_rotated: int) -> Recipe:
    """Reorder the rows of each head that are rotated: from RoPE pairs (2i, 2i + 1) to (i, i + n_rotated / 2).

    Readers know M-RoPE with the second order only.
    """

    def make(value: Array) -> Array:
        heads = value.reshape(n_heads, -1, *value.shape[1:])
        rotated = heads[:, :n_rotated]
        return np.concatenate([rotated[:, ::2], rotated[:, 1::2], heads[:, n_rotated:]], axis=1).reshape(value.shape)

    return Recipe(make, by_rows=True)
