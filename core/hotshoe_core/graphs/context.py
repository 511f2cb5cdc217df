"""Context: builds a graph, compiles it once, and computes it many times with new inputs."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol

import numpy as np

from hotshoe_core.errors import ClosedError, DTypeError, GraphError, PlacementError, ShapeError, did_you_mean
from hotshoe_core.errors.arguments import described
from hotshoe_core.graphs.graph import Graph, lower
from hotshoe_core.graphs.push_down_take import narrowed
from hotshoe_core.graphs.splits import Splits
from hotshoe_core.ops.bounds import origins
from hotshoe_core.tensors.dtypes import DType
from hotshoe_core.tensors.leaf_checks import require_leaf
from hotshoe_core.tensors.tensor import TABLE, Tensor, require_tensor

if TYPE_CHECKING:
    from typing import Self

    from hotshoe_core.contract.backend import Backend, Executable, NodePlacement
    from hotshoe_core.contract.memory import Memory

__all__ = ["Context", "Observer"]


class Observer(Protocol):
    """Is called before every run of every context. ``hotshoe_core.inspect.trace`` is an observer."""

    def before_run(self, context: Context, fed: Mapping[Tensor, np.ndarray[Any, Any]]) -> None:
        """Called when ``context`` is compiled and about to run.

        ``fed``: the values of its inputs; states are not changed yet.
        """


class Context:
    """Build a graph once, compute it many times.

        ctx = backend.new_context()
        x = ctx.input("x", (4, 8), DType.F32)
        y = linear(x, weights["w"])
        ctx.forward(y).reserve()          # lowers and allocates; runs nothing
        ctx.compute({x: array})
        y.read()

    Several threads may use a context; a lock lets one call run at a time.
    """

    observer: ClassVar[Observer | None] = None
    """Called before each run of any context in this process; None for no observer."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self._inputs: dict[str, Tensor] = {}
        self._outputs: list[Tensor] = []
        self._updates: dict[Tensor, Tensor] = {}
        self._lowered: dict[Tensor, Tensor] = {}
        self._executable: Executable | None = None
        self._graph: Graph | None = None  # the graph that was compiled
        self._bounds: dict[Tensor, _Bound] = {}
        self._fed: dict[Tensor, np.ndarray[Any, Any]] = {}
        self._computed = False
        self._running = False  # start was called, and the device may still compute
        self._taken: set[Tensor] = set()  # outputs that read_once has given away
        self._closed = False
        self._lock = threading.RLock()

    # Building

    def input(self, name: str, shape: Sequence[int], dtype: DType = DType.F32) -> Tensor:
        """A leaf that is fed at each compute.

        Raises GraphError if the name is taken or the graph is compiled, DTypeError for a type that NumPy lacks.
        """
        self._require_open(building=True)
        require_leaf("input", name, shape, dtype)
        if name in self._inputs:
            raise GraphError(f"the context has an input called {name!r} already: {self._inputs[name]!r}")
        if dtype.numpy is None:
            raise DTypeError(f"input {name!r}: NumPy has no type for {dtype.name}")
        tensor = Tensor("input", (), {}, tuple(shape), dtype, name=name, context=self)
        self._inputs[name] = tensor
        return tensor

    def forward(self, *outputs: Tensor) -> Self:
        """Add tensors to compute.

        They can be read after ``compute``. Raises GraphError for a tensor of another context.
        """
        self._require_open(building=True)
        for t in outputs:
            require_tensor("the argument of forward", t)
            if t.context is None and not t.is_leaf:  # a leaf has no context: other contexts may read it too
                t.context = self
            elif t.context not in (None, self):
                raise GraphError(f"{t.name} belongs to another context", hint="build it again in this context")
            if t not in self._outputs:
                self._outputs.append(t)
        return self

    def update(self, state: Tensor, new: Tensor) -> Self:
        """Set ``state`` to the value of ``new`` after each compute. ``new``: any tensor of the same shape and type.

        Every read of ``state`` in the graph gives its value from before the compute. Rows set by
        ``state.set_rows(...)`` are written in place if the order of the graph allows it. Raises GraphError if ``state``
        is not a state, ShapeError if shape or type differ.
        """
        self._require_open(building=True)
        require_tensor("the state to update", state)
        require_tensor(f"the new value of {state.name}", new)
        if state.op != "state":
            raise GraphError(
                f"{state!r} is not a state; its op is {state.op!r}", hint="make one with backend.state(...)"
            )
        if (state.shape, state.dtype) != (new.shape, new.dtype):
            raise ShapeError(
                f"{state!r} cannot take the value of {new!r}: shape or type differ",
                hint=f"cast it: new.cast(DType.{state.dtype.name})" if state.shape == new.shape else None,
            )
        if new.context not in (None, self):
            raise GraphError(f"{new.name} belongs to another context", hint="build it again in this context")
        self._updates[state] = new
        return self

    # Running

    def reserve(self) -> Self:
        """Compile the graph and allocate its memory, unless that was done before. Runs nothing.

        Raises UnsupportedOpError, InsufficientMemoryError, GraphError if there is nothing to compute, or PlacementError
        if the backend is strict and a node cannot run on the device that the placement intends.
        """
        self.backend.require_process()
        with self._lock:
            self._compiled()
        return self

    def _compiled(self) -> Executable:
        """The executable; the first call compiles it. The caller holds the lock."""
        self._require_open()
        if self._executable is not None:
            return self._executable
        if not self._outputs and not self._updates:
            raise GraphError("the context has nothing to compute", hint="call ctx.forward(tensor) first")
        readable = {t: _readable(t) for t in self._outputs}
        graph, narrow = narrowed(Graph.trace(list(readable.values()), self._updates))
        graph, lowered = lower(graph, self.backend.supports)
        executable = self.backend.compile(graph)
        if self.backend.strict:
            _require_no_fallback(executable)
        self._executable, self._graph = executable, graph
        self._lowered = {t: lowered[narrow[r]] for t, r in readable.items()}
        self._bounds = _indexed(graph)
        return executable

    def compute(self, feeds: Mapping[Tensor, Any] | None = None) -> Self:
        """Run the graph with these inputs: one array for every input of the context.

        Integers are converted only without loss (for example int64 token ids that fit into I32); floats are rounded to
        the input's type. Raises GraphError for a missing or unknown input, ShapeError and DTypeError for an array that
        does not fit.
        """
        self.backend.require_process()
        with self._lock:
            self.start(feeds)
            self.wait()
            return self

    def start(self, feeds: Mapping[Tensor, Any] | None = None) -> bool:
        """Begin to run the graph as ``compute`` does. Return whether the device still computes it.

        Do not change the arrays before ``wait`` has returned. ``read`` waits too. Raises the errors of ``compute``.
        """
        feeds = {} if feeds is None else feeds
        if not isinstance(feeds, Mapping):
            raise GraphError(
                f"the inputs are {described(feeds)}; expected a mapping of input tensors to arrays",
                hint="ctx.compute({x: array})",
            )
        self.backend.require_process()
        with self._lock:
            if self._running:  # nobody has waited for that run, so nobody wants its error
                with contextlib.suppress(Exception):
                    self.wait()
            executable = self._compiled()
            if len(feeds) < len(self._inputs):
                missing = self._inputs.keys() - {getattr(t, "name", "") for t in feeds}
                raise GraphError(f"no value for the input {', '.join(sorted(missing))}")
            for tensor, value in feeds.items():
                require_tensor("an input", tensor)
                if self._inputs.get(tensor.name) is not tensor:
                    hint = did_you_mean(tensor.name, self._inputs)
                    raise GraphError(f"{tensor!r} is not an input of this context", hint=hint)
                array = _fit(tensor, value)
                _check_indices(tensor, array, self._bounds)
                executable.write(tensor, array)
                self._fed[tensor] = array
            self._computed = False
            self._taken.clear()
            observer = self.observer  # another thread may remove it
            if observer is not None:
                observer.before_run(self, self._fed)
            self._running = executable.start()
            self._computed = not self._running
            return self._running

    def wait(self) -> None:
        """Return when the run that ``start`` began is complete. Raises the errors of ``compute``; may be repeated."""
        self.backend.require_process()
        with self._lock:
            if self._running and self._executable is not None:
                try:
                    self._executable.wait()
                except Exception:
                    self._running = False
                    raise
                self._running, self._computed = False, True  # not after an interrupt

    def fed(self, tensor: Tensor) -> np.ndarray[Any, Any]:
        """The array that an input was last fed with, not a copy. Raises GraphError if the input has no value yet."""
        require_tensor("the input", tensor)
        with self._lock:
            if tensor not in self._fed:
                raise GraphError(f"{tensor!r} has no value yet", hint="call ctx.compute(...) first")
            return self._fed[tensor]

    def read(self, tensor: Tensor, out: np.ndarray[Any, Any] | None = None) -> np.ndarray[Any, Any]:
        """The value of an output in a new array, or in ``out``. A type that NumPy lacks (BF16, Q8_0) becomes F32.

        Raises GraphError if the tensor is not an output or nothing was computed yet, ShapeError if ``out`` does not
        fit.
        """
        self.backend.require_process()
        require_tensor("the tensor to read", tensor)
        with self._lock:
            executable = self._require_readable(tensor)
            dtype = _numpy_dtype(self._lowered[tensor])
            if out is None:
                out = np.empty(tensor.shape, dtype)
            elif not isinstance(out, np.ndarray):
                raise ShapeError(f"out is {described(out)}; expected a contiguous writable array")
            elif out.shape != tensor.shape or out.dtype != dtype or not out.flags.carray:
                flaw = "" if out.flags.c_contiguous else ", not contiguous"
                flaw += "" if out.flags.writeable else ", read-only"
                raise ShapeError(
                    f"out is {out.dtype}{list(out.shape)}{flaw}; "
                    f"expected a contiguous writable array of {dtype}{list(tensor.shape)}"
                )
            executable.read(self._lowered[tensor], out)
            return out

    def _require_readable(self, tensor: Tensor) -> Executable:
        """The executable that computed this output."""
        self._require_open()
        if self._running:
            self.wait()
        if tensor not in self._outputs:
            raise GraphError(f"{tensor!r} is not an output", hint="pass it to ctx.forward() before computing")
        if not self._computed or self._executable is None:
            raise GraphError(f"{tensor.name} has no value yet", hint="call ctx.compute(...) first")
        if tensor in self._taken:
            raise GraphError(f"{tensor.name} was read by read_once already", hint="call ctx.compute(...) again")
        return self._executable

    def read_once(self, tensor: Tensor) -> np.ndarray[Any, Any]:
        """The value of an output, without a copy if the backend can give its array away.

        The output cannot be read again before the next compute. Raises GraphError as ``read`` does, or if it was read
        by ``read_once``.
        """
        self.backend.require_process()
        require_tensor("the tensor to read", tensor)
        with self._lock:
            executable = self._require_readable(tensor)
            lowered = self._lowered[tensor]
            is_shared = sum(other is lowered for other in self._lowered.values()) > 1
            given = None if is_shared else executable.give(lowered)
            if given is None:
                given = self.read(tensor)
            self._taken.add(tensor)
            return given

    # Inspecting

    @property
    def inputs(self) -> Mapping[str, Tensor]:
        """The inputs by name."""
        return dict(self._inputs)

    def graph(self) -> Graph:
        """The graph that the model author wrote, before lowering."""
        return Graph.trace(self._outputs, self._updates)

    def memory(self) -> Mapping[str, Memory]:
        """Bytes of the graph's temporaries by device; empty before ``reserve``. Allocates nothing."""
        return {} if self._executable is None else self._executable.memory()

    def placements(self) -> Sequence[NodePlacement]:
        """Where each node runs, and how; empty before ``reserve``."""
        return () if self._executable is None else self._executable.placements()

    def splits(self) -> Splits:
        """The graph divided over its devices, and the values copied between them; empty before ``reserve``."""
        if self._executable is None or self._graph is None:
            return Splits((), (), ())
        return Splits.of(self._graph, self._executable.placements(), self.backend.device_of_tensor)

    # Closing

    def close(self) -> None:
        """Free the compiled graph. May be called more than once."""
        if self.backend.is_forked_copy:
            return
        with self._lock:
            self._closed = True
            # tensors refer to their context: without this, closed graphs wait for the garbage collector
            tensors = (self._fed, self._inputs, self._outputs, self._updates, self._lowered, self._bounds, self._taken)
            for held in tensors:
                held.clear()
            self._graph = None
            if self._executable is not None:
                self._executable.close()
                self._executable = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _require_open(self, building: bool = False) -> None:
        if self._closed:
            raise ClosedError("the context is closed", hint="make a new one with backend.new_context()")
        if building and self._executable is not None:
            raise GraphError("the graph is compiled and cannot grow", hint="build a new graph in a new context")


