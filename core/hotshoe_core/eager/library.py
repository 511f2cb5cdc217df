"""EagerLibrary: what an eager, NumPy-like array library offers to the adapter, on one device."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hotshoe_core.contract.backend import CacheConfig, WeightData
from hotshoe_core.errors import BackendError, UnsupportedOpError, did_you_mean
from hotshoe_core.tensors.dtypes import DType
from hotshoe_core.tensors.quants import dequantize, round_to
from hotshoe_core.tensors.tensor import TABLE, Shape, Tensor

__all__ = ["EagerLibrary", "Native", "Run"]

Native = Any
"""An array of the library, or whatever stands for a weight."""

Run = Callable[[list[Native]], list[Native]]
"""A function of arrays that returns arrays: a graph, or the part of it on one device."""

_NEEDS = {
    "in_place": ("copy", "copy: a function that copies a native array"),
    "compile_hook": ("round_to", "round_to: a function (x, dtype) of the library; NumPy cannot round inside a trace"),
    "begin": ("evaluate", "evaluate: a function that returns when the values of arrays exist"),
    "graph_nbytes": ("compile_hook", "compile_hook: a function that compiles what graph_nbytes is then asked about"),
}


@dataclass(frozen=True)
class EagerLibrary:
    """What an array library offers on one device. Only ``functions``, ``from_numpy`` and ``to_numpy`` are required.

    Raises BackendError for ``in_place`` without ``copy``, ``compile_hook`` without ``round_to``, ``begin`` without
    ``evaluate``, and ``graph_nbytes`` without ``compile_hook``.
    """

    functions: Mapping[str, Callable[..., Native]]
    """By op name: called with the op's sources (None for an absent one) and its attributes.

    With ``f32``, arithmetic gets its floats in F32. Indices that a graph computes are first clamped to their range, by
    the function ``clamp``. No integer is divided by 0 or -1.
    """

    from_numpy: Callable[[np.ndarray[Any, Any], DType], Native]
    """``from_numpy(array, dtype)``: a native array from a NumPy array; ``dtype`` is the element type it stands for.

    ``dtype`` is one of ``dtypes``. The NumPy array is contiguous and nothing else uses it: it may be kept and written
    to.
    """

    to_numpy: Callable[[Native], np.ndarray[Any, Any]]
    """A NumPy array from a native array. A type that NumPy lacks (BF16) becomes float32."""

    f32: Callable[[Native], Native] | None = None
    """A float array converted to F32.

    If None, functions get floats in their stored type and convert them themselves.
    """

    dtypes: frozenset[DType] = frozenset(d for d in DType if d.numpy is not None)
    """The element types that native arrays have; F32 must be one of them.

    Other types of floats (quantized blocks, and BF16 if it is missing here) are kept as F32 arrays, with the values
    that the type can store. A graph with another integer type is refused with UnsupportedOpError.
    """

    round_to: Callable[[Native, DType], Native] | None = None
    """``round_to(x, dtype)``: the values of an F32 array as ``dtype`` would store them, for a type not in ``dtypes``.

    If None, the values are rounded by NumPy. Needed with ``compile_hook``.
    """

    in_place: Mapping[str, Callable[..., Native]] = field(default_factory=dict)
    """By op name (``set_rows``, ``set_slice``): writes into its first source and returns it. Needs ``copy``.

    For libraries whose arrays can be written to. The adapter uses it if nothing reads the old value any more, so that a
    token does not copy a cache. Otherwise it uses ``functions``, or this function on a copy.
    """

    copy: Callable[[Native], Native] | None = None
    """A native array with the same value and memory of its own.

    Needed with ``in_place``, and with a ``compile_hook`` whose functions overwrite donated arrays.
    """

    weight: Callable[[WeightData], Native] | None = None
    """What stands for a weight. If None, an array is loaded; quantized blocks become F32."""

    weight_nbytes: Callable[[WeightData], int] | None = None
    """Bytes that the result of ``weight`` takes. If None, ``nbytes`` of its shape and type."""

    nbytes: Callable[[Shape, DType], int] | None = None
    """Bytes that an array takes. If None, the size of its shape in the type that the array is stored in."""

    zeros: Callable[[Shape, DType], Native] | None = None
    """The first value of a state. If None, it is made from a NumPy array of zeros."""

    receive: Callable[[Native], Native] | None = None
    """An array on this device from one on another device of the backend. If None, the value goes through NumPy."""

    compile_hook: Callable[[Run, tuple[int, ...]], Run] | None = None
    """``compile_hook(run, donated)``: makes a faster function from ``run``, which takes and returns a list of arrays.

    ``run`` is a whole graph; with several devices, a part of it that runs on this device. The arrays have the same
    order, shapes and types in each call, so the first call may trace ``run`` and compile it. ``donated`` has the
    indices of the arrays that nothing reads after the call: the old values of states whose rows the graph overwrites.
    The new function may reuse their memory for its results; then the library needs ``copy``. A library with a hook
    needs ``round_to``.
    """

    is_deleted: Callable[[Native], bool] | None = None
    """Whether an array has lost its memory, because it was donated to a call that failed.

    A graph that reads such a state raises BackendError. If None, no array does.
    """

    graph_nbytes: Callable[[Run], int | None] | None = None
    """The bytes that a function of ``compile_hook`` takes for temporaries and results; None if it cannot tell yet.

    ``memory()`` asks it. If None, or until all functions of a graph can tell, it counts the values that would exist at
    the same time if each op was a call.
    """

    evaluate: Callable[[list[Native]], None] | None = None
    """For lazy libraries: computes these arrays and returns when their values exist. Called at the end of a run.

    At that time, only the graph refers to the old value of a state whose rows are overwritten, so a library can reuse
    its memory.
    """

    begin: Callable[[list[Native]], None] | None = None
    """For lazy libraries that can compute in the background: begins to compute these arrays. ``evaluate`` follows.

    The host prepares the next run meanwhile. Needs ``evaluate``.
    """

    scope: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext
    """Entered around all code that touches arrays: sets a stream or device for the thread, or translates errors.

    A MemoryError becomes InsufficientMemoryError.
    """

    independent: bool = False
    """Whether several threads may use the library at once, each with arrays of its own."""

    available: Callable[[], int] | None = None
    """Bytes that can still be allocated. A larger request is refused before the library sees it.

    For libraries whose allocation failure ends the process. If None, the library must raise MemoryError.
    """

    where: Callable[[Native], str] | None = None
    """The name of the device that an array is on. The conformance kit compares it with what the backend reports."""

    checks_indices: bool = False
    """The functions raise for an index out of range, so the adapter does not clamp indices for them."""

    accepts: Mapping[str, Callable[[Tensor], bool]] = field(default_factory=dict)
    """By op name: whether the function can compute this node.

    Other nodes are decomposed. No entry: it can compute all.
    """

    closed: Callable[[], None] = lambda: None
    """Called when the backend is closed: gives back memory that the library keeps for later."""

    cache_config: CacheConfig = field(default_factory=lambda: CacheConfig(padding=64))
    """The key/value cache it wants.

    Each new number of rows and each new cache length is traced and compiled as a new graph, so a compiler sets
    ``lengths_per_octave`` too.
    """

    honours: frozenset[str] = frozenset()
    """The fields of BackendParams that have an effect on these functions."""

    def __post_init__(self) -> None:
        for op in (*self.functions, *self.in_place, *self.accepts):
            if op not in TABLE:
                raise BackendError(f"EagerLibrary: there is no op {op!r}", hint=did_you_mean(op, TABLE))
        for given, (needed, hint) in _NEEDS.items():
            if getattr(self, given) and getattr(self, needed) is None:
                raise BackendError(f"EagerLibrary: {given} is given, but {needed} is missing", hint=hint)

    def has(self, node: Tensor) -> bool:
        """Whether there is a function that computes this node."""
        if node.op not in self.functions and node.op not in self.in_place:
            return False
        accepts = self.accepts.get(node.op)
        return accepts is None or accepts(node)

    def function(self, op: str) -> Callable[..., Native]:
        """The function of an op. It does not change its sources."""
        if op in self.functions:
            return self.functions[op]
        write, copy = self.in_place[op], self.copy
        return lambda x, *sources, **attrs: write(copy(x), *sources, **attrs)  # type: ignore[misc]  # see __post_init__

    def require_held(self, dtype: DType, name: str) -> None:
        """Raise UnsupportedOpError for an integer type that is not in ``dtypes``: F32 cannot hold its values."""
        if dtype.is_integer and dtype not in self.dtypes:
            held = ", ".join(sorted(d.name for d in self.dtypes if d.is_integer)) or "no integers"
            raise UnsupportedOpError(
                f"{name} is {dtype.name}; the arrays of this backend hold {held}",
                hint="use another integer type, or another device",
            )

    def stored_dtype(self, dtype: DType) -> DType:
        """The type of the arrays that stand for an element type: itself, or F32 if it is not in ``dtypes``."""
        return dtype if dtype in self.dtypes else DType.F32

    def array(self, array: np.ndarray[Any, Any], dtype: DType) -> Native:
        """A native array from a NumPy array that the caller does not use again."""
        stored = self.stored_dtype(dtype)
        return self.from_numpy(np.require(array, stored.numpy or np.float32, ("C", "W", "O")), stored)

    def rounded(self, x: Native, *, dtype: DType) -> Native:
        """The values of an F32 array as ``dtype``, a type that is not in ``dtypes``, would store them."""
        if self.round_to is not None:
            return self.round_to(x, dtype)
        return self.array(round_to(self.to_numpy(x).astype(np.float32), dtype), dtype)

    def zeroed(self, shape: Shape, dtype: DType) -> Native:
        """The first value of a state."""
        if self.zeros is not None:
            return self.zeros(shape, dtype)
        return self.array(np.zeros(shape, dtype.numpy or np.float32), dtype)

    def load(self, w: WeightData) -> Native:
        """What stands for a weight."""
        if self.weight is not None:
            return self.weight(w)
        return self.array(dequantize(w.data, w.dtype, w.shape), w.dtype)

    def size(self, shape: Shape, dtype: DType) -> int:
        """Bytes that an array takes."""
        return self.stored_dtype(dtype).nbytes(shape) if self.nbytes is None else self.nbytes(shape, dtype)

    def weight_size(self, w: WeightData) -> int:
        """Bytes that a weight takes."""
        return self.size(w.shape, w.dtype) if self.weight_nbytes is None else self.weight_nbytes(w)
