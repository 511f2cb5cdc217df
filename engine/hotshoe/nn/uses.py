"""Check which ops read a model's tensors: a wrong ``use`` would choose another device or layout for the tensor."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from hotshoe_core import Tensor
from hotshoe_core.errors import ModelDefinitionError
from hotshoe_core.tensors.tensor import TABLE

if TYPE_CHECKING:
    from hotshoe.nn.module import Module
    from hotshoe_core.graphs.graph import Graph

__all__ = ["check_uses"]

_SAME = {"cached_attention": "attention"}  # which of the two is used depends on the backend
_CHECKED = "hotshoe.nn.basic"  # a bias may be an operand of a fused op there


def check_uses(model: Module, graph: Graph) -> None:
    """Raise ModelDefinitionError if a graph reads a declared tensor, but with other ops than its ``use``.

    Tensors that the graph does not read are not checked.
    """
    readers: dict[Tensor, set[str]] = defaultdict(set)
    for node in graph.nodes:
        for source in node.sources:
            if source is not None and not _is_view(node):
                readers[_behind(source)].add(_SAME.get(node.op, node.op))
    for p in model.parameters():
        found = readers.get(getattr(p.module, p.attribute, None), set())  # type: ignore[arg-type]
        owner = type(p.module)
        if found and p.use not in found and owner.__call__.__module__ != _CHECKED:
            (first, *_) = sorted(found)
            raise ModelDefinitionError(
                f"{owner.__module__}.{owner.__qualname__}.{p.attribute}: it is declared with use={p.use!r}, but the op "
                f"{' and '.join(sorted(found))} reads it",
                hint=f"write use={first!r}",
            )


def _is_view(node: Tensor) -> bool:
    return TABLE[node.op].movement and node.op != "take"


def _behind(tensor: Tensor) -> Tensor:
    while not tensor.is_leaf and _is_view(tensor):
        tensor = tensor.source(0)
    return tensor
