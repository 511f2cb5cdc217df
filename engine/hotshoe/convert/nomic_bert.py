"""Convert Nomic Embed, with and without experts, as its authors publish it and as transformers 5 writes it."""

from __future__ import annotations

from typing import Any

from hotshoe.convert import (
    Checkpoint,
    FileLayout,
    Recipe,
    Rules,
    make_layout,
    read_rope,
    tokenizer_metadata,
    wordpiece_metadata,
)
from hotshoe.convert._json import read_object

__all__ = ["describe"]

# what the model was trained with, by n_positions: config.json states more
_CONTEXT = {8192: 2048, 2048: 512}
_REQUIRED = {
    "causal": False,
    "prenorm": False,
    "rotary_emb_fraction": 1.0,
    "rotary_emb_interleaved": False,
    "rotary_emb_scale_base": None,
    "rotary_scaling_factor": None,
    "scale_attn_by_inverse_layer_idx": False,
    "parallel_block": False,
    "max_trained_positions": 2048,
}


def describe(checkpoint: Checkpoint) -> FileLayout:
    """Describe the file. Raises ModelFileError if config.json is invalid, ConversionError if GGUF cannot express it."""
    checkpoint.expect(**_REQUIRED)
    step = checkpoint.config.get("moe_every_n_layers") or 0
    dim, ff, n_layers = (_size(checkpoint, *keys) for keys in _SIZES)
    keys: dict[str, Any] = {
        "block_count": n_layers,
        "context_length": _context(checkpoint),
        "embedding_length": dim,
        "feed_forward_length": ff,
        "attention.head_count": _size(checkpoint, "n_head", "num_attention_heads"),
        "attention.layer_norm_epsilon": _eps(checkpoint),
        "attention.causal": False,
        **_rope(checkpoint),
    }
    biased = ["token_embd_norm", "attn_output_norm", "layer_output_norm"]
    recipes = {}
    if step:
        checkpoint.expect(activation_function="gelu", moe_normalize_expert_weights=False)
        n = checkpoint.integer("num_experts")
        keys |= {"moe_every_n_layers": step, "expert_count": n, "expert_used_count": checkpoint.integer("moe_top_k")}
        recipes = {
            "ffn_up_exps.weight": Recipe(lambda w: w.reshape(n, ff, dim), (n * ff, dim)),
            "ffn_down_exps.weight": Recipe(lambda w: w.reshape(n, ff, dim).swapaxes(1, 2), (n * ff, dim)),
        }
        biased += ["attn_qkv", "attn_output", "ffn_up", "ffn_down"]
    else:
        checkpoint.expect(activation_function="swiglu", hidden_act="silu")
    checkpoint.expect(**dict.fromkeys(("qkv_proj_bias", "mlp_fc1_bias", "mlp_fc2_bias"), bool(step)))
    n_types = checkpoint.integer("type_vocab_size", 2)
    rules = Rules(
        required=["token_types.weight", *(f"{name}.bias" for name in biased)],
        recipes=recipes,
        rows={"token_types.weight": n_types},
        ignored=("pooler.", "cls.", *_without_effect(checkpoint)),
    )
    return make_layout(
        checkpoint,
        "nomic-bert-moe" if step else "nomic-bert",
        keys,
        rules,
        vocab=checkpoint.integer("vocab_size"),
        tokenizer=lambda *args: {"tokenizer.ggml.token_type_count": n_types, **_tokenizer(*args)},
    )


_SIZES = ("n_embd", "hidden_size"), ("n_inner", "intermediate_size"), ("n_layer", "num_hidden_layers")


def _size(checkpoint: Checkpoint, published: str, native: str) -> int:
    return checkpoint.integer(published if published in checkpoint.config else native)


def _context(checkpoint: Checkpoint) -> int:
    if "n_positions" not in checkpoint.config:
        return checkpoint.integer("max_position_embeddings")
    stated = checkpoint.integer("n_positions")
    if stated not in _CONTEXT:
        raise checkpoint.refusal(f"n_positions is {stated}; expected {' or '.join(map(str, _CONTEXT))}, as published")
    return _CONTEXT[stated]


def _eps(checkpoint: Checkpoint) -> float:
    return checkpoint.number("layer_norm_epsilon", checkpoint.number("layer_norm_eps", 1e-12))


def _rope(checkpoint: Checkpoint) -> dict[str, Any]:
    if "rotary_emb_base" in checkpoint.config:
        return {"rope.freq_base": checkpoint.number("rotary_emb_base")}
    return read_rope(checkpoint, theta=1000.0).keys()


def _without_effect(checkpoint: Checkpoint) -> list[str]:
    """The biases of experts, which are all zero. Raises ConversionError if one is not: GGUF has no place for it."""
    names = [name for name in checkpoint.tensors if name.endswith("mlp.experts.bias")]
    for name in names:
        if checkpoint.read(name).any():
            raise checkpoint.refusal(f"{name} is not zero; a GGUF file has no bias of all experts together")
    return names


def _tokenizer(checkpoint: Checkpoint, n_tokens: int) -> dict[str, Any]:
    model = read_object(checkpoint.model / "tokenizer.json").get("model")
    pieces = isinstance(model, dict) and model.get("type") == "Unigram"
    return (tokenizer_metadata if pieces else wordpiece_metadata)(checkpoint, n_tokens)
