"""Convert BERT: encoders with learned positions, and norms after attention and MLP (MiniLM, BGE, E5, …).

``describe`` is for embedding models, ``describe_reranker`` for models with a classifier (cross-encoders, which score a
pair of texts). In the file, ``cls`` is BERT's pooler, and ``cls.output`` is the classifier after it and a tanh.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import gguf

from hotshoe.convert import FileLayout, match_tensors, wordpiece_metadata
from hotshoe_core.errors import ConversionError, ModelFileError

if TYPE_CHECKING:
    from collections.abc import Callable

    from hotshoe.convert import Checkpoint

__all__ = ["ARCH", "BUFFERS", "classifier", "describe_encoder", "encoder_shapes", "describe", "describe_reranker"]

ARCH = "bert"

BUFFERS = ("embeddings.position_ids", "embeddings.token_type_ids")  # these are not weights
_HEADS = ("pooler.", "cls.")  # embedding models do not use these
# names that the table of the gguf package knows
_CLASSIFIER = {"pooler.dense.": "classifier.dense.", "classifier.": "classifier.out_proj."}
_UNNAMED = {0: "LABEL_0", 1: "LABEL_1"}  # the default of transformers


def describe(checkpoint: Checkpoint) -> FileLayout:
    """Describe the file. Raises ModelFileError if config.json is invalid, ConversionError if GGUF cannot express it."""
    return describe_encoder(
        checkpoint, encoder_shapes(checkpoint), _plain, (*BUFFERS, *_HEADS), checkpoint.sentence.metadata(ARCH)
    )


def describe_reranker(checkpoint: Checkpoint) -> FileLayout:
    """Describe the file of a reranker.

    GGUF has no key for the activation of scores, so hotshoe adds ``hotshoe.rerank.activation``, "identity" or
    "sigmoid".

    Raises ModelFileError for an invalid config.json, or labels that are not numbered from 0; ConversionError if GGUF
    cannot express the model.
    """
    shapes, metadata = classifier(checkpoint)
    return describe_encoder(checkpoint, encoder_shapes(checkpoint) | shapes, _classifier, BUFFERS, metadata)


def classifier(checkpoint: Checkpoint) -> tuple[dict[str, tuple[int, ...]], dict[str, Any]]:
    """The shapes of the tensors, and the metadata, that a reranker has in addition to its encoder."""
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
    """The activation that sentence-transformers' CrossEncoder applies to scores; None if config.json does not name one.

    Raises ConversionError if it is neither the identity nor a sigmoid.
    """
    stated = checkpoint.config.get("sentence_transformers")
    name = stated.get("activation_fn") if isinstance(stated, dict) else None
    name = name or checkpoint.config.get("sbert_ce_default_activation_function")  # before version 4
    if name is None:
        return None
    kind = str(name).rpartition(".")[2].lower()
    if kind not in ("identity", "sigmoid"):
        raise ConversionError(
            f"{checkpoint.model / 'config.json'}: the activation of scores is {name}; hotshoe converts rerankers with "
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
    """The shape of each tensor of the encoder, by its name in the file.

    first_position: rows at the start of the position embedding that are not written.
    """
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
        for name, n_out, n_in in (
            ("attn_q", dim, dim),
            ("attn_k", dim, dim),
            ("attn_v", dim, dim),
            ("attn_output", dim, dim),
            ("ffn_up", ff, dim),
            ("ffn_down", dim, ff),
        ):
            shapes[f"{block}.{name}.weight"] = (n_out, n_in)
            shapes[f"{block}.{name}.bias"] = (n_out,)
        for name in ("attn_output_norm", "layer_output_norm"):
            shapes[f"{block}.{name}.weight"] = (dim,)
            shapes[f"{block}.{name}.bias"] = (dim,)
    return shapes


def describe_encoder(
    checkpoint: Checkpoint,
    shapes: dict[str, tuple[int, ...]],
    rename: Callable[[str], str],
    ignored: tuple[str, ...],
    metadata: dict[str, Any],
    *,
    tokenizer: Callable[[Checkpoint, int], dict[str, Any]] = wordpiece_metadata,
    first_position: int = 0,
) -> FileLayout:
    """Describe the file of an encoder.

    rename, ignored: see ``match_tensors``. metadata: keys in addition to those of the sizes and the tokenizer.
    first_position: rows at the start of the position embedding that are not written.
    """
    tensors = match_tensors(
        checkpoint,
        gguf.get_tensor_name_map(gguf.MODEL_ARCH.BERT, checkpoint.layers()),
        shapes,
        rename=rename,
        ignored=ignored,
        full_precision={"position_embd.weight", "token_types.weight"},
        first_rows={"position_embd.weight": first_position},
    )
    # after the tensors, because their shapes prove that vocab_size is correct
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
    return FileLayout(ARCH, keys, tensors)


def _classifier(name: str) -> str:
    name = _plain(name)
    start = next((start for start in _CLASSIFIER if name.startswith(start)), "")
    return _CLASSIFIER.get(start, "") + name[len(start) :]


def _plain(name: str) -> str:
    # models with a head have the prefix "bert."; checkpoints ported from TensorFlow use gamma and beta
    name = name.removeprefix("bert.")
    for old, new in ((".gamma", ".weight"), (".beta", ".bias")):
        if name.endswith(old):
            return name[: -len(old)] + new
    return name
