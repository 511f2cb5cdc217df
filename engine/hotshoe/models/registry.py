"""Which model class implements which ``general.architecture``."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import TypeVar

from hotshoe.nn import Module
from hotshoe_core.errors import UnknownArchitectureError, did_you_mean

__all__ = ["find", "register"]

M = TypeVar("M", bound=type[Module])

_ARCHITECTURES = ("bert", "gemma3", "llama", "phi3", "qwen2", "qwen3", "qwen3moe")
_MODULES = {name: f"hotshoe.models.{name}" for name in _ARCHITECTURES}  # imported when a file asks for one
_registered: dict[str, type[Module]] = {}


def register(*architectures: str) -> Callable[[M], M]:
    """Class decorator: this model implements these values of ``general.architecture``.

    A model of your own needs nothing else; import its module before loading the file.
    """

    def add(cls: M) -> M:
        for name in architectures:
            _registered[name] = cls
        return cls

    return add


def find(architecture: str) -> type[Module]:
    """The model class. Raises UnknownArchitectureError with the nearest name."""
    if architecture not in _registered and architecture in _MODULES:
        importlib.import_module(_MODULES[architecture])
    try:
        return _registered[architecture]
    except KeyError:
        raise UnknownArchitectureError(
            f"no model implements the architecture {architecture!r}",
            hint=did_you_mean(architecture, {*_registered, *_MODULES}),
        ) from None
