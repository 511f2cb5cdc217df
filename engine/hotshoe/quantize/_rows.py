"""Convert rows from one type to another, in pieces on all cores, with a backend that implements the block formats."""

from __future__ import annotations

import contextlib
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from hotshoe_core.contract.device import BackendParams, DeviceType
from hotshoe_core.errors import BackendError, ConversionError, DeviceNotFoundError, DTypeError, PluginError
from hotshoe_core.errors.arguments import integer
from hotshoe_core.errors.install import pip_install
from hotshoe_core.tensors.dtypes import DType

if TYPE_CHECKING:
    from hotshoe_core import Backend

__all__ = ["RowQuantizer", "open_quantizer"]

Array = np.ndarray[Any, Any]

_PIECE = 1 << 19  # elements: 2 MiB of floats for each thread
_MAX_F16 = 65504.0


class RowQuantizer:
    """Quantizes tensors with a backend's row functions, on several threads."""

    def __init__(self, backend: Backend, pool: ThreadPoolExecutor, n_threads: int) -> None:
        self._backend = backend
        self._pool = pool
        self._ahead = 2 * n_threads  # pieces in memory at a time

    def pieces(
        self, name: str, data: Array, old: DType, new: DType, shape: tuple[int, ...], importance: Array | None = None
    ) -> Iterator[Array]:
        """Yield the tensor in its new type, in order, in pieces of uint8 (rows, bytes of a row).

        data: the bytes of the tensor in its old type. importance: float32 (matrices, columns).

        Raises ConversionError, which names the tensor, if values are not numbers or too large for the new type.
        """
        if not data.size:  # a tensor may be empty
            return
        columns = shape[-1]
        rows = data.reshape(-1, old.nbytes((columns,)))
        per_matrix = shape[-2] if len(shape) > 1 else 1
        step = max(1, _PIECE // columns)

        def jobs() -> Iterator[Callable[[], Array]]:
            for start in range(0, len(rows), per_matrix):
                weights = None if importance is None else importance[start // per_matrix]
                for first in range(start, start + per_matrix, step):
                    piece = rows[first : min(first + step, start + per_matrix)]
                    yield partial(self._convert, name, piece, old, new, columns, weights)

        yield from _in_order(self._pool, jobs(), self._ahead)

    def _convert(self, name: str, data: Array, old: DType, new: DType, columns: int, weights: Array | None) -> Array:
        values = self._backend.dequantize_rows(data, old, columns)
        peak = max(values.max(initial=0.0), -values.min(initial=0.0))  # NaN if any value is NaN
        if not np.isfinite(peak):
            raise ConversionError(
                f"tensor {name} holds values that are not numbers (NaN or infinite)",
                hint="the file is damaged, or its training diverged: convert it again from the original",
            )
        if peak > _MAX_F16 and new not in (DType.F32, DType.BF16):  # the scales of blocks are f16
            with np.errstate(all="ignore"):
                made = self._backend.quantize_rows(values, new, weights)
            if not np.isfinite(self._backend.dequantize_rows(made, new, columns)).all():
                raise ConversionError(
                    f"tensor {name} has the value {peak:.4g}, which is too large for {new.name.lower()}",
                    hint=f"keep it in bf16: --tensor-type {name.removesuffix('.weight')}=bf16",
                )
            return made
        return self._backend.quantize_rows(values, new, weights)


def _in_order(pool: ThreadPoolExecutor, jobs: Iterable[Callable[[], Array]], ahead: int) -> Iterator[Array]:
    """Yield the results of the jobs in order, with at most ``ahead`` jobs submitted at a time."""
    running: deque[Future[Array]] = deque()
    try:
        for job in jobs:
            running.append(pool.submit(job))
            if len(running) >= ahead:
                yield running.popleft().result()
        while running:
            yield running.popleft().result()
    finally:
        for future in running:
            future.cancel()


@contextlib.contextmanager
def open_quantizer(
    kinds: Iterable[tuple[DType, DType, bool]], n_threads: int | None = None
) -> Iterator[RowQuantizer | None]:
    """Open a backend that can do all conversions in ``kinds``. Yield a RowQuantizer, or None if ``kinds`` is empty.

    kinds: triples of the old type, the new type, and whether importance is given.
    n_threads: None for all cores that this process may use.

    Raises ConversionError, which names the package to install, if no installed backend can do all of them.
    """
    kinds = set(kinds)
    if not kinds:
        yield None
        return
    n = _n_cores() if n_threads is None else integer("n_threads", n_threads, 1, ConversionError)
    with _open(kinds) as backend, ThreadPoolExecutor(n, "hotshoe-quantize") as pool:
        try:
            yield RowQuantizer(backend, pool, n)
        finally:
            pool.shutdown(cancel_futures=True)


def _n_cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return max(1, len(os.sched_getaffinity(0)))
    return os.cpu_count() or 1


def _open(kinds: set[tuple[DType, DType, bool]]) -> Backend:
    """Open the first CPU backend that can do all of ``kinds``. Raises ConversionError if no backend can."""
    from hotshoe_loader import load_all

    try:
        registry = load_all(device="cpu")
    except DeviceNotFoundError:  # there is no CPU plugin, and HOTSHOE_REQUIRE is about the devices of models
        registry = load_all(device="reference")
    cannot: dict[str, str] = {}
    for device in registry.devices:
        if device.type is not DeviceType.CPU:
            continue
        try:
            backend = registry.open(device, BackendParams(n_threads=1) if device.library else None)
        except (BackendError, PluginError) as error:  # a broken backend: try the next one
            cannot[device.name] = error.message
            continue
        missing = sorted({new.name.lower() for old, new, important in kinds if not _can(backend, old, new, important)})
        if not missing:
            return backend
        backend.close()
        cannot[f"{device.name} ({backend.name})"] = f"cannot write {', '.join(missing)}"
    reasons = "; ".join(f"{name}: {why}" for name, why in cannot.items()) or "no CPU device was found"
    raise ConversionError(
        f"no installed backend can write the types that this file needs: {reasons}",
        hint=f"{pip_install('hotshoe-ggml-cpu')}, which writes every type; if it is installed, `hotshoe doctor` says "
        "why it is not used",
    )


def _can(backend: Backend, old: DType, new: DType, important: bool) -> bool:
    if not backend.quantizes(new):
        return False
    if important and not backend.quantizes(new, importance=True) and new not in _WITHOUT_IMPORTANCE:
        return False
    try:
        backend.dequantize_rows(np.zeros((1, old.block_bytes), np.uint8), old, old.block_size)
    except DTypeError:
        return False
    return True


_WITHOUT_IMPORTANCE = frozenset(
    {
        *(DType.F32, DType.F16, DType.BF16, DType.Q8_0, DType.MXFP4, DType.NVFP4),
        *(DType.TQ1_0, DType.TQ2_0, DType.Q1_0, DType.Q2_0),
    }
)
"""Types that do not use importance: the result is the same without it."""
