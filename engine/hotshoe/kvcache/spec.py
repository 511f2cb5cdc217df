"""What a model says it needs of a cache: ``cache_spec()`` gives one entry a layer, and the cache is made from them."""

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
    """A layer that keeps keys and values of the tokens before.

    n_kv_heads, k_dim, v_dim: heads, and elements of a head's key and value (v_dim 0: as many as the key's).
    v_in_k: above 0 the value is the key's first so many elements and is not stored by itself (multi-head latent
    attention, arXiv:2405.04434). window: positions it looks back, itself included; 0 for all. chunk: above 0 it sees
    only its own chunk of so many positions (Llama 4). rope, rope_factors: how positions turn keys; None: keys hold no
    positions, and moving them needs nothing. rope_start: a key's turned elements begin here. shiftable: False for
    positions that cannot be moved at all.
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

    def __post_init__(self) -> None:
        _positive("AttentionSpec", n_kv_heads=self.n_kv_heads, k_dim=self.k_dim)
        for name in ("v_dim", "v_in_k", "window", "chunk", "rope_start"):
            if getattr(self, name) < 0:
                raise ModelDefinitionError(f"AttentionSpec: {name} is {getattr(self, name)}; expected 0 or more")
        if self.v_in_k and (self.v_dim or self.v_in_k > self.k_dim):
            raise ModelDefinitionError(
                f"AttentionSpec: v_in_k is {self.v_in_k} with v_dim {self.v_dim} and k_dim {self.k_dim}; "
                "expected at most k_dim elements, and no v_dim beside it"
            )
        if self.window and self.chunk:
            raise ModelDefinitionError(
                f"AttentionSpec: both window ({self.window}) and chunk ({self.chunk}) are given",
                hint="a layer looks back either over a window or over its chunk",
            )
        if self.rope is not None and self.rope_start + self.rope.dim > self.k_dim:
            raise ModelDefinitionError(
                f"AttentionSpec: rope turns elements {self.rope_start} to {self.rope_start + self.rope.dim} "
                f"of keys that have {self.k_dim}"
            )

    @property
    def value_dim(self) -> int:
        """Elements of a head's value, wherever it is stored."""
        return self.v_in_k or self.v_dim or self.k_dim


@dataclass(frozen=True, slots=True)
class RecurrentSpec:
    """A layer that keeps a state of fixed size for each sequence, F32, zero at its start.

    states: by name the shape of one sequence's: ``{"conv": (channels, 3), "ssm": (heads, head_dim, 128)}``.
    """

    states: Mapping[str, Shape]

    def __post_init__(self) -> None:
        if not self.states:
            raise ModelDefinitionError(
                "RecurrentSpec: no state is named", hint="a layer that keeps nothing has the entry None"
            )
        for name, shape in self.states.items():
            if not shape or any(d < 1 for d in shape):
                raise ModelDefinitionError(
                    f"RecurrentSpec: state {name!r} has shape {tuple(shape)}; expected positive sizes"
                )

    @property
    def n_elements(self) -> int:
        """Of all states of one sequence together."""
        return sum(math.prod(shape) for shape in self.states.values())


@dataclass(frozen=True, slots=True)
class CrossSpec:
    """A layer that attends to an encoder's output: keys and values of ``n_positions``, the same at every step."""

    n_kv_heads: int
    k_dim: int
    v_dim: int
    n_positions: int

    def __post_init__(self) -> None:
        _positive(
            "CrossSpec",
            n_kv_heads=self.n_kv_heads,
            k_dim=self.k_dim,
            v_dim=self.v_dim,
            n_positions=self.n_positions,
        )


LayerSpec = AttentionSpec | RecurrentSpec | CrossSpec | None
"""What one layer keeps; None: nothing."""


def _positive(what: str, **sizes: int) -> None:
    for name, size in sizes.items():
        if size < 1:
            raise ModelDefinitionError(f"{what}: {name} is {size}; expected 1 or more")
