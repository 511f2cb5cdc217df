"""What a model says its layers keep between steps: ``model.cache_spec()`` has one entry a layer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hotshoe_core import Tensor
    from hotshoe_core.ops import RoPE
    from hotshoe_core.tensor import Shape

__all__ = ["AttentionSpec", "CrossSpec", "LayerSpec", "RecurrentSpec"]


@dataclass(frozen=True, slots=True)
class AttentionSpec:
    """Keys and values of every position that the layer may still look at.

    k_dim, v_dim: elements of a key and of a value, a head; v_dim 0 for k_dim. v_in_k: above 0, the value is the key's
    first ``v_in_k`` elements and is not stored by itself (multi-head latent attention). window: how many positions
    back a token looks, itself included; chunk: above 0, a token sees its own chunk of that many positions only; 0
    for all. rope, rope_factors, rope_start: how keys are turned by their positions, and where in a key the turned
    elements begin; rope None where keys hold no positions. shiftable: False where positions cannot be moved.
    """

    n_kv_heads: int
    k_dim: int
    v_dim: int = 0
    v_in_k: int = 0
    window: int = 0
    chunk: int = 0
    rope: RoPE | None = None
    rope_factors: Tensor | None = None
    rope_start: int = 0
    shiftable: bool = True


@dataclass(frozen=True, slots=True)
class RecurrentSpec:
    """States of one sequence, F32, by name: ``{"conv": (channels, k - 1)}``. Zero at the start of a sequence."""

    states: Mapping[str, Shape]


@dataclass(frozen=True, slots=True)
class CrossSpec:
    """Keys and values of an encoder's output of ``n_positions``, the same at every step."""

    n_kv_heads: int
    k_dim: int
    v_dim: int
    n_positions: int


LayerSpec = AttentionSpec | RecurrentSpec | CrossSpec | None
"""One layer, one mixer. None: the layer keeps nothing."""
