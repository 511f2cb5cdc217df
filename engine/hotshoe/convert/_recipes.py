"""Tensors of a text model: each made of one or more tensors of the checkpoint, read when it is written.

A family lists recipes under the names of transformers; what is missing, left over or of another shape is an error
that names it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from hotshoe.convert._names import check_complete
from hotshoe.convert._plan import PlannedTensor
from hotshoe_core.errors import ConversionError

if TYPE_CHECKING:
    from hotshoe.convert._checkpoint import Checkpoint

__all__ = ["Array", "Recipe", "as_is", "half_of", "has", "plan_recipes", "reshaped", "rope_order", "stacked"]

Array = np.ndarray[Any, np.dtype[np.float32]]

_PREFIX = "model."
# buffers that are not weights: old transformers saved them
_NOT_WEIGHTS = (".rotary_emb.inv_freq", ".attention.bias", ".attention.masked_bias")
# what engines read as f32 although it has two axes
_FULL_PRECISION = ("_norm.weight", ".ffn_gate_inp.weight", ".ssm_conv1d.weight", ".shortconv.conv.weight")


@dataclass(frozen=True, slots=True)
class Recipe:
    """``make`` gets the sources one after the other, as float32, and gives the tensor ``name`` of ``shape``."""

    name: str  # in the GGUF file
    shape: tuple[int, ...]
    sources: tuple[tuple[str, tuple[int, ...]], ...]  # names in transformers, and shapes
    make: Callable[[Iterator[Array]], Array]


def as_is(name: str, source: str, shape: tuple[int, ...], *, plus: float = 0.0) -> Recipe:
    """One tensor as it is, or with ``plus`` added to every value."""
    return Recipe(
        name, shape, ((source, shape),), lambda parts: next(parts) + np.float32(plus) if plus else next(parts)
    )


def reshaped(name: str, source: str, stored: tuple[int, ...], shape: tuple[int, ...]) -> Recipe:
    """One tensor with its elements as they are, ``stored`` in the checkpoint's shape."""
    return Recipe(name, shape, ((source, stored),), lambda parts: next(parts).reshape(shape))


def rope_order(name: str, source: str, shape: tuple[int, ...], n_heads: int) -> Recipe:
    """Rows of each head reordered, from RoPE pairs (i, i + head_dim / 2), as in transformers, to (2i, 2i + 1)."""

    def make(parts: Iterator[Array]) -> Array:
        value = next(parts)
        halves = value.reshape(n_heads, 2, shape[0] // n_heads // 2, *shape[1:])  # (heads, half, pair, …)
        return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(shape)

    return Recipe(name, shape, ((source, shape),), make)


def stacked(name: str, sources: Sequence[str], shape: tuple[int, ...]) -> Recipe:
    """Tensors of ``shape``, one for each expert, behind one another along a new first axis."""
    whole = (len(sources), *shape)

    def make(parts: Iterator[Array]) -> Array:
        out = np.empty(whole, np.float32)
        for i, part in enumerate(parts):
            out[i] = part
        return out

    return Recipe(name, whole, tuple((source, shape) for source in sources), make)


def half_of(name: str, source: str, shape: tuple[int, ...], which: int) -> Recipe:
    """The first or second half (``which`` 0 or 1) along the second axis; ``shape`` is that of the half."""
    n = shape[1]
    whole = (shape[0], 2 * n, *shape[2:])
    return Recipe(
        name,
        shape,
        ((source, whole),),
        lambda parts: np.ascontiguousarray(next(parts)[:, which * n : (which + 1) * n]),
    )


def plan_recipes(
    checkpoint: Checkpoint, recipes: Iterable[Recipe], ignored: tuple[str, ...] = ()
) -> tuple[PlannedTensor, ...]:
    """The tensors to write, in the order of the checkpoint's names; recipes without sources come first.

    Tensors of the checkpoint whose names start with one of ``ignored`` are left out.
    Raises ConversionError for tensors that are missing, not known, or of another shape.
    """
    recipes = tuple(recipes)
    found = _names(checkpoint)
    wrong = [
        f"{found[source]} is {actual}, expected {shape}"
        for recipe in recipes
        for source, shape in recipe.sources
        if source in found and (actual := checkpoint.tensors[found[source]].shape) != shape
    ]
    sources = {source for recipe in recipes for source, _ in recipe.sources}
    check_complete(
        checkpoint,
        missing=sorted(sources - found.keys()),
        extra=sorted(found[name] for name in found.keys() - sources if not name.startswith(ignored)),
        wrong=sorted(set(wrong)),
    )
    return tuple(
        PlannedTensor(
            recipe.name,
            found[recipe.sources[0][0]] if recipe.sources else recipe.name,
            recipe.shape,
            full_precision=_is_small(recipe),
            make=_reader(checkpoint, recipe, found),
        )
        for recipe in sorted(recipes, key=lambda r: [found[source] for source, _ in r.sources[:1]])
    )


def has(checkpoint: Checkpoint, source: str) -> bool:
    """Whether the checkpoint has a tensor of this name of transformers."""
    return source in _names(checkpoint)


def _names(checkpoint: Checkpoint) -> dict[str, str]:
    # the model without its head (as sentence-transformers saves it) has the same names without "model."
    bare = not any(name.startswith(_PREFIX) for name in checkpoint.tensors)
    return {
        _PREFIX + name if bare and not name.startswith("lm_head.") else name: name
        for name in checkpoint.tensors
        if not name.endswith(_NOT_WEIGHTS)
    }


def _is_small(recipe: Recipe) -> bool:
    # vectors and norms; what is no matrix of a product; and the router of experts: quantized, it would choose others
    return len(recipe.shape) < 2 or not recipe.name.endswith(".weight") or recipe.name.endswith(_FULL_PRECISION)


def _reader(checkpoint: Checkpoint, recipe: Recipe, found: dict[str, str]) -> Callable[[], Array]:
    def read() -> Array:
        value = recipe.make(checkpoint.read(found[source]) for source, _ in recipe.sources)
        if value.shape != recipe.shape:
            raise ConversionError(f"{checkpoint.model}: {recipe.name} came out as {value.shape}, not {recipe.shape}")
        return value

    return read
