"""The classifier of rerankers: its labels, and what becomes of a score."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import gguf

if TYPE_CHECKING:
    from hotshoe.convert._checkpoint import Checkpoint

__all__ = ["classifier_keys", "read_labels"]

_UNNAMED = {0: "LABEL_0", 1: "LABEL_1"}  # the default of transformers


def classifier_keys(checkpoint: Checkpoint, labels: list[str]) -> dict[str, Any]:
    """The keys of a reranker: its pooling, its labels, and what becomes of a score. Raises ConversionError."""
    keys: dict[str, Any] = {"pooling_type": int(gguf.PoolingType.RANK)}
    if activation := _activation(checkpoint):
        keys["hotshoe.rerank.activation"] = activation
    if dict(enumerate(labels)) != _UNNAMED:
        keys["classifier.output_labels"] = labels
    return keys


def _activation(checkpoint: Checkpoint) -> str | None:
    """The activation that sentence-transformers' CrossEncoder applies to scores; None if config.json does not name one.

    Raises ConversionError if it is neither the identity nor a sigmoid.
    """
    stated = checkpoint.config.get("sentence_transformers")
    name = stated.get("activation_fn") if isinstance(stated, dict) else None
    name = name or checkpoint.config.get("sbert_ce_default_activation_function")  # before version 4
    if name is None:
        return None
    kind = str(name).rpartition(".")[2].lower()
    if kind not in ("identity", "sigmoid"):
        raise checkpoint.refusal(
            f"the activation of scores is {name}; hotshoe converts rerankers with torch.nn.Identity or torch.nn.Sigmoid"
        )
    return kind


def read_labels(checkpoint: Checkpoint) -> list[str]:
    """The names of the classifier's labels. Raises ModelFileError unless they are numbered from 0."""
    stated = checkpoint.config.get("id2label")
    if stated is None:
        stated = _UNNAMED
    try:
        labels = {int(i): label for i, label in stated.items()}
    except (AttributeError, TypeError, ValueError):
        labels = {}
    names = [labels.get(i) for i in range(len(labels))]
    if not names or not all(isinstance(name, str) for name in names):
        raise checkpoint.invalid("id2label", stated, "an object of labels, numbered from 0")
    return [str(name) for name in names]
