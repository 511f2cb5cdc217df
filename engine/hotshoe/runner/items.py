"""Items: the content of a sequence, token ids and spans of embeddings (an image, a sound)."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from hotshoe_core.errors import GraphError, ShapeError, TokenizerError
from hotshoe_core.errors.arguments import described, listed

__all__ = ["MAX_POSITION", "EmbeddingSpan", "Item", "Items", "Row", "SpanInSequence", "SpanRow", "n_common"]

MAX_POSITION = 2**31 - 1  # graphs hold positions in I32

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True, eq=False)
class EmbeddingSpan:
    """Rows of embeddings in place of tokens: an encoder's output for an image or a sound.

    Raises ShapeError if ``array`` or ``positions`` have an invalid shape or type; GraphError for NaN or infinity;
    TokenizerError if ``hash`` is not bytes.
    """

    array: Array = field(repr=False)
    """(m, dim) float32. A copy, which nobody can change."""

    hash: bytes = b""
    """Identifies the content: two spans with the same hash are the same for the prefix cache. Empty: computed."""

    positions: Array | None = None
    """(m,) or (streams, m) integers, counted from the span's first position. None: 0, 1, 2, …

    For models with their own positions for images (M-RoPE). The item after the span continues after the largest one.
    """

    bidirectional: bool = False
    """Whether every row of the span attends to every other row, later ones included."""

    token: int | None = None
    """The token that stands for the span, for models whose layers attend to an encoder's rows (cross-attention).

    The span then is one row of the sequence. None: its rows are rows of the sequence.
    """

    def __post_init__(self) -> None:
        try:
            with np.errstate(over="ignore"):  # 1e300 becomes infinity, which is refused below
                array = np.array(self.array, np.float32, order="C")
        except (TypeError, ValueError):
            raise ShapeError(
                f"a span of embeddings is {described(self.array)}; expected an array (rows, dim)"
            ) from None
        if not isinstance(self.hash, bytes):
            raise TokenizerError(f"the hash of a span is {described(self.hash)}; expected bytes")
        if array.ndim != 2 or not array.size:
            raise ShapeError(f"a span of embeddings has shape {array.shape}; expected (rows, dim), both 1 or more")
        finite = np.isfinite(array).all(axis=1)
        if not finite.all():
            row = int(finite.argmin())
            raise GraphError(
                f"row {row} of a span of embeddings has NaN or infinity; expected finite numbers within float32",
                hint="check the encoder that made it: its file may be damaged, or its numbers too large for float16",
            )
        array.setflags(write=False)
        object.__setattr__(self, "array", array)
        if self.positions is not None:
            try:
                positions = np.asarray(self.positions)
            except (TypeError, ValueError):
                raise ShapeError(f"positions of a span are {described(self.positions)}; expected integers") from None
            if positions.dtype.kind not in "iu" or positions.shape[-1:] != array.shape[:1] or positions.ndim > 2:
                raise ShapeError(
                    f"positions of a span of {len(array)} rows are {positions.dtype}{list(positions.shape)}; "
                    f"expected integers of shape ({len(array)},) or (streams, {len(array)})"
                )
            if positions.min() < 0 or positions.max() > MAX_POSITION:
                raise ShapeError(
                    f"positions of a span are {positions.min()} to {positions.max()}; expected 0 to {MAX_POSITION}, "
                    "counted from its beginning"
                )
            object.__setattr__(self, "positions", positions.astype(np.int32))
        if self.token is not None:
            object.__setattr__(self, "token", _token_id(self.token))
            if self.positions is not None or self.bidirectional:
                raise ShapeError(
                    "a span that one token stands for has positions of its own, or is bidirectional; expected neither"
                )
        if not self.hash:
            import hashlib  # takes 4 ms to import, and few texts need it

            digest = hashlib.blake2b(array.tobytes(), digest_size=16)
            digest.update(b"" if self.positions is None else self.positions.tobytes())
            object.__setattr__(self, "hash", digest.digest())

    def __len__(self) -> int:
        """The rows of the sequence that the span takes."""
        return len(self.array) if self.token is None else 1

    @property
    def extent(self) -> int:
        """How many positions the span takes: the item after it begins there."""
        return len(self) if self.positions is None else int(self.positions.max()) + 1


@dataclass(frozen=True, slots=True)
class SpanRow:
    """One row of a span. Rows of two spans with the same hash are equal."""

    hash: bytes
    bidirectional: bool
    index: int
    token: int | None = None
    """The token that stands for the whole span; None for a row of the span itself."""


Item = int | EmbeddingSpan
Row = int | SpanRow


class SpanInSequence(NamedTuple):
    """A span and the row of the sequence where it begins."""

    start: int
    span: EmbeddingSpan

    @property
    def stop(self) -> int:
        return self.start + len(self.span)


class Items:
    """The items of one sequence as rows: one row for each token, and one for each row of a span."""

    def __init__(self, items: Iterable[Item] = ()) -> None:
        self.rows: list[Row] = []
        self.spans: list[SpanInSequence] = []
        self.extend(items)

    def __len__(self) -> int:
        return len(self.rows)

    def copy(self) -> Items:
        other = Items()
        other.rows, other.spans = list(self.rows), list(self.spans)
        return other

    def extend(self, items: Iterable[Item]) -> None:
        """Append items. Raises TokenizerError, and appends nothing, if one is not a token id or an EmbeddingSpan."""
        if isinstance(items, (str, bytes, bytearray)):
            raise TokenizerError(
                f"got {type(items).__name__}; expected token ids",
                hint="tokenize a text first: model.tokenizer.encode(text)",
            )
        rows: list[Row] = []
        spans: list[SpanInSequence] = []
        if isinstance(items, EmbeddingSpan):
            items = (items,)
        for item in listed("a sequence", items, "token ids", TokenizerError):
            if isinstance(item, EmbeddingSpan):
                spans.append(SpanInSequence(len(self.rows) + len(rows), item))
                rows += [SpanRow(item.hash, item.bidirectional, i, item.token) for i in range(len(item))]
            else:
                rows.append(_token_id(item))
        self.rows += rows
        self.spans += spans

    @property
    def ids(self) -> list[int]:
        """The token ids, without the rows of spans."""
        return [row for row in self.rows if not isinstance(row, SpanRow)] if self.spans else list(self.rows)  # type: ignore[arg-type]

    def truncate(self, n: int) -> None:
        """Keep the first ``n`` rows. Raises GraphError if row ``n`` is inside a span."""
        self._require_between(n)
        del self.rows[n:]
        self.spans = [entry for entry in self.spans if entry.start < n]

    def cut(self, start: int, stop: int) -> None:
        """Remove rows ``start`` to ``stop``. Raises GraphError if either is inside a span."""
        self._require_between(start)
        self._require_between(stop)
        del self.rows[start:stop]
        self.spans = [
            SpanInSequence(entry.start - (stop - start), entry.span) if entry.start >= stop else entry
            for entry in self.spans
            if not start <= entry.start < stop
        ]

    @property
    def has_own_positions(self) -> bool:
        """Whether a span has positions other than 0, 1, 2, …"""
        return any(entry.span.positions is not None for entry in self.spans)

    @property
    def bidirectional(self) -> tuple[tuple[int, int], ...]:
        """[start, stop) of the bidirectional spans, each of which one graph must compute."""
        return tuple((entry.start, entry.stop) for entry in self.spans if entry.span.bidirectional)

    def outside_span(self, n: int) -> int:
        """Return ``n``, or the start of the bidirectional span that row ``n`` is inside of."""
        return next((start for start, stop in self.bidirectional if start < n < stop), n)

    def with_whole_spans(self, start: int, stop: int) -> tuple[int, int]:
        """Return [start, stop), wider if need be, so that neither end is inside a span."""
        for entry in self.spans:
            start = entry.start if entry.start < start < entry.stop else start
            stop = entry.stop if entry.start < stop < entry.stop else stop
        return start, stop

    def positions(self, start: int, n: int, n_streams: int = 0) -> Array:
        """Return the positions of rows ``start`` to ``start + n`` for RoPE: (n,) I32, or (n_streams, n)."""
        numbers = np.arange(start, start + n, dtype=np.int32)
        out: Array = np.tile(numbers, (n_streams, 1)) if n_streams else numbers
        moved = 0  # the difference between a row's position and its number
        for entry in self.spans:
            if entry.start >= start + n:
                break
            relative = entry.span.positions
            if relative is None:
                continue
            first, last = max(entry.start, start), min(entry.stop, start + n)
            if first < last:
                rows = relative[..., first - entry.start : last - entry.start]
                out[..., first - start : last - start] = rows + entry.start + moved
            offset = entry.span.extent - len(entry.span)
            moved += offset
            if entry.stop < start + n:
                out[..., max(0, entry.stop - start) :] += offset
        return out

    def attended(self, start: int, n: int) -> list[SpanInSequence]:
        """Return the spans at rows ``start`` to ``start + n`` that layers attend to, for which one token stands."""
        return [entry for entry in self.spans if entry.span.token is not None and start <= entry.start < start + n]

    def embeddings(self, start: int, n: int) -> tuple[list[Array], list[int]]:
        """Return the embeddings of rows ``start`` to ``start + n``, and the numbers of their rows from ``start``."""
        arrays: list[Array] = []
        rows: list[int] = []
        for entry in self.spans:
            if entry.span.token is not None:
                continue
            first, last = max(entry.start, start), min(entry.stop, start + n)
            if first < last:
                arrays.append(entry.span.array[first - entry.start : last - entry.start])
                rows += range(first - start, last - start)
        return arrays, rows

    def _require_between(self, n: int) -> None:
        for entry in self.spans:
            if entry.start < n < entry.stop:
                raise GraphError(
                    f"row {n} is in the middle of a span of embeddings, rows {entry.start} to {entry.stop}"
                )


def _token_id(item: object) -> int:
    try:
        if not isinstance(item, (bool, np.bool_)):
            return operator.index(item)  # type: ignore[arg-type]
    except TypeError:
        pass
    raise TokenizerError(
        f"{item!r} ({type(item).__name__}) is not a token id; expected an integer or an EmbeddingSpan",
        hint="give the ids of a list one by one: append(*ids)" if isinstance(item, list) else None,
    )


def n_common(a: Sequence[Row], b: Sequence[Row]) -> int:
    """Return the number of rows at the beginning that both have in common."""
    n = min(len(a), len(b))
    if a[:n] == b[:n]:
        return n
    same = 0  # a[:same] == b[:same]; bisection, as comparing slices is faster than a loop
    size = n
    while size:
        size = (size + 1) // 2 if size > 1 else 0
        while size and a[same : same + size] == b[same : same + size] and same + size <= n:
            same += size
    return same
