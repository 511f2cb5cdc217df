"""Convert EuroBERT."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hotshoe.convert import Rules, make_layout, read_rope, read_sizes

if TYPE_CHECKING:
    from hotshoe.convert import Checkpoint, FileLayout

__all__ = ["describe"]

_POOLING = {"mean": 1, "cls": 2}


def describe(checkpoint: Checkpoint) -> FileLayout:
    """Describe the file. Raises ModelFileError if config.json is invalid, ConversionError if GGUF cannot express it."""
    for name, value in {"hidden_act": "silu", "attention_bias": False, "mlp_bias": False}.items():
        checkpoint.require(name, value, value)
    sizes, rope = read_sizes(checkpoint), read_rope(checkpoint, theta=250_000.0)
    keys = sizes.keys() | rope.keys() | {"attention.causal": False, "rope.scaling.type": "none"}
    if (pooling := checkpoint.config.get("classifier_pooling")) in _POOLING:
        keys["classifier.pooling_type"] = _POOLING[pooling]
    return make_layout(checkpoint, "eurobert", keys, Rules(ignored=("lm_head.",)), vocab=sizes.vocab)
