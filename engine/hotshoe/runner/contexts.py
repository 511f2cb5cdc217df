"""A small cache of compiled contexts by shape signature: the same shapes again cost no building."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Generic, NamedTuple, TypeVar

from hotshoe_core import Context, Tensor

__all__ = ["Built", "ContextCache"]

S = TypeVar("S")


class Built(NamedTuple):
    """A context, its inputs by name, and what it computes."""

    context: Context
    inputs: Mapping[str, Tensor]
    outputs: tuple[Tensor, ...]


class ContextCache(Generic[S]):
    """Least recently used contexts are closed, for each holds its graph's memory.

    capacity: how much they may weigh together; weight: of a signature, 1 if there is no such function.
    """

    def __init__(
        self, build: Callable[[S], Built], capacity: int = 8, weight: Callable[[S], int] | None = None
    ) -> None:
        self._build = build
        self._capacity = capacity
        self._weight = weight or (lambda signature: 1)
        self._built: OrderedDict[S, Built] = OrderedDict()
        self.n_built = 0

    def get(self, signature: S) -> Built:
        """The context for these shapes, built if it is not there."""
        if signature in self._built:
            self._built.move_to_end(signature)
            return self._built[signature]
        room = self._capacity - self._weight(signature)
        while self._built and sum(map(self._weight, self._built)) > room:
            _, oldest = self._built.popitem(last=False)
            oldest.context.close()
        built = self._build(signature)
        self._built[signature] = built
        self.n_built += 1
        return built

    @property
    def signatures(self) -> tuple[S, ...]:
        """Of what is there, the least recently used first."""
        return tuple(self._built)

    def close(self) -> None:
        for built in self._built.values():
            built.context.close()
        self._built.clear()
