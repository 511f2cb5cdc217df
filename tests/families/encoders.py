"""Rows of embedding models."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.families.checkpoints import renamed, save
from tests.families.row import Row
from tests.support.tiny_bert import VOCAB, edit_json, make_tiny_bert, write_safetensors, write_sentence_modules
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


_DISTILBERT_LACKS = (
    *("hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "intermediate_size"),
    *("bos_token_id", "eos_token_id"),
)
_T5: dict[str, Any] = dict.fromkeys(_DISTILBERT_LACKS[:5], ...) | {
    "d_model": 64,
    "d_kv": 12,
    "d_ff": 96,
    "num_layers": 3,
    "num_heads": 4,
    "layer_norm_epsilon": 1e-3,
    "max_position_embeddings": ...,
}
_WORDPIECE: dict[str, Any] = {
    "layer_norm_eps": 1e-3,
    "vocab_size": len(VOCAB),
    "pad_token_id": 0,
    "bos_token_id": ...,
    "eos_token_id": ...,
}


def as_published(folder: Path) -> None:
    """Give config.json the names of Nomic's own code too, as in its repositories. The tensors have them already."""
    config = json.loads((folder / "config.json").read_text())
    config |= {
        "n_embd": config["hidden_size"],
        "n_inner": config["intermediate_size"],
        "n_layer": config["num_hidden_layers"],
        "n_head": config["num_attention_heads"],
        "n_positions": 8192,
        "max_trained_positions": 2048,
        "activation_function": "swiglu",
        "layer_norm_epsilon": config["layer_norm_eps"],
        "rotary_emb_base": config.pop("rope_parameters")["rope_theta"],
        "rotary_emb_fraction": 1.0,
        "rotary_emb_interleaved": False,
        "rotary_emb_scale_base": None,
        "causal": False,
        "prenorm": False,
        "qkv_proj_bias": False,
        "mlp_fc1_bias": False,
        "mlp_fc2_bias": False,
    }
    del config["max_position_embeddings"], config["head_dim"]
    (folder / "config.json").write_text(json.dumps(config))


def mixture_as_published(folder: Path) -> None:
    """As Nomic publishes version 2: one bias of all experts, which is zero, and other names of dense MLPs."""
    as_published(folder)
    safetensors = pytest.importorskip("safetensors.numpy")
    weights = safetensors.load_file(folder / "model.safetensors")
    names = {"embeddings.LayerNorm": "emb_ln", "layers.": "encoder.layers.", "self_attn.o_proj": "attn.out_proj"}
    names |= {"post_attention_layernorm": "norm1", "post_mlp_layernorm": "norm2"}
    names |= {"up_proj": "fc1", "down_proj": "fc2", "self_attn.q_proj": "attn.Wqkv"}
    for old, new in names.items():
        weights = {name.replace(old, new): value for name, value in weights.items()}
    for name in [name for name in weights if ".attn.Wqkv." in name]:
        parts = [name, *(name.replace("attn.Wqkv", f"self_attn.{part}_proj") for part in "kv")]
        weights[name] = np.concatenate([weights.pop(part) for part in parts])
    weights["encoder.layers.1.mlp.experts.bias"] = np.zeros(64, np.float32)
    safetensors.save_file(weights, folder / "model.safetensors", {"format": "pt"})
    biases = dict.fromkeys(("qkv_proj_bias", "mlp_fc1_bias", "mlp_fc2_bias"), True)
    edit_json(folder, "config.json", architectures=["NomicBertModel"], activation_function="gelu", n_positions=2048)
    edit_json(folder, "config.json", **biases)


def modern_as_published(folder: Path) -> None:
    """Give config.json the names that it has in the repository of ModernBERT."""
    config = json.loads((folder / "config.json").read_text())
    rope = config.pop("rope_parameters")
    config |= {
        "layer_norm_eps": config["norm_eps"],
        "global_attn_every_n_layers": 3,
        "global_rope_theta": rope["full_attention"]["rope_theta"],
        "local_rope_theta": rope["sliding_attention"]["rope_theta"],
    }
    del config["layer_types"]
    (folder / "config.json").write_text(json.dumps(config))


def _as_llama_embed(folder: Path) -> None:
    edit_json(folder, "config.json", architectures=["LlamaBidirectionalModel"], model_type="llama_bidirec")


def _as_jina(folder: Path) -> None:
    names = {"intermediate.gated_layers": "mlp.gated_layers"}
    more = {"architectures": ["JinaBertModel"], "position_embedding_type": "alibi", "feed_forward_type": "geglu"}
    weights = renamed(folder, {}, names, **more)
    for name in list(weights):
        if "position_embeddings" in name:
            del weights[name]
        elif ".output." in name and ".attention." not in name:
            new = name.replace("output.dense", "mlp.wo").replace("output.LayerNorm", "mlp.layernorm")
            weights[new] = weights.pop(name)
    save(weights, folder)


