"""Module: a part of a model whose attributes name their tensors in the file.

    class MLP(Module):
        up: Linear = tensor("ffn_up")
        down: Linear = tensor("ffn_down")

        def __call__(self, x: Tensor) -> Tensor:
            return self.down(self.up(x).gelu())

One generic binder (nn/binder.py) walks the modules and fills the parameters. Calling a module opens a
scope of its name, so that an error or a drawing says ``blk.3.ffn_up``.
"""

from __future__ import annotations

import functools
import inspect
import typing
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from hotshoe_core import scope

__all__ = ["Module", "Parameter", "layers", "parameter", "part", "tensor"]


@dataclass(frozen=True, slots=True)
class _Declaration:
    kind: str  # "tensor", "part", "layers" or "parameter"
    names: tuple[str, ...] = ()
    optional: bool = False
    use: str = ""


def tensor(name: str, *alternatives: str, optional: bool = False) -> Any:
    """A module of one weight (and perhaps a bias), named ``<prefix>.<name>`` in the file.

    alternatives are tried in order where the name is missing. An optional module whose tensors are all
    missing becomes None.
    """
    return _Declaration("tensor", (name, *alternatives), optional)


def part() -> Any:
    """A module whose tensors carry the same prefix as this one's: attention inside a block."""
    return _Declaration("part")


def layers(name: str) -> Any:
    """A list of ``config.n_layers`` modules, named ``<name>.0``, ``<name>.1``, …"""
    return _Declaration("layers", (name,))


def parameter(name: str, *, use: str, optional: bool = False) -> Any:
    """One tensor of the file: ``<prefix>.<name>``. ``use`` is the op that reads it."""
    return _Declaration("parameter", (name,), optional, use)


@dataclass(slots=True, eq=False)
class Parameter:
    """A tensor still to be bound: where it goes, what it may be called, which op reads it."""

    module: Module
    attribute: str
    names: tuple[str, ...]
    optional: bool
    use: str
    layer: int


class Module:
    """Base of every part of a model. ``config`` is the model's, shared by all its parts."""

    config: Any
    unused_tensors: frozenset[str] = frozenset()
    """Tensors a file of this model may hold and the model has no use for."""
    many_rows = False
    """Whether the model always computes many tokens at once, as an encoder does: see WeightData."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "__call__" in cls.__dict__:
            cls.__call__ = _in_scope(cls.__dict__["__call__"])  # type: ignore[method-assign]

    def __init__(self, config: Any, prefixes: tuple[str, ...] = ("",), name: str = "", layer: int = -1) -> None:
        self.config = config
        self._name = name
        self.layer = layer
        self._parameters: list[Parameter] = []
        self._optional_parts: list[str] = []
        for attribute, (declared, kind) in _declarations(type(self)).items():
            names = tuple(_join(p, n) for n in declared.names for p in prefixes)
            if declared.kind == "parameter":
                self._parameters.append(Parameter(self, attribute, names, declared.optional, declared.use, layer))
                value: Any = None
            elif declared.kind == "part":
                value = kind(config, prefixes, "", layer)  # no scope: errors name what the file names
            elif declared.kind == "layers":
                value = [kind(config, (f"{names[0]}.{i}",), f"{names[0]}.{i}", i) for i in range(config.n_layers)]
            else:
                value = kind(config, names, declared.names[0], layer)
                if declared.optional:
                    self._optional_parts.append(attribute)
            setattr(self, attribute, value)

    def parameters(self) -> Iterator[Parameter]:
        """Every parameter of this module and of those below it."""
        yield from self._parameters
        for value in vars(self).values():
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, Module):
                    yield from child.parameters()

    def children(self) -> Iterator[tuple[str, Module]]:
        for attribute, value in list(vars(self).items()):
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, Module):
                    yield attribute, child

    def drop_missing_parts(self) -> None:
        """Optional modules of which nothing was bound become None."""
        for attribute, child in self.children():
            child.drop_missing_parts()
            if attribute in self._optional_parts and not child.is_bound():
                setattr(self, attribute, None)

    def is_bound(self) -> bool:
        return any(getattr(p.module, p.attribute) is not None for p in self.parameters())

    __call__: Callable[..., Any]


def _join(prefix: str, name: str) -> str:
    return f"{prefix}.{name}" if prefix else name


@functools.cache
def _declarations(cls: type[Module]) -> dict[str, tuple[_Declaration, Any]]:
    """Attribute name → its declaration and the module class its annotation names."""
    found = {}
    hints = typing.get_type_hints(cls)
    for name, annotation in hints.items():
        declared = inspect.getattr_static(cls, name, None)
        if isinstance(declared, _Declaration):
            options = [a for a in typing.get_args(annotation) if a is not type(None)]
            found[name] = (declared, options[0] if options else annotation)
    return found


def _in_scope(call: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(call)
    def wrapped(self: Module, *args: Any, **kwargs: Any) -> Any:
        if not self._name:
            return call(self, *args, **kwargs)
        with scope(self._name, self.layer if self.layer >= 0 else None):
            return call(self, *args, **kwargs)

    return wrapped
