"""Convert the text model of Llama 3.2 Vision, in the form of Ollama's files: Llama with layers that attend to pictures.

It has a file of its own, as those of all other models do; readers of Ollama's single files read it.
"""

from __future__ import annotations

from dataclasses import replace

from hotshoe.convert import (
    Checkpoint,
    FileLayout,
    Rules,
    Settings,
    interleave,
)
from hotshoe.convert.llama import describe_llama

__all__ = ["describe"]

_ADDED_ROWS = 8  # of the embedding: tokens that have no logit
_GATES = ("layers.cross_attn_attn_gate", "layers.cross_attn_mlp_gate")
_PARTS = ("q_proj", "k_proj", "v_proj", "o_proj", "q_norm", "k_norm")


def describe(checkpoint: Checkpoint) -> FileLayout:
    """Describe the text model. Raises ModelFileError if config.json is invalid, ConversionError if GGUF cannot
    express it.
    """
    text = checkpoint.text()
    vocab, image = text.integer("vocab_size"), text.integer("image_token_index", 128_256)
    numbers = text.config.get("cross_attention_layers")
    if not isinstance(numbers, list) or not numbers or not all(type(i) is int for i in numbers):
        raise text.invalid("cross_attention_layers", numbers, "a list of numbers of layers")
    heads = text.integer("num_attention_heads"), text.integer("num_key_value_heads", 8)
    also = Rules(
        names={f"layers.cross_attn.{name}": f"cross_attn_{name}" for name in _PARTS}
        | {name: name.removeprefix("layers.") for name in _GATES},
        # these layers have no RoPE; Ollama's converter reorders them with the others, and leaves their norms alone
        recipes={f"cross_attn_{name}_proj.weight": interleave(n) for name, n in zip("qk", heads, strict=True)},
        rows={"output.weight": vocab, "token_embd.weight": vocab + _ADDED_ROWS},
    )
    text = replace(text, config=Settings(text.config | {"vocab_size": max(vocab, image + 1)}))
    keys = {"attention.cross_attention_layers": numbers, "vocab_size": vocab}
    return describe_llama(text, heads[1], keys, arch="mllama", theta=500_000.0, also=also)
