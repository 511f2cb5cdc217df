"""Finds what a plugin replaces in hotshoe_core: functions, classes, methods and ops. All backends share them."""

from __future__ import annotations

import sys
from types import CodeType, FunctionType, ModuleType
from typing import Any

import hotshoe_core.eager.adapter
import hotshoe_core.ops  # noqa: F401 - fills the table
from hotshoe_core.errors.text import printable
from hotshoe_core.tensors.tensor import TABLE

__all__ = ["CoreChanges"]


class CoreChanges:
    """A snapshot of everything in hotshoe_core that can be called. ``put_back`` restores what was replaced."""

    def __init__(self) -> None:
        modules = [module for name, module in list(sys.modules.items()) if _is_core(name)]
        classes = [
            value
            for module in modules
            if isinstance(module, ModuleType)
            for value in vars(module).values()
            if isinstance(value, type) and _is_core(value.__module__)
        ]
        owners: list[Any] = [*modules, *dict.fromkeys(classes), *TABLE.values()]
        self._kept = [(owner, {name: v for name, v in vars(owner).items() if _is_called(v)}) for owner in owners]
        self._table = dict(TABLE)
        self._codes: dict[FunctionType, CodeType] = {
            value: value.__code__
            for _, kept in self._kept
            for value in kept.values()
            if isinstance(value, FunctionType) and _is_core(value.__module__)
        }

    def put_back(self) -> list[str]:
        """Restore what was replaced. Return the changes as texts."""
        changes = []
        for name, op in self._table.items():
            if TABLE.get(name) is not op:
                TABLE[name] = op
                changes.append(f"the op {name!r} of hotshoe_core")
        for owner, kept in self._kept:
            now = vars(owner)
            for name in [name for name, value in kept.items() if now.get(name) is not value]:
                setattr(owner, name, kept[name])
                changes.append(f"{_name_of(owner)}.{name}")
        for function, code in self._codes.items():
            if function.__code__ is not code:
                function.__code__ = code
                changes.append(f"the code of {function.__module__}.{function.__qualname__}")
        return [f"{printable(what, 200)} changed" for what in changes]


def _is_called(value: object) -> bool:
    return callable(value) or isinstance(value, (property, staticmethod, classmethod))


def _is_core(name: object) -> bool:
    return isinstance(name, str) and name.partition(".")[0] == "hotshoe_core"


def _name_of(owner: Any) -> str:
    if isinstance(owner, ModuleType):
        return owner.__name__
    return f"{owner.__module__}.{getattr(owner, '__qualname__', owner.__name__)}"
