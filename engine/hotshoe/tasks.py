"""Task: what a model is for. The task decides which runner runs the model."""

from __future__ import annotations

import enum

from hotshoe_core.errors import ModelError, did_you_mean

__all__ = ["Task"]


class Task(enum.Enum):
    """What a model is for: the attribute ``task`` of a model class."""

    TEXT = "text"
    """Tokens to the logits of the next token: generate, chat, score."""
    EMBEDDING = "embedding"
    """Texts to vectors."""
    RERANK = "rerank"
    """Pairs of texts to scores."""

    @property
    def description(self) -> str:
        """What messages call a model with this task: ``"an embedding model"``."""
        return {"text": "a text model", "embedding": "an embedding model", "rerank": "a reranker"}[self.value]

    @classmethod
    def parse(cls, task: Task | str) -> Task:
        """Return the task with this name. Raises ModelError for an unknown name; the hint has a similar name."""
        try:
            return cls(task)
        except ValueError:
            raise ModelError(
                f"unknown task {task!r}; expected one of {', '.join(t.value for t in cls)}",
                hint=did_you_mean(str(task), [t.value for t in cls]),
            ) from None
