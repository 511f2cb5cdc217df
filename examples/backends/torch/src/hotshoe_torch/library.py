"""PyTorch as an EagerLibrary for hotshoe's adapter, on one device."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import numpy as np
import torch

from hotshoe_core import Device, DType, EagerLibrary
from hotshoe_torch.accepts import ACCEPTS
from hotshoe_torch.functions import FUNCTIONS, IN_PLACE, TYPES


def torch_library(device: Device) -> EagerLibrary:
    """The library for one device of the provider."""
    index = device.name.removeprefix("torch:")
    on_gpu = index != "cpu"
    torch_device = torch.device(f"cuda:{index}" if on_gpu else "cpu")

    def from_numpy(array: np.ndarray, dtype: DType) -> torch.Tensor:
        return torch.from_numpy(array).to(torch_device, TYPES[dtype])

    def available() -> int:
        """Free bytes: those of the driver, and those that torch has reserved but does not use."""
        free, _ = torch.cuda.mem_get_info(torch_device)
        return free + torch.cuda.memory_reserved(torch_device) - torch.cuda.memory_allocated(torch_device)

    return EagerLibrary(
        functions=FUNCTIONS,
        accepts=ACCEPTS,
        from_numpy=from_numpy,
        to_numpy=to_numpy,
        f32=torch.Tensor.float,
        dtypes=frozenset(TYPES),
        in_place=IN_PLACE,
        copy=torch.clone,
        receive=lambda x: x.to(torch_device, copy=True),
        where=lambda x: "torch:cpu" if x.device.type == "cpu" else f"torch:{x.device.index}",
        scope=scope,
        available=available if on_gpu else None,
        closed=torch.cuda.empty_cache if on_gpu else lambda: None,
    )


def to_numpy(x: torch.Tensor) -> np.ndarray:
    return (x.float() if x.dtype is torch.bfloat16 else x).cpu().numpy()


@contextlib.contextmanager
def scope() -> Iterator[None]:
    """Turn off gradients, which torch does for each thread, and turn torch's out-of-memory error into MemoryError."""
    try:
        with torch.inference_mode():
            yield
    except RuntimeError as e:
        if isinstance(e, torch.OutOfMemoryError) or "DefaultCPUAllocator" in str(e):
            raise MemoryError(str(e)) from e
        raise
