"""The table of models that read sounds: one row for each kind of projector. And MadeSound, the files of a row."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tests.families.row import COMMON, Row
from tests.towers.made import MadeTower
from tests.towers.row import TowerRow, sound

__all__ = ["SOUNDS", "MadeSound", "SoundRow"]

Array = np.ndarray[Any, Any]

_WINDOW = 480_000  # samples
_CONVOLUTIONS = ("f32 a.conv1d.1.weight", "f32 a.conv1d.2.weight")  # llama.cpp's are always F16


def _unused(*_: Any) -> Any:
    raise NotImplementedError


@dataclass(frozen=True)
class SoundRow(TowerRow):
    """A tiny model that reads sounds."""

    pixels: Callable[..., Array] = _unused
    inputs: Callable[[Any, Sequence[Array]], dict[str, Any]] = _unused
    """What transformers' model reads, from the processor and the samples of sounds."""
    seconds: Sequence[float] = (0.4, 7.305)
    """Lengths of sounds."""
    heard: float | None = None
    """The length of a sound that llama.cpp reads as we do. None: a comment says why."""


def _per_window(processor: Any, sounds: Sequence[Array]) -> dict[str, Any]:
    """Voxtral: silence fills up the last window of 30 seconds."""
    import torch

    options: dict[str, Any] = {"sampling_rate": 16_000, "truncation": False, "return_tensors": "pt"}
    wholes = [processor(x, padding=True, pad_to_multiple_of=_WINDOW, **options).input_features[0] for x in sounds]
    return {"input_features": torch.cat([w.reshape(len(w), -1, 3000).transpose(0, 1) for w in wholes])}


def _masked(processor: Any, sounds: Sequence[Array]) -> dict[str, Any]:
    """Qwen2-Audio: one window of 30 seconds, whose silence is masked."""
    options: dict[str, Any] = {"sampling_rate": 16_000, "return_attention_mask": True, "return_tensors": "pt"}
    given = processor(list(sounds), padding="max_length", **options)
    return {"input_features": given.input_features, "feature_attention_mask": given.attention_mask}


def _as_long_as_they_are(processor: Any, sounds: Sequence[Array]) -> dict[str, Any]:
    """Ultravox: windows of at most 30 seconds."""
    options: dict[str, Any] = {"sampling_rate": 16_000, "truncation": False, "return_tensors": "pt"}
    wholes = [processor(x, padding="longest", pad_to_multiple_of=160, **options).input_features for x in sounds]
    return {"input_features": [part for whole in wholes for part in whole.split(3000, dim=2)]}


_TEXT = COMMON | {"num_hidden_layers": 2, "max_position_embeddings": 2048}
_WHISPER = {"d_model": 32, "encoder_ffn_dim": 64, "encoder_layers": 2, "encoder_attention_heads": 2}
_PROCESSOR = "transformers:WhisperFeatureExtractor"


def _config(audio: Mapping[str, Any], **text: Any) -> dict[str, Any]:
    return dict.fromkeys(COMMON.keys() - {"vocab_size"}, ...) | {"text_config": _TEXT | text, "audio_config": audio}


def _inside_thinker(folder: Path, target: Path) -> Path:
    """Qwen2.5-Omni's folder has the model that reads, and others, which make speech."""
    from safetensors.numpy import load_file, save_file

    shutil.copytree(folder, target)
    tensors = load_file(folder / "model.safetensors")
    save_file({f"thinker.{name}": t for name, t in tensors.items()}, target / "model.safetensors", {"format": "pt"})
    config = {"architectures": ["Qwen2_5OmniModel"], "model_type": "qwen2_5_omni"}
    config["thinker_config"] = json.loads((folder / "config.json").read_text())
    (target / "config.json").write_text(json.dumps(config))
    pictures = {"image_mean": [0.5, 0.5, 0.5], "image_std": [0.25, 0.25, 0.25]}
    settings = json.loads((folder / "preprocessor_config.json").read_text()) | pictures
    (target / "preprocessor_config.json").write_text(json.dumps(settings))
    return target


_OMNI_TOKENS = {
    "audio_token_index": "<|AUDIO|>",
    "audio_start_token_id": "<|audio_bos|>",
    "audio_end_token_id": "<|audio_eos|>",
    "image_token_index": "<|IMAGE|>",
    "video_token_index": "<|VIDEO|>",
    "vision_start_token_id": "<|vision_bos|>",
    "vision_end_token_id": "<|vision_eos|>",
}
_OMNI_VISION = {"depth": 4, "hidden_size": 32, "intermediate_size": 48, "num_heads": 2, "out_hidden_size": 64}

