"""LoadedModel: what text, embedding and rerank models have in common."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from hotshoe.nn.uses import check_uses
from hotshoe_core.errors import BackendError, ClosedError, ShapeError, WeightsError
from hotshoe_core.errors.text import printable

if TYPE_CHECKING:
    from typing import Self

    from hotshoe.kvcache import LayerSpec
    from hotshoe.nn import Module
    from hotshoe.nn.batch import Batch
    from hotshoe.placement import PlacementReport
    from hotshoe.runner.contexts import Built
    from hotshoe.runner.media_encoder import LoadedTower, MediaEncoder
    from hotshoe.runner.params import RunnerParams
    from hotshoe.tokenizers import Tokenizer
    from hotshoe_core import Backend, BackendMemory, Context, Device, Splits, Tensor
    from hotshoe_core.gguf import GGUFFile

__all__ = ["LoadedModel", "ModelParts", "T", "TextModule"]

T = TypeVar("T")


class TextModule(Protocol):
    """The interface of a text model: see docs/models.md."""

    config: Any

    @property
    def span_width(self) -> int:
        """Elements of a row of an EmbeddingSpan."""

    def cache_spec(self) -> Sequence[LayerSpec]:
        """Return what each layer keeps between steps."""

    def __call__(self, batch: Batch, views: Any) -> Tensor:
        """Return the logits of the rows in ``batch.outputs``: (k, vocab)."""

    def store(self, rows: Tensor, views: Any) -> None:
        """Store what layers keep of an encoder's rows, (m, span_width). Called only if one has a CrossSpec."""


@dataclass(frozen=True, slots=True)
class ModelParts:
    """What a loaded model is made from. The loaded model closes the backend and the file."""

    model: Module
    """The model, with its weights bound to the backend."""

    tokenizer: Tokenizer
    backend: Backend
    file: GGUFFile
    n_ctx: int
    params: RunnerParams
    towers: tuple[LoadedTower, ...] = ()
    """The encoders of pictures and sounds of a text model, one for each medium."""
    n_attended: int = 0
    """The most rows of a picture to which layers of the text model attend; 0 if they attend to none."""
    unused_towers: tuple[str, ...] = ()
    """The encoders that are not used, each with the reason."""

    def with_batch(self) -> ModelParts:
        """The same with the backend's number of rows in a step as ``n_batch``, if the user chose none."""
        n_batch = self.params.n_batch or self.backend.cache_config().n_rows
        return replace(self, params=replace(self.params, n_batch=n_batch))


