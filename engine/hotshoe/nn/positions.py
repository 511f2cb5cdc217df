"""What depends on positions besides RoPE: learned positions, ALiBi, and attention temperature."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hotshoe.nn.basic import Embedding
from hotshoe_core import DType, Tensor, constant
from hotshoe_core.errors import WeightsError

__all__ = ["LearnedPositions", "Temperature", "alibi_slopes"]


class LearnedPositions(Embedding):
    """A learned vector for each position: positions (..., n) to (..., n, dim)."""

    def __call__(self, positions: Tensor) -> Tensor:
        rows = self.weight.shape[0]
        if rows < self.config.n_ctx:
            raise WeightsError(
                f"{self.weight.name} has {rows} rows; expected {self.config.n_ctx}, one for each token of the context"
            )
        return super().__call__(positions)


def alibi_slopes(n_heads: int, max_bias: float = 8.0) -> Tensor:
    """The slopes of ALiBi for each head, (n_heads,). Source: Press et al. 2021, arXiv:2108.12409.

    max_bias: 8 in the paper; with it, 8 heads have the slopes 1/2, 1/4, … 1/256.
    """
    power = 1 << (n_heads.bit_length() - 1)  # the slopes of further heads lie between those of a power of two
    exponents = [(i + 1) / power if i < power else (2 * (i - power) + 1) / (2 * power) for i in range(n_heads)]
    return constant(np.exp2(-max_bias * np.array(exponents)).astype(np.float32))


@dataclass(frozen=True, slots=True)
class Temperature:
    """Queries at distant positions are scaled: by ``1 + scale * log(1 + floor((position + offset) / length))``.

    Source: Llama 4, after Nakanishi 2025, arXiv:2501.19399.
    """

    scale: float
    length: int
    """The positions that are not scaled."""
    offset: int = 0

    def factors(self, positions: Tensor) -> Tensor:
        """The factors of queries at these positions, (n,) I32: (n, 1, 1)."""
        steps = ((positions.cast(DType.F32) + self.offset) / self.length).floor()
        return ((steps + 1.0).log() * self.scale + 1.0).reshape(-1, 1, 1)
