"""Convert ModernBERT."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hotshoe.convert import Rules, make_layout, read_rope, read_sizes

if TYPE_CHECKING:
    from hotshoe.convert import Checkpoint, FileLayout

__all__ = ["describe"]

_BASES = {"global": 160_000.0, "local": 10_000.0}
_POOLING = {"mean": 1, "cls": 2}
_PERIOD = 3  # one of three layers sees all tokens


def describe(checkpoint: Checkpoint) -> FileLayout:
    """Describe the file. Raises ModelFileError if config.json is invalid, ConversionError if GGUF cannot express it."""
    checkpoint.require("hidden_activation", "gelu", "gelu", "silu")
    for name in ("norm_bias", "attention_bias", "mlp_bias"):
        checkpoint.require(name, False, False)
    sizes = read_sizes(checkpoint, eps="norm_eps")
    theta, local = (checkpoint.number(f"{name}_rope_theta", default) for name, default in _BASES.items())
    rope = read_rope(checkpoint, theta=theta, local_theta=local)
    keys = sizes.keys()
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
    rules = Rules(ignored=("head.", "decoder.", "lm_head."))
    return make_layout(checkpoint, "modern-bert", keys | rope.keys(), rules, vocab=sizes.vocab)
