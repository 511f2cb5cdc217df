"""BERT: encoders with absolute positions and a norm after each half of a layer (MiniLM, BGE, E5, …)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import gguf

from hotshoe.convert._names import match_tensors
from hotshoe.convert._plan import Plan
from hotshoe.convert._wordpiece import wordpiece_metadata
from hotshoe_core.errors import ConversionError

if TYPE_CHECKING:
    from hotshoe.convert._checkpoint import Checkpoint

__all__ = ["plan"]

ARCH = "bert"

# heads that an embedding does not use, and buffers that are not weights
_IGNORED = ("embeddings.position_ids", "embeddings.token_type_ids", "pooler.", "cls.")


def plan(checkpoint: Checkpoint) -> Plan:
    """Raises ModelFileError for a config that lacks a size, ConversionError for a BERT that GGUF cannot express."""
    checkpoint.require("hidden_act", "gelu", "gelu")
    checkpoint.require("position_embedding_type", "absolute", "absolute")
    checkpoint.require("is_decoder", False, False)
    checkpoint.require("add_cross_attention", False, False)
    n_layers = checkpoint.layers()
    n_heads = checkpoint.integer("num_attention_heads")
    dim = checkpoint.integer("hidden_size")
    if dim % n_heads:
        raise ConversionError(
            f"{checkpoint.model / 'config.json'}: hidden_size {dim} is not a multiple of num_attention_heads {n_heads}"
        )
    ff = checkpoint.integer("intermediate_size")
    vocab = checkpoint.integer("vocab_size")
    context = checkpoint.integer("max_position_embeddings")
    n_types = checkpoint.integer("type_vocab_size", 2)
    shapes: dict[str, tuple[int, ...]] = {
        "token_embd.weight": (vocab, dim),
        "position_embd.weight": (context, dim),
        "token_types.weight": (n_types, dim),
        "token_embd_norm.weight": (dim,),
        "token_embd_norm.bias": (dim,),
    }
    for i in range(n_layers):
        block = f"blk.{i}"
        for name, out, into in (
            ("attn_q", dim, dim),
            ("attn_k", dim, dim),
            ("attn_v", dim, dim),
            ("attn_output", dim, dim),
            ("ffn_up", ff, dim),
            ("ffn_down", dim, ff),
        ):
            shapes[f"{block}.{name}.weight"] = (out, into)
            shapes[f"{block}.{name}.bias"] = (out,)
        for name in ("attn_output_norm", "layer_output_norm"):
            shapes[f"{block}.{name}.weight"] = (dim,)
            shapes[f"{block}.{name}.bias"] = (dim,)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.BERT, n_layers)
    tensors = match_tensors(
        checkpoint,
        names,
        shapes,
        rename=_plain,
        ignored=_IGNORED,
        full_precision={"position_embd.weight", "token_types.weight"},
    )
    # after the tensors: their shapes have shown that vocab_size is true
    metadata = {
        f"{ARCH}.block_count": n_layers,
        f"{ARCH}.context_length": context,
        f"{ARCH}.embedding_length": dim,
        f"{ARCH}.feed_forward_length": ff,
        f"{ARCH}.attention.head_count": n_heads,
        f"{ARCH}.attention.layer_norm_epsilon": checkpoint.number("layer_norm_eps", 1e-12),
        f"{ARCH}.attention.causal": False,
        **checkpoint.sentence.metadata(ARCH),
        "tokenizer.ggml.token_type_count": n_types,
        **wordpiece_metadata(checkpoint, vocab),
    }
    return Plan(ARCH, metadata, tensors)


def _plain(name: str) -> str:
    # models with a head keep the encoder under "bert."; checkpoints ported from TensorFlow say gamma and beta
    name = name.removeprefix("bert.")
    for old, new in ((".gamma", ".weight"), (".beta", ".bias")):
        if name.endswith(old):
            return name[: -len(old)] + new
    return name
