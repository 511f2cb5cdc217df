"""What a Module's attributes declare, and what is wrong with a declaration that cannot be followed."""

from __future__ import annotations

import inspect
import sys
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from hotshoe_core import Tensor
from hotshoe_core.errors import ModelDefinitionError, did_you_mean

__all__ = ["Declaration", "check_class", "declarations", "definition_error"]

_EXPECTED = {
    "tensor": "a subclass of Module (or one `| None`)",
    "part": "a subclass of Module (or one `| None`)",
    "layers": "list[…] of a subclass of Module",
    "parameter": "Tensor (or `Tensor | None`)",
}


class Declaration(NamedTuple):
    """The value of a class attribute that is one of ``tensor(…)``, ``part()``, ``layers(…)``, ``parameter(…)``."""

    kind: Literal["tensor", "part", "layers", "parameter"]
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
    """An error of the class's author, which says where: module, class and attribute."""
    where = f"{cls.__module__}.{cls.__qualname__}" + (f".{attribute}" if attribute else "")
    return ModelDefinitionError(f"{where}: {message}", hint=hint)


def check_class(cls: type, module: type, names: Mapping[str, Any]) -> dict[str, Any]:
    """Attribute → the class its annotation names, for the declarations in the body of ``cls``, as it is made.

    names: what is defined where the class is. An annotation that names what is defined only later is left out, and
    looked at when the first module of the class is made. Raises ModelDefinitionError for a declaration that is wrong.
    """
    annotations = _all_annotations(cls)
    found = {}
    for attribute, declared in vars(cls).items():
        if not isinstance(declared, Declaration):
            continue
        if attribute not in annotations:
            raise definition_error(
                cls, attribute, f"{declared} has no annotation, so its type is not known",
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
    """Attribute → its declaration and the class its annotation names, in the order of the classes' bodies."""
    if cls in _found:
        return _found[cls]
    found = {}
    for attribute, (owner, annotation) in _all_annotations(cls).items():
        declared = inspect.getattr_static(cls, attribute, None)
        if isinstance(declared, Declaration):
            if attribute in vars(owner).get("_kinds", ()):
                found[attribute] = (declared, vars(owner)["_kinds"][attribute])
                continue
            try:
                kind = _evaluate(owner, annotation, {})
            except NameError as error:
                known = [n for n, value in vars(sys.modules[owner.__module__]).items() if _is_module(value, module)]
                raise definition_error(
                    owner, attribute, f"the annotation {annotation!r} cannot be read: {error}",
                    hint=f"{did_you_mean(str(error.name), known)}; it must be defined in the module when a model is "
                    "made, not only under TYPE_CHECKING",
                ) from error  # fmt: skip
            found[attribute] = (declared, _check_kind(owner, attribute, declared, kind, module))
    _found[cls] = found
    return found


def _all_annotations(cls: type) -> dict[str, tuple[type, Any]]:
    """Attribute → the class whose body annotates it last, and how."""
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
    """The class that an annotation names. Raises ModelDefinitionError if it is not what the declaration needs."""
    options = _without_none(annotation)
    if declared.kind == "layers":
        inner = typing.get_args(annotation) if typing.get_origin(annotation) in (list, Sequence) else ()
        options = _without_none(inner[0]) if inner else []
        fits = bool(options) and all(_is_module(option, module) for option in options)
        if fits and declared.kind_of is None and len(options) > 1:
            raise definition_error(
                cls, attribute, f"{len(options)} classes of layers and no rule which layer is of which",
                hint=f"layers({declared.names[0]!r}, kind=lambda config, index: …)",
            )  # fmt: skip
    elif declared.kind == "parameter":
        fits = options == [Tensor]
    else:
        fits = len(options) == 1 and _is_module(options[0], module)
    if not fits:
        shown = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", repr(annotation))
        hint = f"write `{attribute}: {_example(declared)} = {declared}`"
        if declared.kind == "tensor" and options == [Tensor]:
            hint = "a bare tensor is a parameter(name, use=…); tensor() makes a module around it, Linear say"
        raise definition_error(
            cls, attribute, f"is annotated {shown}; {declared} needs {_EXPECTED[declared.kind]}", hint=hint
        )
    return options[0]


def _is_module(value: Any, module: type) -> bool:
    return isinstance(value, type) and issubclass(value, module)


def _without_none(annotation: Any) -> list[Any]:
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return [a for a in typing.get_args(annotation) if a is not type(None)]
    return [annotation]


def _example(declared: Declaration) -> str:
    return {"tensor": "Linear", "part": "MLP", "layers": "list[Block]", "parameter": "Tensor"}[declared.kind]
