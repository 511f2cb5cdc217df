"""Tensor: a node or a leaf of a graph. The ops that make nodes are in ``op.py``.

A Tensor is symbolic: it records an op, its sources and its attributes, and knows its shape and dtype at once.
Nothing is computed until a Context compiles the graph. Shapes are in NumPy order: the last axis is contiguous.

Dtype rule: arithmetic takes any float type and gives F32; movement keeps the type. So values may be stored in any type,
and no backend has to guess what a model author meant. Integer arithmetic (two operands of one integer type) keeps that
type and wraps around. A comparison gives ones and zeros in F32.
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from hotshoe_core.errors import DTypeError, GraphError, ShapeError
from hotshoe_core.errors.arguments import described, integer
from hotshoe_core.errors.text import shown
from hotshoe_core.tensors.attributes import as_float, is_number
from hotshoe_core.tensors.dtypes import DType
from hotshoe_core.tensors.indexing import normalise
from hotshoe_core.tensors.scope import current_scope

if TYPE_CHECKING:
    from hotshoe_core.graphs.context import Context
    from hotshoe_core.tensors.op import Op

__all__ = ["LEAVES", "TABLE", "Axis", "Shape", "Tensor", "constant", "nodes_created", "require_tensor"]

Shape = tuple[int, ...]
Axis = int | tuple[int, ...] | None  # one axis, several axes, or all of them
Rule = Callable[[tuple[Any, ...], dict[str, Any]], tuple[Shape, DType]]

TABLE: dict[str, Op] = {}
"""Every op by name. ``hotshoe_core.ops`` fills it; checks, the reference backend, tests and docs all read it."""

LEAVES = frozenset({"weight", "state", "input", "constant"})

_ids = itertools.count()


def require_tensor(what: str, value: object) -> None:
    """Raise GraphError unless ``value`` is a Tensor. ``what`` names the argument in the message."""
    if not isinstance(value, Tensor):
        raise GraphError(f"{what} is {described(value)}; expected a Tensor")


def nodes_created() -> int:
    """How many Tensors this process has made. Running a context again must not increase it."""
    return int(repr(_ids)[6:-1])  # the repr of itertools.count shows the next value without consuming it


class Tensor:
    """A symbolic value: ``op`` applied to ``sources`` with ``attrs``.

    A leaf has no sources, and one of these ops: a *weight* (read-only, named), a *state* (persistent, updated by a
    graph), an *input* (fed at each compute) or a *constant*. In ``sources``, None stands for an optional operand that
    was not given. ``owner`` and ``handle`` of a weight or state belong to the backend that holds it.
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
        if not name:
            outer = current_scope.name
            name = f"{outer}.{op}" if outer else op
        self.name = name
        self.layer = current_scope.layer if layer is None else layer
        self.owner: Any = None
        self.handle: Any = None

    # Properties

    def source(self, i: int) -> Tensor:
        """Source ``i``, counted from 0. Raises GraphError if the node has no such source, or if it is None."""
        source = self.sources[i] if -len(self.sources) <= i < len(self.sources) else None
        if source is None:
            raise GraphError(f"{self!r} has no source {i}: {self.op} has {len(self.sources)}, {self.sources}")
        return source

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of the value, stored contiguously."""
        return self.dtype.nbytes(self.shape)

    @property
    def is_leaf(self) -> bool:
        """Whether this is a weight, state, input or constant."""
        return self.op in LEAVES

    def __repr__(self) -> str:
        return f"<Tensor {self.name} {self.dtype.name}{list(self.shape)}>"

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("a Tensor without axes has no len()")
        return self.shape[0]

    def __iter__(self) -> Iterator[Tensor]:
        raise TypeError("cannot iterate over a Tensor: it is symbolic; use chunk() or slices")

    def __bool__(self) -> bool:
        raise TypeError("a Tensor has no truth value: it is symbolic, its numbers are not known yet")

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise TypeError("a Tensor is symbolic; call ctx.forward(tensor) and ctx.compute(…), then tensor.read()")

    # Reading back

    def read(self, out: np.ndarray[Any, Any] | None = None) -> np.ndarray[Any, Any]:
        """The value after ``context.compute``, in ``out`` if given. Raises GraphError if the value does not exist."""
        if self.context is None:
            raise GraphError(
                f"{self.name} does not belong to a context, so it has no value to read",
                hint="call ctx.forward(tensor) and ctx.compute(...) first; read a leaf with ctx.read(tensor)",
            )
        return self.context.read(self, out)

    # Arithmetic, with NumPy broadcasting

    def __add__(self, other: Tensor | float) -> Tensor:
        return self._with(other, "add", 1.0, other)

    __radd__ = __add__

    def __sub__(self, other: Tensor | float) -> Tensor:
        negative = -as_float(other) if is_number(other) and not self.dtype.is_integer else other
        return self._with(other, "sub", 1.0, negative)

    def __rsub__(self, other: float) -> Tensor:
        return TABLE["sub"](_like(self, other), self) if self.dtype.is_integer else _affine(self, -1.0, other)

    def __mul__(self, other: Tensor | float) -> Tensor:
        return self._with(other, "mul", other, 0.0)

    __rmul__ = __mul__

    def _with(self, other: Tensor | float, op: str, scale: Any, bias: Any) -> Tensor:
        """``op`` on two tensors. With a number and floats: ``scale * self + bias``, in the one op ``affine``."""
        if is_number(other) and not self.dtype.is_integer:
            return _affine(self, scale, bias)
        return TABLE[op](self, _like(self, other))

    def __truediv__(self, other: Tensor | float) -> Tensor:
        if is_number(other) and not self.dtype.is_integer:
            if other == 0:
                raise ZeroDivisionError(f"{self.name} is divided by the number 0")
            return _affine(self, 1.0 / as_float(other), 0.0)
        return TABLE["div"](self, _like(self, other))

    def __rtruediv__(self, other: float) -> Tensor:
        return TABLE["reciprocal"](self) * other

    def __floordiv__(self, other: Tensor | float) -> Tensor:
        return TABLE["floor_divide"](self, _like(self, other))

    def __mod__(self, other: Tensor | float) -> Tensor:
        return TABLE["mod"](self, _like(self, other))

    def __abs__(self) -> Tensor:
        return TABLE["abs"](self)

    def __neg__(self) -> Tensor:
        return 0 - self if self.dtype.is_integer else TABLE["neg"](self)

    # Comparison: 1 where it is true, else 0. ``==`` tells whether two Tensors are the same object: use ``equal``.

    def __lt__(self, other: Tensor | float) -> Tensor:
        return TABLE["less"](self, _like(self, other))

    def __le__(self, other: Tensor | float) -> Tensor:
        return TABLE["less_equal"](self, _like(self, other))

    def __gt__(self, other: Tensor | float) -> Tensor:
        return TABLE["greater"](self, _like(self, other))

    def __ge__(self, other: Tensor | float) -> Tensor:
        return TABLE["greater_equal"](self, _like(self, other))

    def equal(self, other: Tensor | float) -> Tensor:
        """1 where the elements are equal, else 0, in F32."""
        return TABLE["equal"](self, _like(self, other))

    def not_equal(self, other: Tensor | float) -> Tensor:
        """1 where the elements differ, else 0, in F32."""
        return TABLE["not_equal"](self, _like(self, other))

    def minimum(self, other: Tensor | float) -> Tensor:
        """The smaller of two, element by element."""
        return TABLE["minimum"](self, _like(self, other))

    def maximum(self, other: Tensor | float) -> Tensor:
        """The larger of two, element by element."""
        return TABLE["maximum"](self, _like(self, other))

    def __matmul__(self, other: Tensor) -> Tensor:
        return TABLE["matmul"](self, other)

    def matmul(self, other: Tensor, *, transpose: bool = False, precision: Literal["fast", "full"] = "fast") -> Tensor:
        """``self @ other``, or ``self @ other.T`` (of the last two axes) with ``transpose``.

        precision="full" accumulates in F32, even if the backend would otherwise multiply in half precision.
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
        """Gaussian error linear unit: "none" is exact, "tanh" an approximation, "quick" is ``x * sigmoid(1.702 x)``."""
        return TABLE["gelu"](self, approximate=approximate)

    def abs(self) -> Tensor:
        return TABLE["abs"](self)

    def sign(self) -> Tensor:
        return TABLE["sign"](self)

    def floor(self) -> Tensor:
        return TABLE["floor"](self)

    def ceil(self) -> Tensor:
        return TABLE["ceil"](self)

    def round(self) -> Tensor:
        """The nearest whole number; halves are rounded to the even one."""
        return TABLE["round"](self)

    def clamp(self, min: float = -math.inf, max: float = math.inf) -> Tensor:
        return TABLE["clamp"](self, min=min, max=max)

    def cast(self, dtype: DType) -> Tensor:
        return self if dtype is self.dtype else TABLE["cast"](self, dtype=dtype)

    # Reductions

    def sum(self, axis: Axis = -1, keepdims: bool = False) -> Tensor:
        return TABLE["sum"](self, axis=axis, keepdims=keepdims)

    def mean(self, axis: Axis = -1, keepdims: bool = False) -> Tensor:
        return TABLE["mean"](self, axis=axis, keepdims=keepdims)

    def max(self, axis: Axis = -1, keepdims: bool = False) -> Tensor:
        return TABLE["max"](self, axis=axis, keepdims=keepdims)

    def min(self, axis: Axis = -1, keepdims: bool = False) -> Tensor:
        return TABLE["min"](self, axis=axis, keepdims=keepdims)

    def variance(self, axis: Axis = -1, keepdims: bool = False) -> Tensor:
        return TABLE["variance"](self, axis=axis, keepdims=keepdims)

    def stddev(self, axis: Axis = -1, keepdims: bool = False) -> Tensor:
        return TABLE["variance"](self, axis=axis, keepdims=keepdims).sqrt()

    def softmax(self, mask: Tensor | None = None, *, scale: float = 1.0) -> Tensor:
        """Softmax of ``scale * self + mask`` over the last axis."""
        return TABLE["softmax"](self, mask, scale=scale)

    def argmax(self) -> Tensor:
        """Index of the largest element along the last axis; the first one if several are equal."""
        return TABLE["argmax"](self)

    def argmin(self) -> Tensor:
        """Index of the smallest element along the last axis; the first one if several are equal."""
        return TABLE["argmin"](self)

    def argsort(self, descending: bool = False) -> Tensor:
        return TABLE["argsort"](self, descending=descending)

    def top_k(self, k: int) -> Tensor:
        """Indices of the ``k`` largest elements along the last axis, largest first."""
        return TABLE["top_k"](self, k=k)

    def cumsum(self) -> Tensor:
        return TABLE["cumsum"](self)

    # Movement

    def reshape(self, *shape: int) -> Tensor:
        """The same elements in another shape; one size may be -1."""
        return TABLE["reshape"](self, shape=shape)

    def permute(self, *axes: int) -> Tensor:
        """The axes in another order, as ``numpy.transpose(x, axes)``."""
        return TABLE["permute"](self, axes=axes)

    @property
    def T(self) -> Tensor:
        return TABLE["permute"](self, axes=tuple(reversed(range(self.ndim))))

    def expand(self, *shape: int) -> Tensor:
        """Repeat axes of size 1, as ``numpy.broadcast_to``."""
        return TABLE["expand"](self, shape=shape)

    def pad(self, *widths: tuple[int, int]) -> Tensor:
        """Add zeros before and after, one pair of widths for each axis."""
        return TABLE["pad"](self, widths=widths)

    def tile(self, *reps: int) -> Tensor:
        """Repeat the whole tensor along each axis, as ``numpy.tile``."""
        return TABLE["tile"](self, reps=reps)

    def repeat(self, repeats: int, axis: int = -1) -> Tensor:
        """Repeat each element ``repeats`` times along ``axis``, as ``numpy.repeat``."""
        return TABLE["repeat"](self, repeats=repeats, axis=axis)

    def roll(self, shift: int, axis: int = -1) -> Tensor:
        """Move elements along ``axis``; those that leave at the end come in at the start, as ``numpy.roll``."""
        return TABLE["roll"](self, shift=shift, axis=axis)

    def flip(self, axis: Axis = None) -> Tensor:
        """Reverse the order of elements along ``axis``, as ``numpy.flip``."""
        return TABLE["flip"](self, axis=axis)

    def tril(self, k: int = 0) -> Tensor:
        """Zeros above diagonal ``k`` of the last two axes, as ``numpy.tril``."""
        return TABLE["tril"](self, k=k)

    def triu(self, k: int = 0) -> Tensor:
        """Zeros below diagonal ``k`` of the last two axes, as ``numpy.triu``."""
        return TABLE["triu"](self, k=k)

    def diag(self) -> Tensor:
        """Matrices with the last axis on their diagonal: (..., n) gives (..., n, n)."""
        return TABLE["diag"](self)

    def chunk(self, n: int, axis: int = -1) -> list[Tensor]:
        """``n`` equal parts along ``axis``. Raises GraphError if ``n`` does not divide its size."""
        n = integer("chunk: n", n, 1, GraphError)
        axis = integer("chunk: axis", axis, -self.ndim, ShapeError)
        if axis >= self.ndim:
            raise ShapeError(f"chunk: axis is {shown(axis)}; {self!r} has {self.ndim} axes")
        axis %= self.ndim
        size, rest = divmod(self.shape[axis], n)
        if rest:
            raise GraphError(f"chunk: axis {axis} of {self!r} does not divide into {shown(n)} equal parts")
        before = (slice(None),) * axis
        return [self[before + (slice(i * size, (i + 1) * size),)] for i in range(n)]  # noqa: RUF005

    def __getitem__(self, key: Any) -> Tensor:
        """Basic NumPy indexing: integers, slices with positive steps, ``...`` and None. Raises ShapeError."""
        slices, shape = normalise(self.shape, key, self)
        whole = all(s == (0, size, 1) for s, size in zip(slices, self.shape))
        cut = self if whole else TABLE["slice"](self, slices=slices)
        return cut if cut.shape == shape else cut.reshape(*shape)

    def set(self, key: Any, values: Tensor | float) -> Tensor:
        """A copy of this tensor with ``self[key] = values``; the values broadcast to the part that ``key`` selects."""
        slices, shape = normalise(self.shape, key, self)
        new = _like(self, values)
        new = new if new.shape == shape else TABLE["expand"](new, shape=shape)
        sizes = tuple(s.size for s in slices)
        return TABLE["set_slice"](self, new if new.shape == sizes else new.reshape(*sizes), slices=slices)

    # Rows

    def take(self, indices: Tensor) -> Tensor:
        """``self[indices]`` along the first axis; ``indices`` are integers of any shape."""
        return TABLE["take"](self, indices)

    def take_along(self, indices: Tensor) -> Tensor:
        """``numpy.take_along_axis(self, indices, -1)``: (..., n) and (..., k) give (..., k)."""
        return TABLE["take_along"](self, indices)

    def set_rows(self, indices: Tensor, rows: Tensor) -> Tensor:
        """A copy of this tensor with ``self[indices[i]] = rows[i]``. To update a state, see ``Context.update``."""
        return TABLE["set_rows"](self, indices, rows)


