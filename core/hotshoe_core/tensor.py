"""Op and Tensor: the two halves of a graph's node.

A Tensor is symbolic: it records an op, its sources and attributes, and knows its shape and dtype at once.
Nothing is computed until a Context compiles the graph. Shapes are NumPy's: the last axis is contiguous.

Dtype rule: arithmetic takes any float type and gives F32; movement keeps the type. So storage may be
anything, and no backend has to guess what a model author meant.
"""

from __future__ import annotations

import contextlib
import inspect
import itertools
import math
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from hotshoe_core.dtypes import DType
from hotshoe_core.errors import GraphError, HotshoeError, ShapeError

if TYPE_CHECKING:
    from typing_extensions import TypeIs

    from hotshoe_core.context import Context

__all__ = ["LEAVES", "TABLE", "Op", "Shape", "Tensor", "constant", "nodes_created", "require_sizes", "scope"]

Shape = tuple[int, ...]
Rule = Callable[[tuple[Any, ...], dict[str, Any]], tuple[Shape, DType]]

TABLE: dict[str, Op] = {}
"""Every op by name. The single source of truth: see hotshoe_core.ops, which fills it."""

LEAVES = ("weight", "state", "input", "constant")


class _Scope(threading.local):
    name = ""
    layer = -1


_scope = _Scope()
_ids = itertools.count()


@contextlib.contextmanager
def scope(name: str, layer: int | None = None) -> Iterator[None]:
    """Name the part of the model that is being built: errors, drawings and memory reports use it."""
    outer, outer_layer = _scope.name, _scope.layer
    _scope.name = f"{outer}.{name}" if outer else name
    if layer is not None:
        _scope.layer = layer
    try:
        yield
    finally:
        _scope.name, _scope.layer = outer, outer_layer


def require_sizes(what: str, shape: Sequence[int]) -> None:
    """Raise ShapeError unless all sizes are positive: no backend agrees with another on what is empty."""
    if any(d < 1 for d in shape):
        raise ShapeError(f"{what}: sizes must be positive, got {tuple(shape)}")


def nodes_created() -> int:
    """How many Tensors this process has made; a replayed context must not move it."""
    return int(repr(_ids)[6:-1])  # itertools.count shows its next value: reading it consumes none


class Op:
    """One row of the op table: name, arguments, shape and dtype rule, meaning.

    The function it wraps is its meaning: for a *primitive* over NumPy arrays, which makes the reference
    backend; for a *composite* over Tensors, which is its decomposition. Positional parameters are
    tensors (default None: optional; ``*xs``: any number), keyword-only ones are attributes.

    reference: a composite's meaning over NumPy arrays, where the decomposition is one that grows with the data.
    """

    __slots__ = ("attrs", "body", "composite", "doc", "name", "reference", "required", "rule", "tensors", "variadic")

    def __init__(
        self, body: Callable[..., Any], rule: Rule, *, composite: bool, reference: Callable[..., Any] | None = None
    ) -> None:
        parameters = inspect.signature(body).parameters.values()
        positional = [p for p in parameters if p.kind is not p.KEYWORD_ONLY]
        self.name = body.__name__.rstrip("_")
        self.body = body
        self.rule = rule
        self.composite = composite
        self.reference = reference if composite else body
        self.doc = inspect.getdoc(body) or ""
        self.variadic = any(p.kind is p.VAR_POSITIONAL for p in positional)
        self.tensors = tuple(p.name for p in positional)
        self.required = sum(p.default is p.empty for p in positional)
        self.attrs = {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY}

    def __call__(self, *sources: Tensor | None, **attrs: Any) -> Tensor:
        """A new node. Raises ShapeError or DTypeError naming op, operands and the part of the model."""
        present = [t for t in sources if t is not None]
        for t in present:
            if not isinstance(t, Tensor):
                raise GraphError(
                    f"{self.name}: got a {type(t).__name__}, expected a Tensor",
                    hint="wrap arrays in hotshoe_core.constant(array), or make them an input of the context",
                )
        if not self.variadic:
            if len(sources) > len(self.tensors) or len(sources) < self.required:
                raise GraphError(f"{self.name} takes ({', '.join(self.tensors)}); got {len(sources)} tensors")
            sources += (None,) * (len(self.tensors) - len(sources))
        elif not present:
            raise GraphError(f"{self.name} needs at least one tensor; got none")
        unknown = attrs.keys() - self.attrs.keys()
        if unknown:
            raise GraphError(f"{self.name} has no attribute {', '.join(sorted(unknown))}; it has {list(self.attrs)}")
        full = {**self.attrs, **attrs}
        for name, value in full.items():
            if value is inspect.Parameter.empty:
                raise GraphError(f"{self.name} needs the attribute {name}")
        try:
            shape, dtype = self.rule(sources, full)
            context = _common_context(present)
        except HotshoeError as e:
            error = type(e)(self._describe(sources, attrs, e.message), hint=e.hint)
            error.operands = tuple(present)
            raise error from None
        return Tensor(self.name, sources, full, shape, dtype, context=context)

    def _describe(self, sources: tuple[Tensor | None, ...], attrs: dict[str, Any], why: str) -> str:
        names = itertools.repeat("x") if self.variadic else self.tensors
        operands = [f"{n} {t.dtype.name}{list(t.shape)}" for n, t in zip(names, sources) if t is not None]
        operands += [f"{k}={v!r}" for k, v in attrs.items()]
        where = f" in {_scope.name}" if _scope.name else ""
        return f"{self.name}({', '.join(operands)}){where}: {why}"

    def __repr__(self) -> str:
        return f"<{'composite' if self.composite else 'primitive'} op {self.name}({', '.join(self.tensors)})>"


