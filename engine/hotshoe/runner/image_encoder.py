"""ImageEncoder: a tower on an opened backend. It computes a picture once, and keeps what it computed."""

from __future__ import annotations

import hashlib
import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from hotshoe.images import read_image
from hotshoe.nn.vision import Rows
from hotshoe.runner.contexts import Built, ContextCache
from hotshoe.runner.items import EmbeddingSpan, Item
from hotshoe_core import AllocationStatus, BackendMemory, DeviceType, DType, Memory
from hotshoe_core.errors import BackendError, ImageError, ModelDefinitionError, ModelError
from hotshoe_core.errors.arguments import described, listed

if TYPE_CHECKING:
    from hotshoe.nn.vision import Prepared, Tower
    from hotshoe.tokenizers import Tokenizer
    from hotshoe_core import Backend
    from hotshoe_core.gguf import GGUFFile

__all__ = ["ImageEncoder", "LoadedTower"]

_MAX_GRAPHS = 4  # each has memory for its picture
_MAX_KEPT = 256 << 20  # bytes of rows
_DTYPES = {"f4": DType.F32, "i4": DType.I32}
_STAND_IN = "\ue000picture\ue001"  # for markers in the texts of users, which are not pictures

_Shapes = tuple[tuple[str, tuple[int, ...], DType], ...]
_Parts = tuple["str | EmbeddingSpan", ...]


@dataclass(frozen=True, slots=True)
class LoadedTower:
    """A tower with its weights on a backend of its own. The text model that it belongs to closes both."""

    tower: Tower
    backend: Backend
    file: GGUFFile

    def close(self) -> None:
        """Free the weights and close the file. Idempotent."""
        self.backend.close()
        self.file.close()


