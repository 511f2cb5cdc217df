"""Cache specs: what each layer of a model keeps. A model's ``cache_spec()`` returns one entry for each layer."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hotshoe_core.errors import ModelDefinitionError

if TYPE_CHECKING:
    from hotshoe_core import Shape, Tensor
    from hotshoe_core.ops import RoPE

__all__ = ["AttentionSpec", "CrossSpec", "LayerSpec", "RecurrentSpec"]


@dataclass(frozen=True, slots=True)
class AttentionSpec:
    """A layer that keeps the keys and values of earlier tokens. Raises ModelDefinitionError for invalid values."""

    n_kv_heads: int
    k_dim: int
    """Elements of a head's key."""

    v_dim: int = 0
    """Elements of a head's value; 0: as many as the key has."""

    v_in_k: int = 0
    """Above 0: the value is not stored; it is the first ``v_in_k`` elements of the key.

    For multi-head latent attention (arXiv:2405.04434).
    """

    window: int = 0
    """How many positions a token attends to, its own included; 0 for all."""

    chunk: int = 0
    """Above 0: a token attends only to earlier tokens of its own chunk, which has ``chunk`` positions (Llama 4)."""

    rope: RoPE | None = None
    """The rotation of keys by their positions. None: keys do not depend on positions, so moving them is free."""

    rope_factors: Tensor | None = None
    rope_start: int = 0
    """The first element of a key that ``rope`` rotates."""

    shiftable: bool = True
    """False: positions of this layer cannot be moved."""

    def __post_init__(self) -> None:
        _positive("AttentionSpec", n_kv_heads=self.n_kv_heads, k_dim=self.k_dim)
        for name in ("v_dim", "v_in_k", "window", "chunk", "rope_start"):
            if getattr(self, name) < 0:
                raise ModelDefinitionError(f"AttentionSpec: {name} is {getattr(self, name)}; expected 0 or more")
        if self.v_in_k and (self.v_dim or self.v_in_k > self.k_dim):
            raise ModelDefinitionError(
                f"AttentionSpec: v_in_k is {self.v_in_k} with v_dim {self.v_dim} and k_dim {self.k_dim}; "
                "expected at most k_dim elements, and no v_dim"
            )
        if self.window and self.chunk:
            raise ModelDefinitionError(
                f"AttentionSpec: both window ({self.window}) and chunk ({self.chunk}) are given",
                hint="a layer attends either to a window or to its chunk",
            )
        if self.rope is not None and self.rope_start + self.rope.dim > self.k_dim:
            raise ModelDefinitionError(
                f"AttentionSpec: rope rotates elements {self.rope_start} to {self.rope_start + self.rope.dim} "
                f"of keys that have {self.k_dim}"
            )

    @property
    def value_dim(self) -> int:
        """Elements of a head's value, stored or part of the key."""
        return self.v_in_k or self.v_dim or self.k_dim


@dataclass(frozen=True, slots=True)
class RecurrentSpec:
    """A layer that keeps states of fixed size for each sequence: F32, zero when the sequence starts.

    Raises ModelDefinitionError for invalid values.
    """

    states: Mapping[str, Shape]
    """The shape of one sequence's state by name: ``{"conv": (channels, 3), "ssm": (heads, head_dim, 128)}``."""

    def __post_init__(self) -> None:
        if not self.states:
            raise ModelDefinitionError(
                "RecurrentSpec: no state is named", hint="the entry of a layer that keeps nothing is None"
            )
        for name, shape in self.states.items():
            if not shape or any(d < 1 for d in shape):
                raise ModelDefinitionError(
                    f"RecurrentSpec: state {name!r} has shape {tuple(shape)}; expected positive sizes"
                )

    @property
    def n_elements(self) -> int:
        """The elements of all states of one sequence together."""
        return sum(math.prod(shape) for shape in self.states.values())


@dataclass(frozen=True, slots=True)
class CrossSpec:
    """A layer that attends to an encoder's output, which is the same for all tokens of a sequence.

    Raises ModelDefinitionError for invalid values.
    """

    n_kv_heads: int
    k_dim: int
    v_dim: int
    n_positions: int
    """Positions of the encoder's output."""

    def __post_init__(self) -> None:
        _positive(
            "CrossSpec",
            n_kv_heads=self.n_kv_heads,
            k_dim=self.k_dim,
            v_dim=self.v_dim,
            n_positions=self.n_positions,
        )


LayerSpec = AttentionSpec | RecurrentSpec | CrossSpec | None
"""What one layer keeps; None if it keeps nothing."""


def _positive(what: str, **sizes: int) -> None:
    for name, size in sizes.items():
        if size < 1:
            raise ModelDefinitionError(f"{what}: {name} is {size}; expected 1 or more")
