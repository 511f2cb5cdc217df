"""Assign each node of a ggml graph to a unit. Raise UnsupportedOpError if no unit can run a node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hotshoe_core.errors import UnsupportedOpError
from hotshoe_ggml.native import ffi, lib
from hotshoe_ggml.native.context import is_view_op
from hotshoe_ggml.unit import Unit

__all__ = ["address_of", "assign_units", "units_of_inputs"]


def assign_units(cgraph: Any, units: Sequence[Unit], wanted: Sequence[Unit]) -> list[Unit]:
    """The unit of each node: the wanted one, or the CPU, which is the last unit, if the wanted one cannot run the node.

    Returns [] if there is only one unit: then there is nothing to choose. wanted: the unit of each node, except the
    copies at the end, which run where their sources are. A node that writes into a state runs on the state's device.
    The memory of other nodes that write in place moves to the unit that runs them.

    Raises UnsupportedOpError if no unit can run a node: ggml would end the process.
    """
    nodes = [lib().ggml_graph_node(cgraph, i) for i in range(lib().ggml_graph_n_nodes(cgraph))]
    state_units = [_units_of_state(node, units) for node in nodes]
    if len(units) == 1:
        for node in nodes:
            _first(node, units, units, in_place=False)
        return []
    places = {address_of(node): unit for node, unit in zip(nodes, wanted)}
    wanted = [*wanted, *(_unit_of(node.src[0], places, units) for node in nodes[len(wanted) :])]
    chosen = [
        _first(node, _with_first(unit, owners), owners, in_place=True)
        if owners
        else _first(node, [unit, units[-1]], units, in_place=False)
        for node, unit, owners in zip(nodes, wanted, state_units)
    ]
    moved = {
        address_of(node.view_src)
        for node, unit, owners in zip(nodes, chosen, state_units)
        if _writes(node) and not owners and unit is units[-1]
    }
    for i, node in enumerate(nodes):
        if not state_units[i] and {address_of(node), address_of(node.view_src)} & moved:
            chosen[i] = units[-1]
    return chosen


def units_of_inputs(node_units: Sequence[tuple[Any, Unit]], inputs: Sequence[Any]) -> list[tuple[Any, Unit]]:
    """The inputs that only one unit reads, each with that unit. ggml would put them on the CPU, and copy them."""
    readers: dict[int, set[Unit]] = {address_of(tensor): set() for tensor in inputs}
    for node, unit in node_units if inputs else ():
        for source in () if is_view_op(node) else node.src:
            while source != ffi.NULL:
                if address_of(source) in readers:
                    readers[address_of(source)].add(unit)
                source = source.view_src
    return [(tensor, *readers[address_of(tensor)]) for tensor in inputs if len(readers[address_of(tensor)]) == 1]


def _writes(node: Any) -> bool:
    """Whether the node writes into the memory of another tensor."""
    return node.view_src != ffi.NULL and not is_view_op(node)


def _units_of_state(node: Any, units: Sequence[Unit]) -> list[Unit]:
    """The units whose memory has the state that the node writes into; [] if it does not write into a state."""
    if len(units) == 1 or not _writes(node) or node.view_src.buffer == ffi.NULL:
        return []
    kind = lib().ggml_backend_buffer_get_type(node.view_src.buffer)
    return [unit for unit in units if unit.buffer_type == kind] or [units[-1]]


def _unit_of(tensor: Any, places: Mapping[int, Unit], units: Sequence[Unit]) -> Unit:
    """The unit that has a tensor in its memory: the unit of its node, or of its buffer. An input is with the CPU."""
    while tensor != ffi.NULL:
        if address_of(tensor) in places:
            return places[address_of(tensor)]
        if tensor.buffer != ffi.NULL:
            kind = lib().ggml_backend_buffer_get_type(tensor.buffer)
            return next((unit for unit in units if unit.buffer_type == kind), units[-1])
        tensor = tensor.view_src
    return units[-1]


def _with_first(unit: Unit, units: Sequence[Unit]) -> Sequence[Unit]:
    return sorted(units, key=lambda candidate: candidate is not unit)


def _first(node: Any, order: Sequence[Unit], units: Sequence[Unit], *, in_place: bool) -> Unit:
    """The first unit in ``order``, or else in ``units``, that runs the node. Raises UnsupportedOpError without one."""
    for unit in (*order, *units):
        if unit.supports(node):
            return unit
    raise _unsupported(node, units, in_place=in_place)


def address_of(pointer: Any) -> int:
    """The address of a tensor: two pointers of cffi to one tensor are different objects."""
    return int(ffi.cast("uintptr_t", pointer))


def _unsupported(node: Any, units: Sequence[Unit], *, in_place: bool) -> UnsupportedOpError:
    g = lib()
    types = [ffi.string(g.ggml_type_name(s.type)).decode() for s in node.src if s != ffi.NULL]
    names = " or ".join(unit.name for unit in units)
    return UnsupportedOpError(
        f"{ffi.string(node.name).decode()}: ggml's {ffi.string(g.ggml_op_desc(node)).decode()} does not run on {names}"
        f"{', in whose memory it writes,' if in_place else ''} for operands of type {', '.join(types)}"
    )
