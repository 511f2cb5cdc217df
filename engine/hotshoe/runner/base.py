"""What every loaded model has: its device, its memory, its end."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from hotshoe_core.errors import ClosedError, ShapeError, WeightsError
from hotshoe_core.errors.text import printable

if TYPE_CHECKING:
    from typing import Self

    from hotshoe.kvcache import LayerSpec
    from hotshoe.nn import Module
    from hotshoe.nn.batch import Batch
    from hotshoe.placement import PlacementReport
    from hotshoe.tokenizers import Tokenizer
    from hotshoe_core import Backend, BackendMemory, Context, Device, Splits, Tensor
    from hotshoe_core.gguf import GGUFFile

__all__ = ["LoadedModel", "T", "TextModule"]

T = TypeVar("T")


class TextModule(Protocol):
    """What the runner asks of a text model: see docs/models.md."""

    config: Any

    def cache_spec(self) -> Sequence[LayerSpec]:
        """What each layer keeps."""

    def __call__(self, batch: Batch, cache: Any) -> Tensor:
        """Logits of the rows in ``batch.outputs``: (k, vocab)."""


class LoadedModel:
    """A model with its tokenizer on an opened backend, all of which it closes. Made by ``hotshoe.load_model``.

    why: how its device was chosen. moved: what was moved when it was loaded because memory ran out.
    """

    def __init__(
        self, model: Module, tokenizer: Tokenizer, backend: Backend, file: GGUFFile, n_ctx: int, why: str
    ) -> None:
        self.tokenizer = tokenizer
        self.backend = backend
        self.metadata = file.metadata
        self.n_ctx = n_ctx
        self.why = why
        self.moved: tuple[str, ...] = ()
        self._file = file
        self._model = model
        self._guard = threading.RLock()
        self._closed = False
        if os.environ.get("HOTSHOE_TRACE"):
            from hotshoe_core.inspect.trace import watch  # for those who trace

            watch(backend, self.about)

    @property
    def about(self) -> dict[str, str]:
        """What a trace's header says of the model: ``model`` and ``architecture``."""
        return {"model": str(self._file.path), "architecture": self.metadata.architecture}

    @property
    def device(self) -> Device:
        """The device the model runs on, of several that which has the most layers; ``why`` says how it was chosen."""
        layers = self.backend.placement.layers
        return max(self.backend.devices, key=lambda device: layers.count(device.name))

    @property
    def nbytes(self) -> int:
        """The size of the model's file, or files."""
        return self._file.nbytes

    @property
    def weights(self) -> dict[str, Tensor]:
        """The weights in use by their names in the file, for ``hotshoe_core.dump``.

        A tensor of the file that several devices read is here once.
        """
        bound = (getattr(p.module, p.attribute) for p in self._model.parameters())
        return {t.name: t for t in bound if t is not None}

    def memory(self) -> BackendMemory:
        """What the model takes now, by device and layer."""
        return self.backend.memory()

    def placement_report(self) -> PlacementReport:
        """Which device holds what, and what was moved when the model was loaded because memory ran out."""
        from hotshoe.placement.report import PlacementReport

        return PlacementReport(self.backend.placement, self.moved)

    def placements(self, n_tokens: int = 1) -> Splits:
        """Where the nodes of a step over so many tokens run, and what crosses between devices.

        Raises InputTooLongError for more tokens than one graph takes.
        """
        return self._alone(lambda: self._graph_of(n_tokens).reserve().splits())

    def reserve(self) -> None:
        """Compile the largest graph and allocate its memory, so that it does not run out later.

        Raises InsufficientMemoryError; PlacementError as ``hotshoe.load_model`` does.
        """
        self._alone(lambda: self._largest_graph().reserve())

    def _alone(self, work: Callable[[], T]) -> T:
        """What ``work`` gives, done while nobody computes."""
        with self._lock:
            self._require_open()
            return work()

    def _graph_of(self, n_tokens: int) -> Context:
        """The graph that a step of one text over so many tokens runs."""
        raise NotImplementedError

    def _largest_graph(self) -> Context:
        raise NotImplementedError

    def close(self) -> None:
        """Free weights, states and graphs. Idempotent; does nothing in a forked child."""
        if not self.backend.foreign:
            with self._lock:
                self._free()

    def _free(self) -> None:
        self._closed = True
        self.backend.close()
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        name = self.metadata.get("general.name", self.metadata.architecture)
        return f"<{type(self).__name__} {printable(str(name), 60)} n_ctx={self.n_ctx} on {self.device.name}>"

    def _repr_html_(self) -> str:
        from hotshoe_core.contract.html import memory_table

        rows = [] if self._closed else [(d.device, *d.sizes, 0) for d in self.memory().devices]
        return memory_table(rows, f"{self!r}{' (closed)' if self._closed else ''}\n{self.why}")

    @property
    def _lock(self) -> Any:
        """Raises ForkedProcessError first: in a forked child a thread that held it is gone."""
        self.backend.require_process()
        return self._guard

    def _check_shapes(self, build: Callable[[], object]) -> None:
        """Build a graph at once: a weight of the wrong shape must not wait for the first text.

        A ShapeError of the model's author, one that no weight of the file takes part in, is raised as it is.
        """
        try:
            build()
        except ShapeError as e:
            weights = [t for t in e.operands if t.op == "weight"]
            if not weights:
                raise
            named = ", ".join(f"{t.name} {t.dtype.name}{list(t.shape)}" for t in weights)
            raise WeightsError(
                f"{self._file.path}: {named} does not fit the model: {e.message}",
                hint=e.hint or "the file was made for another version of the architecture, or the model is wrong",
            ) from e

    def _require_open(self) -> None:
        self.backend.require_process()
        if self._closed:
            raise ClosedError("the model is closed", hint="load it again with hotshoe.load_model")
