"""Grower: a random graph while it grows, and what its steps choose from."""

from __future__ import annotations

import random
from collections.abc import Callable

from hotshoe_core.tensors.dtypes import DType
from hotshoe_core.tensors.tensor import Tensor
from hotshoe_core.testing import Maker

__all__ = ["F16", "F32", "I32", "STEPS", "Grower", "Shape", "step"]

F32, F16, I32 = DType.F32, DType.F16, DType.I32
Shape = tuple[int, ...]
Step = Callable[["Grower"], "Tensor | None"]
STEPS: list[Step] = []
LARGEST = 4096  # elements of one tensor


def step(function: Step) -> Step:
    STEPS.append(function)
    return function


class Grower:
    """The graph so far. ``exact`` are values that every backend has to the last bit."""

    def __init__(self, make: Maker, seed: int) -> None:
        self.make = make
        self.rng = random.Random(seed)
        self.precise = seed % 2 == 0
        self.values: list[Tensor] = []
        self.exact: list[Tensor] = []
        self.states: list[Tensor] = []
        self.updated: set[Tensor] = set()

    def grow(self, n: int) -> list[Tensor]:
        for _ in range(2):
            self.new_input()
        made = 0
        while made < n:
            y = self.rng.choice(STEPS)(self)
            if y is not None and y.size <= LARGEST:
                self.values.append(y)
                made += 1
        outputs = self.values[-3:] + self.rng.sample(self.values, min(8, len(self.values)))
        return list(dict.fromkeys(outputs))

    # Choosing

    def dtype(self, *lower: DType) -> DType:
        """F32, or one of these where the graph need not be precise."""
        return F32 if self.precise else self.rng.choice((F32, *lower))

    def shape(self, least: int = 0, most: int = 4) -> Shape:
        return tuple(self.rng.choice((1, 2, 3, 4, 5, 8)) for _ in range(self.rng.randint(least, most)))

    def new_input(self, shape: Shape | None = None) -> Tensor:
        dtype = F32 if self.precise else self.rng.choice((F32, F32, F32, F16))
        x = self.make.operand(self.shape() if shape is None else shape, dtype, "input")
        self.values.append(x)
        self.exact.append(x)
        return x

    def any(self, *, axes: int = 0) -> Tensor:
        """A value with at least so many axes."""
        fitting = [v for v in self.values if v.ndim >= axes]
        if not fitting or self.rng.random() < 0.1:
            return self.new_input(self.shape(axes, max(axes, 4)))
        return self.rng.choice(fitting[-8:])

    def alike(self, shape: Shape) -> Tensor:
        """A value of this shape."""
        fitting = [v for v in self.values if v.shape == shape]
        return self.rng.choice(fitting) if fitting and self.rng.random() < 0.7 else self.new_input(shape)

    def broadcastable(self, shape: Shape) -> Tensor:
        cut = self.rng.randint(0, len(shape))
        return self.alike(tuple(d if self.rng.random() < 0.7 else 1 for d in shape[cut:]))

    def axis(self, x: Tensor) -> int:
        return self.rng.randrange(-x.ndim, x.ndim)

    def keep_exact(self, x: Tensor, y: Tensor) -> Tensor:
        if x in self.exact:
            self.exact.append(y)
        return y

    def strided(self, shape: Shape, dtype: DType = F32) -> Tensor:
        """A value whose memory is in another order than its axes, or has more between its elements."""
        kinds, layouts = ("input", "weight", "state"), ("plain", "sliced", "stepped", "permuted", "swapped")
        if len(shape) == 1:
            kinds, layouts = kinds[:2], layouts[:3]
        return self.make.operand(shape, dtype, self.rng.choice(kinds), layout=self.rng.choice(layouts))

    def indices(self, shape: Shape, below: int) -> Tensor:
        return self.make.input(shape, I32, lambda rng, s: rng.integers(0, below, s))
