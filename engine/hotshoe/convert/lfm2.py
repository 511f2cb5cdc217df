"""Convert LFM2: most layers have a short convolution, the others attention; all have a gated MLP."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hotshoe.convert import (
    as_is,
    attention_tensors,
    linear,
    make_layout,
    mlp_tensors,
    non_layer_tensors,
    read_rope,
    read_sizes,
    reshaped,
)
from hotshoe_core.errors import ConversionError, ModelFileError

if TYPE_CHECKING:
    from hotshoe.convert import Checkpoint, FileLayout, ModelSizes, TensorSource

__all__ = ["describe"]

ARCH = "lfm2"

_KINDS = ("conv", "full_attention")


def describe(checkpoint: Checkpoint) -> FileLayout:
    """Describe the file. Raises ModelFileError if config.json is invalid, ConversionError if GGUF cannot express it."""
    checkpoint.require("conv_bias", False, False)
    sizes = read_sizes(checkpoint, eps="norm_eps", n_kv_heads=8)
    rope = read_rope(checkpoint, theta=1_000_000.0)
    kinds = _kinds(checkpoint, sizes.n_layers)
    kernel, ff = checkpoint.integer("conv_L_cache", 3), _feed_forward(checkpoint)
    # both transformers and llama.cpp call the last norm "embedding norm"
    tensors = non_layer_tensors(checkpoint, sizes, tied=True, norm=("token_embd_norm", "model.embedding_norm"))
    for i, kind in enumerate(kinds):
        block, layer = f"blk.{i}", f"model.layers.{i}"
        tensors += [
            as_is(f"{block}.attn_norm.weight", f"{layer}.operator_norm.weight", (sizes.dim,)),
            as_is(f"{block}.ffn_norm.weight", f"{layer}.ffn_norm.weight", (sizes.dim,)),
            *(_convolution(block, layer, sizes.dim, kernel) if kind == "conv" else _attention(block, layer, sizes)),
            *mlp_tensors(block, f"{layer}.feed_forward", sizes.dim, ff, names=("w1", "w3", "w2")),
        ]
    metadata = sizes.metadata(ARCH) | {
        f"{ARCH}.feed_forward_length": ff,
        # readers recognise convolution layers by 0 key/value heads
        f"{ARCH}.attention.head_count_kv": [0 if kind == "conv" else sizes.n_kv_heads for kind in kinds],
        f"{ARCH}.vocab_size": sizes.vocab,
        f"{ARCH}.shortconv.l_cache": kernel,
    }
    return make_layout(checkpoint, ARCH, tensors, metadata | rope.metadata(ARCH), vocab=sizes.vocab)


def _kinds(checkpoint: Checkpoint, n_layers: int) -> list[str]:
    """The kind of each layer, "conv" or "full_attention". Raises ModelFileError for another value."""
    stated, attention = checkpoint.config.get("layer_types"), checkpoint.config.get("full_attn_idxs")
    if stated is None:
        # before transformers 4.54, config.json listed only the layers with attention
        chosen = range(n_layers) if attention is None else attention
        stated = [_KINDS[i in chosen] for i in range(n_layers)] if isinstance(chosen, (list, range)) else attention
    if not isinstance(stated, list) or len(stated) != n_layers or not all(kind in _KINDS for kind in stated):
        raise ModelFileError(
            f"{str(stated)[:80]}; expected a list of {n_layers}, each {' or '.join(_KINDS)}",
            path=checkpoint.model / "config.json",
            field="layer_types",
        )
    return stated


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
        raise ConversionError(f"{checkpoint.model / 'config.json'}: the MLP would have a hidden size of {ff}")
    return ff


def _convolution(block: str, layer: str, dim: int, kernel: int) -> list[TensorSource]:
    return [
        *linear(f"{block}.shortconv.in_proj", f"{layer}.conv.in_proj", 3 * dim, dim),
        reshaped(f"{block}.shortconv.conv.weight", f"{layer}.conv.conv.weight", (dim, 1, kernel), (dim, kernel)),
        *linear(f"{block}.shortconv.out_proj", f"{layer}.conv.out_proj", dim, dim),
    ]


def _attention(block: str, layer: str, sizes: ModelSizes) -> list[TensorSource]:
    source = f"{layer}.self_attn"
    return [
        *attention_tensors(block, source, sizes, out="out_proj"),
        as_is(f"{block}.attn_q_norm.weight", f"{source}.q_layernorm.weight", (sizes.head_dim,)),
        as_is(f"{block}.attn_k_norm.weight", f"{source}.k_layernorm.weight", (sizes.head_dim,)),
    ]
