"""What every text model takes and says of itself."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from hotshoe_core import Tensor
from hotshoe_core.ops import RoPE

__all__ = ["Batch", "TextConfig"]


class Batch(NamedTuple):
    """Tokens of one or several sequences, one after the other. Inputs of a graph."""

    tokens: Tensor  # (n,) I32
    positions: Tensor  # (n,) I32: of each token within its sequence
    outputs: Tensor  # (k,) I32: the rows whose logits are wanted


class TextConfig(Protocol):
    """What the runner must know of a text model: the sizes of its cache, and how keys turn."""

    n_layers: int
    n_kv_heads: int
    head_dim: int
    n_ctx: int
    rope: RoPE

    @property
    def windows(self) -> tuple[int, ...]:
        """For each layer, how many positions back it looks, itself included; 0 for all."""