ROWS: dict[str, Row] = {
    "jina-bert-v2": Row(
        "tests.families.jina:JinaBertModel",
        "jina-bert-v2",
        _ALL_HEADS | _WORDPIECE,
        tokenizer=wordpiece,
        prepare=_as_jina,
        weights={"position_embeddings.weight": np.zeros_like},
        unused=("pooler.*", "*.key.bias"),
        llamacpp_bound=1e-3,  # GELU
    ),
    "eurobert": Row(
        "EuroBertModel",
        "eurobert",
        {"classifier_pooling": "mean"},
        keys={"eurobert.classifier.pooling_type": None},  # ours is for models without a classifier
        excused={"head_dim": "llama.cpp reads only files in which the heads together are as wide as the hidden state"},
    ),
    "llama-embed": Row(
        "EuroBertModel",
        "llama-embed",
        {"head_dim": 24},
        prepare=_as_llama_embed,
        keys={"llama-embed.attention.causal": False},  # theirs forgets it, and its reader then hides later tokens
    ),
    "bert": Row(
        "BertModel",
        "bert",
        _ALL_HEADS | _WORDPIECE,
        tokenizer=wordpiece,
        unused=("pooler.*", "*.key.bias"),  # all scores of a query get the same from the bias of keys
        optional=("token_types.weight",),
        llamacpp_bound=1e-3,  # GELU
    ),
    "distilbert": Row(
        "DistilBertModel",
        "bert",
        dict.fromkeys(_DISTILBERT_LACKS, ...)
        | {"vocab_size": len(VOCAB), "pad_token_id": 0}
        | {"dim": 64, "n_layers": 3, "n_heads": 4, "hidden_dim": 128, "max_position_embeddings": 256},
        tokenizer=wordpiece,
        unused=("*.k_lin.bias",),
        excused={"epsilon": "config.json has none"},
        llamacpp_bound=1e-3,  # GELU
    ),
    "roberta": Row(
        "RobertaModel",
        "bert",
        _ALL_HEADS | {"layer_norm_eps": 1e-3, "pad_token_id": 1},
        unused=("pooler.*", "*.key.bias"),
        optional=("token_types.weight",),
        llamacpp_bound=1e-3,  # GELU
    ),
    "t5encoder": Row(
        "T5EncoderModel",
        "t5encoder",
        _T5 | {"feed_forward_proj": "gated-gelu"},
        n_tokens=150,
        weights={"Attention.q.weight": lambda w: w / 4},  # scores are not scaled
        optional=("enc.blk.*.ffn_gate.weight",),
        llamacpp_bound=1e-3,  # GELU
    ),
    "t5encoder-relu": Row(
        "T5EncoderModel", "t5encoder", _T5, n_tokens=150, weights={"Attention.q.weight": lambda w: w / 4}
    ),
    "gemma-embedding": Row(
        "Gemma3TextModel",
        "gemma-embedding",
        {
            "head_dim": 32,
            "sliding_window": 6,
            "num_hidden_layers": 7,
            "query_pre_attn_scalar": 32,
            "rms_norm_eps": 1e-3,
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
    "nomic-bert": Row(
        "NomicBertModel",
        "nomic-bert",
        _ALL_HEADS | _WORDPIECE,
        tokenizer=wordpiece,
        prepare=as_published,
        # theirs asks transformers, whose config adds head_dim
        keys={"nomic-bert.attention.key_length": None, "nomic-bert.attention.value_length": None},
        optional=("token_types.weight",),
        excused={"head_dim": "GGUF has no key for it in encoders"},
    ),
    "nomic-bert-moe": Row(
        "tests.families.nomic_moe:NomicMoeModel",
        "nomic-bert-moe",
        _ALL_HEADS
        | _WORDPIECE
        | {"num_hidden_layers": 4, "moe_every_n_layers": 2, "num_experts": 4, "moe_top_k": 2, "hidden_act": "gelu"},
        tokenizer=wordpiece,
        prepare=mixture_as_published,
        # as in version 1; and the context that it means to write, 512, comes after the default of transformers
        keys={
            "nomic-bert-moe.attention.key_length": None,
            "nomic-bert-moe.attention.value_length": None,
            "nomic-bert-moe.context_length": 512,
        },
        optional=("token_types.weight",),
        excused={"head_dim": "GGUF has no key for it in encoders"},
        llamacpp_bound=1e-3,  # GELU
    ),
    "modern-bert": Row(
        "ModernBertModel",
        "modern-bert",
        _ALL_HEADS
        | {"num_hidden_layers": 5, "local_attention": 10, "pad_token_id": 1, "cls_token_id": 0}
        | {"sep_token_id": 1},
        prepare=modern_as_published,
        llamacpp_bound=2e-3,  # GELU
    ),
}
