"""The declarations in a Module's class body: reading them, and the errors of invalid ones."""

from __future__ import annotations

import contextlib
import inspect
import sys
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from hotshoe_core import Tensor
from hotshoe_core.errors import ModelDefinitionError, did_you_mean
from hotshoe_core.tensors.tensor import TABLE

__all__ = ["Declaration", "check_class", "config_type", "declarations", "definition_error"]

_EXPECTED = {
    "submodule": "a subclass of Module (or one `| None`)",
    "layers": "list[…] of a subclass of Module",
    "tensor": "Tensor (or `Tensor | None`)",
}
_EXAMPLES = {"submodule": "Linear", "layers": "list[Block]", "tensor": "Tensor"}


class Declaration(NamedTuple):
    """The value of a class attribute set to ``submodule(…)``, ``tensor(…)`` or ``layers(…)``."""

    form: Literal["submodule", "tensor", "layers"]
    names: tuple[str, ...] = ()
    optional: bool = False
    use: str = ""
    shape: Callable[[Any, int], Sequence[int | None]] | None = None
    of_model: bool = False
    when: Callable[[Any, int], bool] | None = None
    choose: Callable[[Any, int], type[Any] | None] | None = None
    instead_of: tuple[str, ...] = ()
    n_layers: Callable[[Any], int] | None = None
    first_layer: Callable[[Any], int] | None = None

    def __str__(self) -> str:
        use = [f"use={self.use!r}"] if self.use else []
        return f"{self.form}({', '.join([*map(repr, self.names), *use])})"


def definition_error(cls: type, attribute: str, message: str, hint: str | None = None) -> ModelDefinitionError:
    """Make an error about a class: the message begins with its module, its name and the attribute."""
    where = f"{cls.__module__}.{cls.__qualname__}" + (f".{attribute}" if attribute else "")
    return ModelDefinitionError(f"{where}: {message}", hint=hint)


def check_class(cls: type, module: type, names: Mapping[str, Any]) -> dict[str, Any]:
    """Map each attribute declared in the body of ``cls``, and ``config``, to the class that its annotation names.

    Called when the class is created. ``names`` are the local variables at that point. An annotation that names
    something defined later is skipped here; ``declarations`` reads it when the first instance is made.

    Raises ModelDefinitionError if a declaration has no annotation, or an annotation of the wrong type.
    """
    annotations = _all_annotations(cls)
    found = {}
    if "config" in inspect.get_annotations(cls):
        with contextlib.suppress(NameError):
            found["config"] = _evaluate(*annotations["config"], names)
    for attribute, declared in vars(cls).items():
        if not isinstance(declared, Declaration):
            continue
        if attribute not in annotations:
            raise definition_error(
                cls, attribute, f"{declared} has no annotation, so its type is unknown",
                hint=f"write `{attribute}: {_EXAMPLES[declared.form]} = {declared}`",
            )  # fmt: skip
        try:
            annotation = _evaluate(*annotations[attribute], names)
        except NameError:
            continue
        found[attribute] = _check_annotation(cls, attribute, declared, annotation, module)
    return found


_found: dict[type, dict[str, tuple[Declaration, Any]]] = {}


def declarations(cls: type, module: type) -> dict[str, tuple[Declaration, Any]]:
    """Map each attribute to its declaration and the class that its annotation names, in the order of the class bodies.

    Raises ModelDefinitionError if an annotation cannot be evaluated or names the wrong type.
    """
    if cls in _found:
        return _found[cls]
    found = {}
    for attribute, (owner, annotation) in _all_annotations(cls).items():
        declared = inspect.getattr_static(cls, attribute, None)
        if isinstance(declared, Declaration):
            known = vars(owner).get("_annotated_classes", {})
            if attribute not in known:
                evaluated = _evaluate_later(owner, attribute, annotation, module)
                known = {attribute: _check_annotation(owner, attribute, declared, evaluated, module)}
            found[attribute] = (declared, known[attribute])
    _found[cls] = found
    return found


def config_type(cls: type, config: type) -> Any:
    """The class that the annotation of ``cls.config`` names: a subclass of ``config``.

    Raises ModelDefinitionError if the annotation is missing, cannot be evaluated, or names another type.
    """
    owner, annotation = _all_annotations(cls)["config"]
    found = vars(owner).get("_annotated_classes", {}).get("config")
    found = found or _evaluate_later(owner, "config", annotation, config)
    if not _is_subclass(found, config):
        problem = "has no annotation" if found is Any else f"is annotated {getattr(found, '__name__', repr(found))}"
        raise definition_error(
            cls, "config", f"{problem}; expected a subclass of hotshoe.nn.Config",
            hint="write `config: Config` in the model's body, with a class derived from hotshoe.nn.TextConfig",
        )  # fmt: skip
    return found


