"""Convert LFM2: most layers have a short convolution, the others attention."""

from __future__ import annotations

from typing import Any

from hotshoe.convert import (
    Checkpoint,
    FileLayout,
    ModelSizes,
    Rules,
    make_layout,
    read_rope,
    read_sizes,
)

__all__ = ["describe", "layer_keys"]

_KINDS = ("conv", "full_attention")


def describe(checkpoint: Checkpoint) -> FileLayout:
    """Describe the file. Raises ModelFileError if config.json is invalid, ConversionError if GGUF cannot express it."""
    checkpoint = checkpoint.text()
    checkpoint.expect(conv_bias=False)
    sizes = read_sizes(checkpoint, eps="norm_eps", n_kv_heads=8)
    rope = read_rope(checkpoint, theta=1_000_000.0)
    keys = sizes.keys() | layer_keys(checkpoint, sizes) | {"feed_forward_length": _feed_forward(checkpoint)}
    # both transformers and llama.cpp call the last norm "embedding norm"
    rules = Rules(names={"model.embedding_norm": "token_embd_norm"})
    return make_layout(checkpoint, "lfm2", keys | rope.keys(), rules, vocab=sizes.vocab, tied=True)


def layer_keys(checkpoint: Checkpoint, sizes: ModelSizes) -> dict[str, Any]:
    """The GGUF keys of the convolutions and of the layers that have them."""
    return {
        # readers recognise convolution layers by 0 key/value heads
        "attention.head_count_kv": [0 if k == "conv" else sizes.n_kv_heads for k in _kinds(checkpoint, sizes.n_layers)],
        "vocab_size": sizes.vocab,
        "shortconv.l_cache": checkpoint.integer("conv_L_cache", 3),
    }


def _kinds(checkpoint: Checkpoint, n_layers: int) -> list[str]:
    """The kind of each layer, "conv" or "full_attention". Raises ModelFileError for another value."""
    chosen = checkpoint.config.get("full_attn_idxs")
    if chosen is not None and not isinstance(chosen, list):
        raise checkpoint.invalid("full_attn_idxs", chosen, "a list")
    # before transformers 4.54, config.json listed only the layers with attention
    older = [_KINDS[chosen is None or i in chosen] for i in range(n_layers)]
    return checkpoint.kinds("layer_types", n_layers, _KINDS, older)


def _feed_forward(checkpoint: Checkpoint) -> int:
    """The hidden size of the MLP. config.json may give a size to multiply by 2/3 and to round up to a multiple."""
    ff = checkpoint.integer("block_ff_dim" if "block_ff_dim" in checkpoint.config else "intermediate_size")
    if not checkpoint.config.get("block_auto_adjust_ff_dim", True):
        return ff
    multiple = checkpoint.integer("block_multiple_of", 256)
    ff = int(2 * ff / 3)
    if checkpoint.config.get("block_ffn_dim_multiplier") is not None:
        ff = int(checkpoint.number("block_ffn_dim_multiplier") * ff)
    ff = -(-ff // multiple) * multiple
    if not 0 < ff < 2**32:
        raise checkpoint.refusal(f"the MLP would have a hidden size of {ff}")
    return ff
