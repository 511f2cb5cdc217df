"""Module: the base class of models and their blocks. Its attributes name their tensors in the file.

    class MLP(Module):
        up: Linear = submodule("ffn_up")
        down: Linear = submodule("ffn_down")

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
from hotshoe.nn.config import FileConfig
from hotshoe.tasks import Task
from hotshoe_core import scope

__all__ = ["ENCODER", "NEXTN", "Module", "Parameter", "layers", "nextn_layers", "submodule", "tensor"]

NEXTN = "layers that only draft tokens (NextN)"
ENCODER = "encoders of pictures or sound: the model reads text only"
_ENCODERS = ("v.*", "mm.*", "a.*", "s.*", "model.vision_tower.*")
_INPUT_SCALE = "scales for activations in 4 or 8 bits; hotshoe does not round activations to such types"

ShapePattern = Sequence["int | None"]
"""A shape in which None stands for any size."""
ShapeOf = Callable[[Any, int], ShapePattern]
"""``(config, layer) -> shape``: the shape that a weight must have."""
ChooseClass = Callable[[Any, int], "type[Module] | None"]
"""``(config, layer) -> class``; None for a layer without the module."""


def submodule(
    *names: str,
    optional: bool = False,
    when: Callable[[Any, int], bool] | None = None,
    shape: ShapeOf | None = None,
    of_model: bool = False,
    choose: ChooseClass | None = None,
    instead_of: tuple[str, ...] = (),
) -> Any:
    """Declare a module inside this one. With a name, its tensors are called ``<prefix>.<name>.…`` in the file.

        q: Linear = submodule("attn_q", shape=lambda config, layer: (config.dim, config.dim))

    Without a name, its tensors have the same prefix as this module's: for example, attention in a block.

        attention: Attention = submodule()

    names: the name, then other names to try, in this order, if a tensor is missing.
    optional: the attribute becomes None if the file has none of the module's tensors.
    when: ``(config, layer) -> bool``. If it returns False, the attribute is None and the file must not have them.
    shape: ``(config, layer) -> shape`` that the module's ``weight`` must have; None in it allows any size.
    of_model: the name has no prefix, because all layers share the module.
    choose: ``(config, layer) -> class``, if the annotation names several classes, such as ``GatedMLP |
    MixtureOfExperts``, or a base class. None for a layer without the module.
    instead_of: attributes whose tensors a file may hold as one. If the file has the tensors of this module and lacks
    some of theirs, these attributes become None; otherwise this one does.
    """
    return Declaration("submodule", names, optional, "", shape, of_model, when, choose, instead_of)


def tensor(
    *names: str,
    use: str = "",
    optional: bool = False,
    when: Callable[[Any, int], bool] | None = None,
    shape: ShapeOf | None = None,
    of_model: bool = False,
) -> Any:
    """Declare a single tensor, called ``<prefix>.<name>`` in the file. Give the full name, including ``.weight``.

        sinks: Tensor = tensor("attn_sinks.weight", use="attention")

    use: required, the name of the op that reads the tensor.
    names, optional, when, shape, of_model: as for ``submodule``; ``shape`` is the shape of the tensor.
    """
    return Declaration("tensor", names, optional, use, shape, of_model, when)


def layers(
    name: str,
    *,
    choose: ChooseClass | None = None,
    count: Callable[[Any], int] | None = None,
    first: Callable[[Any], int] | None = None,
) -> Any:
    """Declare a list of ``config.n_layers`` modules, named ``<name>.0``, ``<name>.1``, …

        blocks: list[Block] = layers("blk")

    choose: ``(config, layer) -> class``, if the layers have different classes. count: ``config -> number``, for a model
    with a second list of layers. first: ``config -> number`` of the first one, if that is not 0.

    Tensors declared before the layers belong to the input, and those declared after them to the output. Memory reports
    and device placement use this.
    """
    return Declaration("layers", (name,), choose=choose, n_layers=count, first_layer=first)


def nextn_layers(name: str) -> Any:
    """Declare the layers that draft tokens, which follow the others in the file: see ``nn.NextN``.

    nextn: list[NextN] = nextn_layers("blk")
    """
    return layers(name, count=lambda c: c.n_drafting, first=lambda c: c.n_layers)


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
    shape: ShapePattern | None = None


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
    context_limit: ClassVar[str] = ""
    """Why the context may not be longer than ``config.n_ctx``; "" if the model was not trained for more."""
    compute_bound: ClassVar[bool] = False
    """True if the model always computes many rows at once, as encoders do. See WeightData.compute_bound."""
    _annotated_classes: ClassVar[dict[str, Any]] = {}

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        # annotations may name local variables of the function that contains the class
        cls._annotated_classes = check_class(cls, Module, sys._getframe(1).f_locals)
        if "__call__" in cls.__dict__:
            cls.__call__ = _in_scope(cls.__dict__["__call__"])  # type: ignore[method-assign]

    @classmethod
    def config_type(cls) -> type[FileConfig]:
        """The Config class of a model: the one that ``config`` is annotated with.

        Raises ModelDefinitionError if ``config`` has no annotation, or is not a subclass of ``hotshoe.nn.FileConfig``.
        """
        found: type[FileConfig] = config_type(cls, FileConfig)
        return found

    def __init__(self, config: Any, prefixes: tuple[str, ...] = ("",), name: str = "", layer: int = -1) -> None:
        self.config = config
        self.layer = layer
        self._name = name
        self._parameters: list[Parameter] = []
        self._optional_modules: list[str] = []
        self.forms: dict[str, tuple[str, ...]] = {}
        """The attributes that each module with ``instead_of`` may replace."""
        for attribute, (declared, child_class) in declarations(type(self), Module).items():
            if declared.when is not None and not declared.when(config, layer):
                setattr(self, attribute, None)
                continue
            parents = ("",) if declared.of_model else prefixes
            names = tuple(_join(p, n) for n in declared.names for p in parents) or parents
            child_layer = -1 if declared.of_model else layer
            shape = declared.shape(config, layer) if declared.shape else None
            value: Any = None
            if declared.form == "tensor":
                self._parameters.append(
                    Parameter(self, attribute, names, declared.optional, declared.use, child_layer, layer, shape)
                )
            elif declared.form == "layers":
                value = self._layers(attribute, declared, child_class, names[0])
                layer = len(value) if layer < 0 else layer  # attributes declared after the layers belong to the output
            else:
                scope_name = declared.names[0] if declared.names else ""
                chosen = self._chosen(attribute, declared, child_class, layer)
                value = chosen and chosen(config, names, scope_name, child_layer)
                if shape is not None and value is not None:
                    value._require_shape(type(self), attribute, shape)
                if declared.optional:
                    self._optional_modules.append(attribute)
                if declared.instead_of:
                    self.forms[attribute] = declared.instead_of
            setattr(self, attribute, value)

    def _layers(self, attribute: str, declared: Declaration, layer_class: type[Module], name: str) -> list[Module]:
        n = getattr(self.config, "n_layers", None) if declared.n_layers is None else declared.n_layers(self.config)
        if not isinstance(n, int):
            raise definition_error(
                type(self), attribute, f"layers({name!r}) makes n_layers modules, but the config has no n_layers",
                hint="give the Config a field `n_layers: int`, or derive it from hotshoe.nn.TextConfig",
            )  # fmt: skip
        made = []
        first = 0 if declared.first_layer is None else declared.first_layer(self.config)
        for i in range(first, first + n):
            chosen = self._chosen(attribute, declared, layer_class, i)
            if chosen is None:
                raise definition_error(type(self), attribute, f"choose returned None for layer {i}; expected a class")
            made.append(chosen(self.config, (f"{name}.{i}",), f"{name}.{i}", i))
        return made

    def _chosen(self, attribute: str, declared: Declaration, default: type[Module], layer: int) -> type[Module] | None:
        chosen = declared.choose(self.config, layer) if declared.choose else default
        if chosen is None or (isinstance(chosen, type) and issubclass(chosen, Module)):
            return chosen
        raise definition_error(
            type(self), attribute, f"choose returned {chosen!r} for layer {layer}; expected a subclass of Module"
        )

    def _require_shape(self, owner: type[Module], attribute: str, shape: ShapePattern) -> None:
        weight = next((p for p in self._parameters if p.attribute == "weight"), None)
        if weight is None:
            raise definition_error(
                owner, attribute, f"shape= needs a tensor `weight`, but {type(self).__name__} has none",
                hint="pass shape= to the declarations in that class instead",
            )  # fmt: skip
        weight.shape = shape
        for p in self._parameters:
            if p.attribute == "bias":  # one element for each row of the weight, or of each expert's
                p.shape = shape[:2] if p.use == "add_experts" else shape[:1]

    @property
    def span_width(self) -> int:
        """Elements of a row of an EmbeddingSpan: ``config.dim``, or more if layers read more of an encoder."""
        width: int = self.config.dim
        return width

    def unused_keys(self) -> dict[str, str]:
        """The keys ``<architecture>.<name>`` of the file that change nothing in this model, by name, and why.

        Any other key that no code reads makes loading fail, unless hotshoe.unread_keys lists it.
        """
        return {}

    def unused_tensors(self) -> dict[str, str]:
        """Globs of tensors that a model's file may hold although the model does not use them, and why.

        A model that adds some returns ``super().unused_tensors() | {"output.weight": "it has no logits"}``.
        """
        first = self.config.n_layers
        nextn = {f"blk.{first + i}.*": NEXTN for i in range(self.config.n_nextn)}
        return nextn | {"mtp.*": NEXTN, "*.input_scale": _INPUT_SCALE} | dict.fromkeys(_ENCODERS, ENCODER)

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
        if not self._name or type(self).__call__ is not wrapped:  # super().__call__ is in the scope already
            return call(self, *args, **kwargs)
        with scope(self._name, self.layer if self.layer >= 0 else None):
            return call(self, *args, **kwargs)

    return wrapped