def constant(array: np.ndarray[Any, Any] | np.generic | Sequence[float], name: str = "constant") -> Tensor:
    """A leaf whose value is known when the graph is built; any context can use it. Python floats become F32.

    Raises GraphError for a Tensor, ShapeError for an empty array, DTypeError for a NumPy type without an element type.
    """
    if isinstance(array, Tensor):
        raise GraphError(f"{array!r} is a Tensor already; expected an array or numbers", hint="use it directly")
    value = np.asarray(array, order="C")
    if value.dtype == np.float64 and not isinstance(array, np.ndarray):
        value = value.astype(np.float32)
    if not value.size:
        raise ShapeError(f"constant {name!r}: sizes must be positive, got {value.shape}")
    return Tensor("constant", (), {"value": value}, value.shape, DType.of(value), name=name)


def _like(x: Tensor, value: Tensor | float) -> Tensor:
    """A number as a constant of a type that goes with ``x``; a Tensor is returned unchanged."""
    if not is_number(value):
        return value
    if not x.dtype.is_integer:
        with np.errstate(all="ignore"):  # 1e300 becomes infinity
            return constant(np.asarray(as_float(value), np.float32), str(value))
    with contextlib.suppress(OverflowError, ValueError):  # of infinity and NaN
        number, bounds = int(value), np.iinfo(x.dtype.numpy or np.int64)
        if number == value and bounds.min <= number <= bounds.max:
            return constant(np.asarray(number, bounds.dtype), str(value))
    raise DTypeError(f"cannot combine {x!r} with {described(value)}", hint="to use another type, x.cast(F32)")


def _affine(x: Tensor, scale: Any, bias: Any) -> Tensor:
    return TABLE["affine"](x, scale=as_float(scale), bias=as_float(bias))
