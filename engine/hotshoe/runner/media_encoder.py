"""MediaEncoder: a tower on an opened backend. It computes a picture or a sound once, and keeps what it computed."""

from __future__ import annotations

import hashlib
import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from hotshoe.media import AUDIO, IMAGE, Medium
from hotshoe.nn.vision import Rows
from hotshoe.runner.contexts import Built, ContextCache
from hotshoe.runner.items import EmbeddingSpan, Item
from hotshoe_core import AllocationStatus, BackendMemory, DeviceType, DType, Memory
from hotshoe_core.errors import BackendError, ModelDefinitionError, ModelError
from hotshoe_core.errors.arguments import described, listed

if TYPE_CHECKING:
    from hotshoe.nn.vision import Array, Prepared, Tower
    from hotshoe.tokenizers import Tokenizer
    from hotshoe_core import Backend
    from hotshoe_core.gguf import GGUFFile

__all__ = ["KeptRows", "LoadedTower", "MediaEncoder", "encode_prompt", "make_encoders"]

_MAX_GRAPHS = 4  # each has memory for its picture
_MAX_KEPT = 256 << 20  # bytes of rows
_DTYPES = {"f4": DType.F32, "i4": DType.I32}

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


class KeptRows:
    """The rows of pictures and sounds by their content, up to 256 MiB. The least recently used ones are dropped."""

    def __init__(self) -> None:
        self._kept: OrderedDict[bytes, _Parts] = OrderedDict()
        self._guard = threading.Lock()

    @property
    def nbytes(self) -> int:
        return sum(map(_nbytes, tuple(self._kept.values())))

    def find(self, digest: bytes) -> _Parts | None:
        with self._guard:
            if digest in self._kept:
                self._kept.move_to_end(digest)
            return self._kept.get(digest)

    def keep(self, digest: bytes, parts: _Parts) -> None:
        with self._guard:
            self._kept[digest] = parts
            while len(self._kept) > 1 and self.nbytes > _MAX_KEPT:
                self._kept.popitem(last=False)

    def clear(self) -> None:
        self._kept.clear()


