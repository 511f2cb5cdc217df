"""Score: how probable a text is for a model."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

__all__ = ["Score"]


class Score(NamedTuple):
    """How probable a text is for a model."""

    n_tokens: int
    """Tokens of the text."""

    log_likelihood: float
    """The sum of the natural logarithms of the probabilities of all tokens except the first."""

    @property
    def perplexity(self) -> float:
        """``exp`` of the mean negative log-likelihood of a token."""
        return float(np.exp(-self.log_likelihood / max(1, self.n_tokens - 1)))
