"""JAX as an EagerLibrary for hotshoe's adapter, on one device. Every graph is compiled by XLA."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hotshoe_core import CacheConfig, DType, EagerLibrary
from hotshoe_core.eager.library import Run
from hotshoe_core.tensors import quants
from hotshoe_jax import memory_of, name_of
from hotshoe_jax.functions import FUNCTIONS, TYPES


class Compiled:
    """A part of a graph as one function of XLA. It is traced and compiled at the first call, which gives the shapes."""

    def __init__(self, run: Run, donated: tuple[int, ...]) -> None:
        self._traced = jax.jit(lambda *given: run(list(given)), donate_argnums=donated)
        self._compiled: Any = None

    def __call__(self, given: list[Any]) -> list[Any]:
        if self._compiled is None:
            self._compiled = self._traced.lower(*given).compile()
        results: list[Any] = self._compiled(*given)
        return jax.block_until_ready(results)  # an error is raised here, and not where a later call reads the results

    @property
    def nbytes(self) -> int | None:
        """Bytes of temporaries, and of results not in donated memory; None before the first call, or if unknown."""
        sizes = None if self._compiled is None else self._compiled.memory_analysis()
        if sizes is None:
            return None
        return int(sizes.temp_size_in_bytes + sizes.output_size_in_bytes - sizes.alias_size_in_bytes)


def round_to(x: jax.Array, dtype: DType) -> jax.Array:
    """Round to blocks with core's function, which XLA calls back on the host. Raises DTypeError while it is traced."""
    quants.quantize(np.zeros(dtype.block_size, np.float32), dtype)
    shape = jax.ShapeDtypeStruct(x.shape, jnp.float32)
    return jax.pure_callback(lambda x: quants.round_to(np.asarray(x), dtype), shape, x)


def to_numpy(x: jax.Array) -> np.ndarray:
    return np.asarray(x.astype(jnp.float32) if x.dtype == jnp.bfloat16 else x)


@contextlib.contextmanager
def scope() -> Iterator[None]:
    """Turn on 64-bit types and exact products, which JAX does for each thread; translate its out-of-memory error."""
    try:
        with jax.enable_x64(True), jax.default_matmul_precision("highest"):
            yield
    except jax.errors.JaxRuntimeError as e:
        if "RESOURCE_EXHAUSTED" in str(e):
            raise MemoryError(str(e)) from e
        raise


def jax_library(device: Any) -> EagerLibrary:
    """The library for one of JAX's devices."""
    return EagerLibrary(
        functions=FUNCTIONS,
        from_numpy=lambda array, dtype: jax.device_put(array.astype(TYPES[dtype], copy=False), device),
        to_numpy=to_numpy,
        f32=lambda x: x.astype(jnp.float32),
        dtypes=frozenset(TYPES),
        round_to=round_to,
        copy=jnp.copy,
        receive=lambda x: jax.device_put(x, device),
        where=lambda x: name_of(x.device),
        scope=scope,
        compile_hook=Compiled,
        is_deleted=lambda x: x.is_deleted(),
        graph_nbytes=lambda compiled: compiled.nbytes,
        available=(lambda: memory_of(device)[1]) if memory_of(device)[0] else None,
        cache_config=CacheConfig(padding=256, lengths_per_octave=1),  # XLA compiles each new graph
    )
