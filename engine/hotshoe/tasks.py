"""Task: what a model is for, which decides how it is run."""

from __future__ import annotations

import enum

from hotshoe_core.errors import ModelError, did_you_mean

__all__ = ["Task"]


class Task(enum.Enum):
    """``task`` of a model class. Which task a file is for, its family tells from the metadata."""

    TEXT = "text"  # tokens to the logits of the next one: generate, chat, score
    EMBEDDING = "embedding"  # texts to vectors
    RERANK = "rerank"  # pairs of texts to scores

    @property
    def words(self) -> str:
        """As messages call a model of this task: ``"an embedding model"``."""
        return {"text": "a text model", "embedding": "an embedding model", "rerank": "a reranker"}[self.value]

    @classmethod
    def parse(cls, task: Task | str) -> Task:
        """A task by its name. Raises ModelError with the nearest name."""
        try:
            return cls(task)
        except ValueError:
            raise ModelError(
                f"task is {task!r}; expected one of {', '.join(t.value for t in cls)}",
                hint=did_you_mean(str(task), [t.value for t in cls]),
            ) from None
