"""Module: the base class of models and their blocks. Its attributes name their tensors in the file.

    class MLP(Module):
        up: Linear = tensor("ffn_up")
        down: Linear = tensor("ffn_down")

        def __call__(self, x: Tensor) -> Tensor:
            return self.down(self.up(x).gelu())

A generic binder (nn/binder.py) visits all modules and fills their parameters. Calling a module opens a scope with its
name, so that errors and drawings of the graph show names such as ``blk.3.ffn_up``.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from hotshoe.nn._declarations import Declaration, check_class, config_type, declarations, definition_error
from hotshoe.nn.config import Config
from hotshoe.tasks import Task
from hotshoe_core import scope

__all__ = ["Module", "Parameter", "layers", "parameter", "submodule", "tensor"]

Sizes = Sequence["int | None"]
"""A shape in which None stands for any size."""
ShapeOf = Callable[[Any, int], Sizes]
"""``(config, layer) -> shape``: the shape that a weight must have."""


def tensor(
    name: str,
    *alternatives: str,
    optional: bool = False,
    when: Callable[[Any, int], bool] | None = None,
    shape: ShapeOf | None = None,
    of_model: bool = False,
) -> Any:
    """Declare a module with one weight, and a bias if the file has one, named ``<prefix>.<name>`` in the file.

        q: Linear = tensor("attn_q", shape=lambda config, layer: (config.dim, config.dim))

    alternatives: other names to try, in this order, if ``name`` is missing.
    optional: the attribute becomes None if the file has none of the module's tensors.
    when: ``(config, layer) -> bool``. If it returns False, the attribute is None and the file must not have the tensor.
    shape: ``(config, layer) -> shape`` that the weight must have; None in it allows any size.
    of_model: the name has no prefix, because all layers share the tensor.
    """
    return Declaration("tensor", (name, *alternatives), optional, shape=shape, of_model=of_model, when=when)


def submodule(*, when: Callable[[Any, int], bool] | None = None) -> Any:
    """Declare a module whose tensors have the same prefix as this module's: for example, attention in a block.

        attention: Attention = submodule()

    when: ``(config, layer) -> bool``. If it returns False, the attribute is None.
    """
    return Declaration("submodule", when=when)


def layers(name: str, *, kind: Callable[[Any, int], type[Module]] | None = None) -> Any:
    """Declare a list of ``config.n_layers`` modules, named ``<name>.0``, ``<name>.1``, …

        blocks: list[Block] = layers("blk")

    kind: ``(config, layer) -> class``, if the layers have different classes.

    Tensors declared before the layers belong to the input, and those declared after them to the output. Memory reports
    and device placement use this.
    """
    return Declaration("layers", (name,), kind_of=kind)


def parameter(
    name: str, *, use: str, optional: bool = False, shape: ShapeOf | None = None, of_model: bool = False
) -> Any:
    """Declare a single tensor, ``<prefix>.<name>``, with no module around it.

        sinks: Tensor = parameter("attn_sinks.weight", use="attention")

    use: the name of the op that reads the tensor. The other arguments are those of ``tensor``.
    """
    return Declaration("parameter", (name,), optional, use, shape, of_model)


@dataclass(slots=True, eq=False)
class Parameter:
    """One tensor that the binder has to find in the file. The binder then sets ``module.attribute``."""

    module: Module
    attribute: str
    names: tuple[str, ...]
    """Names in the file, in the order in which they are tried."""
    optional: bool
    use: str
    """The op that reads the tensor."""
    layer: int
    """The layer it belongs to; -1 for the input and the whole model, ``n_layers`` for the output."""
    read_in: int
    """The layer that reads it; differs from ``layer`` for a tensor that all layers share."""
    shape: Sizes | None = None


class Module:
    """Base class of models and of everything in them: blocks, attention, linear layers, norms.

    Raises ModelDefinitionError for an invalid declaration: when the class is created, or when a model is made from it.
    """

    config: Any
    """The config of the model, which all its modules share. A model annotates it with its own Config class."""
    task: ClassVar[Task] = Task.TEXT
    """What a model is for. The task decides which runner runs the model."""
    causal: ClassVar[bool] = False
    """For embedding models and rerankers: True if a token sees only itself and earlier tokens."""
    compute_bound: ClassVar[bool] = False
    """True if the model always computes many rows at once, as encoders do. See WeightData.compute_bound."""
    unused_tensors: ClassVar[frozenset[str]] = frozenset()
    """Names of tensors that a model's file may hold although the model does not use them."""
    _kinds: ClassVar[dict[str, Any]] = {}

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        # annotations may name local variables of the function that contains the class
        cls._kinds = check_class(cls, Module, sys._getframe(1).f_locals)
        if "__call__" in cls.__dict__:
            cls.__call__ = _in_scope(cls.__dict__["__call__"])  # type: ignore[method-assign]

    @classmethod
    def config_type(cls) -> type[Config]:
        """The Config class of a model: the one that ``config`` is annotated with.

        Raises ModelDefinitionError if ``config`` has no annotation, or is not a subclass of ``hotshoe.nn.Config``.
        """
        kind: type[Config] = config_type(cls, Config)
        return kind

    def __init__(self, config: Any, prefixes: tuple[str, ...] = ("",), name: str = "", layer: int = -1) -> None:
        self.config = config
        self.layer = layer
        self._name = name
        self._parameters: list[Parameter] = []
        self._optional_modules: list[str] = []
        for attribute, (declared, kind) in declarations(type(self), Module).items():
            weight_layer = -1 if declared.of_model else layer
            names = tuple(_join(p, n) for n in declared.names for p in (("",) if declared.of_model else prefixes))
            shape = declared.shape(config, layer) if declared.shape else None
            value: Any = None
            if declared.when is not None and not declared.when(config, layer):
                setattr(self, attribute, None)
                continue
            if declared.kind == "parameter":
                self._parameters.append(
                    Parameter(self, attribute, names, declared.optional, declared.use, weight_layer, layer, shape)
                )
            elif declared.kind == "submodule":
                value = kind(config, prefixes, "", layer)  # no scope: its name does not occur in the file
            elif declared.kind == "layers":
                value = self._layers(attribute, declared, kind, names[0])
                layer = len(value) if layer < 0 else layer  # attributes declared after the layers belong to the output
            else:
                value = kind(config, names, declared.names[0], weight_layer)
                if shape is not None:
                    value._require_shape(type(self), attribute, shape)
                if declared.optional:
                    self._optional_modules.append(attribute)
            setattr(self, attribute, value)

    def _layers(self, attribute: str, declared: Declaration, kind: type[Module], name: str) -> list[Module]:
        n = getattr(self.config, "n_layers", None)
        if not isinstance(n, int):
            raise definition_error(
                type(self), attribute, f"layers({name!r}) makes n_layers modules, but the config has no n_layers",
                hint="give the Config a field `n_layers: int`, or derive it from hotshoe.nn.TextConfig",
            )  # fmt: skip
        made = []
        for i in range(n):
            block = declared.kind_of(self.config, i) if declared.kind_of else kind
            if not (isinstance(block, type) and issubclass(block, Module)):
                raise definition_error(
                    type(self), attribute, f"kind returned {block!r} for layer {i}; expected a subclass of Module"
                )
            made.append(block(self.config, (f"{name}.{i}",), f"{name}.{i}", i))
        return made

    def _require_shape(self, owner: type[Module], attribute: str, shape: Sizes) -> None:
        weight = next((p for p in self._parameters if p.attribute == "weight"), None)
        if weight is None:
            raise definition_error(
                owner, attribute, f"shape= needs a parameter `weight`, but {type(self).__name__} has none",
                hint="pass shape= to the parameters of that class instead",
            )  # fmt: skip
        weight.shape = shape

    def parameters(self) -> Iterator[Parameter]:
        """Every parameter of this module and of all modules inside it."""
        yield from self._parameters
        for _, child in self.children():
            yield from child.parameters()

    def children(self) -> Iterator[tuple[str, Module]]:
        """The attribute and the module of each module directly inside this one."""
        for attribute, value in list(vars(self).items()):
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, Module):
                    yield attribute, child

    def drop_missing_modules(self) -> None:
        """Set each optional module to None if the file has none of its tensors."""
        for attribute, child in self.children():
            child.drop_missing_modules()
            if attribute in self._optional_modules and not child.is_bound():
                setattr(self, attribute, None)

    def is_bound(self) -> bool:
        """True if at least one tensor of this module, or of the modules inside it, was found."""
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