def _evaluate_later(owner: type, attribute: str, annotation: Any, base: type) -> Any:
    """Evaluate an annotation when a model is made, when all names of its module are defined."""
    try:
        return _evaluate(owner, annotation, {})
    except NameError as error:
        known = [n for n, value in vars(sys.modules[owner.__module__]).items() if _is_subclass(value, base)]
        raise definition_error(
            owner, attribute, f"the annotation {annotation!r} cannot be read: {error}",
            hint=f"{did_you_mean(str(error.name), known)}; it must be defined in the module when a model is made, not "
            "only under TYPE_CHECKING",
        ) from error  # fmt: skip


def _all_annotations(cls: type) -> dict[str, tuple[type, Any]]:
    """Map each annotated attribute to the last class in the MRO that annotates it, and to that annotation."""
    found: dict[str, tuple[type, Any]] = {}
    for base in reversed(cls.__mro__):
        for attribute, annotation in inspect.get_annotations(base).items():
            found[attribute] = (base, annotation)
    return found


def _evaluate(owner: type, annotation: Any, names: Mapping[str, Any]) -> Any:
    if not isinstance(annotation, str):
        return annotation
    return eval(annotation, vars(sys.modules[owner.__module__]), dict(names))  # as inspect.get_annotations does


def _check_annotation(cls: type, attribute: str, declared: Declaration, annotation: Any, module: type) -> Any:
    """Return the class that an annotation names.

    Raises ModelDefinitionError if the declaration needs another class, or lacks a name or a use.
    """
    options = _without_none(annotation)
    if declared.form == "layers":
        inner = typing.get_args(annotation) if typing.get_origin(annotation) in (list, Sequence) else ()
        options = _without_none(inner[0]) if inner else []
    if declared.form == "tensor":
        fits = options == [Tensor]
    else:
        fits = bool(options) and all(_is_subclass(option, module) for option in options)
        if fits and declared.choose is None and len(options) > 1:
            given = ", ".join([*map(repr, declared.names), "choose=lambda config, layer: …"])
            raise definition_error(
                cls, attribute, f"{len(options)} classes, but no rule that picks one for each layer",
                hint=f"{declared.form}({given})",
            )  # fmt: skip
    names = ", ".join(map(repr, declared.names)) or '"name"'
    as_tensor = f'{attribute}: Tensor = tensor({names}, use="…")'
    if not fits:
        shown = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", repr(annotation))
        if shown == Tensor.__name__ and annotation is not Tensor:  # a class of another library
            shown = repr(annotation)
        hint = f"write `{attribute}: {_EXAMPLES[declared.form]} = {declared}`"
        if declared.form == "tensor" and len(options) == 1 and _is_subclass(options[0], module):
            hint = f"write `{attribute}: {shown} = submodule({names})`; tensor() declares a single tensor, not a module"
        elif declared.form == "submodule" and options == [Tensor]:
            hint = f"write `{as_tensor}`, with the op that reads it as `use`; submodule() declares a module"
        problem, owner = f"is annotated {shown}", _all_annotations(cls)[attribute][0]
        if owner is not cls:
            problem = f"has no annotation in {cls.__name__}, and that of {owner.__name__} is {shown}"
        raise definition_error(cls, attribute, f"{problem}; {declared} needs {_EXPECTED[declared.form]}", hint=hint)
    if declared.form == "tensor" and not (declared.names and declared.use):
        lacking = "the op that reads the tensor" if declared.names else "the tensor's name in the file"
        raise definition_error(cls, attribute, f"{declared} does not say {lacking}", hint=f"write `{as_tensor}`")
    if declared.use and declared.use not in TABLE:
        near = did_you_mean(declared.use, TABLE)
        raise definition_error(cls, attribute, f"use={declared.use!r} is not an op; docs/ops.md lists all", hint=near)
    return options[0]


def _is_subclass(value: Any, base: type) -> bool:
    return isinstance(value, type) and issubclass(value, base)


def _without_none(annotation: Any) -> list[Any]:
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return [a for a in typing.get_args(annotation) if a is not type(None)]
    return [annotation]
