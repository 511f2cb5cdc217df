"""Convert Qwen2.5-Omni: the text model, and the encoders of pictures and sounds, which share a file."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from hotshoe.convert import Array, Checkpoint, FileLayout, Rules, audio_keys, make_tower_layout
from hotshoe.convert._settings import Settings
from hotshoe.convert.qwen_vl import describe_2, describe_tower_2_5
from hotshoe.convert.whisper import WHISPER_BIASES, WHISPER_NAMES

__all__ = ["describe", "describe_tower"]

_AUDIO = "audio_tower."
_POSITIONS = 1500


def _thinker(checkpoint: Checkpoint) -> Checkpoint:
    """The part of the model that reads and writes texts. The others make speech."""
    inner = checkpoint.config.get("thinker_config")
    if not isinstance(inner, dict):
        raise checkpoint.invalid("thinker_config", inner, "an object")
    start = "thinker."
    tensors = {n.removeprefix(start): t for n, t in checkpoint.tensors.items() if n.startswith(start)}
    config = Settings(inner | {"architectures": ["Qwen2_5OmniThinkerForConditionalGeneration"]})
    return replace(checkpoint, config=config, tensors=tensors)


def describe(checkpoint: Checkpoint) -> FileLayout:
    """Describe the text model. Raises ModelFileError if config.json is invalid, ConversionError if GGUF cannot express
    it.
    """
    thinker = _thinker(checkpoint)
    texts = {name: tensor for name, tensor in thinker.tensors.items() if not name.startswith(_AUDIO)}
    return describe_2(replace(thinker, tensors=texts))


def describe_tower(checkpoint: Checkpoint) -> FileLayout:
    """Describe the file of both encoders. Raises as ``describe`` does."""
    thinker = _thinker(checkpoint)
    audio = thinker.audio(_AUDIO)
    audio.expect(activation_function="gelu", scale_embedding=False, n_window=100, max_source_positions=_POSITIONS)
    rules = Rules(
        names={name: row for name, row in WHISPER_NAMES.items() if name not in ("embed_positions", "layer_norm")}
        | {"ln_post": "a.post_ln", "proj": "mm.a.fc"},
        required=[*WHISPER_BIASES, "mm.a.fc.bias"],
        constants={"a.position_embd.weight": _positions(audio.integer("d_model"))},
        ignored=("audio_bos_eos_token.",),
    )
    heard = make_tower_layout(thinker, audio, "qwen2.5o", audio_keys(thinker.text(), audio), rules)
    seen = describe_tower_2_5(thinker)
    return replace(seen, metadata=seen.metadata | heard.metadata, tensors=(*seen.tensors, *heard.tensors))


def _positions(dim: int) -> Array:
    """Sines and cosines of positions (Vaswani et al. 2017, arXiv:1706.03762), as Whisper arranges them: (1500, dim)."""
    times = np.exp(-np.log(10_000) / (dim // 2 - 1) * np.arange(dim // 2, dtype=np.float32)).astype(np.float32)
    angles = np.arange(_POSITIONS, dtype=np.float32)[:, None] * times
    return np.concatenate([np.sin(angles), np.cos(angles)], axis=1)
