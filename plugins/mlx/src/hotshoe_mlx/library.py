"""MLX as an EagerLibrary for core's adapter, on one device."""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Iterator
from typing import Any

import mlx.core as mx
import numpy as np

from hotshoe_core import CacheConfig, Device, DType, EagerLibrary
from hotshoe_core.tensors.tensor import Shape
from hotshoe_mlx._functions import DTYPES, dense, functions, mlx_dtype, round_to
from hotshoe_mlx._fused import Turns, fused
from hotshoe_mlx._replay import compiled, replayed
from hotshoe_mlx._weights import load_weight, weight_nbytes
from hotshoe_mlx.accepts import ACCEPTS

__all__ = ["mlx_library"]


def mlx_library(device: Device) -> EagerLibrary:
    """The library for one device of the provider."""
    gpu = device.properties["kind"] == "gpu"
    mlx_device = mx.Device(mx.gpu if gpu else mx.cpu, int(device.properties["index"]))
    stream = mx.new_thread_unsafe_stream(
        mlx_device
    )  # other streams belong to a thread; the backend's lock makes it safe

    turns = Turns()

    @contextlib.contextmanager
    def scope() -> Iterator[None]:
        try:
            with mx.stream(stream), turns.scope():
                yield
        except RuntimeError as e:
            if _is_out_of_memory(e):
                raise MemoryError(str(e)) from e
            raise

    def from_numpy(array: np.ndarray[Any, Any], dtype: DType) -> mx.array:
        return mx.array(array, mlx_dtype(dtype, gpu=gpu))

    def zeros(shape: Shape, dtype: DType) -> mx.array:
        array = mx.zeros(shape, mlx_dtype(dtype, gpu=gpu))
        mx.eval(array)
        return array

    return EagerLibrary(
        functions={**functions(gpu=gpu), **fused(turns, gpu=gpu)},
        accepts=ACCEPTS,
        from_numpy=from_numpy,
        to_numpy=_to_numpy,
        dtypes=frozenset(DTYPES),
        round_to=lambda x, dtype: round_to(dense(x), dtype, gpu=gpu),
        weight=functools.partial(load_weight, gpu=gpu),
        weight_nbytes=functools.partial(weight_nbytes, gpu=gpu),
        nbytes=lambda shape, dtype: math.prod(shape) * mlx_dtype(dtype, gpu=gpu).size,
        zeros=zeros,
        begin=_begin,
        evaluate=lambda arrays: mx.eval([dense(a) for a in arrays]),
        scope=scope,
        available=lambda: mx.get_memory_limit() - mx.get_active_memory(),
        compile_hook=compiled if gpu else replayed,
        # On a GPU, tracing a new length takes longer than reading empty cells. On the CPU it is the other way round.
        cache_config=CacheConfig(padding=512, lengths_per_octave=4) if gpu else CacheConfig(padding=64),
        closed=mx.clear_cache,
    )


def _begin(arrays: list[Any]) -> None:
    begin: Any = mx.async_eval  # its stub has no types
    begin([dense(a) for a in arrays])


def _to_numpy(value: Any) -> np.ndarray[Any, Any]:
    return np.asarray(dense(value))


def _is_out_of_memory(error: RuntimeError) -> bool:
    text = str(error).lower()
    return "unable to allocate" in text or "out of memory" in text or "insufficient memory" in text
