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

__all__ = ["Declaration", "check_class", "config_type", "declarations", "definition_error"]

_EXPECTED = {
    "tensor": "a subclass of Module (or one `| None`)",
    "submodule": "a subclass of Module (or one `| None`)",
    "layers": "list[…] of a subclass of Module",
    "parameter": "Tensor (or `Tensor | None`)",
}


class Declaration(NamedTuple):
    """The value of a class attribute set to ``tensor(…)``, ``submodule()``, ``layers(…)`` or ``parameter(…)``."""

    kind: Literal["tensor", "submodule", "layers", "parameter"]
    names: tuple[str, ...] = ()
    optional: bool = False
    use: str = ""
    shape: Callable[[Any, int], Sequence[int | None]] | None = None
    of_model: bool = False
    when: Callable[[Any, int], bool] | None = None
    kind_of: Callable[[Any, int], type[Any]] | None = None

    def __str__(self) -> str:
        return f"{self.kind}({', '.join(map(repr, self.names))})"


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
                hint=f"write `{attribute}: {_example(declared)} = {declared}`",
            )  # fmt: skip
        try:
            kind = _evaluate(*annotations[attribute], names)
        except NameError:
            continue
        found[attribute] = _check_kind(cls, attribute, declared, kind, module)
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
            if attribute in vars(owner).get("_kinds", ()):
                found[attribute] = (declared, vars(owner)["_kinds"][attribute])
                continue
            kind = _evaluate_later(owner, attribute, annotation, module)
            found[attribute] = (declared, _check_kind(owner, attribute, declared, kind, module))
    _found[cls] = found
    return found


def config_type(cls: type, config: type) -> Any:
    """The class that the annotation of ``cls.config`` names: a subclass of ``config``.

    Raises ModelDefinitionError if the annotation is missing, cannot be evaluated, or names another type.
    """
    owner, annotation = _all_annotations(cls)["config"]
    kind = vars(owner).get("_kinds", {}).get("config") or _evaluate_later(owner, "config", annotation, config)
    if not _is_subclass(kind, config):
        found = "has no annotation" if kind is Any else f"is annotated {getattr(kind, '__name__', repr(kind))}"
        raise definition_error(
            cls, "config", f"{found}; expected a subclass of hotshoe.nn.Config",
            hint="write `config: Config` in the model's body, with a class derived from hotshoe.nn.TextConfig",
        )  # fmt: skip
    return kind


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


def _check_kind(cls: type, attribute: str, declared: Declaration, annotation: Any, module: type) -> Any:
    """The class that an annotation names. Raises ModelDefinitionError if the declaration needs another type."""
    options = _without_none(annotation)
    if declared.kind == "layers":
        inner = typing.get_args(annotation) if typing.get_origin(annotation) in (list, Sequence) else ()
        options = _without_none(inner[0]) if inner else []
        fits = bool(options) and all(_is_subclass(option, module) for option in options)
        if fits and declared.kind_of is None and len(options) > 1:
            raise definition_error(
                cls, attribute, f"{len(options)} classes of layers, but no rule that picks one for each layer",
                hint=f"layers({declared.names[0]!r}, kind=lambda config, index: …)",
            )  # fmt: skip
    elif declared.kind == "parameter":
        fits = options == [Tensor]
    else:
        fits = len(options) == 1 and _is_subclass(options[0], module)
    if not fits:
        shown = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", repr(annotation))
        hint = f"write `{attribute}: {_example(declared)} = {declared}`"
        if declared.kind == "tensor" and options == [Tensor]:
            hint = "declare a bare tensor with parameter(name, use=…); tensor() makes a module, such as Linear"
        raise definition_error(
            cls, attribute, f"is annotated {shown}; {declared} needs {_EXPECTED[declared.kind]}", hint=hint
        )
    return options[0]


def _is_subclass(value: Any, base: type) -> bool:
    return isinstance(value, type) and issubclass(value, base)


def _without_none(annotation: Any) -> list[Any]:
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return [a for a in typing.get_args(annotation) if a is not type(None)]
    return [annotation]


def _example(declared: Declaration) -> str:
    return {"tensor": "Linear", "submodule": "MLP", "layers": "list[Block]", "parameter": "Tensor"}[declared.kind]
