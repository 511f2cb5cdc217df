"""TokenSequence: tokens that grow, and their place in the cache. What `model.sequence()` gives."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from hotshoe.runner.items import Item, Items
from hotshoe.runner.prefix import Held
from hotshoe_core.errors import GraphError
from hotshoe_core.errors.arguments import integer

if TYPE_CHECKING:
    from typing import Self

    from hotshoe.runner.engine import Engine

__all__ = ["TokenSequence"]


class TokenSequence(Held):
    """Tokens, and spans of embeddings, that are continued by hand. Made by ``TextModel.sequence``.

    What other sequences, past ones included, computed of its beginning is not computed again. A sequence may lose its
    place in the cache to others while nobody extends it; it is then computed anew, at the next ``append``.
    """

    def __init__(self, engine: Engine, items: Iterable[Item] = ()) -> None:
        super().__init__(Items(items))
        self.engine = engine

    @property
    def ids(self) -> list[int]:
        """Its token ids, without the rows of spans. A copy."""
        return self.items.ids

    def append(self, *items: Item) -> np.ndarray[Any, np.dtype[np.float32]]:
        """Add tokens; returns the logits after the last one: float32 (vocab,).

        Raises InputTooLongError when they do not fit into the context, TokenizerError for what is no token; the
        sequence is then as before, as it is after an interruption.
        """
        logits: np.ndarray[Any, np.dtype[np.float32]] = self.engine.extend([(self, items)])[0]
        return logits

    def truncate(self, n: int) -> None:
        """Keep the first ``n`` rows. Raises GraphError if there are fewer, and in the middle of a span."""
        n = integer("what truncate keeps", n, 0, GraphError)
        self._require(n <= len(self), f"keep the first {n}")
        self.cut_back(n)

    def cut_back(self, n: int) -> None:
        with self.engine.lock:
            self.items.truncate(n)
            self.n_computed = min(self.n_computed, n)
            self.edits += 1

    def fork(self) -> TokenSequence:
        """Another sequence with the same tokens. What was computed of them is shared, not copied."""
        with self.engine.lock:
            twin = TokenSequence(self.engine)
            twin.items = self.items.copy()
            self.engine.fork(self, twin)
            return twin

    def shift(self, keep: int, n: int) -> None:
        """Forget ``n`` rows after the first ``keep``, and move those that follow to the front.

        Their keys are turned to the new positions, not computed anew: what they took from the forgotten tokens stays
        in them. Raises GraphError if there are fewer rows than that, in the middle of a span, and with the reason where
        the model's positions cannot be moved.
        """
        keep, n = (integer(f"{name} of a shift", value, 0, GraphError) for name, value in (("keep", keep), ("n", n)))
        self._require(keep + n <= len(self), f"forget {n} after the first {keep}")
        self.engine.shift(self, keep, n)

    def close(self) -> None:
        """Give the place in the cache back. Its tokens stay there for others that begin alike, while there is room."""
        self.engine.detach(self)

    def _require(self, fits: bool, what: str) -> None:
        if not fits:
            raise GraphError(f"a sequence of {len(self)} tokens cannot {what}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
