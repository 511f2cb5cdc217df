"""Convert StarCoder2."""

from __future__ import annotations

from hotshoe.convert import Checkpoint, FileLayout, Rules, make_layout, read_rope, read_sizes

__all__ = ["describe"]


def describe(checkpoint: Checkpoint) -> FileLayout:
    """Describe the file. Raises ModelFileError if config.json is invalid, ConversionError if GGUF cannot express it."""
    checkpoint.expect(hidden_act="gelu_pytorch_tanh", use_bias=True)
    sizes, rope = read_sizes(checkpoint, n_kv_heads=2, layer_norm_eps="norm_epsilon"), read_rope(checkpoint)
    keys = sizes.keys() | rope.keys()
    if checkpoint.config.get("sliding_window") is not None:  # llama.cpp ignores the window and has no key for it
        keys["attention.sliding_window"] = checkpoint.integer("sliding_window")
    rules = Rules(required=["attn_*.bias", "ffn_*.bias", "output_norm.bias"])
    return make_layout(checkpoint, "starcoder2", keys, rules, vocab=sizes.vocab, tied=True)
