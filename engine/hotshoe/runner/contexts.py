"""A small cache of compiled contexts by shape signature: the same shapes again cost no building."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from typing import Any, NamedTuple

from hotshoe_core import Context, Tensor

__all__ = ["Built", "ContextCache"]


class Built(NamedTuple):
    """A context, its inputs by name, and what it computes."""

    context: Context
    inputs: Mapping[str, Tensor]
    outputs: tuple[Tensor, ...]


class ContextCache:
    """Least recently used contexts are closed, for each holds its graph's memory."""

    def __init__(self, build: Callable[[Any], Built], capacity: int = 8) -> None:
        self._build = build
        self._capacity = capacity
        self._built: OrderedDict[Hashable, Built] = OrderedDict()

    def get(self, signature: Hashable) -> Built:
        """The context for these shapes, built if it is not there."""
        if signature in self._built:
            self._built.move_to_end(signature)
        else:
            while len(self._built) >= self._capacity:
                _, oldest = self._built.popitem(last=False)
                oldest.context.close()
            self._built[signature] = self._build(signature)
        return self._built[signature]

    def close(self) -> None:
        for built in self._built.values():
            built.context.close()
        self._built.clear()
