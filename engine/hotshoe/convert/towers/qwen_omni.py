"""Convert the encoders of pictures and sounds of Qwen2.5-Omni, which share a file."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from hotshoe.convert import Array, Checkpoint, FileLayout, Rules, audio_keys, make_tower_layout
from hotshoe.convert.qwen_omni import thinker
from hotshoe.convert.towers.qwen2vl import describe_2_5
from hotshoe.convert.towers.whisper import WHISPER_BIASES, WHISPER_NAMES

__all__ = ["describe"]

_POSITIONS = 1500


def describe(checkpoint: Checkpoint) -> FileLayout:
    """Describe the file. Raises ModelFileError if config.json is invalid, ConversionError if GGUF cannot express it."""
    model = thinker(checkpoint)
    audio = model.audio("audio_tower.")
    audio.expect(activation_function="gelu", scale_embedding=False, n_window=100, max_source_positions=_POSITIONS)
    rules = Rules(
        names={name: row for name, row in WHISPER_NAMES.items() if name not in ("embed_positions", "layer_norm")}
        | {"ln_post": "a.post_ln", "proj": "mm.a.fc"},
        required=[*WHISPER_BIASES, "mm.a.fc.bias"],
        constants={"a.position_embd.weight": _positions(audio.integer("d_model"))},
        ignored=("audio_bos_eos_token.",),
    )
    heard = make_tower_layout(model, audio, "qwen2.5o", audio_keys(model.text(), audio), rules)
    seen = describe_2_5(model)
    return replace(seen, metadata=seen.metadata | heard.metadata, tensors=(*seen.tensors, *heard.tensors))


def _positions(dim: int) -> Array:
    """Sines and cosines of positions (Vaswani et al. 2017, arXiv:1706.03762), as Whisper arranges them: (1500, dim)."""
    times = np.exp(-np.log(10_000) / (dim // 2 - 1) * np.arange(dim // 2, dtype=np.float32)).astype(np.float32)
    angles = np.arange(_POSITIONS, dtype=np.float32)[:, None] * times
    return np.concatenate([np.sin(angles), np.cos(angles)], axis=1)
