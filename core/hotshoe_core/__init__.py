"""hotshoe's core: the contract between models and compute backends.

A folder for each subject; a folder imports only those above it in this list:

    errors      the error tree, and checks of what users pass
    tensors     Tensor, Op, DType: symbolic values and the rows of the op table
    gguf        reading GGUF files
    ops         the op table, as functions over Tensors
    graphs      Graph and Context: build once, compute many
    contract    Device, Provider, Backend, Executable: what a plugin implements
    eager       a backend out of a table of functions; the reference backend
    inspect     dump, to_dot and traces: look at what a graph computes
    testing     the conformance kit

The names below are imported on first use, so that ``import hotshoe_core`` costs nothing.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hotshoe_core.contract.backend import Backend, CacheConfig, Executable, NodePlacement, Placement, WeightData
    from hotshoe_core.contract.device import API_VERSION, BackendParams, Device, DeviceType, Provider
    from hotshoe_core.contract.memory import AllocationStatus, BackendMemory, DeviceMemory, Memory
    from hotshoe_core.eager.adapter import EagerBackend
    from hotshoe_core.eager.library import EagerLibrary
    from hotshoe_core.graphs.context import Context
    from hotshoe_core.graphs.graph import Graph
    from hotshoe_core.graphs.splits import Splits
    from hotshoe_core.inspect.debug import dump, to_dot
    from hotshoe_core.tensors.dtypes import DType
    from hotshoe_core.tensors.op import Op
    from hotshoe_core.tensors.tensor import Tensor, constant, scope

_HOME = {
    "contract.backend": ("Backend", "CacheConfig", "Executable", "NodePlacement", "Placement", "WeightData"),
    "contract.device": ("API_VERSION", "BackendParams", "Device", "DeviceType", "Provider"),
    "contract.memory": ("AllocationStatus", "BackendMemory", "DeviceMemory", "Memory"),
    "eager.adapter": ("EagerBackend",),
    "eager.library": ("EagerLibrary",),
    "graphs.context": ("Context",),
    "graphs.graph": ("Graph",),
    "graphs.splits": ("Splits",),
    "inspect.debug": ("dump", "to_dot"),
    "tensors.dtypes": ("DType",),
    "tensors.op": ("Op",),
    "tensors.tensor": ("Tensor", "constant", "scope"),
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
