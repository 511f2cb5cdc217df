"""AudioTower: the base class of encoders that turn sounds into rows of embeddings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from hotshoe.media import AUDIO
from hotshoe.nn.config import FileConfig, key
from hotshoe.nn.mlp import Activation
from hotshoe.nn.vision import Tower, TowerSizes

__all__ = ["AudioConfig", "AudioTower"]


@dataclass(frozen=True, slots=True, kw_only=True)
class AudioConfig(TowerSizes, FileConfig):
    """The sizes of an encoder of sounds: the keys ``clip.audio.*``."""

    n_layers: int = key("audio.block_count", minimum=1, maximum=1000)
    dim: int = key("audio.embedding_length", minimum=1)
    """Elements of a hidden state."""
    ff: int = key("audio.feed_forward_length", minimum=1)
    """Hidden elements of the MLP."""
    heads: int = key("audio.attention.head_count", minimum=1, maximum=lambda c: c.dim)
    head_dim: int = key("audio.attention.head_dim", minimum=1, default=lambda c: c.dim // c.heads)
    norm_eps: float = key("audio.attention.layer_norm_epsilon", minimum=0)
    projection_dim: int = key("audio.projection_dim", minimum=1)
    """Elements of a row that the text model reads."""
    n_mels: int = key("audio.num_mel_bins", minimum=1, maximum=1024)
    """Frequencies of the spectrum."""

    @property
    def activation(self) -> Activation:
        """The activation of the MLPs."""
        return "gelu"


class AudioTower(Tower):
    """Base class of encoders of sounds: a Tower whose ``prepare`` gets a Sound."""

    medium: ClassVar = AUDIO

    def unused_keys(self) -> dict[str, str]:
        return dict.fromkeys(("use_gelu", "use_silu"), "it is of the encoder of pictures")
