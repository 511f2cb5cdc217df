"""Convert XLM-RoBERTa: BERT with a SentencePiece unigram vocabulary, and an offset of positions (BGE-M3, E5).

GGUF calls it "bert". The rows of the position embedding that no token uses are not written.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hotshoe.convert import tokenizer_metadata
from hotshoe.convert.bert import ARCH, BUFFERS, classifier, describe_encoder, encoder_shapes
from hotshoe_core.errors import ModelFileError

if TYPE_CHECKING:
    from hotshoe.convert import Checkpoint, FileLayout

__all__ = ["describe", "describe_reranker"]


def describe(checkpoint: Checkpoint) -> FileLayout:
    """Describe the file. Raises ModelFileError if config.json is invalid, ConversionError if GGUF cannot express it."""
    return _describe(checkpoint, {}, checkpoint.sentence.metadata(ARCH))


def describe_reranker(checkpoint: Checkpoint) -> FileLayout:
    """Describe the file of a reranker. Raises as ``describe``, and ModelFileError for labels not numbered from 0."""
    return _describe(checkpoint, *classifier(checkpoint))


def _describe(checkpoint: Checkpoint, shapes: dict[str, tuple[int, ...]], metadata: dict[str, Any]) -> FileLayout:
    first = _first_position(checkpoint)
    return describe_encoder(
        checkpoint,
        encoder_shapes(checkpoint, first) | shapes,
        lambda name: name.removeprefix("roberta."),
        (*BUFFERS, "pooler."),
        metadata,
        tokenizer=tokenizer_metadata,
        first_position=first,
    )


def _first_position(checkpoint: Checkpoint) -> int:
    """The position of the first token. As in transformers, it is one more than the id of the padding token."""
    padding, n = checkpoint.config.get("pad_token_id", 1), checkpoint.integer("max_position_embeddings")
    if type(padding) is not int or not 0 <= padding < n - 1:
        raise ModelFileError(
            f"{padding!r}; expected the id of the padding, from 0 to {n - 2}",
            path=checkpoint.model / "config.json",
            field="pad_token_id",
        )
    return padding + 1
