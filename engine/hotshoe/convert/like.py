"""Convert models whose files are like those of Llama or Qwen2: AFM, Baichuan, ERNIE 4.5, EXAONE 3 and others."""

from __future__ import annotations

import numpy as np

from hotshoe.convert import Array, Checkpoint, FileLayout, Recipe, Rules, interleave, make_layout, read_rope, read_sizes
from hotshoe.convert.llama import describe_llama

__all__ = [
    "arcee",
    "baichuan",
    "ernie4_5",
    "exaone",
    "maincoder",
    "orion",
    "pangu",
    "seed_oss",
    "xverse",
]

_BAICHUAN_2 = 125_696  # tokens; its code divides each row of the output matrix by its length


def arcee(checkpoint: Checkpoint) -> FileLayout:
    """Describe the file. Raises ModelFileError if config.json is invalid, ConversionError if GGUF cannot express it."""
    return describe_llama(checkpoint, None, {}, arch="arcee", activation="relu2")


def baichuan(checkpoint: Checkpoint) -> FileLayout:
    """Describe the file. Raises ModelFileError if config.json is invalid, ConversionError if GGUF cannot express it."""
    checkpoint.expect(hidden_act="silu")
    if "max_position_embeddings" not in checkpoint.config:
        checkpoint = checkpoint.renamed(max_position_embeddings="model_max_length")
    sizes, rope = read_sizes(checkpoint), read_rope(checkpoint)
    keys = {"tensor_data_layout": "Meta AI original pth", "rope.dimension_count": sizes.head_dim}
    recipes = {"attn_q.weight": interleave(sizes.n_heads), "attn_k.weight": interleave(sizes.n_kv_heads)}
    if sizes.vocab == _BAICHUAN_2:
        recipes["output.weight"] = Recipe(_normalised)
    rules = Rules(names={"layers.self_attn.W_pack": "attn_qkv"}, recipes=recipes)
    return make_layout(checkpoint, "baichuan", sizes.keys() | keys | rope.keys(), rules, vocab=sizes.vocab)


def _normalised(rows: Array) -> Array:
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    scaled: Array = rows / np.maximum(lengths, np.float32(1e-12))  # as PyTorch: rows of unused ids may be 0
    return scaled


def maincoder(checkpoint: Checkpoint) -> FileLayout:
    """Describe the file. Raises ModelFileError if config.json is invalid, ConversionError if GGUF cannot express it."""
    checkpoint.expect(hidden_act="silu", attention_bias=False, use_qk_norm=True)
    sizes, rope = read_sizes(checkpoint), read_rope(checkpoint, "linear")
    keys = sizes.keys() | {"rope.dimension_count": sizes.head_dim} | rope.keys()
    return make_layout(checkpoint, "maincoder", keys, vocab=sizes.vocab, tied=True)


def orion(checkpoint: Checkpoint) -> FileLayout:
    """Describe the file. Raises ModelFileError if config.json is invalid, ConversionError if GGUF cannot express it."""
    checkpoint.expect(hidden_act="silu")
    checkpoint = checkpoint.renamed(max_position_embeddings="max_sequence_length")
    # config.json calls the LayerNorms RMS norms
    sizes, rope = read_sizes(checkpoint, layer_norm_eps="rms_norm_eps"), read_rope(checkpoint)
    keys = sizes.keys() | {"tensor_data_layout": "Meta AI original pth"} | rope.keys(known_base=10_000.0)
    return make_layout(checkpoint, "orion", keys, Rules(required=["*_norm.bias"]), vocab=sizes.vocab)


def pangu(checkpoint: Checkpoint) -> FileLayout:
    """Describe the file. Raises ModelFileError if config.json is invalid, ConversionError if GGUF cannot express it."""
    checkpoint.expect(hidden_act="silu")
    sizes, rope = read_sizes(checkpoint), read_rope(checkpoint, "linear", "yarn")
    keys = sizes.keys() | {"vocab_size": sizes.vocab, "rope.dimension_count": sizes.head_dim} | rope.keys()
    keys |= {"attention.key_length": sizes.head_dim, "attention.value_length": sizes.head_dim}
    rules = Rules(required=checkpoint.biases(bias=("attn_*",)))
    return make_layout(checkpoint, "pangu-embedded", keys, rules, vocab=sizes.vocab)


def xverse(checkpoint: Checkpoint) -> FileLayout:
    """Describe the file. Raises ModelFileError if config.json is invalid, ConversionError if GGUF cannot express it."""
    return describe_llama(checkpoint, None, {"tensor_data_layout": "Meta AI original pth"}, arch="xverse")


def ernie4_5(checkpoint: Checkpoint) -> FileLayout:
    """Describe the file. Raises ModelFileError if config.json is invalid, ConversionError if GGUF cannot express it."""
    checkpoint.expect(hidden_act="silu", use_bias=False)
    sizes, rope = read_sizes(checkpoint, head_dim=128), read_rope(checkpoint, "linear", "yarn", theta=500_000.0)
    return make_layout(checkpoint, "ernie4_5", sizes.keys() | rope.keys(), vocab=sizes.vocab, tied=True)


def exaone(checkpoint: Checkpoint) -> FileLayout:
    """Describe the file. Raises ModelFileError if config.json is invalid, ConversionError if GGUF cannot express it."""
    checkpoint = checkpoint.renamed(
        num_hidden_layers="num_layers", rms_norm_eps="layer_norm_epsilon", hidden_act="activation_function"
    )
    checkpoint.require("hidden_act", None, "silu")
    sizes = read_sizes(checkpoint)
    rope = read_rope(checkpoint, "linear", "llama3", "yarn", theta=500_000.0)
    rules = Rules(
        constants=rope.llama3_factors(sizes.head_dim),
        names={
            **{f"layers.attn.attention.{n}_proj": f"attn_{n}" for n in "qkv"},
            "layers.attn.attention.out_proj": "attn_output",
            "layers.mlp.c_fc_0": "ffn_gate",
            "layers.mlp.c_fc_1": "ffn_up",
        },
    )
    keys = sizes.keys() | {"rope.dimension_count": sizes.head_dim} | rope.keys()
    return make_layout(checkpoint, "exaone", keys, rules, vocab=sizes.vocab)


def seed_oss(checkpoint: Checkpoint) -> FileLayout:
    """Describe the file. Raises ModelFileError if config.json is invalid, ConversionError if GGUF cannot express it."""
    checkpoint.expect(hidden_act="silu", attention_bias=True, mlp_bias=False)
    sizes, rope = read_sizes(checkpoint, head_dim=128), read_rope(checkpoint, "linear", "yarn")
    rules = Rules(
        required=["attn_q.bias", "attn_k.bias", "attn_v.bias", *checkpoint.biases(attention_out_bias=("attn_output",))],
        names={"layers.post_attention_layernorm": "post_attention_norm"},
    )
    return make_layout(checkpoint, "seed_oss", sizes.keys() | rope.keys(), rules, vocab=sizes.vocab)
