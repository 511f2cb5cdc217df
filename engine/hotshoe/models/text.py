"""What every text model takes and says of itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

from hotshoe_core import Tensor

if TYPE_CHECKING:
    from hotshoe.kvcache import LayerCache
    from hotshoe.nn import Linear
    from hotshoe_core.ops import RoPE

__all__ = ["Batch", "TextConfig", "TextModule"]


class Batch(NamedTuple):
    """Tokens of one or several sequences, one after the other. Inputs of a graph."""

    tokens: Tensor  # (n,) I32
    positions: Tensor  # (n,) I32: of each token within its sequence
    outputs: Tensor  # (k,) I32: the rows whose logits are wanted


class TextConfig(Protocol):
    """What the runner must know of a text model: the sizes of its cache."""

    n_layers: int
    n_kv_heads: int
    head_dim: int
    n_ctx: int

    @property
    def windows(self) -> tuple[int, ...]:
        """For each layer, how many positions back it looks, itself included; 0 for all."""


class TextModule(Protocol):
    """What the runner asks of a text model."""

    config: TextConfig
    output: Linear

    def rope_of(self, layer: int) -> tuple[RoPE, Tensor | None]:
        """How a layer turns keys by their positions, and the factors of its frequencies."""

    def __call__(self, batch: Batch, cache: list[LayerCache]) -> Tensor:
        """Logits of the rows in ``batch.outputs``: (k, vocab)."""
