"""Steps of a random graph: arithmetic, movement, reductions and norms."""

from __future__ import annotations

import math

import numpy as np

from hotshoe_core.ops import (
    clamped_swiglu,
    concat,
    equal,
    flip,
    floor_divide,
    geglu,
    greater,
    greater_equal,
    group_norm,
    l2_norm,
    layer_norm,
    less,
    less_equal,
    maximum,
    minimum,
    mod,
    not_equal,
    one_hot,
    reglu,
    repeat,
    rms_norm,
    roll,
    set_slice,
    stack,
    swiglu,
    tile,
    tril,
    triu,
    where,
)
from hotshoe_core.tensors.dtypes import DType
from hotshoe_core.tensors.tensor import Tensor, constant
from hotshoe_core.testing.operands import distinct
from tests.fuzz.grower import F16, F32, Grower, step

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
    d = g.rng.choice([v for v in g.exact if v.shape == c.shape])
    compare = g.rng.choice((less, less_equal, greater, greater_equal, equal, not_equal))
    other = d if g.rng.random() < 0.5 else constant(np.float32(0.3))
    return where(compare(c, other), x, y)


@step
def jumps(g: Grower) -> Tensor:
    x = g.rng.choice(g.exact)
    two = constant(np.float32(2))  # whose quotients are exact
    return g.rng.choice(
        (
            lambda: x.floor(), lambda: x.ceil(), lambda: x.round(), lambda: x.sign(),
            lambda: floor_divide(x, two), lambda: mod(x, two),
        )
    )()  # fmt: skip


@step
def integers(g: Grower) -> Tensor:
    """Integer arithmetic, which is exact everywhere, and what indices are made of."""
    shape = g.shape(1, 3)
    i, j = (g.indices(shape, 9) for _ in range(2))
    return g.rng.choice(
        (
            lambda: i * 3 - j, lambda: i // (j + 1), lambda: i % (j + 1), lambda: abs(i - j),
            lambda: (i - j).clamp(-2, 3), lambda: maximum(i, j) + minimum(i, j),
            lambda: where(less(i, j), i, j), lambda: i - j * j,
        )
    )().cast(F32) * 0.1  # fmt: skip


@step
def ordered(g: Grower) -> Tensor:
    """Places in a row, of values without ties: of equal ones each backend may take another."""
    n, m = g.rng.randint(1, 4), g.rng.choice((1, 2, 7, 40))
    x = g.make.input((n, m), values=distinct)
    which = g.rng.randrange(5)
    if which == 0:
        at = x.argmax()
    elif which == 1:
        at = x.argmin()
    elif which == 2:
        at = x.top_k(g.rng.randint(1, m))
    else:
        at = x.argsort(descending=which == 3)
    kind = g.rng.randrange(3)
    if kind == 0:
        return one_hot(at, n=g.rng.choice((m, m + 2)))
    if kind == 1 and at.ndim == 2:
        return x.take_along(at) * (1 / (n * m))
    return g.make.weight((m, 5), g.dtype(F16)).take(at)


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
def seen_otherwise(g: Grower) -> Tensor:
    """Operands that do not lie in order: permuted, cut out, every second one."""
    x, y = g.strided((3, 4, 5)), g.strided((4, 5))
    return g.rng.choice(
        (
            lambda: x + y, lambda: x.sum(1) * 0.2, lambda: x.softmax(y.tanh()), lambda: (x @ y.T) * 0.4,
            lambda: x.cumsum(), lambda: rms_norm(x, g.strided((5,)), eps=0.1), lambda: concat(x[0], y, axis=1),
            lambda: x.tril(), lambda: y.gelu(), lambda: layer_norm(x, g.strided((5,)), g.strided((5,)), eps=0.1),
            lambda: swiglu(y, x[1].tanh()), lambda: x.pad((1, 0), (0, 2), (1, 1)), lambda: y.max(0), lambda: y.diag(),
            lambda: x.take(g.indices((2,), 3)), lambda: (x * 0.5).set_rows(g.make.indices(2, 3), x[1:]),
        )
    )()  # fmt: skip


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
