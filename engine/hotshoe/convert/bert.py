"""BERT: encoders with absolute positions and a norm after each half of a layer (MiniLM, BGE, E5, …).

``plan`` is for those that give embeddings, ``plan_reranker`` for those with a classifier: cross-encoders, which score
a pair of texts. BERT's pooler is ``cls`` in the file; ``cls.output`` comes after it, with a tanh between.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import gguf

from hotshoe.convert import Plan, match_tensors, wordpiece_metadata
from hotshoe_core.errors import ConversionError, ModelFileError

if TYPE_CHECKING:
    from collections.abc import Callable

    from hotshoe.convert import Checkpoint

__all__ = ["ARCH", "BUFFERS", "classifier", "encoder_plan", "encoder_shapes", "plan", "plan_reranker"]

ARCH = "bert"

BUFFERS = ("embeddings.position_ids", "embeddings.token_type_ids")  # they are not weights
_HEADS = ("pooler.", "cls.")  # that an embedding does not use
# as the table of the gguf package has it
_CLASSIFIER = {"pooler.dense.": "classifier.dense.", "classifier.": "classifier.out_proj."}
_UNNAMED = {0: "LABEL_0", 1: "LABEL_1"}  # what transformers takes where config.json has no labels


def plan(checkpoint: Checkpoint) -> Plan:
    """Raises ModelFileError for a config that lacks a size, ConversionError for a BERT that GGUF cannot express."""
    return encoder_plan(
        checkpoint, encoder_shapes(checkpoint), _plain, (*BUFFERS, *_HEADS), checkpoint.sentence.metadata(ARCH)
    )


def plan_reranker(checkpoint: Checkpoint) -> Plan:
    """Raises as ``plan``, and ModelFileError for labels that are not numbered from 0.

    GGUF has no key for what becomes of a score, so hotshoe adds ``hotshoe.rerank.activation``: "identity" or "sigmoid".
    """
    shapes, metadata = classifier(checkpoint)
    return encoder_plan(checkpoint, encoder_shapes(checkpoint) | shapes, _classifier, BUFFERS, metadata)


def classifier(checkpoint: Checkpoint) -> tuple[dict[str, tuple[int, ...]], dict[str, Any]]:
    """The tensors and the keys that a reranker has beside those of its encoder."""
    labels, dim = _labels(checkpoint), checkpoint.integer("hidden_size")
    shapes: dict[str, tuple[int, ...]] = {
        "cls.weight": (dim, dim),
        "cls.bias": (dim,),
        "cls.output.weight": (len(labels), dim),
        "cls.output.bias": (len(labels),),
    }
    metadata: dict[str, Any] = {f"{ARCH}.pooling_type": int(gguf.PoolingType.RANK)}
    activation = _activation(checkpoint)
    if activation is not None:
        metadata["hotshoe.rerank.activation"] = activation
    if dict(enumerate(labels)) != _UNNAMED:
        metadata[f"{ARCH}.classifier.output_labels"] = labels
    return shapes, metadata


def _activation(checkpoint: Checkpoint) -> str | None:
    """What sentence-transformers' CrossEncoder does to a score; None where config.json leaves it to the default.

    Raises ConversionError for a function that is neither the identity nor a sigmoid.
    """
    stated = checkpoint.config.get("sentence_transformers")
    name = stated.get("activation_fn") if isinstance(stated, dict) else None
    name = name or checkpoint.config.get("sbert_ce_default_activation_function")  # before version 4
    if name is None:
        return None
    kind = str(name).rpartition(".")[2].lower()
    if kind not in ("identity", "sigmoid"):
        raise ConversionError(
            f"{checkpoint.model / 'config.json'}: scores go through {name}; hotshoe converts rerankers with "
            "torch.nn.Identity or torch.nn.Sigmoid"
        )
    return kind


def _labels(checkpoint: Checkpoint) -> list[str]:
    stated = checkpoint.config.get("id2label")
    if stated is None:
        stated = _UNNAMED
    try:
        labels = {int(i): label for i, label in stated.items()}
    except (AttributeError, TypeError, ValueError):
        labels = {}
    names = [labels.get(i) for i in range(len(labels))]
    if not names or not all(isinstance(name, str) for name in names):
        raise ModelFileError(
            f"{str(stated)[:80]}; expected an object of labels, numbered from 0",
            path=checkpoint.model / "config.json",
            field="id2label",
        )
    return [str(name) for name in names]


def encoder_shapes(checkpoint: Checkpoint, first_position: int = 0) -> dict[str, tuple[int, ...]]:
    """The tensors of the encoder, by their names in the file."""
    checkpoint.require("hidden_act", "gelu", "gelu")
    checkpoint.require("position_embedding_type", "absolute", "absolute")
    checkpoint.require("is_decoder", False, False)
    checkpoint.require("add_cross_attention", False, False)
    n_heads = checkpoint.integer("num_attention_heads")
    dim = checkpoint.integer("hidden_size")
    if dim % n_heads:
        raise ConversionError(
            f"{checkpoint.model / 'config.json'}: hidden_size {dim} is not a multiple of num_attention_heads {n_heads}"
        )
    ff = checkpoint.integer("intermediate_size")
    shapes: dict[str, tuple[int, ...]] = {
        "token_embd.weight": (checkpoint.integer("vocab_size"), dim),
        "position_embd.weight": (checkpoint.integer("max_position_embeddings") - first_position, dim),
        "token_types.weight": (checkpoint.integer("type_vocab_size", 2), dim),
        "token_embd_norm.weight": (dim,),
        "token_embd_norm.bias": (dim,),
    }
    for i in range(checkpoint.layers()):
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
    return shapes


def encoder_plan(
    checkpoint: Checkpoint,
    shapes: dict[str, tuple[int, ...]],
    rename: Callable[[str], str],
    ignored: tuple[str, ...],
    metadata: dict[str, Any],
    *,
    tokenizer: Callable[[Checkpoint, int], dict[str, Any]] = wordpiece_metadata,
    first_position: int = 0,
) -> Plan:
    """An encoder's file. Rows of the position embeddings before ``first_position`` are left out."""
    tensors = match_tensors(
        checkpoint,
        gguf.get_tensor_name_map(gguf.MODEL_ARCH.BERT, checkpoint.layers()),
        shapes,
        rename=rename,
        ignored=ignored,
        full_precision={"position_embd.weight", "token_types.weight"},
        first_rows={"position_embd.weight": first_position},
    )
    # after the tensors: their shapes have shown that vocab_size is true
    vocab, dim = shapes["token_embd.weight"]
    keys = {
        f"{ARCH}.block_count": checkpoint.layers(),
        f"{ARCH}.context_length": shapes["position_embd.weight"][0],
        f"{ARCH}.embedding_length": dim,
        f"{ARCH}.feed_forward_length": checkpoint.integer("intermediate_size"),
        f"{ARCH}.attention.head_count": checkpoint.integer("num_attention_heads"),
        f"{ARCH}.attention.layer_norm_epsilon": checkpoint.number("layer_norm_eps", 1e-12),
        f"{ARCH}.attention.causal": False,
        **metadata,
        "tokenizer.ggml.token_type_count": shapes["token_types.weight"][0],
        **tokenizer(checkpoint, vocab),
    }
    return Plan(ARCH, keys, tensors)


def _classifier(name: str) -> str:
    name = _plain(name)
    start = next((start for start in _CLASSIFIER if name.startswith(start)), "")
    return _CLASSIFIER.get(start, "") + name[len(start) :]


def _plain(name: str) -> str:
    # models with a head keep the encoder under "bert."; checkpoints ported from TensorFlow say gamma and beta
    name = name.removeprefix("bert.")
    for old, new in ((".gamma", ".weight"), (".beta", ".bias")):
        if name.endswith(old):
            return name[: -len(old)] + new
    return name
