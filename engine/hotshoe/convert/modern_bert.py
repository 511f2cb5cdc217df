"""Convert ModernBERT, and rerankers made of it."""

from __future__ import annotations

from typing import Any

from hotshoe.convert import Checkpoint, FileLayout, Rules, make_layout, read_rope, read_sizes
from hotshoe.convert._classifier import classifier_keys, read_labels

__all__ = ["describe", "describe_reranker"]

_BASES = {"global": 160_000.0, "local": 10_000.0}
_POOLING = {"mean": 1, "cls": 2}
_PERIOD = 3  # one of three layers sees all tokens


def describe(checkpoint: Checkpoint) -> FileLayout:
    """Describe the file. Raises ModelFileError if config.json is invalid, ConversionError if GGUF cannot express it."""
    return _describe(checkpoint, Rules(ignored=("head.", "decoder.", "lm_head.")), {})


def describe_reranker(checkpoint: Checkpoint) -> FileLayout:
    """Describe the file of a reranker. Raises as ``describe``, and ModelFileError for labels not numbered from 0."""
    checkpoint.expect(classifier_activation="gelu", classifier_bias=False)
    if checkpoint.config.get("classifier_pooling", "cls") not in _POOLING:
        raise checkpoint.invalid("classifier_pooling", checkpoint.config["classifier_pooling"], "cls or mean")
    labels = read_labels(checkpoint)
    names = {"head.dense": "cls", "head.norm": "cls.norm", "classifier": "cls.output"}
    rules = Rules(
        names=names,
        required=["cls.output.bias"],
        rows=dict.fromkeys(("cls.output.weight", "cls.output.bias"), len(labels)),
    )
    return _describe(
        checkpoint, rules, {"classifier.pooling_type": _POOLING["cls"]} | classifier_keys(checkpoint, labels)
    )


def _describe(checkpoint: Checkpoint, rules: Rules, more: dict[str, Any]) -> FileLayout:
    checkpoint.require("hidden_activation", "gelu", "gelu", "silu")
    checkpoint.expect(norm_bias=False, attention_bias=False, mlp_bias=False)
    sizes = read_sizes(checkpoint, eps="norm_eps")
    theta, local = (checkpoint.number(f"{name}_rope_theta", default) for name, default in _BASES.items())
    rope = read_rope(checkpoint, theta=theta, local_theta=local)
    keys = sizes.keys() | more
    del keys["attention.head_count_kv"]
    keys |= {
        "attention.causal": False,
        "attention.layer_norm_epsilon": sizes.eps,
        "attention.sliding_window": checkpoint.integer("local_attention", 128),
        "rope.scaling.type": "none",
        "vocab_size": sizes.vocab,
        "hidden_activation": checkpoint.config.get("hidden_activation") or "gelu",
    }
    if (pooling := str(checkpoint.config.get("classifier_pooling"))) in _POOLING:
        keys["classifier.pooling_type"] = _POOLING[pooling]
    if checkpoint.config.get("global_attn_every_n_layers") is not None:
        keys["attention.sliding_window_pattern"] = checkpoint.integer("global_attn_every_n_layers")
    period = keys.get("attention.sliding_window_pattern", _PERIOD)
    kinds = checkpoint.config.get("layer_types") or []
    if kinds and kinds != ["sliding_attention" if i % period else "full_attention" for i in range(sizes.n_layers)]:
        raise checkpoint.refusal(f"layer_types is {kinds}; expected every {period}. layer to have full_attention")
    return make_layout(checkpoint, "modern-bert", keys | rope.keys(), rules, vocab=sizes.vocab)
