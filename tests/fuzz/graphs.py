"""Random graphs: any ops of the table, one on another, states included, as cases of the conformance kit.

A graph is made by a seed and a number of nodes, and one of fewer nodes is the beginning of it: so a failure shrinks to
the node that brings it about. Values stay bounded, and what jumps (rounding, comparing, sorting) is applied to values
that no backend rounds: then two right backends differ by rounding only. Graphs of an even seed hold nothing below F32
that a product rounds its operands to, so that they may be compared closely.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence

import numpy as np

from hotshoe_core.dtypes import DType
from hotshoe_core.ops import (
    RoPE,
    attention,
    clamped_swiglu,
    concat,
    conv1d,
    conv2d,
    equal,
    flip,
    geglu,
    group_norm,
    interpolate,
    l2_norm,
    layer_norm,
    less,
    linear,
    linear_experts,
    maximum,
    minimum,
    reglu,
    repeat,
    rms_norm,
    roll,
    rope,
    set_slice,
    ssm_conv,
    stack,
    swiglu,
    tile,
    tril,
    triu,
    where,
)
from hotshoe_core.tensor import Tensor, constant
from hotshoe_core.testing import GraphCase, Maker

__all__ = ["random_graph"]

F32, F16, I32 = DType.F32, DType.F16, DType.I32
Shape = tuple[int, ...]
Step = Callable[["Grower"], "Tensor | None"]
_STEPS: list[Step] = []
_LARGEST = 4096  # elements of one tensor


def random_graph(seed: int, n_nodes: int) -> GraphCase:
    """A graph of about ``n_nodes`` steps, each of one op or a few."""

    def body(make: Maker) -> Sequence[Tensor]:
        return Grower(make, seed).grow(n_nodes)

    dtypes = frozenset({F32, F16, DType.BF16, DType.Q8_0})
    return GraphCase(f"seed {seed}, {n_nodes} nodes", body, dtypes)


def step(function: Step) -> Step:
    _STEPS.append(function)
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
            y = self.rng.choice(_STEPS)(self)
            if y is not None and y.size <= _LARGEST:
                self.values.append(y)
                made += 1
        outputs = self.values[-3:] + self.rng.sample(self.values, min(3, len(self.values)))
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

    def indices(self, shape: Shape, below: int) -> Tensor:
        return self.make.input(shape, I32, lambda rng, s: rng.integers(0, below, s))


# Elementwise


@step
def unary(g: Grower) -> Tensor:
    x = g.any()
    bounded = x.tanh()
    return g.rng.choice(
        (
            lambda: x.tanh(), lambda: x.sigmoid(), lambda: x.relu(), lambda: x.silu(), lambda: x.softplus() * 0.5,
            lambda: x.gelu(g.rng.choice(("none", "tanh", "quick"))), lambda: x.sin(), lambda: x.cos(), lambda: -x,
            lambda: x.abs(), lambda: bounded.exp(), lambda: bounded.sqr(), lambda: (x.sqr() + 1.0).log(),
            lambda: (x.sqr() + 0.1).sqrt(), lambda: 1.0 / (x.sqr() + 0.5), lambda: (x.sqr() + 0.5).rsqrt(),
            lambda: x.clamp(-1.5, 1.0), lambda: x * g.rng.uniform(-1, 1) + 0.25, lambda: 1.0 - x,
        )
    )()  # fmt: skip


@step
def binary(g: Grower) -> Tensor:
    x = g.any()
    y = g.broadcastable(x.shape)
    if g.rng.random() < 0.3:
        x, y = y, x
    return g.rng.choice(
        (
            lambda: x + y * 0.5, lambda: x - y, lambda: x.tanh() * y, lambda: x / (y.sqr() + 1.0),
            lambda: minimum(x, y), lambda: maximum(x, y),
        )
    )()  # fmt: skip


@step
def gated(g: Grower) -> Tensor:
    x = g.any()
    y = g.alike(x.shape)
    bounded = y.tanh()
    return g.rng.choice(
        (
            lambda: swiglu(x, bounded), lambda: reglu(x, bounded), lambda: clamped_swiglu(x, y) * 0.2,
            lambda: geglu(x, bounded, approximate=g.rng.choice(("none", "tanh", "quick"))),
        )
    )()  # fmt: skip


@step
def chosen(g: Grower) -> Tensor:
    c = g.rng.choice(g.exact)
    x, y = g.alike(c.shape), g.broadcastable(c.shape)
    d = g.rng.choice(g.exact)
    test = less(c, constant(np.float32(0.3))) if d.shape != c.shape else equal(c, d)
    return where(test, x, y)


@step
def jumps(g: Grower) -> Tensor:
    x = g.rng.choice(g.exact)
    return g.rng.choice((lambda: x.floor(), lambda: x.round(), lambda: x.sign()))()


@step
def cast(g: Grower) -> Tensor:
    return g.any().cast(g.dtype(F16, DType.BF16))


# Movement


@step
def moved(g: Grower) -> Tensor:
    x = g.any(axes=1)
    axis = g.axis(x)
    order = g.rng.sample(range(x.ndim), x.ndim)
    widths = [(g.rng.randint(0, 2), g.rng.randint(0, 2)) for _ in range(x.ndim)]
    kind = g.rng.randrange(11)
    if kind == 0:
        y = x.permute(*order)
    elif kind == 1:
        y = x.reshape(-1)
    elif kind == 2:
        d = next(d for d in (4, 3, 2, 1) if x.size % d == 0)
        y = x.reshape(d, -1)
    elif kind == 3:
        cuts = [sorted(g.rng.sample(range(d + 1), 2)) for d in x.shape]
        y = x[tuple(slice(a, b, g.rng.choice((1, 1, 2))) for a, b in cuts)]
    elif kind == 4:
        return x.pad(*widths)
    elif kind == 5:
        y = x.expand(g.rng.randint(1, 3), *x.shape) if x.ndim < 4 else x
    elif kind == 6:
        y = roll(x, shift=g.rng.randint(-3, 3), axis=axis)
    elif kind == 7:
        y = flip(x, axis=axis)
    elif kind == 8:
        y = repeat(x, repeats=2, axis=axis)
    elif kind == 9:
        y = tile(x, reps=tuple(g.rng.randint(1, 2) for _ in x.shape))
    else:
        return g.rng.choice((tril, triu))(g.any(axes=2), k=g.rng.randint(-1, 1))
    return g.keep_exact(x, y)


@step
def joined(g: Grower) -> Tensor:
    x = g.any(axes=1)
    others = [g.alike(x.shape) for _ in range(g.rng.randint(1, 3))]
    parts = [t.cast(F32) for t in (x, *others)]
    return concat(*parts, axis=g.axis(x)) if x.ndim == 4 or g.rng.random() < 0.6 else stack(*parts, axis=0)


@step
def gathered(g: Grower) -> Tensor:
    x = g.any(axes=2)
    n = g.rng.randint(1, 5)
    kind = g.rng.randrange(4)
    if kind == 0:
        return x.take(g.indices((n,), len(x)))
    if kind == 1:
        return x.take_along(g.indices((*x.shape[:-1], n), x.shape[-1]))
    if kind == 2:
        e = g.rng.choice([v for v in g.exact if v.ndim] or [g.new_input((5,))])
        return x.take(e.cast(F32).reshape(-1)[: len(x)].argsort())
    table = g.make.weight((8, 16), g.dtype(F16))
    return table.take(g.indices((n,), 8))


@step
def overwritten(g: Grower) -> Tensor:
    x = g.any(axes=2).cast(F32)
    n = g.rng.randint(1, len(x))
    if g.rng.random() < 0.5:
        return x.set_rows(g.make.indices(n, len(x)), g.alike((n, *x.shape[1:])))
    return set_slice(x, g.alike((n, *x.shape[1:])), slices=((0, n, 1), *((0, d, 1) for d in x.shape[1:])))


# Reductions and norms


@step
def reduced(g: Grower) -> Tensor:
    x = g.any(axes=1)
    axes = tuple(g.rng.sample(range(x.ndim), g.rng.randint(1, x.ndim)))
    axis = axes if g.rng.random() < 0.4 else axes[0]
    n = math.prod(x.shape[a] for a in (axis if isinstance(axis, tuple) else (axis,)))
    keepdims = g.rng.random() < 0.5
    return g.rng.choice(
        (
            lambda: x.sum(axis, keepdims) * (1 / n), lambda: x.mean(axis, keepdims), lambda: x.max(axis, keepdims),
            lambda: x.min(axis, keepdims), lambda: x.tanh().variance(axis, keepdims),
            lambda: x.cumsum() * (1 / x.shape[-1]),
        )
    )()  # fmt: skip


@step
def normed(g: Grower) -> Tensor:
    x = g.any(axes=1)
    weight, bias = (g.make.weight((x.shape[-1],)) if g.rng.random() < 0.6 else None for _ in range(2))
    return g.rng.choice(
        (
            lambda: rms_norm(x, weight, eps=0.1), lambda: layer_norm(x, weight, bias, eps=0.1),
            lambda: l2_norm(x, eps=1.0), lambda: x.softmax(scale=0.7),
            lambda: x.softmax(g.broadcastable(x.shape).tanh()),
        )
    )()  # fmt: skip


@step
def normed_by_groups(g: Grower) -> Tensor | None:
    x = g.any(axes=3)
    c = x.shape[1]
    n = g.rng.choice([k for k in (1, 2, 4) if c % k == 0])
    return group_norm(x, g.make.weight((c,)), g.make.weight((c,)), n_groups=n, eps=0.1)


# Products


@step
def product(g: Grower) -> Tensor:
    x = g.any(axes=1)
    k, n = x.shape[-1], g.rng.choice((1, 3, 6, 32))
    dtype = g.dtype(F16, DType.BF16)
    return linear(x, g.make.weight((n, k), dtype, uses=("linear",))) * (1 / math.sqrt(k))


@step
def product_of_blocks(g: Grower) -> Tensor | None:
    x = g.make.input((g.rng.randint(1, 5), 64))
    if g.precise:
        return None
    dtype = g.rng.choice((DType.Q8_0, DType.Q4_0, DType.Q5_1, DType.Q4_1))
    return linear(x, g.make.weight((8, 64), dtype, uses=("linear",))) * 0.125


@step
def product_of_two(g: Grower) -> Tensor:
    x = g.any(axes=2)
    k = x.shape[-1]
    if g.rng.random() < 0.5:
        return (x @ g.alike((*x.shape[:-2], k, 3))) * (1 / math.sqrt(k))
    return x.matmul(g.alike((4, k)), transpose=True, precision=g.rng.choice(("fast", "full"))) * (1 / math.sqrt(k))


@step
def experts(g: Grower) -> Tensor:
    n, k, d = g.rng.randint(1, 4), g.rng.randint(1, 3), 32
    x = g.make.input((n, g.rng.choice((1, k)), d))
    return linear_experts(x, g.make.weight((4, 8, d), g.dtype(F16, DType.Q8_0)), g.indices((n, k), 4)) * 0.2


@step
def convolved(g: Grower) -> Tensor:
    n, c = g.rng.randint(1, 2), g.rng.randint(1, 4)
    groups = g.rng.choice((1, c))
    stride, padding, dilation = g.rng.randint(1, 2), g.rng.randint(0, 2), g.rng.randint(1, 2)
    out = groups * g.rng.randint(1, 2)
    if g.rng.random() < 0.5:
        w = g.make.weight((out, c // groups, 3), g.dtype(F16))
        y = conv1d(g.alike((n, c, 8)), w, stride=stride, padding=padding, dilation=dilation, groups=groups)
    else:
        w = g.make.weight((out, c // groups, 2, 3))
        y = conv2d(g.alike((n, c, 5, 6)), w, stride=stride, padding=padding, dilation=dilation, groups=groups)
    return y * (1 / math.sqrt(6 * c))


@step
def resized(g: Grower) -> Tensor:
    x = g.alike((g.rng.randint(1, 2), 2, 4, 5))
    return interpolate(x, size=(g.rng.randint(1, 9), g.rng.randint(1, 9)), mode=g.rng.choice(("nearest", "bilinear")))


# Attention and recurrence


@step
def attended(g: Grower) -> Tensor:
    n, m, kv, d = g.rng.randint(1, 4), g.rng.randint(1, 9), g.rng.choice((1, 2)), g.rng.choice((4, 16))
    q = g.alike((n, 2 * kv, d))
    k, v = (g.alike((m, kv, d)).cast(g.dtype(F16)) for _ in range(2))
    mask = g.make.input((n, m)) if g.rng.random() < 0.6 else None
    if g.rng.random() < 0.5:
        config = RoPE(d, interleaved=g.rng.random() < 0.5)
        q = rope(q, g.indices((n,), 50), config=config)
    return attention(q, k, v, mask, scale=0.3, softcap=g.rng.choice((0.0, 2.0)))


@step
def remembered(g: Grower) -> Tensor | None:
    """A state, new or known: read, and updated once in a graph."""
    rows, width = 6, g.rng.choice((3, 8))
    state = g.make.operand((rows, width), F32, "state")
    x = g.alike((rows, width)).cast(F32)
    kind = g.rng.randrange(7)
    if kind == 6:
        new = g.make.update(state, state.set(slice(1, 4), x[:3]))
        return new - state if g.rng.random() < 0.5 else new
    if kind == 0:
        return g.make.update(state, state * 0.5 + x.tanh())
    if kind == 1:
        new = g.make.update(state, state.set_rows(g.make.indices(2, rows), x[:2]))
        return new + state
    if kind == 2:
        new = g.make.update(state, state.set_rows(g.make.indices(2, rows), x[:2]))
        return state * new.mean(0)
    if kind == 3:
        seen = concat(state, x)
        g.make.update(state, seen[rows:])
        return seen
    if kind == 4:
        at = g.make.indices(3, rows)
        return g.make.update(state, state.set_rows(g.make.indices(3, rows), (state.take(at) + x[:3]).tanh()))
    other = g.make.operand((rows, width), F32, "state")
    g.make.update(state, other)
    g.make.update(other, g.rng.choice((state, x)))
    return state - other


@step
def convolved_in_time(g: Grower) -> Tensor:
    n, t, c, k = g.rng.randint(1, 2), g.rng.randint(1, 5), g.rng.choice((2, 4)), 4
    x, before = g.alike((n, t, c)), g.alike((n, k - 1, c))
    return ssm_conv(x.cast(F32), before.cast(F32), g.make.weight((c, k))) * 0.5
