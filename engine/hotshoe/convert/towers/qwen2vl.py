"""Convert the encoders of pictures of Qwen2-VL and Qwen2.5-VL."""

from __future__ import annotations

from typing import Any

from hotshoe.convert import Checkpoint, FileLayout, Names, tower_keys
from hotshoe.convert.towers._qwen import BLOCK_NAMES, STARTS, make_qwen_layout

__all__ = ["describe", "describe_2_5"]

_MERGER_NAMES: Names = {"merger.ln_q": "v.post_ln", "merger.mlp.0": "mm.0", "merger.mlp.2": "mm.2"}
_PARTS = [f"attn_{part}.{kind}" for part in "qkv" for kind in ("weight", "bias")]


def describe(checkpoint: Checkpoint) -> FileLayout:
    """Describe the encoder of Qwen2-VL. Raises ModelFileError if config.json is invalid, ConversionError if GGUF cannot
    express it.
    """
    vision = checkpoint.vision(*STARTS)
    vision.expect(hidden_act="quick_gelu")
    # llama.cpp's converter writes the text model's size as that of the MLP
    keys = tower_keys(
        checkpoint, _with_size(vision), layers="depth", dim="embed_dim", ff="hidden_size", heads="num_heads"
    )
    names: Names = {"layers.mlp.fc1": "ffn_up", "layers.mlp.fc2": "ffn_down"}
    return _describe(checkpoint, vision, "qwen2vl_merger", keys, names)


def describe_2_5(checkpoint: Checkpoint) -> FileLayout:
    """Describe the encoder of Qwen2.5-VL. Raises as ``describe`` does."""
    vision = checkpoint.vision(*STARTS)
    vision.expect(hidden_act="silu", window_size=112)
    full = vision.config.get("fullatt_block_indexes")
    period = full[0] + 1 if isinstance(full, list) and full and isinstance(full[0], int) else 0
    if not period or full != list(range(period - 1, period * len(full), period)):
        raise vision.refusal(f"fullatt_block_indexes is {full!r:.80}; a file can only say that one layer in n is full")
    keys = tower_keys(checkpoint, _with_size(vision), layers="depth", heads="num_heads")
    keys |= {"use_silu": True, "vision.n_wa_pattern": period}
    return _describe(checkpoint, vision, "qwen2.5vl_merger", keys, {})


def _with_size(vision: Checkpoint) -> Checkpoint:
    vision.config.setdefault("image_size", 560)  # it reads pictures of any size; llama.cpp's converter writes this one
    return vision


def _describe(checkpoint: Checkpoint, vision: Checkpoint, kind: str, keys: dict[str, Any], names: Names) -> FileLayout:
    biases = [*_PARTS, *(f"{name}.bias" for name in ("ln1", "ln2") if kind == "qwen2vl_merger")]
    biases += [f"{name}.bias" for name in ("attn_out", "ffn_up", "ffn_down", "mm.0", "mm.2")]
    biases.append("v.post_ln.bias" if kind == "qwen2vl_merger" else "ffn_gate.bias")
    names = BLOCK_NAMES | _MERGER_NAMES | names
    if any(name.endswith(".attn.q.weight") for name in vision.tensors):  # Qwen2.5-Omni
        del names["layers.attn.qkv"]
        names |= {f"layers.attn.{part}": f"attn_{part}" for part in "qkv"}
    return make_qwen_layout(checkpoint, vision, kind, keys, names, biases)
