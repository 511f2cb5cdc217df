"""Convert BLOOM."""

from __future__ import annotations

from hotshoe.convert import Checkpoint, FileLayout, Rules, from_groups, make_layout, read_sizes

__all__ = ["describe"]


def describe(checkpoint: Checkpoint) -> FileLayout:
    """Describe the file. Raises ModelFileError if config.json is invalid, ConversionError if GGUF cannot express it."""
    checkpoint = checkpoint.renamed(
        num_attention_heads="n_head",
        num_hidden_layers="n_layer",
        max_position_embeddings="seq_length",
        hidden_size="n_embed",
    )
    checkpoint.expect(apply_residual_connection_post_layernorm=False)
    sizes = read_sizes(checkpoint, layer_norm_eps="layer_norm_epsilon", dense=False)
    groups = from_groups(sizes.n_heads, sizes.n_heads)
    rules = Rules(
        required=["*_norm.bias", "attn_*.bias", "ffn_*.bias"],
        recipes={"attn_qkv.weight": groups, "attn_qkv.bias": groups},
    )
    keys = sizes.keys() | {"feed_forward_length": 4 * sizes.dim}
    return make_layout(checkpoint, "bloom", keys, rules, vocab=sizes.vocab, tied=True)
