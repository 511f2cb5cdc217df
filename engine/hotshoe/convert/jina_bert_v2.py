"""Convert Jina Embeddings 2: BERT with ALiBi and a gated MLP."""

from __future__ import annotations

from hotshoe.convert import Checkpoint, FileLayout, Rules, make_layout, wordpiece_metadata
from hotshoe.convert.bert import encoder_keys

__all__ = ["describe"]


def describe(checkpoint: Checkpoint) -> FileLayout:
    """Describe the file. Raises ModelFileError if config.json is invalid, ConversionError if GGUF cannot express it."""
    checkpoint.expect(position_embedding_type="alibi", feed_forward_type="geglu")
    biased = ("token_embd_norm", "attn_q", "attn_k", "attn_v", "attn_output", "attn_output_norm", "layer_output_norm")
    n_types = checkpoint.integer("type_vocab_size", 2)
    rules = Rules(
        names={
            "layers.mlp.gated_layers": "ffn_up",
            "layers.mlp.wo": "ffn_down",
            "layers.mlp.layernorm": "layer_output_norm",
        },
        required=[*(f"{name}.bias" for name in biased), "ffn_down.bias"],
        rows={"token_types.weight": n_types},
        ignored=("pooler.", "cls."),
    )
    return make_layout(
        checkpoint,
        "jina-bert-v2",
        encoder_keys(checkpoint),
        rules,
        vocab=checkpoint.integer("vocab_size"),
        tokenizer=lambda *args: {"tokenizer.ggml.token_type_count": n_types, **wordpiece_metadata(*args)},
    )
