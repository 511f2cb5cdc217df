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
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from hotshoe.nn._declarations import Declaration, check_class, declarations, definition_error
from hotshoe.tasks import Task
from hotshoe_core import scope

__all__ = ["Module", "Parameter", "layers", "parameter", "part", "tensor"]

Sizes = Sequence["int | None"]
"""A shape in which None stands for any size."""
ShapeOf = Callable[[Any, int], Sizes]
"""The shape a weight must have, by the model's config and the layer's index."""


def tensor(
    name: str,
    *alternatives: str,
    optional: bool = False,
    when: Callable[[Any, int], bool] | None = None,
    shape: ShapeOf | None = None,
    of_model: bool = False,
) -> Any:
    """A module of one weight (and perhaps a bias), named ``<prefix>.<name>`` in the file.

    alternatives are tried in order where the name is missing. An optional module whose tensors are all
    missing becomes None; one that ``when(config, layer)`` says the model has not is None too, and is not looked for.
    shape: what the weight's shape must be: ``lambda config, layer: (config.dim,)``, with None
    for any size. of_model: the name has no prefix, wherever the module is: a tensor that all layers share.
    """
    return Declaration("tensor", (name, *alternatives), optional, shape=shape, of_model=of_model, when=when)


def part(*, when: Callable[[Any, int], bool] | None = None) -> Any:
    """A module whose tensors carry the same prefix as this one's: attention inside a block.

    when: by config and the layer's index, whether the model has it; None stands for one that it has not.
    """
    return Declaration("part", when=when)


def layers(name: str, *, kind: Callable[[Any, int], type[Module]] | None = None) -> Any:
    """A list of ``config.n_layers`` modules, named ``<name>.0``, ``<name>.1``, …

    kind: the class of each, by config and index, where not all layers are alike. What a model declares before its
    layers belongs to the input, what it declares after them to the output: memory and placement go by it.
    """
    return Declaration("layers", (name,), kind_of=kind)


def parameter(
    name: str, *, use: str, optional: bool = False, shape: ShapeOf | None = None, of_model: bool = False
) -> Any:
    """One tensor of the file: ``<prefix>.<name>``. ``use`` is the op that reads it; the rest is as for ``tensor``."""
    return Declaration("parameter", (name,), optional, use, shape, of_model)


@dataclass(slots=True, eq=False)
class Parameter:
    """A tensor still to be bound: where it goes, what it may be called, which op reads it, which shape it must have.

    layer: that it belongs to; read_in: that it is read in, which is another for a tensor that all layers share.
    """

    module: Module
    attribute: str
    names: tuple[str, ...]
    optional: bool
    use: str
    layer: int
    read_in: int
    shape: Sizes | None = None


class Module:
    """Base of every part of a model. ``config`` is the model's, shared by all its parts.

    Raises ModelDefinitionError, where the class is made or at the latest where a model of it is, for a declaration
    that cannot be followed.
    """

    config: Any
    task: ClassVar[Task] = Task.TEXT
    """Of a model: what it is for, and so what runs it."""
    causal: ClassVar[bool] = False
    """Of an embedding model or reranker: whether a token sees those before it only."""
    compute_bound: ClassVar[bool] = False
    """Of a model: whether it always computes many rows at once, as an encoder does: see WeightData."""
    unused_tensors: ClassVar[frozenset[str]] = frozenset()
    """Of a model: tensors its file may hold that it has no use for."""
    _kinds: ClassVar[dict[str, Any]] = {}

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls._kinds = check_class(
            cls, Module, sys._getframe(1).f_locals
        )  # names of the function a class is made in, if it is
        if "__call__" in cls.__dict__:
            cls.__call__ = _in_scope(cls.__dict__["__call__"])  # type: ignore[method-assign]

    def __init__(self, config: Any, prefixes: tuple[str, ...] = ("",), name: str = "", layer: int = -1) -> None:
        self.config = config
        self.layer = layer
        self._name = name
        self._parameters: list[Parameter] = []
        self._optional_parts: list[str] = []
        for attribute, (declared, kind) in declarations(type(self), Module).items():
            here = -1 if declared.of_model else layer
            names = tuple(_join(p, n) for n in declared.names for p in (("",) if declared.of_model else prefixes))
            shape = declared.shape(config, layer) if declared.shape else None
            value: Any = None
            if declared.when is not None and not declared.when(config, layer):
                setattr(self, attribute, None)
                continue
            if declared.kind == "parameter":
                self._parameters.append(
                    Parameter(self, attribute, names, declared.optional, declared.use, here, layer, shape)
                )
            elif declared.kind == "part":
                value = kind(config, prefixes, "", layer)  # no scope: errors name what the file names
            elif declared.kind == "layers":
                value = self._layers(attribute, declared, kind, names[0])
                layer = len(value) if layer < 0 else layer  # what follows is the output's
            else:
                value = kind(config, names, declared.names[0], here)
                if shape is not None:
                    value._require_shape(type(self), attribute, shape)
                if declared.optional:
                    self._optional_parts.append(attribute)
            setattr(self, attribute, value)

    def _layers(self, attribute: str, declared: Declaration, kind: type[Module], name: str) -> list[Module]:
        n = getattr(self.config, "n_layers", None)
        if not isinstance(n, int):
            raise definition_error(
                type(self), attribute, f"layers({name!r}) makes n_layers modules, and the config has no n_layers",
                hint="give the Config a field `n_layers: int`, or derive it from hotshoe.nn.TextConfig",
            )  # fmt: skip
        made = []
        for i in range(n):
            each = declared.kind_of(self.config, i) if declared.kind_of else kind
            if not (isinstance(each, type) and issubclass(each, Module)):
                raise definition_error(
                    type(self), attribute, f"kind gave {each!r} for layer {i}; expected a subclass of Module"
                )
            made.append(each(self.config, (f"{name}.{i}",), f"{name}.{i}", i))
        return made

    def _require_shape(self, owner: type[Module], attribute: str, shape: Sizes) -> None:
        weight = next((p for p in self._parameters if p.attribute == "weight"), None)
        if weight is None:
            raise definition_error(
                owner, attribute, f"shape= is of the parameter `weight`, and {type(self).__name__} has none",
                hint="give shape= to the parameters of that class instead",
            )  # fmt: skip
        weight.shape = shape

    def parameters(self) -> Iterator[Parameter]:
        """Every parameter of this module and of those below it."""
        yield from self._parameters
        for _, child in self.children():
            yield from child.parameters()

    def children(self) -> Iterator[tuple[str, Module]]:
        """Attribute and module, for each module directly below this one."""
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
        """Whether any tensor of this module, or of those below it, was found."""
        return any(getattr(p.module, p.attribute) is not None for p in self.parameters())


def _join(prefix: str, name: str) -> str:
    return f"{prefix}.{name}" if prefix else name


def _in_scope(call: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(call)
    def wrapped(self: Module, *args: Any, **kwargs: Any) -> Any:
        if not self._name:
            return call(self, *args, **kwargs)
        with scope(self._name, self.layer if self.layer >= 0 else None):
            return call(self, *args, **kwargs)

    return wrapped
