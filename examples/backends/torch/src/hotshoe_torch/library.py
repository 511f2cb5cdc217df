"""PyTorch as a library of hotshoe's adapter, on one device."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import numpy as np
import torch

from hotshoe_core import Device, DType, EagerLibrary
from hotshoe_torch.accepts import ACCEPTS
from hotshoe_torch.functions import FUNCTIONS, IN_PLACE, TYPES


def torch_library(device: Device) -> EagerLibrary:
    """The library for one of the provider's devices."""
    index = device.name.removeprefix("torch:")
    on_gpu = index != "cpu"
    where = torch.device(f"cuda:{index}" if on_gpu else "cpu")

    def from_numpy(array: np.ndarray, dtype: DType) -> torch.Tensor:
        return torch.from_numpy(array).to(where, TYPES[dtype])

    def available() -> int:
        """What the driver has, and what torch has of it and does not use."""
        free, _ = torch.cuda.mem_get_info(where)
        return free + torch.cuda.memory_reserved(where) - torch.cuda.memory_allocated(where)

    return EagerLibrary(
        functions=FUNCTIONS,
        accepts=ACCEPTS,
        from_numpy=from_numpy,
        to_numpy=to_numpy,
        f32=torch.Tensor.float,
        dtypes=frozenset(TYPES),
        in_place=IN_PLACE,
        copy=torch.clone,
        receive=lambda x: x.to(where, copy=True),
        scope=scope,
        available=available if on_gpu else None,
        closed=torch.cuda.empty_cache if on_gpu else lambda: None,
    )


def to_numpy(x: torch.Tensor) -> np.ndarray:
    return (x.float() if x.dtype is torch.bfloat16 else x).cpu().numpy()


@contextlib.contextmanager
def scope() -> Iterator[None]:
    """Nothing is kept for gradients, which torch decides for each thread; and torch's out of memory is Python's."""
    try:
        with torch.inference_mode():
            yield
    except RuntimeError as e:
        if isinstance(e, torch.OutOfMemoryError) or "DefaultCPUAllocator" in str(e):
            raise MemoryError(str(e)) from e
        raise
