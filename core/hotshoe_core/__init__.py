"""hotshoe's core: the contract between models and compute backends.

There is a folder for each subject. At run time, a folder imports only folders before it in this list:

    errors      the error tree, and checks of user arguments
    tensors     Tensor, Op, DType: symbolic values and the rows of the op table
    gguf        reading GGUF files
    ops         the op table, as functions over Tensors
    graphs      Graph and Context: build a graph once, compute it many times
    contract    Device, Provider, Backend, Executable: what a plugin implements
    eager       a backend from a table of functions; the reference backend
    inspect     dump, to_dot and traces: look at what a graph computes
    testing     the conformance kit

Three circles are for type checkers only:

    errors → contract    InsufficientMemoryError.memory is a BackendMemory
    tensors → graphs     Tensor.context is a Context
    graphs → contract    Context.backend is a Backend, which returns an Executable; Splits reads a Placement

The names below are imported on first use, so ``import hotshoe_core`` costs nothing.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hotshoe_core.contract.backend import (
        Backend,
        CacheConfig,
        Counters,
        Executable,
        NodePlacement,
        Placement,
        Progress,
        WeightData,
    )
    from hotshoe_core.contract.device import API_VERSION, BackendParams, Device, DeviceType, Provider
    from hotshoe_core.contract.memory import AllocationStatus, BackendMemory, DeviceMemory, Memory
    from hotshoe_core.contract.plugin import hookimpl
    from hotshoe_core.eager.adapter import EagerBackend
    from hotshoe_core.eager.library import EagerLibrary
    from hotshoe_core.graphs.context import Context
    from hotshoe_core.graphs.graph import Graph
    from hotshoe_core.graphs.splits import Splits
    from hotshoe_core.inspect.debug import dump, to_dot
    from hotshoe_core.ops import TABLE
    from hotshoe_core.tensors.dtypes import DType
    from hotshoe_core.tensors.op import Op
    from hotshoe_core.tensors.scope import scope
    from hotshoe_core.tensors.tensor import Tensor, constant

_EXPORTS = {
    "contract.backend": (
        "Backend",
        "CacheConfig",
        "Counters",
        "Executable",
        "NodePlacement",
        "Placement",
        "Progress",
        "WeightData",
    ),
    "contract.device": ("API_VERSION", "BackendParams", "Device", "DeviceType", "Provider"),
    "contract.memory": ("AllocationStatus", "BackendMemory", "DeviceMemory", "Memory"),
    "contract.plugin": ("hookimpl",),
    "eager.adapter": ("EagerBackend",),
    "eager.library": ("EagerLibrary",),
    "graphs.context": ("Context",),
    "graphs.graph": ("Graph",),
    "graphs.splits": ("Splits",),
    "inspect.debug": ("dump", "to_dot"),
    "ops": ("TABLE",),
    "tensors.dtypes": ("DType",),
    "tensors.op": ("Op",),
    "tensors.scope": ("scope",),
    "tensors.tensor": ("Tensor", "constant"),
}
_MODULE = {name: module for module, names in _EXPORTS.items() for name in names}

__all__ = [
    "API_VERSION",
    "TABLE",
    "AllocationStatus",
    "Backend",
    "BackendMemory",
    "BackendParams",
    "CacheConfig",
    "Context",
    "Counters",
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
    "Progress",
    "Provider",
    "Splits",
    "Tensor",
    "WeightData",
    "constant",
    "dump",
    "hookimpl",
    "scope",
    "to_dot",
]


def __getattr__(name: str) -> Any:
    if name in _MODULE:
        return getattr(importlib.import_module(f"hotshoe_core.{_MODULE[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
