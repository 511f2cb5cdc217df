"""TokenSequence: tokens that a caller continues by hand. Made by ``TextModel.sequence``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from hotshoe.runner.cached_sequence import CachedSequence
from hotshoe.runner.engine import Engine
from hotshoe.runner.items import Item, Items
from hotshoe_core.errors import ClosedError, GraphError
from hotshoe_core.errors.arguments import described, integer, listed

if TYPE_CHECKING:
    from typing import Self

__all__ = ["TokenSequence", "extend"]


class TokenSequence(CachedSequence):
    """Tokens, and spans of embeddings, that a caller continues by hand. Made by ``TextModel.sequence``.

    ``len(sequence)`` is its number of rows: one for each token and each row of a span. Rows that another sequence, even
    a closed one, has computed for the same beginning are not computed again. A sequence may lose its room in the cache
    to others while it is not extended; the next ``append`` then computes its rows again. After ``close``, methods that
    compute or change rows raise ClosedError.

    One thread at a time may extend a sequence: a second one gets GraphError. Different sequences may be extended by
    different threads.
    """

    def __init__(self, engine: Engine, items: Iterable[Item] = ()) -> None:
        super().__init__(Items(items))
        self.engine = engine
        self._closed = False

    @property
    def ids(self) -> list[int]:
        """A copy of its token ids, without the rows of spans."""
        return self.items.ids

    def append(self, *items: Item) -> np.ndarray[Any, np.dtype[np.float32]]:
        """Add tokens; return the logits after the last one: float32 (vocab,).

        Without arguments: the logits after the last row. Raises InputTooLongError if the context cannot hold the
        tokens, InputEmptyError if the sequence is empty, TokenizerError for an invalid token, BackendError if the model
        gives NaN or infinity, GraphError if another thread extends the sequence, or shortens it meanwhile. The
        sequence does not change then, nor after an interrupt.
        """
        self.require_open()
        logits: np.ndarray[Any, np.dtype[np.float32]] = self.engine.extend([self], [items])[0]
        return logits

    def truncate(self, n: int) -> None:
        """Keep the first ``n`` rows. Raises GraphError if there are fewer, or if row ``n`` is inside a span."""
        self.require_open()
        n = integer("the number of rows that truncate keeps", n, 0, GraphError)
        self._require(n <= len(self), f"keep the first {n}")
        self.engine.truncate(self, n)

    def fork(self) -> TokenSequence:
        """Return another sequence with the same tokens. The rows that are computed are shared, not copied."""
        self.require_open()
        with self.engine.lock:
            copy = TokenSequence(self.engine)
            copy.items = self.items.copy()
            self.engine.fork_sequence(self, copy)
            return copy

    def shift(self, keep: int, n: int) -> None:
        """Remove ``n`` rows after the first ``keep``, and move the later rows to the front.

        Their keys are rotated to the new positions, not computed again: they still contain what they took from the
        removed tokens. Raises GraphError if there are fewer rows, if a cut is inside a span, or if the model's
        positions cannot be moved; the message gives the reason.
        """
        self.require_open()
        keep, n = (integer(f"{name} of a shift", value, 0, GraphError) for name, value in (("keep", keep), ("n", n)))
        self._require(keep + n <= len(self), f"remove {n} after the first {keep}")
        self.engine.shift(self, keep, n)

    def close(self) -> None:
        """Give up the room in the cache, and refuse further calls. Idempotent.

        The rows stay in the cache for sequences that begin alike, while there is room.
        """
        self._closed = True
        self.engine.detach(self)

    def require_open(self) -> None:
        """Raise ClosedError if the sequence is closed."""
        if self._closed:
            raise ClosedError("the sequence is closed", hint="make another one: model.sequence(sequence.ids)")

    def _require(self, fits: bool, action: str) -> None:
        if not fits:
            raise GraphError(f"a sequence of {len(self)} tokens cannot {action}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def extend(
    engine: Engine, pairs: Iterable[tuple[TokenSequence, Iterable[Item]]]
) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Add items to several sequences of ``engine``, computed together: the logits after each, float32 (n, vocab).

    Raises GraphError unless ``pairs`` are pairs of different sequences of this engine and their items, and otherwise as
    ``TokenSequence.append``.
    """
    given = listed("pairs", pairs, "pairs of a sequence and its new tokens", GraphError)
    for pair in given:
        if not isinstance(pair, Sequence) or len(pair) != 2:
            raise GraphError(f"expected pairs of a sequence and its new tokens; one of them is {described(pair)}")
        sequence = pair[0]
        if not isinstance(sequence, TokenSequence):
            raise GraphError(
                f"expected a TokenSequence; got {described(sequence)}",
                hint="make it with model.sequence()",
            )
        if sequence.engine is not engine:
            raise GraphError(
                "the sequence belongs to another loaded model",
                hint="make it with model.sequence() of the same loaded model",
            )
        sequence.require_open()
    if not given:
        raise GraphError("no sequence was given; expected one or more")
    if len({id(sequence) for sequence, _ in given}) < len(given):
        raise GraphError("a sequence was given twice; expected each once, with all its tokens")
    return engine.extend([sequence for sequence, _ in given], [items for _, items in given])
