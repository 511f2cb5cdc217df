"""The scope: the name and the layer of the part of a model that is being built, in each thread."""

from __future__ import annotations

import threading

__all__ = ["current_scope", "scope", "scope_name"]


class _Scope(threading.local):
    name = ""
    layer = -1


current_scope = _Scope()


class scope:  # noqa: N801  (used as a function: with scope("blk.0", 0))
    """Name the part of the model that is being built. Errors, drawings and memory reports show the name.

    layer: the layer of the nodes made inside; None keeps that of the enclosing scope.
    """

    __slots__ = ("_layer", "_name", "_outer")

    # a class, as contextlib.contextmanager takes twice as long, and a graph has hundreds of scopes
    def __init__(self, name: str, layer: int | None = None) -> None:
        self._name = name
        self._layer = layer

    def __enter__(self) -> None:
        outer = current_scope.name
        self._outer = outer, current_scope.layer
        current_scope.name = f"{outer}.{self._name}" if outer else self._name
        if self._layer is not None:
            current_scope.layer = self._layer

    def __exit__(self, *_: object) -> None:
        current_scope.name, current_scope.layer = self._outer


def scope_name() -> str:
    """The name of the part of the model that is being built; empty outside any ``scope``."""
    return current_scope.name
