"""One op at a time: what is computed, as data. Every op of the table has a row here; the kit fails if one has none.

A module for each theme, as in ``hotshoe_core.ops``: it defines ``cases()``.
"""

from __future__ import annotations

from hotshoe_core.testing.cases import attention, elementwise, matrix, movement, reduce
from hotshoe_core.testing.operands import Case

__all__ = ["OP_CASES"]

_THEMES = (elementwise, matrix, reduce, movement, attention)

OP_CASES: tuple[Case, ...] = tuple({case.id: case for theme in _THEMES for case in theme.cases()}.values())
"""The cases in order, each once."""
