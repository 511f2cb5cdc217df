"""The reference backend: NumPy, always available, slow and correct.

It is the oracle of the conformance kit, and ``load_all()`` falls back to it. Its functions are those of the op table,
which define what a primitive means.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hotshoe_core.contract.device import API_VERSION, BackendParams, Device, DeviceType
from hotshoe_core.contract.host_memory import host_memory

if TYPE_CHECKING:
    from hotshoe_core.contract.backend import Backend
    from hotshoe_core.eager.library import EagerLibrary
    from hotshoe_core.tensors.dtypes import DType

__all__ = ["ReferenceProvider", "numpy_library", "open_reference", "reference_device"]


def reference_device() -> Device:
    """The device of this backend, with the memory that the computer has available now."""
    memory = host_memory()
    return Device(
        name="reference",
        type=DeviceType.CPU,
        provider="reference",
        family="reference",
        description="NumPy, for checking: slow",
        memory_total=memory.total if memory else 0,
        memory_free=memory.available if memory else 0,
    )


class ReferenceProvider:
    """Offers NumPy as a device. Imports NumPy only when the backend is opened."""

    name = "reference"
    family = "reference"
    api_version = API_VERSION

    def native(self) -> None:
        return None

    def devices(self, library: Path | None) -> Sequence[Device]:
        return [reference_device()]

    def open(self, devices: Sequence[Device], params: BackendParams) -> Backend:
        return open_reference(params)


def open_reference(params: BackendParams | None = None) -> Backend:
    """The NumPy backend."""
    from hotshoe_core.eager.adapter import EagerBackend

    return EagerBackend("reference", reference_device(), params or BackendParams(), numpy_library())


def numpy_library() -> EagerLibrary:
    """NumPy as a library for the adapter, with the functions of the op table."""
    import numpy as np

    import hotshoe_core.ops  # noqa: F401  (fills the table)
    from hotshoe_core.eager.library import EagerLibrary
    from hotshoe_core.tensors.quants import dequantize
    from hotshoe_core.tensors.tensor import TABLE

    return EagerLibrary(
        functions={name: op.reference for name, op in TABLE.items() if op.reference is not None},
        from_numpy=lambda array, dtype: array,
        to_numpy=np.asarray,
        f32=lambda array: array.astype("f4"),  # NumPy would compute in float16; the contract says F32
        weight=lambda w: dequantize(w.data, w.dtype, w.shape),  # plain types stay in the file's memory
        in_place={"set_rows": _set_rows_in_place, "set_slice": _set_slice_in_place},
        copy=np.array,
        checks_indices=True,
        independent=True,
    )


def _set_rows_in_place(x: Any, indices: Any, rows: Any, *, dtype: DType) -> Any:
    x[indices] = rows  # as x's type
    return x


def _set_slice_in_place(x: Any, values: Any, *, slices: Any, dtype: DType) -> Any:
    x[tuple(slice(*s) for s in slices)] = values
    return x
