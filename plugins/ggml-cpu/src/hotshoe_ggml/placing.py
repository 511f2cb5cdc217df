"""On which unit each node of a ggml graph runs, where there are several; and that each node has one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hotshoe_core.errors import UnsupportedOpError
from hotshoe_ggml._native import ffi, lib
from hotshoe_ggml.unit import Unit, is_view

__all__ = ["choose_units"]


def choose_units(cgraph: Any, units: Sequence[Unit], wanted: Sequence[Unit]) -> list[Unit]:
    """The unit of each node: the one wanted or, if that cannot, the CPU, which is the last.

    wanted: of each node, but for those at the end, for which the scheduler finds one. What writes in place runs where
    its memory lies: in that of a state on its device, and else the memory moves along.

    Raises UnsupportedOpError for a node that none can run: ggml would end the process.
    """
    nodes = [lib().ggml_graph_node(cgraph, i) for i in range(lib().ggml_graph_n_nodes(cgraph))]
    holders = [_holders(node, units) for node in nodes]
    for node, able in zip(nodes, holders):
        if not any(unit.supports(node) for unit in able or units):
            raise _unsupported(node, able or units, in_place=bool(able))
    if len(units) == 1:
        return []
    chosen = [
        _first(node, [unit, units[-1]] if not able else sorted(able, key=lambda each: each is not unit))
        for node, unit, able in zip(nodes, wanted, holders)
    ]
    moved = {
        _address(node.view_src)
        for node, unit, able in zip(nodes, chosen, holders)
        if _writes(node) and not able and unit is units[-1]
    }
    for i, node in enumerate(nodes[: len(chosen)]):
        if not holders[i] and {_address(node), _address(node.view_src)} & moved:
            chosen[i] = units[-1]
    return chosen


def _writes(node: Any) -> bool:
    """Whether the node writes into memory that is another tensor's."""
    return node.view_src != ffi.NULL and not is_view(node)


def _holders(node: Any, units: Sequence[Unit]) -> list[Unit]:
    """The units on whose memory the node writes, if that is a state's, which lies where it lies; else none."""
    if len(units) == 1 or not _writes(node) or node.view_src.buffer == ffi.NULL:
        return []
    kind = lib().ggml_backend_buffer_get_type(node.view_src.buffer)
    return [unit for unit in units if unit.buffer_type == kind] or [units[-1]]


def _first(node: Any, units: Sequence[Unit]) -> Unit:
    """The first that runs the node; one of them does, or the scheduler finds another."""
    return next((unit for unit in units if unit.supports(node)), units[-1])


def _address(pointer: Any) -> int:
    return int(ffi.cast("uintptr_t", pointer))


def _unsupported(node: Any, units: Sequence[Unit], *, in_place: bool) -> UnsupportedOpError:
    g = lib()
    types = [ffi.string(g.ggml_type_name(s.type)).decode() for s in node.src if s != ffi.NULL]
    where = " or ".join(unit.name for unit in units)
    return UnsupportedOpError(
        f"{ffi.string(node.name).decode()}: ggml's {ffi.string(g.ggml_op_desc(node)).decode()} does not run on {where}"
        f"{', in whose memory it writes,' if in_place else ''} for operands of type {', '.join(types)}"
    )
