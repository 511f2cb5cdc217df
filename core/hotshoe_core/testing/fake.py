"""A fake family of several devices over NumPy, to test copies between devices and out-of-memory errors.

    backend = open_fake(2, capacity=1 << 20)        # devices "fake:0" and "fake:1", one MiB each

An array knows its device, and a function fails if it gets an array of another device, so every copy is explicit. The
first device computes ``swiglu`` itself; the others decompose it. The last device lacks ``tanh``, so that runs on
another.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from hotshoe_core.contract.backend import WeightData
from hotshoe_core.contract.device import BackendParams, Device, DeviceType
from hotshoe_core.eager.adapter import EagerBackend
from hotshoe_core.eager.library import EagerLibrary
from hotshoe_core.eager.reference import numpy_library
from hotshoe_core.tensors.dtypes import DType

__all__ = ["fake_devices", "open_fake"]

Array = np.ndarray[Any, Any]


@dataclass
class FakeMemory:
    """The capacity of a device and the memory in use, in bytes."""

    name: str
    capacity: int
    used: int = 0


class FakeArray:
    """An array in the memory of one device."""

    __slots__ = ("array", "memory", "size")

    def __init__(self, array: Array, memory: FakeMemory) -> None:
        self.size = 0  # __del__ also runs after the error below
        self.memory = memory
        if memory.used + array.nbytes > memory.capacity:
            left = memory.capacity - memory.used
            raise MemoryError(f"{memory.name} has {left} bytes left; {array.nbytes} are needed")
        self.array = array
        self.size = array.nbytes
        memory.used += self.size

    def __del__(self) -> None:
        self.memory.used -= self.size


def fake_devices(n: int = 2, capacity: int = 1 << 40) -> list[Device]:
    """``n`` devices of type ACCEL, each with ``capacity`` bytes."""
    return [
        Device(f"fake:{i}", DeviceType.ACCEL, "fake", "fake", "NumPy in disguise", capacity, capacity) for i in range(n)
    ]


def open_fake(
    n: int | Sequence[Device] = 2, params: BackendParams | None = None, *, capacity: int = 1 << 40
) -> EagerBackend:
    """A backend over ``n`` fake devices, or over the given ones."""
    devices = fake_devices(n, capacity) if isinstance(n, int) else list(n)
    libraries = [_library(d, first=d is devices[0], last=d is devices[-1]) for d in devices]
    return EagerBackend("fake", devices, params or BackendParams(), libraries)


def _library(device: Device, *, first: bool, last: bool) -> EagerLibrary:
    base = numpy_library()
    memory = FakeMemory(device.name, device.memory_total)
    functions = dict(base.functions)
    if first:
        functions["swiglu"] = lambda gate, up: gate / (1 + np.exp(-gate)) * up
    elif last:
        del functions["tanh"]

    def on_device(function: Callable[..., Any]) -> Callable[..., FakeArray]:
        def call(*sources: FakeArray | None, **attrs: Any) -> FakeArray:
            foreign = [s.memory.name for s in sources if s is not None and s.memory is not memory]
            if foreign:
                raise RuntimeError(f"{device.name} got an array of {', '.join(foreign)}")
            return FakeArray(np.asarray(function(*[None if s is None else s.array for s in sources], **attrs)), memory)

        return call

    def weight(w: WeightData) -> FakeArray:
        return FakeArray(base.load(w), memory)

    def from_numpy(array: Array, dtype: DType) -> FakeArray:
        return FakeArray(array, memory)

    return replace(
        base,
        functions={name: on_device(f) for name, f in functions.items()},
        in_place={name: on_device(f) for name, f in base.in_place.items()},
        copy=lambda x: FakeArray(np.array(x.array), memory),
        receive=lambda x: FakeArray(np.array(x.array), memory),
        from_numpy=from_numpy,
        to_numpy=lambda x: x.array,
        f32=on_device(lambda x: x.astype(np.float32)),
        weight=weight,
        where=lambda x: x.memory.name,
    )
