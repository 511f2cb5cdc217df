"""Convert XLM-RoBERTa and RoBERTa: BERT with another vocabulary, and an offset of positions (BGE-M3, E5).

GGUF calls it "bert". The rows of the position embedding that no token uses are not written.
"""

from __future__ import annotations

from hotshoe.convert import Checkpoint, FileLayout, tokenizer_metadata
from hotshoe.convert.bert import describe_encoder

__all__ = ["describe", "describe_reranker"]


def describe(checkpoint: Checkpoint) -> FileLayout:
    """Describe the file. Raises ModelFileError if config.json is invalid, ConversionError if GGUF cannot express it."""
    first = _first_position(checkpoint)
    return describe_encoder(checkpoint, tokenizer_metadata, reranks=False, first_position=first)


def describe_reranker(checkpoint: Checkpoint) -> FileLayout:
    """Describe the file of a reranker. Raises as ``describe``, and ModelFileError for labels not numbered from 0."""
    first = _first_position(checkpoint)
    return describe_encoder(checkpoint, tokenizer_metadata, reranks=True, first_position=first)


def _first_position(checkpoint: Checkpoint) -> int:
    """The position of the first token. As in transformers, it is one more than the id of the padding token."""
    padding, n = checkpoint.config.get("pad_token_id", 1), checkpoint.integer("max_position_embeddings")
    if type(padding) is not int or not 0 <= padding < n - 1:
        raise checkpoint.invalid("pad_token_id", padding, f"the id of the padding, from 0 to {n - 2}")
    return padding + 1