SOUNDS: dict[str, SoundRow] = {
    "ultravox": SoundRow(
        Row(
            "tests.towers.ultravox:UltravoxModel",
            "llama",
            # with the published 8, llama.cpp counts one row fewer than it computes, and stops
            _config(_WHISPER | {"num_mel_bins": 128}, model_type="llama")
            | {"hidden_size": 96, "vocab_size": ..., "stack_factor": 6},
        ),
        "ultravox",
        _PROCESSOR,
        ("<|reserved|>",),  # whose ids stand for rows in transformers only
        {"audio_token_id": "<|reserved|>"},
        options={"feature_size": 128},
        inputs=_as_long_as_they_are,
        seconds=(0.4, 7.305, 31.2),
        double=True,  # the projector normalises rows, also where its values nearly cancel
        differing=_CONVOLUTIONS,
        apart="language_model",
        heard=30.0,
    ),
    "voxtral": SoundRow(
        Row(
            "VoxtralForConditionalGeneration",
            "llama",
            _config(
                {"hidden_size": 32, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2}
                | {"num_mel_bins": 128},
                model_type="llama",
                head_dim=16,
            ),
        ),
        "voxtral",
        _PROCESSOR,
        ("[AUDIO]", "[BEGIN_AUDIO]"),
        {"audio_token_id": "[AUDIO]"},
        options={"feature_size": 128},
        inputs=_per_window,
        seconds=(0.4, 31.2),
        differing=_CONVOLUTIONS,
        # llama.cpp stops at an assertion: it also takes the mean of two states before it stacks four
    ),
    "qwen2-audio": SoundRow(
        Row(
            "Qwen2AudioForConditionalGeneration",
            "qwen2",
            _config(_WHISPER | {"num_mel_bins": 128}, model_type="qwen2"),
        ),
        "qwen2a",
        _PROCESSOR,
        ("<|AUDIO|>", "<|audio_bos|>", "<|audio_eos|>"),
        {"audio_token_index": "<|AUDIO|>"},
        options={"feature_size": 128},
        inputs=_masked,
        seconds=(0.4, 7.305, 30.0),
        differing=_CONVOLUTIONS,
        heard=30.0,
    ),
    "qwen2.5-omni": SoundRow(
        Row(
            "Qwen2_5OmniThinkerForConditionalGeneration",
            "qwen2vl",
            _config(
                _WHISPER | {"num_mel_bins": 128, "output_dim": 64},
                rope_parameters={"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 3, 3]},
            )
            | {"vision_config": _OMNI_VISION | {"fullatt_block_indexes": [1, 3]}, "vocab_size": ...},
        ),
        "qwen2.5o",
        _PROCESSOR,
        tuple(_OMNI_TOKENS.values()),
        _OMNI_TOKENS,
        options={"feature_size": 128},
        inputs=_masked,
        nest=_inside_thinker,
        # sines, which torch rounds differently
        differing=(*_CONVOLUTIONS, "f32 a.position_embd.weight", "f16 a.position_embd.weight"),
        # llama.cpp reads 30 seconds together, the model 2 at a time
    ),
}


class MadeSound(MadeTower):
    """A row with its files."""

    n_ctx = 2048
    row: SoundRow

    def processed(self, sounds: Sequence[Array]) -> Any:
        if self.row.double:  # with NumPy, the spectrum is computed in f64 too
            self.processor._torch_extract_fbank_features = self.processor._np_extract_fbank_features
        return self.row.inputs(self.processor, sounds)

    @property
    def seen_source(self) -> Any:
        return None if self.row.heard is None else (sound(self.row.heard), 16_000)

    def heard(self, ids: Sequence[int], sounds: Sequence[Array]) -> tuple[Array, Array]:
        """The embeddings of these ids, in which the row token stands once for each row of a sound; and the logits."""
        import torch

        inner = self.oracle.language_model if self.row.apart else self.oracle.model.language_model
        seen: list[Any] = []
        hook = inner.register_forward_pre_hook(
            lambda _, __, given: seen.append(given["inputs_embeds"]), with_kwargs=True
        )
        tokens = torch.tensor([list(ids)])
        try:
            with torch.no_grad():
                given = self.processed(sounds) if sounds else {}
                logits = self.oracle(input_ids=tokens, **given).logits
        finally:
            hook.remove()
        return seen[0][0].numpy(), logits[0].numpy()
