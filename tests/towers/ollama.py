"""Write the single files of Ollama's converters, with text and encoder, from our two files with the same weights."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from tests.support.rewrite import Stored, rewrite

__all__ = ["FORMS", "Form", "single_file"]

Array = np.ndarray[Any, Any]
Values = dict[str, Any]
Tensors = dict[str, Stored]


@dataclass(frozen=True)
class Form:
    """What an Ollama converter writes differently. Keys are without the architecture."""

    arch: str
    """``general.architecture`` of the file."""
    names: Mapping[str, str]
    """Regular expressions for our names of tensors, and what Ollama's converter writes."""
    keys: Callable[[Values], Values] = lambda clip: {}
    """Further keys, from ours of the encoder (without "clip.")."""
    left_out: tuple[str, ...] = ()
    """Keys of the encoder that the file does not have."""
    text_left_out: tuple[str, ...] = ()
    """Keys of the text model that the file does not have."""
    change: Callable[[Tensors, Values], None] = field(default=lambda tensors, clip: None)
    """Changes the encoder's tensors, by Ollama's names."""


def _interleaved_back(data: Array, n_heads: int) -> Array:
    """From the order of llama.cpp's RoPE, pairs (2i, 2i + 1), to that of transformers, (i, i + head_dim / 2)."""
    rows = np.arange(len(data)).reshape(n_heads, -1, 2).transpose(0, 2, 1).reshape(-1)
    return np.ascontiguousarray(data[rows])


def _mistral(tensors: Tensors, clip: Values) -> None:
    for name, (data, kind) in tensors.items():
        if re.fullmatch(r"v\.blk\.\d+\.attn_[qk]\.weight", name):
            tensors[name] = _interleaved_back(data, clip["vision.attention.head_count"]), kind


def _qwen3(tensors: Tensors, clip: Values) -> None:
    first, kind = tensors.pop("v.patch_embd.weight")
    second, _ = tensors.pop("v.patch_embd.weight.1")
    tensors["v.patch_embed.weight"] = (
        np.stack([first.reshape(-1, *first.shape[2:]), second.reshape(-1, *first.shape[2:])], 1),
        kind,
    )
    for i in range(clip["vision.block_count"]):
        for end in ("weight", "bias"):
            whole, kind = tensors.pop(f"v.blk.{i}.attn_qkv.{end}")
            for part, data in zip("qkv", np.split(whole, 3), strict=True):
                tensors[f"v.blk.{i}.attn_{part}.{end}"] = np.ascontiguousarray(data), kind
    layers = [i for i, is_one in enumerate(clip.get("vision.is_deepstack_layers", [])) if is_one]
    for name in [name for name in tensors if name.startswith("v.deepstack.")]:
        _, _, layer, rest = name.split(".", 3)
        rest = rest.replace("fc", "linear_fc")
        tensors[f"v.deepstack_merger.{layers.index(int(layer))}.{rest}"] = tensors.pop(name)


def _qwen3_keys(clip: Values) -> Values:
    layers = [i for i, is_one in enumerate(clip.get("vision.is_deepstack_layers", [])) if is_one]
    limits = {"shortest_edge": "image_min_pixels", "longest_edge": "image_max_pixels"}
    return {f"vision.{ours}": clip.get(f"vision.{theirs}", 0) for ours, theirs in limits.items()} | {
        "vision.deepstack_visual_indexes": layers,
        "vision.num_channels": 3,
        "vision.temporal_patch_size": 2,
        "vision.rope.freq_base": 10000.0,
    }


def _qwen25_keys(clip: Values) -> Values:
    period = clip["vision.n_wa_pattern"]
    return {
        "vision.fullatt_block_indexes": list(range(period - 1, clip["vision.block_count"], period)),
        "vision.num_channels": 3,
        "vision.spatial_patch_size": 14,
        "vision.window_size": 112,
        "vision.temporal_patch_size": 2,
        "vision.rope.freq_base": 10000.0,
    }


def _only_packed(tensors: Tensors, clip: Values) -> None:
    _packed(tensors, clip)
    for name in [name for name in tensors if name.endswith(("put_min", "put_max"))]:
        del tensors[name]


def _packed(tensors: Tensors, clip: Values) -> None:
    values: list[float] = []
    for i in range(clip["vision.block_count"]):
        for part in ("attn_q", "attn_k", "attn_v", "attn_out", "ffn_gate", "ffn_up", "ffn_down"):
            for end in ("input_min", "input_max", "output_min", "output_max"):
                values.append(float(tensors[f"v.blk.{i}.{part}.{end}"][0].reshape(-1)[0]))
    tensors["v.clamp_data"] = np.float32([*values, 0, 0, 0, 0]), gguf.GGMLQuantizationType.F32


_QWEN3_NAMES = {
    r"^v\.post_ln\.": "v.merger.norm.",
    r"^mm\.0\.": "v.merger.linear_fc1.",
    r"^mm\.2\.": "v.merger.linear_fc2.",
    r"^v\.position_embd\.": "v.pos_embed.",
    r"^v\.patch_embd\.bias": "v.patch_embed.bias",
    r"\.ln([12])\.": r".norm\1.",
    r"\.ffn_up\.": ".mlp.linear_fc1.",
    r"\.ffn_down\.": ".mlp.linear_fc2.",
}
_DERIVED = ("use_gelu", "use_silu", "vision.image_mean", "vision.image_std", "vision.projection_dim")
_QWEN3_OUT = ("vision.projection_dim", "vision.feed_forward_length", "vision.image_size", "vision.is_deepstack_layers")
_QWEN3_OUT += ("vision.image_min_pixels", "vision.image_max_pixels")


