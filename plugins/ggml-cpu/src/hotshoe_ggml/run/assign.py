"""Assign each node of a ggml graph to a unit. Raise UnsupportedOpError if no unit can run a node."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hotshoe_core.errors import UnsupportedOpError
from hotshoe_ggml.native import ffi, kernels, lib
from hotshoe_ggml.native.context import OutOfMemory, is_view_op
from hotshoe_ggml.unit import Unit

__all__ = ["assign_units"]


def assign_units(cgraph: Any, units: Sequence[Unit], wanted: np.ndarray[Any, Any]) -> np.ndarray[Any, Any] | None:
    """The number of the unit of each node: of the wanted one, or of the CPU, the last one, if that cannot run the node.

    Returns None if there is only one unit: then there is nothing to choose. wanted: the number for each node, except
    the copies at the end, which run where their sources are. A node that writes into a state runs on the state's
    device. The memory of other nodes that write in place moves to the unit that runs them.

    Raises UnsupportedOpError if no unit can run a node: ggml would end the process.
    """
    n, cpu = int(lib().ggml_graph_n_nodes(cgraph)), len(units) - 1
    node = functools.partial(lib().ggml_graph_node, cgraph)
    first = np.empty(n, np.int32)
    if not kernels().hotshoe_alike(cgraph, ffi.from_buffer("int32_t[]", first)):
        raise OutOfMemory(first.nbytes)
    if cpu == 0:
        for i in sorted(set(first.tolist())):
            _first(node(i), units, units, in_place=False)
        return None
    if len(wanted) < n:
        places = {_address_of(node(i)): unit for i, unit in enumerate(wanted.tolist())}
        added = [_unit_of(node(i).src[0], places, units) for i in range(len(wanted), n)]
        wanted = np.append(wanted, np.array(added, np.int8))
    # a model has many equal layers: what no unit can tell apart is chosen once
    of_node = first.astype(np.int64) * len(units) + wanted
    kinds = sorted(set(of_node.tolist()))  # np.unique would import numpy.ma, which takes 15 ms
    kind_of_node = np.searchsorted(kinds, of_node)
    chosen_by_kind, owned, moves = [], [], []
    for i, unit in (divmod(kind, len(units)) for kind in kinds):
        owners = _units_of_state(node(i), units)
        if owners:
            chosen = _first(node(i), _with_first(units[unit], owners), owners, in_place=True)
        else:
            chosen = _first(node(i), [units[unit], units[cpu]], units, in_place=False)
        chosen_by_kind.append(units.index(chosen))
        owned.append(bool(owners))
        moves.append(not owners and chosen is units[cpu] and _writes(node(i)))
    chosen_units: np.ndarray[Any, Any] = np.array(chosen_by_kind, np.int8)[kind_of_node]
    if any(moves):
        moved = {_address_of(node(i).view_src) for i in np.flatnonzero(np.array(moves)[kind_of_node]).tolist()}
        for i in np.flatnonzero(~np.array(owned)[kind_of_node]).tolist():
            if {_address_of(node(i)), _address_of(node(i).view_src)} & moved:
                chosen_units[i] = cpu
    return chosen_units


def _writes(node: Any) -> bool:
    """Whether the node writes into the memory of another tensor."""
    return node.view_src != ffi.NULL and not is_view_op(node)


def _units_of_state(node: Any, units: Sequence[Unit]) -> list[Unit]:
    """The units whose memory has the state that the node writes into; [] if it does not write into a state."""
    if len(units) == 1 or not _writes(node) or node.view_src.buffer == ffi.NULL:
        return []
    kind = lib().ggml_backend_buffer_get_type(node.view_src.buffer)
    return [unit for unit in units if unit.buffer_type == kind] or [units[-1]]


def _unit_of(tensor: Any, places: Mapping[int, int], units: Sequence[Unit]) -> int:
    """The unit that has a tensor in its memory: the unit of its node, or of its buffer. An input is with the CPU."""
    while tensor != ffi.NULL:
        if _address_of(tensor) in places:
            return places[_address_of(tensor)]
        if tensor.buffer != ffi.NULL:
            kind = lib().ggml_backend_buffer_get_type(tensor.buffer)
            return next((i for i, unit in enumerate(units) if unit.buffer_type == kind), len(units) - 1)
        tensor = tensor.view_src
    return len(units) - 1


def _with_first(unit: Unit, units: Sequence[Unit]) -> Sequence[Unit]:
    return sorted(units, key=lambda candidate: candidate is not unit)


def _first(node: Any, order: Sequence[Unit], units: Sequence[Unit], *, in_place: bool) -> Unit:
    """The first unit in ``order``, or else in ``units``, that runs the node. Raises UnsupportedOpError without one."""
    for unit in (*order, *units):
        if unit.supports(node):
            return unit
    raise _unsupported(node, units, in_place=in_place)


def _address_of(pointer: Any) -> int:
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