class Slice(NamedTuple):
    """A normalised slice of one axis: 0 <= start <= stop <= size, step >= 1."""

    start: int
    stop: int
    step: int


class Tensor:
    """A symbolic value: ``op`` applied to ``sources`` with ``attrs``.

    A leaf has one of the ops in LEAVES and no sources: a *weight* (read-only, named), a *state*
    (persistent, updated by a graph), an *input* (fed at each compute) or a *constant*.
    ``owner`` and ``handle`` of a weight or state belong to the backend that holds it.
    """

    __slots__ = (
        "__weakref__", "attrs", "context", "dtype", "handle", "id", "layer", "name", "op", "owner", "shape",
        "sources",
    )  # fmt: skip

    def __init__(
        self,
        op: str,
        sources: tuple[Tensor | None, ...],
        attrs: dict[str, Any],
        shape: Shape,
        dtype: DType,
        *,
        name: str = "",
        context: Context | None = None,
        layer: int | None = None,
    ) -> None:
        self.id = next(_ids)
        self.op = op
        self.sources = sources
        self.attrs = attrs
        self.shape = shape
        self.dtype = dtype
        self.context = context
        self.name = name or (f"{_scope.name}.{op}" if _scope.name else op)
        self.layer = _scope.layer if layer is None else layer
        self.owner: Any = None
        self.handle: Any = None

    # What it is

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of the contiguous value."""
        return self.dtype.nbytes(self.shape)

    @property
    def is_leaf(self) -> bool:
        return self.op in LEAVES

    def __repr__(self) -> str:
        return f"<Tensor {self.name} {self.dtype.name}{list(self.shape)}>"

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("a Tensor without axes has no len()")
        return self.shape[0]

    def __iter__(self) -> Iterator[Tensor]:
        raise TypeError("a Tensor cannot be iterated over: it is symbolic; use chunk() or slices")

    def __bool__(self) -> bool:
        raise TypeError("a Tensor has no truth value: it is symbolic, and its numbers are not known yet")

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise TypeError("a Tensor is symbolic; forward and compute it in its context, then call read()")

    # Reading back

    def read(self, out: np.ndarray[Any, Any] | None = None) -> np.ndarray[Any, Any]:
        """The value after ``context.compute``, as an array of this shape (into ``out``, if given)."""
        if self.context is None:
            raise GraphError(
                f"{self.name} belongs to no context, so there is nothing to read",
                hint="call ctx.forward(tensor) and ctx.compute(...) first; a leaf is read by ctx.read(tensor)",
            )
        return self.context.read(self, out)

    # Arithmetic, with NumPy broadcasting

    def __add__(self, other: Tensor | float) -> Tensor:
        return _affine(self, 1.0, other) if _scalar(other) else TABLE["add"](self, other)

    __radd__ = __add__

    def __sub__(self, other: Tensor | float) -> Tensor:
        return _affine(self, 1.0, -other) if _scalar(other) else TABLE["sub"](self, other)

    def __rsub__(self, other: float) -> Tensor:
        return _affine(self, -1.0, other)

    def __mul__(self, other: Tensor | float) -> Tensor:
        return _affine(self, other, 0.0) if _scalar(other) else TABLE["mul"](self, other)

    __rmul__ = __mul__

    def __truediv__(self, other: Tensor | float) -> Tensor:
        if _scalar(other):
            if other == 0:
                raise ZeroDivisionError(f"{self.name} / 0")
            return _affine(self, 1.0 / other, 0.0)
        return TABLE["div"](self, other)

    def __rtruediv__(self, other: float) -> Tensor:
        return TABLE["reciprocal"](self) * other

    def __neg__(self) -> Tensor:
        return TABLE["neg"](self)

    def __matmul__(self, other: Tensor) -> Tensor:
        return TABLE["matmul"](self, other)

    def matmul(self, other: Tensor, *, transpose: bool = False, precision: Literal["fast", "full"] = "fast") -> Tensor:
        """``self @ other``, or ``self @ other.T`` (of the last two axes) with ``transpose``.

        precision="full" accumulates in F32 even where the backend would multiply in half precision.
        """
        return TABLE["matmul"](self, other, transpose=transpose, precision=precision)

    # Elementwise

    def sqr(self) -> Tensor:
        return TABLE["sqr"](self)

    def sqrt(self) -> Tensor:
        return TABLE["sqrt"](self)

    def rsqrt(self) -> Tensor:
        return TABLE["rsqrt"](self)

    def exp(self) -> Tensor:
        return TABLE["exp"](self)

    def log(self) -> Tensor:
        return TABLE["log"](self)

    def sin(self) -> Tensor:
        return TABLE["sin"](self)

    def cos(self) -> Tensor:
        return TABLE["cos"](self)

    def tanh(self) -> Tensor:
        return TABLE["tanh"](self)

    def sigmoid(self) -> Tensor:
        return TABLE["sigmoid"](self)

    def softplus(self) -> Tensor:
        return TABLE["softplus"](self)

    def relu(self) -> Tensor:
        return TABLE["relu"](self)

    def silu(self) -> Tensor:
        return TABLE["silu"](self)

    def gelu(self, approximate: Literal["none", "tanh", "quick"] = "none") -> Tensor:
        """Gaussian error linear unit: exact, by tanh, or ``x * sigmoid(1.702 x)``."""
        return TABLE["gelu"](self, approximate=approximate)

    def clamp(self, min: float = -math.inf, max: float = math.inf) -> Tensor:
        return TABLE["clamp"](self, min=min, max=max)

    def cast(self, dtype: DType) -> Tensor:
        return self if dtype is self.dtype else TABLE["cast"](self, dtype=dtype)

    # Reductions

    def sum(self, axis: int = -1, keepdims: bool = False) -> Tensor:
        return TABLE["sum"](self, axis=axis, keepdims=keepdims)

    def mean(self, axis: int = -1, keepdims: bool = False) -> Tensor:
        return TABLE["mean"](self, axis=axis, keepdims=keepdims)

    def variance(self, axis: int = -1, keepdims: bool = False) -> Tensor:
        return TABLE["variance"](self, axis=axis, keepdims=keepdims)

    def stddev(self, axis: int = -1, keepdims: bool = False) -> Tensor:
        return TABLE["variance"](self, axis=axis, keepdims=keepdims).sqrt()

    def softmax(self, mask: Tensor | None = None, *, scale: float = 1.0) -> Tensor:
        """Softmax of ``scale * self + mask`` over the last axis."""
        return TABLE["softmax"](self, mask, scale=scale)

    def argmax(self) -> Tensor:
        return TABLE["argmax"](self)

    def argsort(self, descending: bool = False) -> Tensor:
        return TABLE["argsort"](self, descending=descending)

    def top_k(self, k: int) -> Tensor:
        """Indices of the ``k`` largest of the last axis, largest first."""
        return TABLE["top_k"](self, k=k)

    def cumsum(self) -> Tensor:
        return TABLE["cumsum"](self)

    # Movement

    def reshape(self, *shape: int) -> Tensor:
        """Same elements, another shape; one axis may be -1."""
        return TABLE["reshape"](self, shape=shape)

    def permute(self, *axes: int) -> Tensor:
        """Axes in another order, as ``numpy.transpose(x, axes)``."""
        return TABLE["permute"](self, axes=axes)

    @property
    def T(self) -> Tensor:
        return TABLE["permute"](self, axes=tuple(reversed(range(self.ndim))))

    def expand(self, *shape: int) -> Tensor:
        """Axes of size 1 repeated, as ``numpy.broadcast_to``."""
        return TABLE["expand"](self, shape=shape)

    def pad(self, *widths: tuple[int, int]) -> Tensor:
        """Zeros before and after, one pair an axis."""
        return TABLE["pad"](self, widths=widths)

    def chunk(self, n: int, axis: int = -1) -> list[Tensor]:
        """``n`` equal parts along ``axis``."""
        axis %= self.ndim
        size, rest = divmod(self.shape[axis], n)
        if rest:
            raise GraphError(f"chunk: axis {axis} of {self!r} does not divide into {n} equal parts")
        before = (slice(None),) * axis
        return [self[before + (slice(i * size, (i + 1) * size),)] for i in range(n)]  # noqa: RUF005

    def __getitem__(self, key: Any) -> Tensor:
        """Basic NumPy indexing: integers, slices with positive steps, ``...`` and None."""
        from hotshoe_core._indexing import index

        return index(self, key)

    # Rows

    def take(self, indices: Tensor) -> Tensor:
        """``self[indices]`` along the first axis; ``indices`` are integers of any shape."""
        return TABLE["take"](self, indices)

    def take_along(self, indices: Tensor) -> Tensor:
        """``numpy.take_along_axis(self, indices, -1)``: (..., n) and (..., k) give (..., k)."""
        return TABLE["take_along"](self, indices)

    def set_rows(self, indices: Tensor, rows: Tensor) -> Tensor:
        """This tensor with ``self[indices[i]] = rows[i]``; see Context.update for states."""
        return TABLE["set_rows"](self, indices, rows)


def constant(array: np.ndarray[Any, Any] | Sequence[float], name: str = "constant") -> Tensor:
    """A leaf whose value is known when the graph is built. It can be used in any context."""
    value = np.asarray(array, order="C")
    if value.dtype == np.float64 and not isinstance(array, np.ndarray):
        value = value.astype(np.float32)
    if not value.size:
        raise ShapeError(f"constant {name!r}: sizes must be positive, got {value.shape}")
    return Tensor("constant", (), {"value": value}, value.shape, DType.of(value), name=name)


def _scalar(value: object) -> TypeIs[float]:
    return isinstance(value, (int, float, np.number))


def _affine(x: Tensor, scale: Any, bias: Any) -> Tensor:
    return TABLE["affine"](x, scale=float(scale), bias=float(bias))


def _common_context(tensors: Sequence[Tensor]) -> Context | None:
    found: Context | None = None
    for t in tensors:
        if t.context is not None and t.context is not found:
            if found is not None:
                raise GraphError(
                    "operands belong to two contexts",
                    hint="build each graph from the inputs of one context; weights, states and constants fit in any",
                )
            found = t.context
    return found
