"""The reference backend: NumPy, always there, slow and right.

It is the oracle of the conformance kit and what ``load_all()`` falls back to. Its functions are the op
table's own: what a primitive means is what this backend does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hotshoe_core.device import API_VERSION, BackendParams, Device, DeviceType

if TYPE_CHECKING:
    import numpy as np

    from hotshoe_core.backend import Backend, WeightData
    from hotshoe_core.dtypes import DType
    from hotshoe_core.eager import EagerLibrary

__all__ = ["DEVICE", "ReferenceProvider", "numpy_library", "open_reference"]

DEVICE = Device(
    name="reference",
    type=DeviceType.CPU,
    provider="reference",
    family="reference",
    description="NumPy, for checking: slow",
)


class ReferenceProvider:
    """Offers NumPy as a device. Imports it only when the backend is opened."""

    name = "reference"
    family = "reference"
    api_version = API_VERSION

    def native(self) -> None:
        return None

    def devices(self, library: Path | None) -> Sequence[Device]:
        return [DEVICE]

    def open(self, devices: Sequence[Device], params: BackendParams) -> Backend:
        return open_reference(params)


def open_reference(params: BackendParams | None = None) -> Backend:
    """The NumPy backend."""
    from hotshoe_core.eager import EagerBackend

    return EagerBackend("reference", DEVICE, params or BackendParams(), numpy_library())


def numpy_library() -> EagerLibrary:
    """NumPy as a library of the adapter: the op table's own functions."""
    import numpy as np

    import hotshoe_core.ops  # noqa: F401  (fills the table)
    from hotshoe_core.dtypes import DType
    from hotshoe_core.eager import EagerLibrary
    from hotshoe_core.tensor import TABLE

    return EagerLibrary(
        functions={name: _in_f32(name, op.reference) for name, op in TABLE.items() if op.reference is not None},
        from_numpy=lambda array, dtype: array,
        to_numpy=np.asarray,
        weight=_weight,
        nbytes=lambda shape, dtype: (dtype if dtype.numpy is not None else DType.F32).nbytes(shape),
        in_place={"set_rows": _set_rows_in_place, "set_slice": _set_slice_in_place},
        copy=np.array,
    )


def _set_rows_in_place(x: Any, indices: Any, rows: Any, *, dtype: DType) -> Any:
    from hotshoe_core.quants import round_to

    x[indices] = round_to(rows, dtype)
    return x


def _set_slice_in_place(x: Any, values: Any, *, slices: Any, dtype: DType) -> Any:
    from hotshoe_core.quants import round_to

    x[tuple(slice(*s) for s in slices)] = round_to(values, dtype)
    return x


_KEEP_TYPE = frozenset({"reshape", "permute", "expand", "slice", "concat", "set_rows", "set_slice", "cast"})


def _in_f32(name: str, body: Callable[..., Any]) -> Callable[..., Any]:
    """NumPy would compute in float16 what the contract computes in F32."""
    if name in _KEEP_TYPE:
        return body

    def call(*arrays: np.ndarray[Any, Any] | None, **attrs: Any) -> Any:
        return body(*(_f4(a) for a in arrays), **attrs)

    return call


def _f4(array: Any) -> Any:
    return array.astype("f4", copy=False) if array is not None and array.dtype.kind == "f" else array


def _weight(w: WeightData) -> np.ndarray[Any, Any]:
    from hotshoe_core.quants import dequantize

    return dequantize(w.data, w.dtype, w.shape)
