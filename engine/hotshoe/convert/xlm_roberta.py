"""XLM-RoBERTa: BERT with SentencePiece's unigram vocabulary, and positions that begin after the padding's (BGE-M3, E5).

To GGUF it is "bert"; the rows of the position embeddings that no token has are left out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hotshoe.convert import tokenizer_metadata
from hotshoe.convert.bert import ARCH, BUFFERS, classifier, encoder_plan, encoder_shapes
from hotshoe_core.errors import ModelFileError

if TYPE_CHECKING:
    from hotshoe.convert import Checkpoint, Plan

__all__ = ["plan", "plan_reranker"]


def plan(checkpoint: Checkpoint) -> Plan:
    """Raises ModelFileError for a config that lacks a size, ConversionError for what GGUF cannot express."""
    return _plan(checkpoint, {}, checkpoint.sentence.metadata(ARCH))


def plan_reranker(checkpoint: Checkpoint) -> Plan:
    """Raises as ``plan``, and ModelFileError for labels that are not numbered from 0."""
    return _plan(checkpoint, *classifier(checkpoint))


def _plan(checkpoint: Checkpoint, shapes: dict[str, tuple[int, ...]], metadata: dict[str, Any]) -> Plan:
    first = _first_position(checkpoint)
    return encoder_plan(
        checkpoint,
        encoder_shapes(checkpoint, first) | shapes,
        lambda name: name.removeprefix("roberta."),
        (*BUFFERS, "pooler."),
        metadata,
        tokenizer=tokenizer_metadata,
        first_position=first,
    )


def _first_position(checkpoint: Checkpoint) -> int:
    """As transformers counts them: the padding has its own id as position, and the first token the next."""
    padding, n = checkpoint.config.get("pad_token_id", 1), checkpoint.integer("max_position_embeddings")
    if type(padding) is not int or not 0 <= padding < n - 1:
        raise ModelFileError(
            f"{padding!r}; expected the id of the padding, from 0 to {n - 2}",
            path=checkpoint.model / "config.json",
            field="pad_token_id",
        )
    return padding + 1
