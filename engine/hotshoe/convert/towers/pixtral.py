"""Convert the encoder of Pixtral, Mistral Small 3 and Ministral 3, and LightOnOCR, whose encoder is the same."""

from __future__ import annotations

from dataclasses import replace

from hotshoe.convert import (
    Checkpoint,
    FileLayout,
    Names,
    Recipe,
    Rules,
    TensorLayout,
    interleave,
    make_tower_layout,
    refuse_other_rope,
    tower_keys,
)
from hotshoe.convert._tokenfiles import read_text_tokenizer

__all__ = ["STARTS", "describe", "describe_lighton"]

# how the names of the encoder's tensors begin, and those of the projector
STARTS = ("model.vision_tower.", "vision_tower.", "model.multi_modal_projector.", "multi_modal_projector.")
_LIGHTON = ("model.vision_encoder.", "vision_encoder.", "model.vision_projection.", "vision_projection.")
_NAMES: Names = {
    "patch_conv": "v.patch_embd",
    "ln_pre": "v.pre_ln",
    "layers.attention_norm": "ln1",
    "layers.attention.q_proj": "attn_q",
    "layers.attention.k_proj": "attn_k",
    "layers.attention.v_proj": "attn_v",
    "layers.attention.o_proj": "attn_out",
    "layers.ffn_norm": "ln2",
    "layers.feed_forward.gate_proj": "ffn_gate",
    "layers.feed_forward.up_proj": "ffn_up",
    "layers.feed_forward.down_proj": "ffn_down",
    "linear_1": "mm.1",
    "linear_2": "mm.2",
}
_MERGER: Names = {"norm": "mm.input_norm", "patch_merger.merging_layer": "mm.patch_merger"}
_BREAK = "[IMG_BREAK]"
_EPS, _LIGHTON_EPS = 1e-5, 1e-6


def describe(checkpoint: Checkpoint) -> FileLayout:
    """Describe the file. Raises ModelFileError if config.json is invalid, ConversionError if GGUF cannot express it."""
    layout = _describe(checkpoint, checkpoint.vision(*STARTS), "pixtral")
    return replace(layout, tensors=(*layout.tensors, _break_row(checkpoint)))


def describe_lighton(checkpoint: Checkpoint) -> FileLayout:
    """Describe the encoder of LightOnOCR. Raises as ``describe`` does."""
    checkpoint.config.setdefault("spatial_merge_size", 2)
    checkpoint.config["multimodal_projector_bias"] = False  # config.json does not say it
    return _describe(checkpoint, checkpoint.vision(*_LIGHTON), "lightonocr")


def _describe(checkpoint: Checkpoint, vision: Checkpoint, kind: str) -> FileLayout:
    vision.require("hidden_act", "gelu", "silu")
    vision.expect(num_channels=3)
    checkpoint.expect(projector_hidden_act="gelu", vision_feature_layer=-1)
    refuse_other_rope(vision)
    merge = checkpoint.integer("spatial_merge_size", 1)
    eps = _LIGHTON_EPS if kind == "lightonocr" else _EPS
    if merge > 1 and checkpoint.text().number("rms_norm_eps", eps) != eps:
        raise checkpoint.refusal(f"rms_norm_eps differs from {eps}, which readers take for the norm before the merger")
    keys = tower_keys(checkpoint, vision) | {"use_silu": True, "vision.attention.layer_norm_epsilon": _EPS}
    if "spatial_merge_size" in checkpoint.config:
        keys["vision.spatial_merge_size"] = merge
    heads = keys["vision.attention.head_count"]
    recipes = {
        **dict.fromkeys(("attn_q.weight", "attn_k.weight"), interleave(heads)),
        # llama.cpp's converter keeps these types
        **({"mm.patch_merger.weight": Recipe(full_precision=False)} if merge > 1 else {}),
    }
    has_biases = checkpoint.config.get("multimodal_projector_bias", True)
    rules = Rules(
        names=_NAMES | (_MERGER if merge > 1 else {}),
        recipes=recipes,
        required=["mm.?.bias"] if has_biases else [],
    )
    return make_tower_layout(checkpoint, vision, kind, keys, rules)


def _break_row(checkpoint: Checkpoint) -> TensorLayout:
    """The text model's row of the token that ends a row of a picture, of which encoders have a copy."""
    found = [token.id for token in read_text_tokenizer(checkpoint).added if token.content == _BREAK]
    table = next((name for name in checkpoint.tensors if name.endswith("embed_tokens.weight")), None)
    if not found or table is None:
        raise checkpoint.refusal(f"the model has no {'token ' + _BREAK if table else 'tensor embed_tokens.weight'}")
    shape = checkpoint.tensors[table].shape
    if found[0] >= shape[0]:
        raise checkpoint.refusal(f"the token {_BREAK} has the id {found[0]}, but {table} has {shape[0]} rows")
    name = "v.token_embd.img_break"
    return TensorLayout(name, table, shape[1:], True, lambda: checkpoint.read(table)[found[0]])
