"""Compile hooks for the adapter: make one MLX function from a graph, so that running it again needs no Python.

MLX reuses the memory of an array that nothing refers to, so the hooks need not know which arrays are donated.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Sequence
from typing import Any, cast

import mlx.core as mx

from hotshoe_core.eager.library import Run
from hotshoe_mlx._packed import Packed

__all__ = ["compiled", "replayed"]

Flat = Callable[..., Sequence[mx.array]]


def compiled(run: Run, donated: tuple[int, ...]) -> Run:
    """Compile with ``mx.compile``, which fuses elementwise ops and traces once in each thread. For GPUs."""
    return _Once(run, mx_compile)


def replayed(run: Run, donated: tuple[int, ...]) -> Run:
    """Export the graph and import it again: it is traced once and not optimised. For the CPU.

    On the CPU, ``mx.compile`` would run a C++ compiler for seconds for each kernel, during the first token.
    """
    return _Once(run, exported)


def mx_compile(function: Flat, arrays: Sequence[mx.array]) -> Flat:
    fast: Any = mx.compile(function)  # each version's stubs have a different type
    return cast(Flat, fast)


def exported(function: Flat, arrays: Sequence[mx.array]) -> Flat:
    handle, path = tempfile.mkstemp(suffix=".mlxfn")
    os.close(handle)
    try:
        mx.export_function(path, function, *arrays)
        imported: Any = mx.import_function(path)
        return cast(Flat, imported)
    finally:
        os.unlink(path)


class _Once:
    """``run`` over flat lists of arrays; ``make`` compiles it at the first call. A Packed weight is several arrays."""

    def __init__(self, run: Run, make: Callable[[Flat, Sequence[mx.array]], Flat]) -> None:
        self._run = run
        self._make = make
        self._fast: Flat | None = None
        self._results: list[Packed | None] = []  # for each result of ``run``: None, or its layout if it is Packed

    def __call__(self, given: list[Any]) -> list[Any]:
        arrays = _flat(given)
        if self._fast is None:
            self._fast = self._make(self._function(_layout(given)), arrays)
        return _nested(self._results, self._fast(*arrays))

    def _function(self, layout: list[Packed | None]) -> Flat:
        def function(*arrays: mx.array) -> list[mx.array]:
            results = self._run(_nested(layout, arrays))
            self._results = _layout(results)
            return _flat(results)

        return function


def _layout(values: Sequence[Any]) -> list[Packed | None]:
    return [value.blank() if isinstance(value, Packed) else None for value in values]


def _flat(values: Sequence[Any]) -> list[mx.array]:
    return [a for value in values for a in (value.arrays if isinstance(value, Packed) else (value,))]


def _nested(layout: Sequence[Packed | None], arrays: Sequence[mx.array]) -> list[Any]:
    rest = iter(arrays)
    return [next(rest) if p is None else p.over(tuple(next(rest) for _ in p.arrays)) for p in layout]
