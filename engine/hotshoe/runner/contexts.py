"""A small cache of compiled graphs, each found by its signature."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Generic, NamedTuple, TypeVar

from hotshoe_core import Context, Tensor

__all__ = ["Built", "ContextCache"]

S = TypeVar("S")


class Built(NamedTuple):
    """A built graph: its context, its inputs by name, and its outputs."""

    context: Context
    inputs: Mapping[str, Tensor]
    outputs: tuple[Tensor, ...]


class ContextCache(Generic[S]):
    """Built graphs by signature: the values that a graph depends on. The least recently used ones are closed.

    capacity: the total weight of the graphs that are kept, as each of them holds memory. weight: the weight of a
    signature; None: 1 for each.
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
        """Return the graph of this signature; build it if it is not cached."""
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
        """The signatures of the cached graphs, the least recently used first."""
        return tuple(self._built)

    def close(self) -> None:
        """Close all graphs."""
        for built in self._built.values():
            built.context.close()
        self._built.clear()
