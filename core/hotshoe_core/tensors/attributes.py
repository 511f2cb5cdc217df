"""Check the attributes of an op, by the type annotations of its parameters, and numbers that are operands."""

from __future__ import annotations

import ast
import math
import numbers
import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from hotshoe_core.errors import DTypeError, ShapeError
from hotshoe_core.errors.arguments import described
from hotshoe_core.errors.text import shown
from hotshoe_core.tensors.dtypes import DType

if TYPE_CHECKING:
    from typing_extensions import TypeIs

__all__ = ["Kind", "as_float", "is_number", "kind_of"]

_LIMIT = 2**63
_F32_LIMIT = 2.0**128


class Kind(NamedTuple):
    """A kind of attribute, such as an integer or a tuple of integers."""

    convert: Callable[[Any], Any]
    """Converts a value to the type that ops take. Raises TypeError for any other value."""

    expected: str
    """The valid values, as text for a message: "an integer"."""

    def checked(self, name: str, value: Any) -> Any:
        """The converted value. Raises ShapeError for a wrong type, or a number too large for native code."""
        try:
            return self.convert(value)
        except TypeError:
            raise ShapeError(f"{name} is {shown(value, 60)}; expected {self.expected}") from None


def kind_of(annotation: str) -> Kind | None:
    """The kind for a type annotation; None if the op's own rule checks the values."""
    if annotation.startswith("Literal["):
        return _one_of(*ast.literal_eval(annotation.removeprefix("Literal")))
    first, _, rest = annotation.partition(" | ")
    kind = _KINDS.get(first)
    return _optional(kind) if kind is not None and rest == "None" else kind


def is_number(value: object) -> TypeIs[float]:
    """Whether a value is a real number of Python or NumPy."""
    return isinstance(value, numbers.Real)


def as_float(value: float) -> float:
    """``value`` as a Python float. Raises DTypeError for an integer that is too large for one."""
    try:
        return float(value)
    except OverflowError:
        raise DTypeError(f"{described(value)} is too large for a float") from None


# Each of these tests the common case first: a graph has thousands of attributes.


def _integer(value: Any) -> int:
    if type(value) is int and -_LIMIT <= value < _LIMIT:
        return value
    number = operator.index(value)
    if isinstance(value, bool) or not -_LIMIT <= number < _LIMIT:
        raise TypeError
    return number


def _number(value: Any) -> Any:
    if type(value) is float and -_F32_LIMIT < value < _F32_LIMIT:
        return value
    if isinstance(value, int) and abs(value) >= 2**128:
        raise TypeError
    if not isinstance(value, numbers.Real) or _F32_LIMIT <= abs(float(value)) < math.inf:
        raise TypeError
    return value


def _flag(value: Any) -> bool:
    if value is True or value is False:
        return bool(value)
    if type(value).__name__ not in ("bool", "bool_"):  # the second is NumPy's
        raise TypeError
    return bool(value)


def _integers(value: Any) -> tuple[int, ...]:
    return tuple(map(_integer, value))


def _axis(value: Any) -> int | tuple[int, ...] | None:
    if value is None or type(value) is int:
        return None if value is None else _integer(value)
    return _integer(value) if hasattr(value, "__index__") else _integers(value)


def _groups(size: int) -> Callable[[Any], tuple[Any, ...]]:
    def convert(value: Any) -> tuple[Any, ...]:
        groups = tuple(map(_integers, value))
        if any(len(group) != size for group in groups):
            raise TypeError
        return groups

    return convert


def _one_of(*choices: str) -> Kind:
    def convert(value: Any) -> Any:
        if not isinstance(value, str) or value not in choices:
            raise TypeError
        return value

    return Kind(convert, " or ".join(map(repr, choices)))


def _dtype(value: Any) -> DType:
    if not isinstance(value, DType):
        raise TypeError
    return value


def _optional(kind: Kind) -> Kind:
    return Kind(lambda value: None if value is None else kind.convert(value), f"{kind.expected}, or None")


_KINDS = {
    "int": Kind(_integer, "an integer"),
    "float": Kind(_number, "a number that fits into 32 bits"),
    "bool": Kind(_flag, "True or False"),
    "DType": Kind(_dtype, "a DType"),
    "Shape": Kind(_integers, "a tuple of integers"),
    "tuple[int, ...]": Kind(_integers, "a tuple of integers"),
    "Axis": Kind(_axis, "one axis, several axes, or None"),
    "tuple[tuple[int, int], ...]": Kind(_groups(2), "a pair of integers for each axis"),
    "tuple[tuple[int, int, int], ...]": Kind(_groups(3), "three integers for each axis: start, stop and step"),
}