def _require_no_fallback(executable: Executable) -> None:
    """Raise PlacementError, and free the executable, if a node cannot run on the device that the placement intends."""
    for node in executable.placements():
        if node.how == "fallback":
            executable.close()
            layer = "the input" if node.layer < 0 else f"layer {node.layer}"
            raise PlacementError(
                f"{node.op} ({node.node}, {layer}) would run on {node.device}: the device of that layer cannot compute "
                "it, and fallback=False forbids another device",
                op=node.op,
                layer=node.layer,
                device=node.device,
                hint="put that layer on another device, or leave out fallback=False",
            )


def _readable(tensor: Tensor) -> Tensor:
    return tensor if tensor.dtype.numpy is not None else tensor.cast(DType.F32)


def _fit(tensor: Tensor, value: Any) -> np.ndarray[Any, Any]:
    """``value`` as a contiguous array of the tensor's shape and type, converted without loss of integers."""
    dtype = _numpy_dtype(tensor)
    try:
        array = np.asarray(value)
    except (TypeError, ValueError) as e:  # for example lists of unequal lengths
        raise ShapeError(
            f"input {tensor.name} is {list(tensor.shape)}; got {described(value)}, which is not an array: {e}"
        ) from None
    if array.shape != tensor.shape:
        raise ShapeError(f"input {tensor.name} is {list(tensor.shape)}; got an array of shape {list(array.shape)}")
    if array.dtype != dtype:
        whole = array.dtype.kind in "iu"
        if not whole and (array.dtype.kind, dtype.kind) != ("f", "f"):
            raise DTypeError(f"input {tensor.name} is {tensor.dtype.name}; got an array of {array.dtype}")
        with np.errstate(all="ignore"):  # numbers outside the type's range become 0 or infinity
            given, array = array, array.astype(dtype)
        if whole and not np.array_equal(given, array):
            raise DTypeError(
                f"input {tensor.name} is {tensor.dtype.name}; some values of the {given.dtype} array do not fit"
            )
    return array if array.flags.c_contiguous else np.ascontiguousarray(array)