class MediaEncoder:
    """Turns pictures or sounds into items of a sequence: ``TextModel.images`` and ``TextModel.audio``.

    Their rows are kept by content, up to 256 MiB, so that a conversation computes each of its pictures once.
    An encoder on a CPU, where a picture may take many seconds, computes while the text model runs steps, so that the
    texts of other threads go on.
    """

    def __init__(
        self,
        loaded: LoadedTower,
        tokenizer: Tokenizer,
        run: Callable[[Callable[[], Any]], Any],
        require_open: Callable[[], None],
        kept: KeptRows,
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
        identity = self.medium.name, loaded.file.path.name, status.st_size, status.st_mtime_ns
        self._identity = repr(identity).encode()
        self._kept = kept
        self._token = self._find_token() if self.tower.n_attended else None  # what stands for a picture in a text
        self.n_computed = 0
        """How many pictures or sounds were computed, and not found among the kept ones."""

    @property
    def medium(self) -> Medium:
        """What it reads."""
        return self.tower.medium

    @property
    def marker(self) -> str:
        """The text that stands for a picture or a sound in a prompt, such as "<image>"."""
        return self.tower.marker

    @property
    def kept_bytes(self) -> int:
        """The bytes of the kept rows, those of the model's other encoder included."""
        return self._kept.nbytes

    @property
    def row_marker(self) -> str:
        """The text that stands for rows while a prompt is tokenized."""
        return self.tower.row_marker or self.marker

    @property
    def _stand_in(self) -> str:
        return f"\ue000{self.medium.one}\ue001"

    def hide_markers(self, text: str) -> str:
        """Replace markers in the text of a user, so that ``items`` does not take them for pictures or sounds."""
        return text.replace(self.marker, self._stand_in)

    def show_markers(self, text: str) -> str:
        """Write hidden markers again."""
        return text.replace(self._stand_in, self.marker)

    def count_markers(self, text: str) -> int:
        """Count the places for pictures or sounds in a prompt."""
        return text.count(self.marker)

    def items(self, text: str, sources: Iterable[Any], *, add_special: bool) -> list[Item]:
        """Return a prompt as items, each marker replaced by the rows of a picture or a sound.

        sources: the pictures or sounds, in the order of the markers; see ``hotshoe.images.read_image`` and
        ``hotshoe.audio.read_audio``. A prompt without markers begins with them. add_special: add the tokens that every
        text begins with.

        Raises ImageError or AudioError for an invalid one, or if there are more or fewer than markers; BackendError if
        the encoder gives NaN or infinity.
        """
        return encode_prompt(self._tokenizer, text, {self: sources}, add_special=add_special)

    def parts(self, source: Any) -> _Parts:
        """Return what replaces the marker of a picture or a sound: texts and spans."""
        prepared = self.tower.prepare(_read(source, self.medium))
        digest, kept = self._digest(prepared), self._kept
        found: _Parts = kept.find(digest) or self._run(lambda: kept.find(digest) or self._make(digest, prepared))
        return found

    def _run_meanwhile(self, work: Callable[[], Any]) -> Any:
        with self._computing:
            self._require_open()
            return work()

    def _find_token(self) -> int:
        ids = self._tokenizer.encode(self.row_marker, add_special=False)
        if len(ids) == 1:
            return ids[0]
        raise ModelError(
            f"{self.file.path}: the text model's vocabulary has no token {self.row_marker!r}, which stands for a "
            f"{self.medium.one}",
            hint="the vocabulary and the encoder belong to different models: convert both again",
        )

    def _digest(self, prepared: Prepared) -> bytes:
        """Return what the rows depend on: the encoder's file, and the picture or the sound as the encoder reads it."""
        found = hashlib.blake2b(self._identity, digest_size=16)
        for inputs in _pieces(prepared):
            for name, array in inputs.items():
                found.update(f"{name} {array.dtype.str} {array.shape}".encode())
                found.update(array.tobytes())
        return found.digest()

    def _make(self, digest: bytes, prepared: Prepared) -> _Parts:
        rows = np.concatenate([self._compute(inputs) for inputs in _pieces(prepared)])
        self.n_computed += 1
        parts = tuple(
            self._part(part, digest + i.to_bytes(4, "big"))
            for i, part in enumerate(self.tower.expand(rows, prepared.notes))
        )
        self._kept.keep(digest, parts)
        return parts

    def _part(self, part: object, digest: bytes) -> str | EmbeddingSpan:
        if isinstance(part, Rows):
            return EmbeddingSpan(part.array, digest, part.positions, self.tower.bidirectional, self._token)
        if isinstance(part, str):
            return part
        raise ModelDefinitionError(
            f"{type(self.tower).__name__}.expand returned {described(part)}; expected a list of texts and Rows"
        )

    def _compute(self, inputs: Mapping[str, Array]) -> Array:
        for name, array in inputs.items():
            if array.dtype.str[1:] not in _DTYPES:
                where = f"{type(self.tower).__name__}.prepare"
                raise ModelDefinitionError(f"{where}: the input {name!r} is {array.dtype}; expected float32 or int32")
        shapes = tuple((name, array.shape, _DTYPES[array.dtype.str[1:]]) for name, array in inputs.items())
        built = self._contexts.get(shapes)
        built.context.compute({tensor: inputs[name] for name, tensor in built.inputs.items()})
        rows: Array = built.outputs[0].read()
        if not np.isfinite(rows).all():
            raise BackendError(
                f"{self.file.path}: the encoder of {self.medium.many} gave NaN or infinity",
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

    def add_to(self, memory: BackendMemory) -> None:
        """Add the encoder's memory: its weights to those of the input, and the kept rows as a cache of the CPU."""
        for device in self.backend.memory().devices:
            entry = memory.on(device.device)
            weights, _, graph = device.sizes
            entry.add_input(weights)
            if graph:
                entry.graph = Memory(entry.graph.size + graph, device.graph.status)
        if nbytes := self._kept.nbytes:  # those of all encoders, which the other one sets too
            memory.on("cpu").cache[-1] = Memory(nbytes, AllocationStatus.ALLOCATED)

    def close(self) -> None:
        """Free the weights and graphs, after the picture that is being computed. Idempotent."""
        with self._computing:
            self._contexts.close()
            self._kept.clear()
            self._loaded.close()


def make_encoders(
    towers: Iterable[LoadedTower],
    tokenizer: Tokenizer,
    run: Callable[[Callable[[], Any]], Any],
    require_open: Callable[[], None],
) -> tuple[MediaEncoder | None, MediaEncoder | None]:
    """Return the encoder of pictures and that of sounds, which share what they keep; None for one that is missing."""
    kept = KeptRows()
    made = {tower.tower.medium: MediaEncoder(tower, tokenizer, run, require_open, kept) for tower in towers}
    return made.get(IMAGE), made.get(AUDIO)


def encode_prompt(
    tokenizer: Tokenizer, text: str, given: Mapping[MediaEncoder, Iterable[Any]], *, add_special: bool
) -> list[Item]:
    """Return a prompt with pictures and sounds as items: see ``MediaEncoder.items``.

    given: the pictures and sounds of each encoder. What has no markers comes first, pictures before sounds.
    """
    sources = {
        encoder: listed(encoder.medium.option, some, f"a list of {encoder.medium.many}", encoder.medium.error)
        for encoder, some in given.items()
    }
    first = ""
    for encoder, some in sources.items():
        n, medium = encoder.count_markers(text), encoder.medium
        if not n:
            first += encoder.tower.placeholder * len(some)
        elif n != len(some):
            raise medium.error(
                f"the prompt has {n} places for {medium.many} ({encoder.marker}), but {len(some)} {medium.many} were "
                "given",
                hint=f"give one {medium.one} for each, or leave all places out: the {medium.many} then come first",
            )
    made = {encoder: iter([encoder.parts(source) for source in some]) for encoder, some in sources.items()}
    encoder_of = {encoder.marker: encoder for encoder in given}
    parts: list[str | EmbeddingSpan] = []
    row_markers: list[str] = []  # of each part, that of its encoder; "" for a text of the prompt
    for piece in re.split(f"({'|'.join(map(re.escape, encoder_of))})", first + text):
        if (chosen := encoder_of.get(piece)) is not None:
            new: Sequence[str | EmbeddingSpan] = next(made[chosen])
        else:
            new = [_shown(piece, given)]
        parts += new
        row_markers += [chosen.row_marker if chosen is not None else ""] * len(new)
    ids = {encoder.row_marker: tokenizer.encode(encoder.row_marker, add_special=False) for encoder in given}
    if any(len(found) != 1 for found in ids.values()):  # the vocabulary has no such token
        return _encode_apart(tokenizer, parts, add_special)
    # whole, because the texts around a picture may share a token with what they touch
    pairs = list(zip(parts, row_markers, strict=True))
    whole = "".join(part if isinstance(part, str) else marker for part, marker in pairs)
    replaced = {
        found[0]: iter([part for part, own in pairs for _ in range(_n_rows_of(part, own, marker))])
        for marker, found in ids.items()
    }
    items: list[Item] = []
    for token in tokenizer.encode(whole, add_special=add_special):
        part = next(replaced[token]) if token in replaced else token
        items.append(token if isinstance(part, str) else part)
    return items


def _encode_apart(tokenizer: Tokenizer, parts: Sequence[str | EmbeddingSpan], add_special: bool) -> list[Item]:
    items: list[Item] = []
    for i, part in enumerate(parts):
        items += tokenizer.encode(part, add_special=add_special and i == 0) if isinstance(part, str) else [part]
    return items


def _shown(text: str, encoders: Iterable[MediaEncoder]) -> str:
    for encoder in encoders:
        text = encoder.show_markers(text)
    return text


def _read(source: Any, medium: Medium) -> Any:
    if medium is AUDIO:
        from hotshoe.audio import read_audio  # few processes read sounds

        return read_audio(source)
    from hotshoe.images import read_image

    return read_image(source)


def _pieces(prepared: Prepared) -> Sequence[Mapping[str, Array]]:
    return prepared.inputs if isinstance(prepared.inputs, list) else [prepared.inputs]


def _n_rows_of(part: str | EmbeddingSpan, own: str, marker: str) -> int:
    """How many of a row marker a part holds in the whole text. own: the row marker of a span."""
    return part.count(marker) if isinstance(part, str) else int(own == marker)


def _nbytes(parts: _Parts) -> int:
    return sum(part.array.nbytes for part in parts if isinstance(part, EmbeddingSpan))
