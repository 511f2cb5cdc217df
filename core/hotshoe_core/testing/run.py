"""Build a case on a backend, compute it in several steps, and measure the error between two results."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np

from hotshoe_core.contract.backend import Backend, WeightData
from hotshoe_core.errors import DTypeError
from hotshoe_core.graphs.context import Context
from hotshoe_core.graphs.graph import lower
from hotshoe_core.tensors.dtypes import DType
from hotshoe_core.tensors.quants import quantize
from hotshoe_core.tensors.tensor import TABLE, Shape, Tensor, constant

__all__ = ["AnyCase", "GraphCase", "Maker", "Values", "blocks", "compute", "error", "normal"]

Array = np.ndarray[Any, Any]
Layout = Literal["plain", "permuted", "swapped", "sliced", "stepped"]
Kind = Literal["input", "weight", "state", "constant"]
Values = Callable[[np.random.Generator, Shape], Array]

F32, I32 = DType.F32, DType.I32
STEPS = 2
"""How often a case is computed in its context, with other inputs each time, so that leaks between runs are found."""

# Positions of the float16 scales in a block, for formats that gguf cannot quantize to; other bytes may be random.
_SCALES = {
    DType.Q2_K: (80, 82),
    DType.Q3_K: (108,),
    DType.Q4_K: (0, 2),
    DType.Q5_K: (0, 2),
    DType.Q6_K: (208,),
    DType.IQ4_NL: (0,),
    DType.IQ4_XS: (0,),
}


def normal(rng: np.random.Generator, shape: Shape) -> Array:
    """Normally distributed float32 numbers."""
    return rng.standard_normal(shape, np.float32)


class AnyCase(Protocol):
    """What the runner needs from a case. Case and GraphCase implement it."""

    @property
    def id(self) -> str: ...

    @property
    def op(self) -> str: ...

    @property
    def dtypes(self) -> frozenset[DType]:
        """The element types that decide the tolerance."""

    @property
    def optional(self) -> bool:
        """Whether a backend may refuse the case with UnsupportedOpError."""

    def build(self, make: Maker) -> Sequence[Tensor]:
        """Build the outputs from operands that ``make`` makes."""


@dataclass(frozen=True)
class GraphCase:
    """A graph of several ops, as a function that returns the outputs."""

    id: str
    body: Callable[[Maker], Sequence[Tensor]]
    dtypes: frozenset[DType] = frozenset({F32})
    optional: bool = False
    op: str = ""

    def build(self, make: Maker) -> Sequence[Tensor]:
        return self.body(make)


class Maker:
    """Makes the operands of a case in one context. A case gets the same numbers on every backend."""

    def __init__(self, backend: Backend, seed: str) -> None:
        self.backend = backend
        self.context: Context = backend.new_context()
        self.updates: dict[Tensor, Tensor] = {}
        self._loaded: list[Tensor] = []  # weights and states
        self._inputs: list[tuple[Tensor, Values]] = []
        self._seed = zlib.crc32(seed.encode())
        self._n = 0

    def operand(
        self,
        shape: Shape,
        dtype: DType = F32,
        kind: Kind = "input",
        layout: Layout = "plain",
        values: Values = normal,
        uses: tuple[str, ...] = (),
    ) -> Tensor:
        """A tensor of this shape. Every layout except "plain" is a view of memory that is not contiguous."""
        if layout == "permuted":
            axes = tuple(reversed(range(len(shape))))
            return self._leaf(shape[::-1], dtype, kind, values, uses).permute(*axes)
        if layout == "swapped":  # each row stays contiguous
            axes = (1, 0, *range(2, len(shape)))
            return self._leaf((shape[1], shape[0], *shape[2:]), dtype, kind, values, uses).permute(*axes)
        if layout == "sliced":
            unit = dtype.block_size
            wide = (*(d + 2 for d in shape[:-1]), shape[-1] + 2 * unit)
            cut = (*(slice(1, 1 + d) for d in shape[:-1]), slice(unit, unit + shape[-1]))
            return self._leaf(wide, dtype, kind, values, uses)[cut]
        if layout == "stepped":
            return self._leaf((*shape[:-1], 2 * shape[-1]), dtype, kind, values, uses)[..., ::2]
        return self._leaf(shape, dtype, kind, values, uses)

    def input(self, shape: Shape, dtype: DType = F32, values: Values = normal) -> Tensor:
        """An input that gets new numbers in each step."""
        return self.operand(shape, dtype, "input", values=values)

    def indices(self, n: int, below: int) -> Tensor:
        """``n`` different row indices."""
        return self.input((n,), I32, lambda rng, shape: rng.permutation(below)[:n])

    def weight(self, shape: Shape, dtype: DType = F32, uses: tuple[str, ...] = ()) -> Tensor:
        """A weight that is loaded on the backend."""
        return self.operand(shape, dtype, "weight", uses=uses)

    def state(self, shape: Shape, dtype: DType = F32) -> Tensor:
        """A state of zeros."""
        self._n += 1
        tensor = self.backend.state(shape, dtype, f"state.{self._n}")
        self._loaded.append(tensor)
        return tensor

    def update(self, state: Tensor, new: Tensor) -> Tensor:
        """Record ``ctx.update(state, new)``; returns ``new``."""
        self.updates[state] = new
        self.context.update(state, new)
        return new

    def _leaf(self, shape: Shape, dtype: DType, kind: Kind, values: Values, uses: tuple[str, ...]) -> Tensor:
        self._n += 1
        rng = np.random.default_rng((self._seed, self._n))
        if kind == "weight":
            data = blocks(rng, values, shape, dtype)
            name = f"weight.{self._n}"
            tensor = self.backend.load([WeightData(name, shape, dtype, data, uses)])[name]
            self._loaded.append(tensor)
            return tensor
        if kind == "constant":
            return constant(_as(values(rng, shape), dtype))
        if kind == "state":
            state = self.state(shape, dtype)
            self._fill(state, _as(values(rng, shape), F32))
            return state
        if dtype.numpy is None:  # a type that NumPy lacks is fed as F32 and cast
            return self._input(shape, F32, values).cast(dtype)
        return self._input(shape, dtype, values)

    def _input(self, shape: Shape, dtype: DType, values: Values) -> Tensor:
        tensor = self.context.input(f"x{self._n}", shape, dtype)
        self._inputs.append((tensor, values))
        return tensor

    def _fill(self, state: Tensor, array: Array) -> None:
        with self.backend.new_context() as ctx:
            indices, rows = ctx.input("indices", (len(state),), I32), ctx.input("rows", state.shape)
            ctx.update(state, state.set_rows(indices, rows))
            ctx.compute({indices: np.arange(len(state)), rows: array})

    def feeds(self, step: int) -> dict[Tensor, Array]:
        """New numbers for every input."""
        made = {}
        for i, (tensor, values) in enumerate(self._inputs):
            rng = np.random.default_rng((self._seed, i, step))
            made[tensor] = _as(values(rng, tensor.shape), tensor.dtype)
        return made

    def close(self) -> None:
        """Close the context and release weights and states."""
        self.context.close()
        self.backend.release(self._loaded)


def compute(backend: Backend, case: AnyCase, *, decompose: bool = False, steps: int = STEPS) -> list[list[Array]]:
    """The outputs of each step. With ``decompose``, core decomposes every composite."""
    make = Maker(backend, case.id)
    try:
        outputs = [t if t.dtype.numpy is not None else t.cast(F32) for t in case.build(make)]
        ctx = make.context.forward(*outputs)
        if decompose:
            return _compute_decomposed(make, outputs, steps)
        ctx.reserve()
        return [[ctx.read(t) for t in outputs] for step in range(steps) if ctx.compute(make.feeds(step))]
    finally:
        make.close()


def _compute_decomposed(make: Maker, outputs: Sequence[Tensor], steps: int) -> list[list[Array]]:
    def primitive(node: Tensor) -> bool:
        return not TABLE[node.op].composite and make.backend.supports(node)

    graph, lowered = lower(make.context.graph(), primitive)
    executable = make.backend.compile(graph)
    results = []
    try:
        for step in range(steps):
            for tensor, array in make.feeds(step).items():
                executable.write(tensor, np.ascontiguousarray(array).reshape(tensor.shape))
            executable.run()
            results.append([np.empty(t.shape, t.dtype.numpy) for t in outputs])
            for t, out in zip(outputs, results[-1]):
                executable.read(lowered[t], out)
    finally:
        executable.close()
    return results


def error(got: Array, expected: Array, atol: float | None = None) -> float:
    """How far a result is off: infinite if shapes, types, NaNs, infinities or any integer differ.

    Without ``atol``, ``‖got - expected‖₂ / ‖expected‖₂``. With it, the error of the worst element:
    ``(|got - expected| - atol) / |expected|``, so that small elements count too.
    """
    if got.shape != expected.shape or got.dtype != expected.dtype:
        return np.inf
    if got.dtype.kind != "f":
        return 0.0 if np.array_equal(got, expected) else np.inf
    finite = np.isfinite(expected)
    if not np.array_equal(got[~finite], expected[~finite], equal_nan=True) or not np.isfinite(got[finite]).all():
        return np.inf
    g, w = got[finite].astype(np.float64), expected[finite].astype(np.float64)
    if atol is None:
        return float(np.linalg.norm(g - w) / max(float(np.linalg.norm(w)), 1e-20)) if g.size else 0.0
    beyond = np.maximum(np.abs(g - w) - atol, 0)
    return float(np.max(beyond / np.maximum(np.abs(w), 1e-300), initial=0))


def blocks(rng: np.random.Generator, values: Values, shape: Shape, dtype: DType) -> Array:
    """The bytes of a weight: quantized values, or random valid blocks if the gguf package cannot quantize."""
    try:
        return quantize(values(rng, shape), dtype)
    except DTypeError:
        raw = rng.integers(0, 256, (dtype.nbytes(shape) // dtype.block_bytes, dtype.block_bytes), np.uint8)
        for position in _SCALES[dtype]:
            scale = rng.uniform(0.001, 0.01, len(raw)).astype("<f2")
            raw[:, position : position + 2] = scale.view(np.uint8).reshape(-1, 2)
        return raw.reshape(-1)


def _as(array: Array, dtype: DType) -> Array:
    return np.asarray(array, dtype.numpy or np.float32)
