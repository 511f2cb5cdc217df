"""hotshoe's core: the contract between models and compute backends.

Names are imported on first use, so that ``import hotshoe_core`` costs nothing:

    tensor      Tensor, constant, scope         dtypes   DType
    op, ops     Op; the op table as functions   graph    Graph, lower
    context     Context                         backend  Backend, Executable
    device      Device, Provider                memory   BackendMemory
    eager       EagerBackend, EagerLibrary      errors   the error tree
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hotshoe_core.backend import Backend, CacheConfig, Executable, NodePlacement, Placement, WeightData
    from hotshoe_core.context import Context
    from hotshoe_core.debug import dump, to_dot
    from hotshoe_core.device import API_VERSION, BackendParams, Device, DeviceType, Provider
    from hotshoe_core.dtypes import DType
    from hotshoe_core.eager import EagerBackend, EagerLibrary
    from hotshoe_core.graph import Graph
    from hotshoe_core.memory import AllocationStatus, BackendMemory, DeviceMemory, Memory
    from hotshoe_core.op import Op
    from hotshoe_core.places import Splits
    from hotshoe_core.tensor import Tensor, constant, scope

_HOME = {
    "backend": ("Backend", "CacheConfig", "Executable", "NodePlacement", "Placement", "WeightData"),
    "context": ("Context",),
    "device": ("API_VERSION", "BackendParams", "Device", "DeviceType", "Provider"),
    "dtypes": ("DType",),
    "debug": ("dump", "to_dot"),
    "eager": ("EagerBackend", "EagerLibrary"),
    "graph": ("Graph",),
    "memory": ("AllocationStatus", "BackendMemory", "DeviceMemory", "Memory"),
    "op": ("Op",),
    "places": ("Splits",),
    "tensor": ("Tensor", "constant", "scope"),
}
_MODULE = {name: module for module, names in _HOME.items() for name in names}

__all__ = [
    "API_VERSION",
    "AllocationStatus",
    "Backend",
    "BackendMemory",
    "BackendParams",
    "CacheConfig",
    "Context",
    "DType",
    "Device",
    "DeviceMemory",
    "DeviceType",
    "EagerBackend",
    "EagerLibrary",
    "Executable",
    "Graph",
    "Memory",
    "NodePlacement",
    "Op",
    "Placement",
    "Provider",
    "Splits",
    "Tensor",
    "WeightData",
    "constant",
    "dump",
    "scope",
    "to_dot",
]


def __getattr__(name: str) -> Any:
    if name in _MODULE:
        return getattr(importlib.import_module(f"hotshoe_core.{_MODULE[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
