"""Convert BERT: encoders with learned positions, and norms after attention and MLP (MiniLM, BGE, E5, …).

``describe`` is for embedding models, ``describe_reranker`` for models with a classifier (cross-encoders, which score a
pair of texts). In the file, ``cls`` is BERT's pooler, and ``cls.output`` is the classifier after it and a tanh.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hotshoe.convert import Checkpoint, FileLayout, Names, Recipe, Rules, make_layout, wordpiece_metadata
from hotshoe.convert._classifier import classifier_keys, read_labels

__all__ = ["describe", "describe_distilbert", "describe_encoder", "describe_reranker", "encoder_keys"]

_HEADS = ("pooler.", "cls.")  # embedding models do not use these
_DISTILBERT: Names = {
    "layers.attention.q_lin": "attn_q",
    "layers.attention.k_lin": "attn_k",
    "layers.attention.v_lin": "attn_v",
    "layers.attention.out_lin": "attn_output",
    "layers.sa_layer_norm": "attn_output_norm",
    "layers.ffn.lin1": "ffn_up",
    "layers.ffn.lin2": "ffn_down",
    "layers.output_layer_norm": "layer_output_norm",
}
# modules with a bias, which is optional for other models
_BIASED = (
    *("token_embd_norm", "attn_q", "attn_k", "attn_v", "attn_output", "attn_output_norm"),
    *("ffn_up", "ffn_down", "layer_output_norm", "cls", "cls.output"),
)


def describe(checkpoint: Checkpoint) -> FileLayout:
    """Describe the file. Raises ModelFileError if config.json is invalid, ConversionError if GGUF cannot express it."""
    return describe_encoder(checkpoint, wordpiece_metadata, reranks=False)


def describe_distilbert(checkpoint: Checkpoint) -> FileLayout:
    """Describe the file of DistilBERT, whose tokens have no types. Raises as ``describe`` does."""
    checkpoint = checkpoint.renamed(
        hidden_size="dim",
        num_hidden_layers="n_layers",
        num_attention_heads="n_heads",
        intermediate_size="hidden_dim",
        hidden_act="activation",
    )
    return describe_encoder(checkpoint, wordpiece_metadata, reranks=False, has_types=False, names=_DISTILBERT)


def describe_reranker(checkpoint: Checkpoint) -> FileLayout:
    """Describe the file of a reranker.

    GGUF has no key for the activation of scores, so hotshoe adds ``hotshoe.rerank.activation``, "identity" or
    "sigmoid".

    Raises ModelFileError for an invalid config.json, or labels that are not numbered from 0; ConversionError if GGUF
    cannot express the model.
    """
    return describe_encoder(checkpoint, wordpiece_metadata, reranks=True)


def describe_encoder(
    checkpoint: Checkpoint,
    tokenizer: Callable[[Checkpoint, int], dict[str, Any]],
    *,
    reranks: bool,
    first_position: int = 0,
    has_types: bool = True,
    names: Names | None = None,
) -> FileLayout:
    """Describe the file of an encoder.

    tokenizer: reads the tokenizer's files. reranks: whether it scores pairs of texts, with a classifier.
    first_position: rows at the start of the position embedding that are not written.
    has_types: whether tokens have types. names: as in ``Rules``.
    """
    checkpoint.expect(position_embedding_type="absolute")
    keys = encoder_keys(checkpoint)
    dim, n_positions = keys["embedding_length"], keys["context_length"]
    n_types = checkpoint.integer("type_vocab_size", 2) if has_types else 1
    keys["context_length"] -= first_position
    labels = read_labels(checkpoint) if reranks else []
    rules = Rules(
        names=names or {},
        required=[
            *(f"{name}.bias" for name in _BIASED),
            *(("token_types.weight",) if has_types else ()),
            *(("cls.weight", "cls.output.weight") if reranks else ()),
        ],
        recipes={"position_embd.weight": Recipe(lambda value: value[first_position:], (n_positions, dim))},
        rows={
            "position_embd.weight": n_positions - first_position,
            "token_types.weight": n_types,
            **dict.fromkeys(("cls.weight", "cls.bias"), dim),
            **dict.fromkeys(("cls.output.weight", "cls.output.bias"), len(labels)),
        },
        ignored=() if reranks else _HEADS,
    )
    return make_layout(
        checkpoint,
        "bert",
        keys | (classifier_keys(checkpoint, labels) if reranks else {}),
        rules,
        vocab=checkpoint.integer("vocab_size"),
        tokenizer=lambda *args: {"tokenizer.ggml.token_type_count": n_types, **tokenizer(*args)},
    )


def encoder_keys(checkpoint: Checkpoint) -> dict[str, Any]:
    """The keys of an encoder, by the names that BERT's config.json has. Raises ConversionError and ModelFileError."""
    checkpoint.expect(hidden_act="gelu", is_decoder=False, add_cross_attention=False)
    n_heads, dim = checkpoint.integer("num_attention_heads"), checkpoint.integer("hidden_size")
    if dim % n_heads:
        raise checkpoint.refusal(f"hidden_size {dim} is not a multiple of num_attention_heads {n_heads}")
    return {
        "block_count": checkpoint.layers(),
        "context_length": checkpoint.integer("max_position_embeddings"),
        "embedding_length": dim,
        "feed_forward_length": checkpoint.integer("intermediate_size"),
        "attention.head_count": n_heads,
        "attention.layer_norm_epsilon": checkpoint.number("layer_norm_eps", 1e-12),
        "attention.causal": False,
    }
