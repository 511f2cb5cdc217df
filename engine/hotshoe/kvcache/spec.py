"""Cache specs: what each layer of a model keeps. A model's ``cache_spec()`` returns one entry for each layer."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from hotshoe_core.errors import ModelDefinitionError

if TYPE_CHECKING:
    from hotshoe_core import Shape, Tensor
    from hotshoe_core.ops import RoPE

__all__ = [
    "AttentionSpec",
    "CrossSpec",
    "LayerSpec",
    "Part",
    "RecurrentSpec",
    "SpanReach",
    "Spec",
    "parts_of",
    "per_layer",
    "storing_part",
]

SpanReach = Literal["whole", "windowed", "causal"]


@dataclass(frozen=True, slots=True)
class AttentionSpec:
    """A layer that keeps the keys and values of earlier tokens, or reads those of another layer.

    Raises ModelDefinitionError for invalid values.
    """

    n_kv_heads: int = 0
    k_dim: int = 0
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

    both_sides: bool = False
    """A token attends to ``window // 2`` positions before it, and to as many after it. Only for encoders."""

    spans: SpanReach = "whole"
    """Which rows of a bidirectional span (a picture) each of its rows attends to.

    "whole": all rows of the span. "windowed": all of them that the row's window contains, and all later ones. "causal":
    the row itself and the rows before it.
    """

    like: int | None = None
    """The layer whose keys and values this layer reads; it stores none of its own. No other field may be given."""

    def __post_init__(self) -> None:
        if self.like is not None:
            given = [
                f.name for f in dataclasses.fields(self) if f.name != "like" and getattr(self, f.name) != f.default
            ]
            if given:
                raise ModelDefinitionError(
                    f"AttentionSpec: {given[0]} is given with like={self.like}; expected no other field",
                    hint=f"the layer reads what layer {self.like} stores, with the reach of that layer",
                )
            return
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
        if self.both_sides and not self.window:
            raise ModelDefinitionError(
                "AttentionSpec: both_sides is given without a window",
                hint="a layer without a window attends to all tokens of an encoder's text",
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
    """A layer that attends to the rows of an encoder, such as those of a picture (cross-attention).

    Raises ModelDefinitionError for invalid values.
    """

    n_kv_heads: int
    k_dim: int
    v_dim: int

    def __post_init__(self) -> None:
        _positive("CrossSpec", n_kv_heads=self.n_kv_heads, k_dim=self.k_dim, v_dim=self.v_dim)


Spec = AttentionSpec | RecurrentSpec | CrossSpec

LayerSpec = Spec | tuple[Spec, ...] | None
"""What one layer keeps: one thing, several, or None if it keeps nothing."""


class Part(NamedTuple):
    """One of the things that a layer keeps: its only one, or one of a tuple."""

    layer: int
    place: int | None = None
    """The index in the layer's tuple."""

    def __str__(self) -> str:
        return str(self.layer) if self.place is None else f"{self.layer}.{self.place}"


def parts_of(spec: Sequence[LayerSpec]) -> dict[Part, Spec]:
    """Return what all layers keep, in their order. Raises ModelDefinitionError for an entry of another type."""
    parts: dict[Part, Spec] = {}
    for layer, entry in enumerate(spec):
        if isinstance(entry, tuple):
            parts |= {Part(layer, i): part for i, part in enumerate(entry)}
        elif entry is not None:
            parts[Part(layer)] = entry
    for part, kept in parts.items():
        if not isinstance(kept, Spec):
            raise ModelDefinitionError(
                f"cache_spec: the entry of layer {part} is of type {type(kept).__name__}; expected AttentionSpec, "
                "RecurrentSpec, CrossSpec, a tuple of these, or None"
            )
    return parts


def storing_part(parts: Mapping[Part, Spec], part: Part) -> Part:
    """Return the part that stores what attention ``part`` reads: itself, or the one that its ``like`` names.

    Raises ModelDefinitionError unless that is one part of an earlier layer.
    """
    like = _like(parts[part])
    if like is None:
        return part
    found = [p for p, s in parts.items() if p.layer == like and isinstance(s, AttentionSpec)]
    if like >= part.layer or len(found) != 1 or _like(parts[found[0]]) is not None:
        raise ModelDefinitionError(
            f"cache_spec: layer {part} reads the keys and values of layer {like}; expected an earlier layer that "
            "stores one set of them"
        )
    return found[0]


def _like(spec: Spec) -> int | None:
    return spec.like if isinstance(spec, AttentionSpec) else None


def per_layer(spec: Sequence[LayerSpec], found: Mapping[Part, Any]) -> list[Any]:
    """Arrange values of parts as ``spec`` is: one entry for each layer, a tuple where it keeps several things."""
    return [
        tuple(found.get(Part(layer, i)) for i in range(len(entry)))
        if isinstance(entry, tuple)
        else found.get(Part(layer))
        for layer, entry in enumerate(spec)
    ]


def _positive(what: str, **sizes: int) -> None:
    for name, size in sizes.items():
        if size < 1:
            raise ModelDefinitionError(f"{what}: {name} is {size}; expected 1 or more")
