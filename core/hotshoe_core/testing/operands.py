"""Arg (one operand) and Case (one op), and functions that make the numbers of operands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hotshoe_core.ops import RoPE
from hotshoe_core.tensors.dtypes import DType
from hotshoe_core.tensors.indexing import Slice
from hotshoe_core.tensors.tensor import TABLE, Shape, Tensor
from hotshoe_core.testing.run import F32, I32, Array, Kind, Layout, Maker, Values, normal

__all__ = [
    "Arg", "Below", "Case", "Cycle", "Rows", "distinct", "few", "halves", "indices", "integers", "large", "mask",
    "nonzero", "normal", "positive", "weight",
]  # fmt: skip

Rng = np.random.Generator


@dataclass(frozen=True)
class Arg:
    """One operand of a case."""

    shape: Shape
    dtype: DType = F32
    kind: Kind = "input"
    layout: Layout = "plain"
    values: Values = normal

    uses: tuple[str, ...] = ()
    """The ``uses`` of a weight's WeightData, which allow a backend to repack it."""

    note: str = ""
    """A word for special values, which becomes part of the case's id."""

    def __str__(self) -> str:
        marks = [m for m, plain in ((self.kind, "input"), (self.layout, "plain")) if m != plain]
        return "-".join(
            [
                f"{self.dtype.name}{list(self.shape)}".replace(" ", ""),
                *marks,
                *self.uses,
                *([self.note] if self.note else []),
            ]
        )


@dataclass(frozen=True)
class Case:
    """An op with its operands and attributes."""

    op: str
    args: tuple[Arg | None, ...]
    attrs: Mapping[str, Any] = field(default_factory=dict)

    optional: bool = False
    """A backend may refuse the case with UnsupportedOpError."""

    @property
    def id(self) -> str:
        operands = ["-" if a is None else str(a) for a in self.args]
        while operands[-1] == "-":
            operands.pop()
        return " ".join([self.op, *operands, *(f"{k}={_short(v)}" for k, v in self.attrs.items())])

    @property
    def dtypes(self) -> frozenset[DType]:
        made = {v for v in self.attrs.values() if isinstance(v, DType)}
        return frozenset({a.dtype for a in self.args if a is not None} | made)

    def build(self, make: Maker) -> Sequence[Tensor]:
        operands = [
            None if a is None else make.operand(a.shape, a.dtype, a.kind, a.layout, a.values, a.uses) for a in self.args
        ]
        return [TABLE[self.op](*operands, **self.attrs)]


def _short(value: object) -> str:
    if isinstance(value, RoPE):
        plain = RoPE(value.dim)
        changed = {n: getattr(value, n) for n in RoPE.__slots__ if getattr(value, n) != getattr(plain, n)}
        return ",".join([f"dim{value.dim}", *(f"{n}={v}" for n, v in changed.items())])
    if isinstance(value, tuple) and all(isinstance(s, Slice) for s in value):
        return ",".join(f"{s.start}:{s.stop}:{s.step}" for s in value)
    return str(value).replace(" ", "")


# Numbers


def positive(rng: Rng, shape: Shape) -> Array:
    """0.1 to 3."""
    return rng.uniform(0.1, 3, shape).astype(np.float32)


def nonzero(rng: Rng, shape: Shape) -> Array:
    """0.1 to 3, or -3 to -0.1."""
    return np.where(rng.random(shape) < 0.5, -1, 1).astype(np.float32) * positive(rng, shape)


def distinct(rng: Rng, shape: Shape) -> Array:
    """Different numbers, also in half precision, so that sorting has one result."""
    return (rng.permutation(int(np.prod(shape))) - 3.0).reshape(shape).astype(np.float32)


def few(rng: Rng, shape: Shape) -> Array:
    """Whole numbers from -2 to 2: many are equal."""
    return rng.integers(-2, 3, shape).astype(np.float32)


def halves(rng: Rng, shape: Shape) -> Array:
    """Whole numbers and halves, also negative: exact in every type, and ties for rounding."""
    return (rng.integers(-9, 10, shape) / 2).astype(np.float32)


def integers(rng: Rng, shape: Shape) -> Array:
    """Integers from -20 to 20 without 0."""
    return np.asarray(rng.integers(1, 21, shape) * rng.choice([-1, 1], shape))


def large(rng: Rng, shape: Shape) -> Array:
    """Integers above 2^24, which F32 cannot hold exactly."""
    return 2**24 + rng.integers(1, 99, shape)


@dataclass(frozen=True)
class Cycle:
    """The given numbers, repeated: float32, or int64 if all are integers."""

    numbers: tuple[float, ...]

    def __call__(self, rng: Rng, shape: Shape) -> Array:
        numbers = np.array(self.numbers)
        return np.resize(numbers if numbers.dtype.kind == "i" else numbers.astype(np.float32), shape)


@dataclass(frozen=True)
class Rows:
    """Normal numbers, multiplied by one of the factors in each row, plus ``offset``."""

    factors: tuple[float, ...]
    offset: float = 0.0

    def __call__(self, rng: Rng, shape: Shape) -> Array:
        by_row = np.resize(np.array(self.factors, np.float32), shape[:-1])
        return np.asarray(rng.standard_normal(shape, np.float32) * by_row[..., None] + np.float32(self.offset))


def mask(rng: Rng, shape: Shape) -> Array:
    """0 or -inf; the first of each row is 0."""
    hidden = np.asarray(rng.random(shape) < 0.4)
    if shape:
        hidden[..., 0] = False
    return np.where(hidden & bool(shape), -np.inf, 0).astype(np.float32)


@dataclass(frozen=True)
class Below:
    """Integers from 0 to n - 1. ``unique``: each at most once, if n is large enough."""

    n: int
    unique: bool = False

    def __call__(self, rng: Rng, shape: Shape) -> Array:
        size = int(np.prod(shape))
        unique = self.unique and size <= self.n
        drawn = rng.permutation(self.n)[:size] if unique else rng.integers(0, self.n, size)
        return drawn.reshape(shape)


def indices(shape: Shape, n: int, *, unique: bool = False, layout: Layout = "plain", dtype: DType = I32) -> Arg:
    """Row indices. With ``unique``, a layout whose memory has more than n elements repeats indices."""
    return Arg(shape, dtype, "input", layout, Below(n, unique))


def weight(shape: Shape, dtype: DType = F32, *uses: str, layout: Layout = "plain") -> Arg:
    return Arg(shape, dtype, "weight", layout, normal, uses)
