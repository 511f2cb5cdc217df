"""Rows of embedding models."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from tests.families.row import Row
from tests.support.tiny_bert import VOCAB, make_tiny_bert, write_safetensors, write_sentence_modules
from tests.support.tiny_text import make_tokenizer

Array = np.ndarray[Any, Any]

_ALL_HEADS: dict[str, Any] = {"num_key_value_heads": ...}


def wordpiece(folder: Path) -> None:
    """Write BERT's tokenizer, without changing the model that is in the folder."""
    kept = {name: (folder / name).read_bytes() for name in ("config.json", "model.safetensors")}
    make_tiny_bert(folder, sentence=False)
    for name, content in kept.items():
        (folder / name).write_bytes(content)


def gemma_sentence(folder: Path) -> None:
    """Write a tokenizer, and the files of sentence-transformers with two matrices after pooling."""
    make_tokenizer(folder)
    write_sentence_modules(folder, 64, "mean_tokens", max_seq_length=64)
    modules = json.loads((folder / "modules.json").read_text())
    dense = [("2_Dense", "Dense", (96, 64)), ("3_Dense", "Dense", (64, 96))]
    last = modules.pop()
    for i, (path, kind, shape) in enumerate(dense):
        modules.append({"idx": 2 + i, "name": str(2 + i), "path": path, "type": f"sentence_transformers.models.{kind}"})
        weight = np.random.default_rng(i).standard_normal(shape) / 8
        (folder / path).mkdir()
        write_safetensors(folder / path / "model.safetensors", {"linear.weight": weight.astype(np.float32)})
        config = {"in_features": shape[1], "out_features": shape[0], "bias": False}
        config |= {"activation_function": "torch.nn.modules.linear.Identity"}
        (folder / path / "config.json").write_text(json.dumps(config))
    (folder / "modules.json").write_text(json.dumps([*modules, last | {"idx": 4, "name": "4", "path": "4_Normalize"}]))


def gemma_vector(folder: Path, states: Array) -> Array:
    """Mean, two matrices, length 1."""
    vector = states.mean(axis=0)
    for i, shape in enumerate(((96, 64), (64, 96))):
        vector = (np.random.default_rng(i).standard_normal(shape) / 8).astype(np.float32) @ vector
    return np.asarray(vector / np.linalg.norm(vector))


_WORDPIECE: dict[str, Any] = {"vocab_size": len(VOCAB), "pad_token_id": 0, "bos_token_id": ..., "eos_token_id": ...}

ROWS: dict[str, Row] = {
    "bert": Row(
        "BertModel",
        "bert",
        _ALL_HEADS | _WORDPIECE,
        tokenizer=wordpiece,
        unused=("pooler.*", "*.key.bias"),  # all scores of a query get the same from the bias of keys
        llamacpp_bound=1e-3,  # GELU
    ),
    "gemma-embedding": Row(
        "Gemma3TextModel",
        "gemma-embedding",
        {
            "head_dim": 32,
            "sliding_window": 6,
            "num_hidden_layers": 7,
            "query_pre_attn_scalar": 32,
            "use_bidirectional_attention": True,
        },
        tokenizer=gemma_sentence,
        vector=gemma_vector,
        cut=("token_embd.weight",),
        # theirs writes them only with --sentence-transformers-dense-modules
        left_out=("dense_*",),
        keys={
            "gemma-embedding.dense_2_feat_in": 64,
            "gemma-embedding.dense_2_feat_out": 96,
            "gemma-embedding.dense_3_feat_in": 96,
            "gemma-embedding.dense_3_feat_out": 64,
        },
        optional=("dense_*",),
        llamacpp_bound=1e-3,  # GELU
    ),
}
