"""Building blocks for lives.py, memory.py and devices.py: patches of the adapter over NumPy.

A row of their tables names the test or graph of the kit that must find the error, or the op whose cases must, and a
patch: methods of the backend or of its executable, or parts of its library.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from hotshoe_core.contract.backend import Backend
from hotshoe_core.contract.device import BackendParams
from hotshoe_core.eager.adapter import EagerBackend, EagerExecutable
from hotshoe_core.eager.reference import numpy_library, reference_device
from hotshoe_core.testing import GRAPH_CASES, OP_CASES, BackendConformance, MultiDeviceConformance
from tests.core.mutants.mutant import Mutant, Test, subclass

Array = np.ndarray[Any, Any]
Patch = Callable[[EagerBackend], None]
f4 = np.float32


def backend(**methods: Callable[..., Any]) -> Patch:
    made = subclass(EagerBackend, methods)

    def patch(right: EagerBackend) -> None:
        right.__class__ = made

    return patch


def executable(**methods: Callable[..., Any]) -> Patch:
    made = subclass(EagerExecutable, methods)

    def compile(self: EagerBackend, graph: Any) -> EagerExecutable:
        compiled = EagerBackend.compile(self, graph)
        compiled.__class__ = made
        return compiled

    return backend(compile=compile)


def library(**parts: Any) -> Patch:
    def patch(right: EagerBackend) -> None:
        right._libraries = tuple(replace(each, **parts) for each in right._libraries)

    return patch


def each(*patches: Patch) -> Patch:
    def patch(right: EagerBackend) -> None:
        for one in patches:
            one(right)

    return patch


def over_numpy(params: BackendParams) -> EagerBackend:
    return EagerBackend("mutant", reference_device(), params, numpy_library())


def patched(open: Callable[[BackendParams], EagerBackend], patch: Patch) -> Callable[[BackendParams], Backend]:
    def opened(params: BackendParams) -> Backend:
        made = open(params)
        patch(made)
        return made

    return opened


def of_patches(
    rows: Mapping[str, tuple[str, Patch]],
    right: Callable[[BackendParams], EagerBackend] = over_numpy,
    kit: type[BackendConformance | MultiDeviceConformance] = BackendConformance,
) -> dict[str, Mutant]:
    """A mutant for each row of a table."""
    return {name: Mutant(patched(right, patch), right, _tests(test), "", kit) for name, (test, patch) in rows.items()}


def _tests(name: str) -> list[Test]:
    return [name] if name.startswith("test_") else [c for c in (*GRAPH_CASES, *OP_CASES) if name in (c.id, c.op)]
