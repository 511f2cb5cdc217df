"""Convert Apertus."""

from __future__ import annotations

import math

from hotshoe.convert import Checkpoint, FileLayout, Rules, make_layout, read_rope, read_sizes
from hotshoe_core.errors import ConversionError

__all__ = ["describe"]


def describe(checkpoint: Checkpoint) -> FileLayout:
    """Describe the file. Raises ModelFileError if config.json is invalid, ConversionError if GGUF cannot express it."""
    checkpoint.expect(hidden_act="xielu")
    sizes = read_sizes(checkpoint)
    rope = read_rope(checkpoint, "linear", "llama3", "yarn", theta=12e6)
    numbers = ("alpha_p", "alpha_n", "beta", "eps")
    names = {n: [f"model.layers.{i}.mlp.act_fn.{n}" for i in range(sizes.n_layers)] for n in numbers}
    keys = sizes.keys() | rope.keys() | {"vocab_size": sizes.vocab, "rope.dimension_count": sizes.head_dim}
    keys |= {f"xielu.{n}": [_number(checkpoint, name) for name in names[n]] for n in numbers}
    rules = Rules(
        required=checkpoint.biases(attention_bias=["attn_q", "attn_k", "attn_v", "attn_output"]),
        names={"layers.attention_layernorm": "attn_norm", "layers.feedforward_layernorm": "ffn_norm"},
        constants=rope.llama3_factors(sizes.head_dim),
        ignored=tuple(name.removeprefix("model.") for each in names.values() for name in each),
    )
    return make_layout(checkpoint, "apertus", keys, rules, vocab=sizes.vocab)


def _number(checkpoint: Checkpoint, name: str) -> float:
    tensor = checkpoint.tensors.get(name)
    if tensor is None or math.prod(tensor.shape) != 1:
        found = "is missing" if tensor is None else f"has the shape {tensor.shape}"
        raise ConversionError(f"tensor {name} of {checkpoint.model} {found}; expected one number")
    return float(checkpoint.read(name).item())
