"""Convert the text models of Qwen3-VL, also those with experts."""

from __future__ import annotations

from typing import Any

from hotshoe.convert import Checkpoint, FileLayout, Recipe, read_rope
from hotshoe.convert.qwen3 import describe_qwen3
from hotshoe.convert.qwen3moe import describe_qwen3moe

__all__ = ["describe", "describe_moe"]


def describe(checkpoint: Checkpoint) -> FileLayout:
    """Describe the file. Raises ModelFileError if config.json is invalid, ConversionError if GGUF cannot express it."""
    text = checkpoint.text()
    rope = read_rope(text, "linear", "yarn")
    return describe_qwen3(
        text,
        "qwen3vl",
        rope,
        _keys(checkpoint) | {"rope.dimension_sections": rope.sections(24, 20, 20, interleaved=True)},
    )


def describe_moe(checkpoint: Checkpoint) -> FileLayout:
    """Describe the file. Raises ModelFileError if config.json is invalid, ConversionError if GGUF cannot express it."""
    text = checkpoint.text()
    text.expect(norm_topk_prob=True)
    rope = read_rope(text, "linear", "yarn")
    keys = _keys(checkpoint) | {"rope.dimension_sections": rope.sections(24, 20, 20, interleaved=True)}
    return describe_qwen3moe(text, "qwen3vlmoe", rope, keys, _transposed(text))


def _transposed(text: Checkpoint) -> dict[str, Recipe]:
    """Recipes of experts that are stored as (experts, in, out), as published; none if they are (experts, out, in)."""
    dim, ff = text.integer("hidden_size"), text.integer("moe_intermediate_size")
    gate_up = next((t.shape for name, t in text.tensors.items() if name.endswith(".gate_up_proj")), ())
    if gate_up[1:] != (dim, 2 * ff) or dim == 2 * ff:
        return {}
    return {
        "ffn_gate_exps.weight": Recipe(lambda value: value[..., :ff].swapaxes(1, 2), gate_up),
        "ffn_up_exps.weight": Recipe(lambda value: value[..., ff:].swapaxes(1, 2), gate_up),
        "ffn_down_exps.weight": Recipe(lambda value: value.swapaxes(1, 2), (gate_up[0], ff, dim)),
    }


def _keys(checkpoint: Checkpoint) -> dict[str, Any]:
    """The number of layers that also read what the encoder finds in a picture."""
    vision = checkpoint.config.get("vision_config")
    indexes = vision.get("deepstack_visual_indexes") if isinstance(vision, dict) else None
    return {"n_deepstack_layers": len(indexes) if isinstance(indexes, list) else 0}
