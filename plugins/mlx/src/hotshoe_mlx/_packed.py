"""Packed: a quantized weight in MLX's layout, codes in groups with a scale and a bias for each group."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import mlx.core as mx

__all__ = ["Packed"]


@dataclass(frozen=True, slots=True)
class Packed:
    """A quantized weight. In the mode "affine", an element is ``scale * code + bias``, exact with F32 scales."""

    codes: mx.array
    """(..., n * bits / 32), uint32."""

    scales: mx.array
    """(..., n / group)."""

    biases: mx.array | None
    """(..., n / group)."""

    bits: int
    group: int
    """Elements of a group."""

    mode: str
    """A mode of ``mx.quantize``."""

    @property
    def arrays(self) -> tuple[mx.array, ...]:
        """The arrays of the layout, without missing biases."""
        return (self.codes, self.scales) if self.biases is None else (self.codes, self.scales, self.biases)

    def over(self, arrays: tuple[mx.array, ...]) -> Packed:
        """The same layout over other arrays."""
        codes, scales, *biases = arrays
        return Packed(codes, scales, biases[0] if biases else None, self.bits, self.group, self.mode)

    def blank(self) -> Packed:
        """The layout with empty arrays, which keeps no weight in memory."""
        return self.over(tuple(mx.zeros(0) for _ in self.arrays))

    @property
    def ndim(self) -> int:
        return self.codes.ndim

    @property
    def _format(self) -> dict[str, Any]:
        return {"biases": self.biases, "group_size": self.group, "bits": self.bits, "mode": self.mode}

    def dequantize(self) -> mx.array:
        """The weight as F32."""
        return mx.dequantize(self.codes, self.scales, **self._format, dtype=mx.float32)

    def rows(self, indices: mx.array) -> mx.array:
        """Rows along the first axis, as F32."""
        chosen = indices.reshape(-1)
        rows = self.over(tuple(a[chosen] for a in self.arrays)).dequantize()
        return rows.reshape(*indices.shape, *rows.shape[1:])

    def multiply(self, x: mx.array) -> mx.array:
        """``x @ self.T``."""
        rows = x.astype(mx.float32).reshape(-1, x.shape[-1])
        y = mx.quantized_matmul(rows, self.codes, self.scales, **self._format, transpose=True)
        return y.reshape(*x.shape[:-1], y.shape[-1])

    def multiply_chosen(self, x: mx.array, **choice: Any) -> mx.array:
        """``x[lhs_indices] @ self[rhs_indices].T`` over the last two axes of each. ``choice``: of ``mx.gather_qmm``.

        Without lhs_indices, each matrix of x has one choice.
        """
        return mx.gather_qmm(x, self.codes, self.scales, **self._format, transpose=True, **choice)
