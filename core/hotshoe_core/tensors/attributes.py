"""What an op's attributes may be, by the types that its parameters are annotated with."""

from __future__ import annotations

import ast
import math
import numbers
import operator
from collections.abc import Callable
from typing import Any, NamedTuple

from hotshoe_core.errors import ShapeError
from hotshoe_core.tensors.dtypes import DType

__all__ = ["Kind", "kind_of"]

_LIMIT = 2**63
_F32_LIMIT = 2.0**128


class Kind(NamedTuple):
    """``plain`` gives the value as ops take it, and raises TypeError for what is none; ``words`` say what is one."""

    plain: Callable[[Any], Any]
    words: str

    def checked(self, name: str, value: Any) -> Any:
        """The value as ops take it. Raises ShapeError for one of another type, or that no native code could hold."""
        try:
            return self.plain(value)
        except TypeError:
            raise ShapeError(f"{name} is {value!r:.60}; expected {self.words}") from None


def kind_of(annotation: str) -> Kind | None:
    """None for an annotation whose values the op's own rule checks."""
    if annotation.startswith("Literal["):
        return _one_of(*ast.literal_eval(annotation.removeprefix("Literal")))
    plain, _, rest = annotation.partition(" | ")
    kind = _KINDS.get(plain)
    return _optional(kind) if kind is not None and rest == "None" else kind


# What comes of a model comes first in each of these: a graph has thousands of attributes.


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
    def plain(value: Any) -> tuple[Any, ...]:
        groups = tuple(map(_integers, value))
        if any(len(each) != size for each in groups):
            raise TypeError
        return groups

    return plain


def _one_of(*words: str) -> Kind:
    def plain(value: Any) -> Any:
        if not isinstance(value, str) or value not in words:
            raise TypeError
        return value

    return Kind(plain, " or ".join(map(repr, words)))


def _dtype(value: Any) -> DType:
    if not isinstance(value, DType):
        raise TypeError
    return value


def _optional(kind: Kind) -> Kind:
    return Kind(lambda value: None if value is None else kind.plain(value), f"{kind.words}, or None")


_KINDS = {
    "int": Kind(_integer, "an integer"),
    "float": Kind(_number, "a number that fits into 32 bits"),
    "bool": Kind(_flag, "True or False"),
    "DType": Kind(_dtype, "a DType"),
    "Shape": Kind(_integers, "a tuple of integers"),
    "tuple[int, ...]": Kind(_integers, "a tuple of integers"),
    "Axis": Kind(_axis, "an axis, several, or None"),
    "tuple[tuple[int, int], ...]": Kind(_groups(2), "a pair of integers for each axis"),
    "tuple[tuple[int, int, int], ...]": Kind(_groups(3), "three integers for each axis: start, stop and step"),
}
