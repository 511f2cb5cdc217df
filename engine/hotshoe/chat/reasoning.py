"""ReasoningBudget: end a model's reasoning after a number of tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from hotshoe.sampling import Constraint
    from hotshoe.tokenizers import Tokenizer

__all__ = ["ReasoningBudget"]


class ReasoningBudget:
    """A Constraint that makes the model write the end of its reasoning after ``n`` tokens of it.

    marks: the texts that begin and end the reasoning. begun: whether the prompt has begun it. inner: restricts the text
    too.
    """

    def __init__(
        self, n: int, marks: tuple[str, str], tokenizer: Tokenizer, *, begun: bool, inner: Constraint | None = None
    ) -> None:
        self._left = n
        self._open, self._close = (mark.encode() for mark in marks)
        self._closing = tokenizer.encode(marks[1], add_special=False)
        self._tokenizer = tokenizer
        self._inner = inner
        self._is_open = begun
        self._is_over = False
        self._n_forced = 0
        """How much of the end is written."""
        self._tail = b""

    @property
    def complete(self) -> bool:
        """Whether no token may follow."""
        return self._inner is not None and self._inner.complete

    def forbidden(self) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """True for each id that may not come next."""
        if self._is_open and self._left <= 0:
            only = np.ones(self._tokenizer.vocab_size, np.bool_)
            only[self._closing[self._n_forced]] = False
            return only
        if self._inner is not None:
            return self._inner.forbidden()
        return np.zeros(self._tokenizer.vocab_size, np.bool_)

    def accept(self, id: int) -> None:
        """Advance by a token."""
        if self._inner is not None:
            self._inner.accept(id)
        if self._is_over:
            return
        self._tail = (self._tail + self._tokenizer.piece(id))[-256:]
        if not self._is_open:
            if self._open in self._tail:
                self._is_open, self._tail = True, self._tail.partition(self._open)[2]
            return
        if self._left <= 0:
            self._n_forced += 1
        self._left -= 1
        if self._close in self._tail or self._n_forced == len(self._closing):
            self._is_open, self._is_over = False, True