class LoadedModel:
    """A model and its tokenizer on an opened backend. Made by ``hotshoe.load_model``.

    Use it as a context manager, or call ``close``, to free its memory.
    """

    images: MediaEncoder | None = None
    """Turns pictures into items of a sequence; None if the model reads no pictures."""
    audio: MediaEncoder | None = None
    """Turns sounds into items of a sequence; None if the model reads no sounds."""

    def __init__(self, parts: ModelParts) -> None:
        self.tokenizer = parts.tokenizer
        self.backend = parts.backend
        self.metadata = parts.file.metadata
        self.n_ctx = parts.n_ctx
        self.params = parts.params
        self.why = ""
        """How the device was chosen, in one line."""
        self.moved: tuple[str, ...] = ()
        """What was moved to other devices because memory ran out, one sentence for each time."""
        self.unused_towers = parts.unused_towers
        """The encoders of pictures and sounds that are not used, one sentence with the reason for each."""
        self._file = parts.file
        self._model = parts.model
        self._guard = threading.RLock()
        self._closed = False
        if os.environ.get("HOTSHOE_TRACE"):
            from hotshoe_core.inspect.trace import watch  # few processes trace

            watch(self.backend, self.about)

    @property
    def encoders(self) -> list[MediaEncoder]:
        """The encoders of pictures and sounds that the model has."""
        return [encoder for encoder in (self.images, self.audio) if encoder is not None]

    @property
    def sees(self) -> bool:
        """Whether the model reads pictures."""
        return self.images is not None

    @property
    def hears(self) -> bool:
        """Whether the model reads sounds."""
        return self.audio is not None

    @property
    def about(self) -> dict[str, str]:
        """The model's entries in the header of a trace: ``model`` (the file) and ``architecture``."""
        return {"model": str(self._file.path), "architecture": self.metadata.architecture}

    @property
    def device(self) -> Device:
        """The device that the model runs on; of several, the one with the most layers. See also ``why``."""
        layers = self.backend.placement.layers
        return max(self.backend.devices, key=lambda device: layers.count(device.name))

    @property
    def nbytes(self) -> int:
        """The size of the model's file or files in bytes."""
        return self._file.nbytes

    @property
    def weights(self) -> dict[str, Tensor]:
        """The weights in use by their names in the file. ``hotshoe_core.dump`` prints them.

        A tensor of the file that several devices read is listed once.
        """
        bound = (getattr(p.module, p.attribute) for p in self._model.parameters())
        return {t.name: t for t in bound if t is not None}

    def memory(self) -> BackendMemory:
        """Return the memory that the model and its encoders of pictures and sounds use now, by device and layer."""
        found = self.backend.memory()
        for encoder in self.encoders:
            encoder.add_to(found)
        return found

    def placement_report(self) -> PlacementReport:
        """Return which device holds which layers, and what was moved because memory ran out during loading."""
        from hotshoe.placement.report import PlacementReport

        return PlacementReport(self.backend.placement, self.moved)

    def placements(self, n_tokens: int = 1) -> Splits:
        """Return which device computes each node of a graph over ``n_tokens`` tokens, and the copies between devices.

        Raises InputTooLongError if one graph cannot have ``n_tokens`` tokens.
        """
        return self._exclusive(lambda: self._graph_of(n_tokens).reserve().splits())

    def reserve(self) -> None:
        """Compile the largest graph and allocate its memory, so that memory does not run out later.

        Raises InsufficientMemoryError; PlacementError as ``hotshoe.load_model`` does.
        """
        self._exclusive(lambda: self._largest_graph().reserve())

    def _exclusive(self, work: Callable[[], T]) -> T:
        """Call ``work`` while no other thread computes; return its result."""
        with self._lock:
            self._require_open()
            return work()

    def _graph_of(self, n_tokens: int) -> Context:
        """Return the graph over ``n_tokens`` tokens of one text."""
        raise NotImplementedError

    def _largest_graph(self) -> Context:
        """Return the graph that takes the most memory."""
        raise NotImplementedError

    def close(self) -> None:
        """Free weights, states and graphs. Idempotent. Does nothing in a forked process."""
        if not self.backend.is_forked_copy:
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
        """The lock. Raises ForkedProcessError in a forked process, where the thread that held it does not exist."""
        self.backend.require_process()
        return self._guard

    def _not_finite(self) -> BackendError:
        return BackendError(
            f"{self._file.path}: the model gave NaN or infinity on {self.device.name}",
            hint="the file is damaged, or its weights are too large for its element type: try an f32 file",
        )

    def _check_shapes(self, build: Callable[[], Built]) -> Built:
        """Build a graph and return it, to find weights of a wrong shape, or of another use, before the first text.

        Raises WeightsError for a weight of the file, ModelDefinitionError for a wrong ``use``. A ShapeError without a
        weight is an error of the model's author; it is raised unchanged.
        """
        try:
            built = build()
        except ShapeError as e:
            weights = [t for t in e.operands if t.op == "weight"]
            if not weights:
                raise
            named = ", ".join(f"{t.name} {t.dtype.name}{list(t.shape)}" for t in weights)
            raise WeightsError(
                f"{self._file.path}: {named} does not fit the model: {e.message}",
                hint=e.hint or "the file was made for another version of the architecture, or the model is wrong",
            ) from e
        check_uses(self._model, built.context.graph())
        return built

    def _require_open(self) -> None:
        self.backend.require_process()
        if self._closed:
            raise ClosedError("the model is closed", hint="load it again with hotshoe.load_model")