def _numpy_dtype(tensor: Tensor) -> np.dtype[Any]:
    dtype = tensor.dtype.numpy
    if dtype is None:  # not reached: inputs and readable outputs have a NumPy type
        raise DTypeError(f"NumPy has no type for {tensor!r}")
    return dtype


class _Bound(NamedTuple):
    """The limit of an index."""

    n: int
    """Indices are less than this."""
    name: str
    """The tensor whose elements the index counts."""


def _indexed(graph: Graph) -> dict[Tensor, _Bound]:
    """The smallest bound of each input that is used as indices. Checks constants at once: native code would abort."""
    bounds: dict[Tensor, _Bound] = {}
    for node in graph.nodes:
        for source, indices, axis in TABLE[node.op].indexed:
            rows = node.source(source)
            bound = _Bound(rows.shape[axis], rows.name)
            for leaf in origins(node.source(indices)):
                if leaf.op == "input":
                    bounds[leaf] = min(bound, bounds.get(leaf, bound))
                elif leaf.op == "constant":
                    _check_indices(leaf, leaf.attrs["value"], {leaf: bound})
    return bounds


def _check_indices(tensor: Tensor, array: np.ndarray[Any, Any], bounds: Mapping[Tensor, _Bound]) -> None:
    bound = bounds.get(tensor)
    if bound is None or (array.size == 1 and 0 <= array.item() < bound.n):  # the second is faster than min and max
        return
    if array.min() < 0 or array.max() >= bound.n:
        bad = array[(array < 0) | (array >= bound.n)].flat[0]
        raise GraphError(f"{tensor.op} {tensor.name} holds the index {bad}; {bound.name} has {bound.n} rows")
