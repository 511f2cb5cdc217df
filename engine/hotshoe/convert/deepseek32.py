"""Convert DeepSeek-V3.2 and GLM-5: DeepSeek-V3 with an indexer in each layer, or in some."""

from __future__ import annotations

from typing import Any

from hotshoe.convert import Checkpoint, FileLayout, Recipe
from hotshoe.convert.deepseek2 import describe_latent

__all__ = ["describe"]

_ATTENTION = ("indexed_attention", "deepseek_sparse_attention")
_NAMES = {"wk": "attn_k", "wq_b": "attn_q_b", "k_norm": "k_norm", "weights_proj": "proj"}


def describe(checkpoint: Checkpoint) -> FileLayout:
    """Describe the file. Raises ModelFileError if config.json is invalid, ConversionError if GGUF cannot express it."""
    is_glm = checkpoint.config.get("model_type") == "glm_moe_dsa"
    n_layers, n_dense = checkpoint.layers(), checkpoint.count("first_k_dense_replace", 3)
    kinds = checkpoint.config.get("mlp_layer_types")
    if kinds is not None and kinds != [("sparse", "dense")[i < n_dense] for i in range(n_layers)]:
        raise checkpoint.refusal(f"mlp_layer_types is not that of the first {n_dense} layers dense, all others sparse")
    checkpoint.kinds("layer_types", n_layers, _ATTENTION, [_ATTENTION[0]] * n_layers)
    keys: dict[str, Any] = {
        "attention.indexer.head_count": checkpoint.integer("index_n_heads", 32 if is_glm else 64),
        "attention.indexer.key_length": checkpoint.integer("index_head_dim", 128),
        "attention.indexer.top_k": checkpoint.integer("index_topk", 2048),
    }
    if checkpoint.config.get("indexer_types") is not None:
        types = checkpoint.kinds("indexer_types", n_layers, ("full", "shared"))
        keys["attention.indexer.types"] = [kind == "full" for kind in types]
    names = {f"layers.self_attn.indexer.{name}": f"indexer.{ours}" for name, ours in _NAMES.items()}
    recipes = {"indexer.proj.weight": Recipe(full_precision=True)}
    return describe_latent(checkpoint, "glm-dsa" if is_glm else "deepseek32", keys, names, recipes)
