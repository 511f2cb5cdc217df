"""Convert Gemma 3, text only: norms that add 1 to their weights, and layers with a sliding window or with none."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hotshoe.convert import as_is, attention_tensors, make_layout, mlp_tensors, non_layer_tensors, read_rope, read_sizes
from hotshoe_core.errors import ConversionError

if TYPE_CHECKING:
    from hotshoe.convert import Checkpoint, FileLayout, TensorSource

__all__ = ["describe"]

ARCH = "gemma3"

_PATTERN = 6  # every sixth layer is global: the default of readers
_NORMS = (
    ("attn_norm", "input_layernorm"),
    ("post_attention_norm", "post_attention_layernorm"),
    ("ffn_norm", "pre_feedforward_layernorm"),
    ("post_ffw_norm", "post_feedforward_layernorm"),
)


def describe(checkpoint: Checkpoint) -> FileLayout:
    """Describe the file. Raises ModelFileError if config.json is invalid, ConversionError if GGUF cannot express it."""
    checkpoint.require("hidden_activation", "gelu_pytorch_tanh", "gelu_pytorch_tanh")
    checkpoint.require("attn_logit_softcapping", None)
    checkpoint.require("attention_bias", False, False)
    checkpoint.require("use_bidirectional_attention", False, False)
    sizes = read_sizes(checkpoint, head_dim=256, n_kv_heads=4)
    rope = read_rope(checkpoint, "linear", "yarn", theta=1_000_000.0, local_theta=10_000.0)
    tensors = non_layer_tensors(checkpoint, sizes, tied=True, norm_plus=1.0)
    dim, head = sizes.dim, sizes.head_dim
    for i in range(sizes.n_layers):
        block, layer = f"blk.{i}", f"model.layers.{i}"
        tensors += [
            *(_norm(f"{block}.{name}", f"{layer}.{source}", dim) for name, source in _NORMS),
            _norm(f"{block}.attn_q_norm", f"{layer}.self_attn.q_norm", head),
            _norm(f"{block}.attn_k_norm", f"{layer}.self_attn.k_norm", head),
            *attention_tensors(block, f"{layer}.self_attn", sizes),
            *mlp_tensors(block, f"{layer}.mlp", dim, sizes.ff),
        ]
    metadata = sizes.metadata(ARCH) | _attention_metadata(checkpoint, head)
    return make_layout(checkpoint, ARCH, tensors, metadata | rope.metadata(ARCH), vocab=sizes.vocab)


def _norm(name: str, source: str, dim: int) -> TensorSource:
    # transformers multiplies by 1 + weight; a GGUF file contains the factor itself
    return as_is(f"{name}.weight", f"{source}.weight", (dim,), plus=1.0)


def _attention_metadata(checkpoint: Checkpoint, head_dim: int) -> dict[str, Any]:
    keys: dict[str, Any] = {}
    pattern = _pattern(checkpoint)
    if pattern != 1:
        keys[f"{ARCH}.attention.sliding_window"] = checkpoint.integer("sliding_window", 4096)
    if pattern != _PATTERN:
        keys[f"{ARCH}.attention.sliding_window_pattern"] = pattern
    scalar = checkpoint.number("query_pre_attn_scalar", 256)
    if scalar != head_dim:
        # llama.cpp's converter writes no key: readers recognise the only such model (27B) by its number of layers
        keys[f"{ARCH}.attention.scale"] = scalar**-0.5 if scalar > 0 else 1.0
    if checkpoint.config.get("final_logit_softcapping"):
        keys[f"{ARCH}.final_logit_softcapping"] = checkpoint.number("final_logit_softcapping")
    return keys


def _pattern(checkpoint: Checkpoint) -> int:
    """The n for which every n-th layer is global; 1 if all are. Raises ConversionError for an irregular list."""
    kinds = checkpoint.config.get("layer_types")
    stated = checkpoint.integer("sliding_window_pattern", checkpoint.integer("_sliding_window_pattern", _PATTERN))
    if not isinstance(kinds, list):
        return stated
    n = kinds.index("full_attention") + 1 if "full_attention" in kinds else max(stated, len(kinds) + 1)
    # if no layer is global, the pattern is longer than the list, and config.json decides
    n = stated if n > len(kinds) else n
    expected = ["sliding_attention" if (i + 1) % n else "full_attention" for i in range(len(kinds))]
    if kinds != expected:
        raise ConversionError(
            f"{checkpoint.model / 'config.json'}: layer_types is {kinds}; a GGUF file can only express that every "
            "n-th layer has full_attention"
        )
    return n
