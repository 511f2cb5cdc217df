"""Cases of single ops, as data. Every op of the table has a case here; the kit fails for an op without a case.

There is a module for each module of ``hotshoe_core.ops``, and one for large operands; each defines ``cases()``.
"""

from __future__ import annotations

from collections.abc import Iterable

from hotshoe_core.testing.cases import (
    arrange,
    attention,
    convolution,
    elementwise,
    matrix,
    movement,
    numbers,
    recurrent,
    reduce,
    resampling,
    sizes,
)  # fmt: skip
from hotshoe_core.testing.operands import Case

__all__ = ["OP_CASES"]

_THEMES = (
    elementwise,
    matrix,
    reduce,
    movement,
    arrange,
    attention,
    convolution,
    resampling,
    recurrent,
    sizes,
    numbers,
)


def _each_once(cases: Iterable[Case]) -> tuple[Case, ...]:
    found: dict[str, Case] = {}
    for case in cases:
        if found.setdefault(case.id, case) != case:
            raise ValueError(f"two cases have the id {case.id!r}: give an operand of one of them a note")
    return tuple(found.values())


OP_CASES: tuple[Case, ...] = _each_once(case for theme in _THEMES for case in theme.cases())
"""The cases in order, each once."""
