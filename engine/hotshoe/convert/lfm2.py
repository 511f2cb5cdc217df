"""Convert LFM2: most layers have a short convolution, the others attention; and the encoder of LFM2-VL."""

from __future__ import annotations

from typing import Any

from hotshoe.convert import (
    Checkpoint,
    FileLayout,
    ModelSizes,
    Recipe,
    Rules,
    make_layout,
    make_tower_layout,
    read_rope,
    read_sizes,
    tower_keys,
)
from hotshoe.convert._siglip import SIGLIP_BIASES, SIGLIP_NAMES
from hotshoe.convert._tower import expect_of_processor, processor_count, read_preprocessor
from hotshoe.towers import lfm2

__all__ = ["describe", "describe_tower", "layer_keys"]

_KINDS = ("conv", "full_attention")
_ENCODERS = (
    *("model.vision_tower.vision_model.", "vision_tower.vision_model.", "model.vision_tower.", "vision_tower."),
    *("model.multi_modal_projector.", "multi_modal_projector."),
)
_ROWS = (64, 256)  # of a picture that is not cut: what readers assume
_FIXED = {"min_tiles": lfm2.FEWEST, "max_tiles": lfm2.MOST, "tile_size": lfm2.TILE, "use_thumbnail": True} | {
    "max_pixels_tolerance": lfm2.TOLERANCE,
    "do_image_splitting": True,
}


def describe(checkpoint: Checkpoint) -> FileLayout:
    """Describe the file. Raises ModelFileError if config.json is invalid, ConversionError if GGUF cannot express it."""
    checkpoint = checkpoint.text(*_ENCODERS)
    checkpoint.expect(conv_bias=False)
    sizes = read_sizes(checkpoint, eps="norm_eps", n_kv_heads=8)
    rope = read_rope(checkpoint, theta=1_000_000.0)
    keys = sizes.keys() | layer_keys(checkpoint, sizes) | {"feed_forward_length": _feed_forward(checkpoint)}
    # both transformers and llama.cpp call the last norm "embedding norm"
    rules = Rules(names={"model.embedding_norm": "token_embd_norm"})
    return make_layout(checkpoint, "lfm2", keys | rope.keys(), rules, vocab=sizes.vocab, tied=True)


def describe_tower(checkpoint: Checkpoint) -> FileLayout:
    """Describe the encoder of LFM2-VL. Raises as ``describe`` does."""
    vision = checkpoint.vision(*_ENCODERS)
    vision.expect(hidden_act="gelu_pytorch_tanh")
    checkpoint.expect(projector_hidden_act="gelu", vision_feature_layer=-1)
    vision.config["image_size"] = 256  # it reads pictures of any size; llama.cpp's converter writes this one
    merge = checkpoint.integer("downsample_factor", 2)
    keys = tower_keys(checkpoint, vision) | {
        "use_gelu": True,
        "vision.attention.layer_norm_epsilon": vision.number("layer_norm_eps", 1e-6),
        "vision.projector.scale_factor": merge,
    }
    dim, patch = keys["vision.embedding_length"], keys["vision.patch_size"]
    keys |= _limits(checkpoint, (patch * merge) ** 2)
    names, biased = SIGLIP_NAMES | {"linear_1": "mm.1", "linear_2": "mm.2"}, ["mm.1", "mm.2"]
    required = [
        *SIGLIP_BIASES,
        *([f"{name}.bias" for name in biased] if checkpoint.config.get("projector_bias", True) else []),
    ]
    if checkpoint.config.get("projector_use_layernorm", True):
        names |= {"layer_norm": "mm.input_norm"}
        required += ["mm.input_norm.weight", "mm.input_norm.bias"]
    as_image = Recipe(lambda v: v.reshape(dim, patch, patch, 3).transpose(0, 3, 1, 2), (dim, patch * patch * 3))
    rules = Rules(names=names, recipes={"v.patch_embd.weight": as_image}, required=required, ignored=("head.",))
    return make_tower_layout(checkpoint, vision, "lfm2", keys, rules)


def _limits(checkpoint: Checkpoint, pixels: int) -> dict[str, Any]:
    """The keys of the limits of a picture's size, where they differ from what readers assume. pixels: of a row."""
    processor = read_preprocessor(checkpoint)
    expect_of_processor(checkpoint, processor, **_FIXED)
    names = ("min_image_tokens", "max_image_tokens")
    rows = tuple(processor_count(checkpoint, processor, name, n) for name, n in zip(names, _ROWS, strict=True))
    if rows[0] > rows[1]:
        raise checkpoint.refusal(f"min_image_tokens is {rows[0]}, more than max_image_tokens, {rows[1]}")
    if rows == _ROWS:
        return {}
    return {f"vision.image_{which}_pixels": n * pixels for which, n in zip(("min", "max"), rows, strict=True)}


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