def _qwen3_form(arch: str) -> Form:
    text = ("n_deepstack_layers", "rope.dimension_sections") if arch.startswith("qwen3vl") else ()
    return Form(arch, _QWEN3_NAMES, _qwen3_keys, _QWEN3_OUT, text, _qwen3)


_GEMMA4_OUT = (*_DERIVED, "vision.image_size", "vision.image_max_pixels", "vision.projector_type")
FORMS: dict[tuple[str, str], Form] = {
    ("qwen2.5-vl", ""): Form(
        "qwen25vl",
        {
            r"^v\.post_ln\.": "v.merger.ln_q.",
            r"^mm\.": "v.merger.mlp.",
            r"^v\.patch_embd\.weight\.1$": "v.patch_embd_1.weight",
            r"^v\.patch_embd\.weight$": "v.patch_embd_0.weight",
        },
        _qwen25_keys,
        (*_DERIVED, "vision.image_size", "vision.n_wa_pattern", "vision.feed_forward_length"),
    ),
    ("qwen3-vl", ""): _qwen3_form("qwen3vl"),
    ("qwen3-vl-moe", ""): _qwen3_form("qwen3vlmoe"),
    ("qwen3.5", ""): _qwen3_form("qwen35"),
    ("mistral3", ""): Form(
        "mistral3",
        {
            r"^v\.patch_embd\.": "v.patch_conv.",
            r"^v\.pre_ln\.": "v.encoder_norm.",
            r"\.attn_out\.": ".attn_output.",
            r"\.ln1\.": ".attn_norm.",
            r"\.ln2\.": ".ffn_norm.",
            r"^mm\.([12])\.": r"mm.linear_\1.",
            r"^mm\.input_norm\.": "mm.norm.",
            r"^mm\.patch_merger\.": "mm.patch_merger.merging_layer.",
        },
        lambda clip: {
            "spatial_merge_size": clip["vision.spatial_merge_size"],
            "vision.attention.key_length": clip["vision.embedding_length"] // clip["vision.attention.head_count"],
            "vision.rope.freq_base": clip.get("rope.freq_base", 10000.0),
            "vision.num_channels": 3,
            "image_token_index": 10,
            "mm.projector_bias": False,
            "mm.projector_hidden_act": "gelu",
        },
        (*_DERIVED, "vision.attention.layer_norm_epsilon", "vision.spatial_merge_size", "rope.freq_base"),
        change=_mistral,
    ),
    ("gemma3", ""): Form(
        "gemma3",
        {
            r"^v\.patch_embd\.": "v.patch_embedding.",
            r"^v\.position_embd\.": "v.position_embedding.",
            r"^v\.post_ln\.": "v.post_layernorm.",
            r"\.ln([12])\.": r".layer_norm\1.",
            r"\.attn_out\.": ".attn_output.",
            r"\.ffn_up\.": ".mlp.fc1.",
            r"\.ffn_down\.": ".mlp.fc2.",
            r"^mm\.": "mm.mm_",
        },
        left_out=_DERIVED,
    ),
    ("gemma4", ""): Form("gemma4", {}, lambda clip: {"vision.num_channels": 3}, _GEMMA4_OUT),
    ("gemma4-small", "both"): Form("gemma4", {}, left_out=_GEMMA4_OUT, change=_packed),
    ("gemma4-small", "packed"): Form("gemma4", {}, left_out=_GEMMA4_OUT, change=_only_packed),
    ("glm-ocr", ""): Form(
        "glmocr",
        {
            r"^v\.patch_embd\.weight\.1$": "v.patch_embd_1.weight",
            r"^v\.patch_embd\.weight$": "v.patch_embd_0.weight",
        },
        lambda clip: {
            "vision.intermediate_size": clip["vision.feed_forward_length"],
            "vision.attention.layer_norm_rms_epsilon": clip["vision.attention.layer_norm_epsilon"],
            "vision.min_pixels": 2 * 8 * 28 * 28,
            "vision.max_pixels": 2 * 4096 * 28 * 28,
            "vision.out_hidden_size": clip["vision.projection_dim"],
            "vision.temporal_patch_size": 2,
        },
        ("use_silu", "vision.projection_dim", "vision.feed_forward_length", "vision.attention.layer_norm_epsilon"),
    ),
    ("mllama", ""): Form("mllama", {}, left_out=_DERIVED),
}
"""By the name of the row, and a variant."""


def single_file(form: Form, text: Path, encoder: Path, target: Path) -> Path:
    """Write the file of a form from our two files."""
    parts, whole = gguf.GGUFReader(encoder), gguf.GGUFReader(text)
    clip = {key.removeprefix("clip."): f.contents() for key, f in parts.fields.items() if key.startswith("clip.")}
    ours = whole.fields["general.architecture"].contents()
    values: Values = {"general.architecture": form.arch}
    for key, stored in whole.fields.items():
        if key.startswith(f"{ours}."):
            name = key.removeprefix(f"{ours}.")
            values[key] = None
            if name not in form.text_left_out:
                values[f"{form.arch}.{name}"] = stored.contents()
    shown = {key: value for key, value in clip.items() if key.startswith("vision.") and key not in form.left_out}
    values |= {f"{form.arch}.{key}": value for key, value in (shown | form.keys(clip)).items() if value != []}

    def add(tensors: Tensors) -> None:
        found: Tensors = {}
        for tensor in parts.tensors:
            name = tensor.name
            if name == "v.token_embd.img_break":
                continue
            for pattern, theirs in form.names.items():
                name = re.sub(pattern, theirs, name)
            found[name] = tensor.data, tensor.tensor_type
        form.change(found, clip)
        tensors |= found

    target.parent.mkdir(exist_ok=True)
    return rewrite(text, target, values, edit=add)