class ImageEncoder:
    """Turns pictures into items of a sequence. ``TextModel.images`` is one if the model reads pictures.

    The rows of pictures are kept by content, up to 256 MiB, so that a conversation computes each of its pictures once.
    An encoder on a CPU, where a picture may take many seconds, computes while the text model runs steps, so that the
    texts of other threads go on.
    """

    def __init__(
        self,
        loaded: LoadedTower,
        tokenizer: Tokenizer,
        run: Callable[[Callable[[], Any]], Any],
        require_open: Callable[[], None],
    ) -> None:
        """run: calls its argument while no other thread computes, and returns its result. require_open: raises
        ClosedError if the text model is closed.
        """
        self.tower = loaded.tower
        self.file = loaded.file
        self.backend = loaded.backend
        self._loaded = loaded
        self._tokenizer = tokenizer
        self._require_open = require_open
        is_apart = loaded.backend.independent and loaded.backend.devices[0].type is DeviceType.CPU
        self._run = self._run_meanwhile if is_apart else run
        self._computing = threading.Lock()  # one picture at a time, if it needs no turn
        self._contexts: ContextCache[_Shapes] = ContextCache(self._build, _MAX_GRAPHS)
        status = loaded.file.path.stat()
        # rows may be kept longer than this object, with the keys and values made from them
        self._identity = repr((loaded.file.path.name, status.st_size, status.st_mtime_ns)).encode()
        self._kept: OrderedDict[bytes, _Parts] = OrderedDict()
        self._guard = threading.Lock()  # of the kept rows
        self._token = self._find_token() if self.tower.n_attended else None  # what stands for a picture in a text
        self.n_computed = 0
        """How many pictures were computed, and not found among the kept ones."""

    @property
    def marker(self) -> str:
        """The text that stands for a picture in a prompt, such as "<image>"."""
        return self.tower.marker

    def _find_token(self) -> int:
        marker = self.tower.row_marker or self.marker
        ids = self._tokenizer.encode(marker, add_special=False)
        if len(ids) == 1:
            return ids[0]
        raise ModelError(
            f"{self.file.path}: the text model's vocabulary has no token {marker!r}, which stands for a picture",
            hint="the vocabulary and the encoder belong to different models: convert both again",
        )

    @property
    def kept_bytes(self) -> int:
        """The bytes of the kept rows."""
        return sum(map(_nbytes, tuple(self._kept.values())))

    def hide_markers(self, text: str) -> str:
        """Replace markers in the text of a user, so that ``items`` does not take them for pictures."""
        return text.replace(self.marker, _STAND_IN)

    def count_markers(self, text: str) -> int:
        """Count the pictures that a prompt has places for."""
        return text.count(self.marker)

    def items(self, text: str, sources: Iterable[Any], *, add_special: bool) -> list[Item]:
        """Return a prompt as items, each marker replaced by the rows of a picture.

        sources: the pictures, in the order of the markers; see ``hotshoe.images.read_image``. A prompt without markers
        begins with its pictures. add_special: add the tokens that every text begins with.

        Raises ImageError for an invalid picture, or if there are more or fewer pictures than markers; BackendError if
        the encoder gives NaN or infinity.
        """
        given = listed("images", sources, "a list of pictures", ImageError)
        n = self.count_markers(text)
        if not n:
            text, n = self.tower.placeholder * len(given) + text, len(given)
        if n != len(given):
            raise ImageError(
                f"the prompt has {n} places for pictures ({self.marker}), but {len(given)} pictures were given",
                hint="give one picture for each, or leave all places out: the pictures then come first",
            )
        pictures = iter([self._parts(source) for source in given])
        row_marker = self.tower.row_marker or self.marker
        parts: list[str | EmbeddingSpan] = []
        for piece in re.split(f"({re.escape(self.marker)})", text):
            parts += next(pictures) if piece == self.marker else [piece.replace(_STAND_IN, self.marker)]
        ids = self._tokenizer.encode(row_marker, add_special=False)
        if len(ids) != 1:  # the vocabulary has no such token
            return self._encode_apart(parts, add_special)
        # whole, because the texts around a picture may share a token with what they touch
        whole = "".join(part if isinstance(part, str) else row_marker for part in parts)
        replaced = iter([part for part in parts for _ in range(_n_rows_of(part, row_marker))])
        items: list[Item] = []
        for token in self._tokenizer.encode(whole, add_special=add_special):
            part = next(replaced) if token == ids[0] else token
            items.append(token if isinstance(part, str) else part)
        return items

    def _encode_apart(self, parts: Sequence[str | EmbeddingSpan], add_special: bool) -> list[Item]:
        items: list[Item] = []
        for i, part in enumerate(parts):
            items += (
                self._tokenizer.encode(part, add_special=add_special and i == 0) if isinstance(part, str) else [part]
            )
        return items

    def _parts(self, source: Any) -> _Parts:
        """Return what replaces the marker of a picture: texts and spans."""
        prepared = self.tower.prepare(read_image(source))
        digest = self._digest(prepared)
        return self._find(digest) or self._run(lambda: self._find(digest) or self._make(digest, prepared))

    def _run_meanwhile(self, work: Callable[[], Any]) -> Any:
        with self._computing:
            self._require_open()
            return work()

    def _digest(self, prepared: Prepared) -> bytes:
        """Return what the rows of a picture depend on: the encoder's file, and the picture as the encoder reads it."""
        found = hashlib.blake2b(self._identity, digest_size=16)
        for name, array in prepared.inputs.items():
            found.update(f"{name} {array.dtype.str} {array.shape}".encode())
            found.update(array.tobytes())
        return found.digest()

    def _find(self, digest: bytes) -> _Parts | None:
        with self._guard:
            if digest in self._kept:
                self._kept.move_to_end(digest)
            return self._kept.get(digest)

    def _make(self, digest: bytes, prepared: Prepared) -> _Parts:
        parts = tuple(
            self._part(part, digest + i.to_bytes(4, "big"))
            for i, part in enumerate(self.tower.expand(self._compute(prepared), prepared.notes))
        )
        with self._guard:
            self._kept[digest] = parts
            while len(self._kept) > 1 and self.kept_bytes > _MAX_KEPT:
                self._kept.popitem(last=False)
        return parts

    def _part(self, part: object, digest: bytes) -> str | EmbeddingSpan:
        if isinstance(part, Rows):
            return EmbeddingSpan(part.array, digest, part.positions, self.tower.bidirectional, self._token)
        if isinstance(part, str):
            return part
        raise ModelDefinitionError(
            f"{type(self.tower).__name__}.expand returned {described(part)}; expected a list of texts and Rows"
        )

    def _compute(self, prepared: Prepared) -> np.ndarray[Any, Any]:
        inputs = prepared.inputs
        for name, array in inputs.items():
            if array.dtype.str[1:] not in _DTYPES:
                where = f"{type(self.tower).__name__}.prepare"
                raise ModelDefinitionError(f"{where}: the input {name!r} is {array.dtype}; expected float32 or int32")
        shapes = tuple((name, array.shape, _DTYPES[array.dtype.str[1:]]) for name, array in inputs.items())
        built = self._contexts.get(shapes)
        built.context.compute({tensor: inputs[name] for name, tensor in built.inputs.items()})
        self.n_computed += 1
        rows: np.ndarray[Any, Any] = built.outputs[0].read()
        if not np.isfinite(rows).all():
            raise BackendError(
                f"{self.file.path}: the encoder of pictures gave NaN or infinity",
                hint="the file is damaged, or its weights are too large for its element type: try an f32 file",
            )
        return rows

    def _build(self, shapes: _Shapes) -> Built:
        ctx = self.backend.new_context()
        given = {name: ctx.input(name, shape, dtype) for name, shape, dtype in shapes}
        rows = self.tower(given)
        if rows.ndim != 2 or rows.shape[1] != self.tower.span_width:
            raise ModelDefinitionError(
                f"{type(self.tower).__name__} gave {rows.shape}; expected (rows, {self.tower.span_width})"
            )
        ctx.forward(rows)
        return Built(ctx, ctx.inputs, (rows,))

    def add_to(self, memory: BackendMemory) -> BackendMemory:
        """Add the encoder's memory: its weights to those of the input, and the kept rows as a cache of the CPU."""
        for device in self.backend.memory().devices:
            entry = memory.on(device.device)
            weights, _, graph = device.sizes
            entry.add_input(weights)
            if graph:
                entry.graph = Memory(entry.graph.size + graph, device.graph.status)
        if self.kept_bytes:
            entry = memory.on("cpu")
            entry.cache[-1] = Memory(self.kept_bytes, AllocationStatus.ALLOCATED)
        return memory

    def close(self) -> None:
        """Free the weights and graphs, after the picture that is being computed. Idempotent."""
        with self._computing:
            self._contexts.close()
            self._kept.clear()
            self._loaded.close()


def _n_rows_of(part: str | EmbeddingSpan, row_marker: str) -> int:
    """How many row markers a part holds in the whole text."""
    return part.count(row_marker) if isinstance(part, str) else 1


def _nbytes(parts: _Parts) -> int:
    return sum(part.array.nbytes for part in parts if isinstance(part, EmbeddingSpan))
