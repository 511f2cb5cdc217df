"""Whisper's encoder (Radford et al. 2022, arXiv:2212.04356), which reads sounds, and the models that use it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from hotshoe import audio
from hotshoe.audio import Sound
from hotshoe.nn import Linear, layers, submodule, tensor
from hotshoe.nn.audio import AudioConfig, AudioTower
from hotshoe.nn.basic import LayerNorm, Norm, RMSNorm
from hotshoe.nn.config import key
from hotshoe.nn.vision import Prepared, TowerBlock
from hotshoe_core import Tensor, ops

Array = np.ndarray[Any, Any]

_RATE = 16_000
_WINDOW = 3000  # frames of the spectrum: 30 seconds
_POSITIONS = 1500


class Whisper(AudioTower):
    """The encoder: two convolutions, of which the second halves the frames, learned positions, blocks, a norm."""

    config: AudioConfig
    conv1: Tensor = tensor("a.conv1d.1.weight", use="conv1d", shape=lambda c, i: (c.dim, c.n_mels, 3))
    conv1_bias: Tensor = tensor("a.conv1d.1.bias", use="add", shape=lambda c, i: (c.dim, 1))
    conv2: Tensor = tensor("a.conv1d.2.weight", use="conv1d", shape=lambda c, i: (c.dim, c.dim, 3))
    conv2_bias: Tensor = tensor("a.conv1d.2.bias", use="add", shape=lambda c, i: (c.dim, 1))
    positions: Tensor = tensor("a.position_embd.weight", use="add", shape=lambda c, i: (_POSITIONS, c.dim))
    blocks: list[TowerBlock] = layers("a.blk")
    norm: Norm = submodule("a.post_ln", choose=lambda c, i: LayerNorm, shape=lambda c, i: (c.dim,))

    def spectrum(self, sound: Sound, *, whole_windows: bool) -> Array:
        """The log-mel spectrum (n_mels, frames). whole_windows: silence fills the last window of 30 seconds."""
        samples = audio.resampled(sound, _RATE)
        unit = _WINDOW * audio.HOP if whole_windows else audio.HOP
        return audio.log_mel(np.pad(samples, (0, -len(samples) % unit)), self.config.n_mels)

    def encode(self, mel: Tensor) -> Tensor:
        """(n_mels, frames) to (frames / 2, dim), before the blocks."""
        x = (ops.conv1d(mel, self.conv1, padding=1) + self.conv1_bias).gelu()
        x = (ops.conv1d(x, self.conv2, stride=2, padding=1) + self.conv2_bias).gelu().T
        return x + self.positions[: x.shape[0]]


def _windows(spectrum: Array, size: int = _WINDOW) -> list[dict[str, Array]]:
    """The inputs of each window of so many frames."""
    starts = range(0, spectrum.shape[1], size)
    return [{"mel": np.ascontiguousarray(spectrum[:, start : start + size])} for start in starts]


def _n_frames(sound: Sound) -> int:
    """The frames of the spectrum that are not silence at the end."""
    n_samples = -(-len(sound.samples) * _RATE // sound.rate)
    return -(-n_samples // audio.HOP)


@dataclass(frozen=True, slots=True, kw_only=True)
class StackingConfig(AudioConfig):
    stack: int = key("audio.projector.stack_factor", minimum=1, maximum=_POSITIONS)
    """Hidden states that follow each other in one row."""


class _Stacking(Whisper):
    """Several hidden states become one row."""

    config: StackingConfig

    def stacked(self, x: Tensor) -> Tensor:
        """(n, dim) to (n / stack, dim * stack); zeros fill up the last row."""
        missing = -x.shape[0] % self.config.stack
        if missing:
            x = ops.pad(x, widths=((0, missing), (0, 0)))
        return x.reshape(-1, self.config.stack * self.config.dim)


class _StackNorm(RMSNorm):
    eps = 1e-6  # whatever the encoder's norms have


class Ultravox(_Stacking):
    """Ultravox (Fixie.ai 2024): norms around a gated projection. A sound has as many rows as its length needs."""

    marker = "<|audio|>"
    placeholder = "<|audio|>"
    architectures = frozenset({"gemma3", "llama", "qwen3"})
    norm_before: _StackNorm = submodule("mm.a.norm_pre", shape=lambda c, i: (c.dim * c.stack,))
    up: Linear = submodule("mm.a.mlp.1", shape=lambda c, i: (None, c.dim * c.stack))
    norm_inside: _StackNorm = submodule("mm.a.norm_mid", shape=lambda c, i: (None,))
    down: Linear = submodule("mm.a.mlp.2", shape=lambda c, i: (c.projection_dim, None))

    def prepare(self, source: Sound) -> Prepared:
        return Prepared(_windows(self.spectrum(source, whole_windows=False)))

    def __call__(self, inputs: Mapping[str, Tensor]) -> Tensor:
        x = self.stacked(self.norm(self.run(self.encode(inputs["mel"]))))
        value, gate = self.up(self.norm_before(x)).chunk(2)
        return self.down(self.norm_inside(gate.silu() * value))


class Voxtral(_Stacking):
    """Voxtral (Mistral AI 2025, arXiv:2507.13264): an MLP. Silence fills up each window of 30 seconds."""

    marker = "[AUDIO]"
    placeholder = "[BEGIN_AUDIO][AUDIO]"
    architectures = frozenset({"llama"})
    up: Linear = submodule("mm.a.mlp.1", shape=lambda c, i: (None, c.dim * c.stack))
    down: Linear = submodule("mm.a.mlp.2", shape=lambda c, i: (c.projection_dim, None))

    def prepare(self, source: Sound) -> Prepared:
        return Prepared(_windows(self.spectrum(source, whole_windows=True)))

    def __call__(self, inputs: Mapping[str, Tensor]) -> Tensor:
        x = self.stacked(self.norm(self.run(self.encode(inputs["mel"]))))
        return self.down(self.up(x).gelu())


class Qwen2Audio(Whisper):
    """Qwen2-Audio (Chu et al. 2024, arXiv:2407.10759): the mean of two hidden states is a row."""

    marker = "<|AUDIO|>"
    placeholder = "<|audio_bos|><|AUDIO|><|audio_eos|>"
    architectures = frozenset({"qwen2"})
    project: Linear = submodule("mm.a.fc", shape=lambda c, i: (c.projection_dim, c.dim))

    def prepare(self, source: Sound) -> Prepared:
        # silence fills the window, but the blocks do not see it; the last position of the convolutions does
        windows = _windows(self.spectrum(source, whole_windows=True))
        cut = []
        for i, window in enumerate(windows):
            n = min(_n_frames(source) - i * _WINDOW, _WINDOW)
            if n > 2:  # fewer give no row
                cut.append({"mel": np.ascontiguousarray(window["mel"][:, : (n + 1) // 2 * 2 + 1])})
        return Prepared(cut)

    def __call__(self, inputs: Mapping[str, Tensor]) -> Tensor:
        mel = inputs["mel"]
        return self.rows(self.encode(mel)[: mel.shape[-1] // 2])

    def rows(self, x: Tensor) -> Tensor:
        """(n, dim) before the blocks to (n / 2, width)."""
        x = self.run(x)
        n = x.shape[0] // 2
        x = x[: 2 * n].reshape(n, 2, -1).mean(axis=1)
        return self.project(self.norm(x))


class Qwen25Omni(Qwen2Audio):
    """The encoder of sounds of Qwen2.5-Omni (Xu et al. 2025, arXiv:2503.20215): it reads 2 seconds at a time."""

    architectures = frozenset({"qwen2vl"})

    def prepare(self, source: Sound) -> Prepared:
        # llama.cpp reads 30 seconds together
        spectrum = self.spectrum(source, whole_windows=True)[:, : _n_frames(source)]
        return Prepared([window for window in _windows(spectrum, 200) if window["mel"].shape[1] > 2])

    def __call__(self, inputs: Mapping[str, Tensor]) -> Tensor:
        return self.rows(self.encode(inputs["mel"]))
