"""Convert DeepSeek V2 and V3: latent attention (MLA), shared and routed experts, and first layers without experts.

GGUF splits the matrix that expands the latent to keys and values into two tensors. The part for keys is transposed, so
that it projects queries to the latent, instead of each latent to a key. So GGUF describes one key/value head.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import gguf
import numpy as np

from hotshoe.convert import (
    TensorSource,
    as_is,
    experts,
    experts_used,
    linear,
    make_layout,
    mlp_tensors,
    non_layer_tensors,
    read_rope,
    read_sizes,
)
from hotshoe_core.errors import ConversionError

if TYPE_CHECKING:
    from hotshoe.convert import Array, Checkpoint, FileLayout, ModelSizes, Rope

__all__ = ["describe"]

ARCH = "deepseek2"

_GATING = {"softmax": gguf.ExpertGatingFuncType.SOFTMAX, "sigmoid": gguf.ExpertGatingFuncType.SIGMOID}


@dataclass(frozen=True, slots=True)
class _Latent:
    """The sizes of latent attention."""

    q: int | None  # rank of the queries' latent; None if the model has no such latent
    kv: int  # rank of the latent of keys and values
    nope: int  # elements of a head that RoPE does not rotate
    rope: int  # elements of a head that RoPE rotates
    v: int  # elements of a head's value

    @classmethod
    def read(cls, checkpoint: Checkpoint) -> _Latent:
        return cls(
            q=None if checkpoint.config.get("q_lora_rank") is None else checkpoint.integer("q_lora_rank"),
            kv=checkpoint.integer("kv_lora_rank", 512),
            nope=checkpoint.integer("qk_nope_head_dim", 128),
            rope=checkpoint.integer("qk_rope_head_dim", 64),
            v=checkpoint.integer("v_head_dim", 128),
        )

    def metadata(self) -> dict[str, Any]:
        return {
            **({} if self.q is None else {f"{ARCH}.attention.q_lora_rank": self.q}),
            f"{ARCH}.attention.kv_lora_rank": self.kv,
            # sizes in the cache: a key is the latent and the rotated elements, a value is the latent
            f"{ARCH}.attention.head_count_kv": 1,
            f"{ARCH}.attention.key_length": self.kv + self.rope,
            f"{ARCH}.attention.value_length": self.kv,
            # sizes of a head
            f"{ARCH}.attention.key_length_mla": self.nope + self.rope,
            f"{ARCH}.attention.value_length_mla": self.v,
            f"{ARCH}.rope.dimension_count": self.rope,
        }


def describe(checkpoint: Checkpoint) -> FileLayout:
    """Describe the file. Raises ModelFileError if config.json is invalid, ConversionError if GGUF cannot express it."""
    checkpoint.require("hidden_act", "silu", "silu")
    checkpoint.require("attention_bias", False, False)
    checkpoint.require("mlp_bias", False, False)
    checkpoint.require("rope_interleave", True, True)
    checkpoint.require("moe_layer_freq", 1, 1)
    latent = _Latent.read(checkpoint)
    sizes = read_sizes(checkpoint, head_dim=latent.rope)
    rope = read_rope(checkpoint, "yarn")
    n_experts = _count(checkpoint, "n_routed_experts")
    n_dense = sizes.n_layers if not n_experts else min(_count(checkpoint, "first_k_dense_replace"), sizes.n_layers)
    tensors = non_layer_tensors(checkpoint, sizes, tied=False)
    for i in range(sizes.n_layers):
        block, layer = f"blk.{i}", f"model.layers.{i}"
        tensors += [
            as_is(f"{block}.attn_norm.weight", f"{layer}.input_layernorm.weight", (sizes.dim,)),
            as_is(f"{block}.ffn_norm.weight", f"{layer}.post_attention_layernorm.weight", (sizes.dim,)),
            *_attention(block, f"{layer}.self_attn", sizes, latent),
        ]
        if i < n_dense:
            tensors += mlp_tensors(block, f"{layer}.mlp", sizes.dim, sizes.ff)
        else:
            tensors += _mixture(checkpoint, block, f"{layer}.mlp", sizes.dim, n_experts)
    metadata = sizes.metadata(ARCH, heads=False) | {f"{ARCH}.vocab_size": sizes.vocab} | latent.metadata()
    metadata |= _mixture_metadata(checkpoint, n_experts) | {f"{ARCH}.leading_dense_block_count": n_dense}
    # layers that predict more than one token ahead are for training and are not written
    n_extra = _count(checkpoint, "num_nextn_predict_layers")
    extra = tuple(f"model.layers.{sizes.n_layers + i}." for i in range(min(n_extra, len(checkpoint.tensors))))
    return make_layout(
        checkpoint, ARCH, tensors, metadata | _yarn(rope) | rope.metadata(ARCH), vocab=sizes.vocab, ignored=extra
    )


def _count(checkpoint: Checkpoint, key: str) -> int:
    """Read an integer of at least 0 from config.json; 0 if it is missing."""
    return 0 if checkpoint.config.get(key) in (None, 0) else checkpoint.integer(key)


def _attention(block: str, source: str, sizes: ModelSizes, latent: _Latent) -> list[TensorSource]:
    dim, n, n_q = sizes.dim, sizes.n_heads, sizes.n_heads * (latent.nope + latent.rope)
    if latent.q is None:
        queries = linear(f"{block}.attn_q", f"{source}.q_proj", n_q, dim)
    else:
        queries = [
            *linear(f"{block}.attn_q_a", f"{source}.q_a_proj", latent.q, dim),
            as_is(f"{block}.attn_q_a_norm.weight", f"{source}.q_a_layernorm.weight", (latent.q,)),
            *linear(f"{block}.attn_q_b", f"{source}.q_b_proj", n_q, latent.q),
        ]
    whole = (f"{source}.kv_b_proj.weight", (n * (latent.nope + latent.v), latent.kv))

    def heads(parts: Iterator[Array]) -> Array:
        return next(parts).reshape(n, latent.nope + latent.v, latent.kv)  # (heads, keys and values, latent)

    def keys(parts: Iterator[Array]) -> Array:
        return np.ascontiguousarray(heads(parts)[:, : latent.nope].swapaxes(1, 2))

    def values(parts: Iterator[Array]) -> Array:
        return np.ascontiguousarray(heads(parts)[:, latent.nope :])

    return [
        *queries,
        *linear(f"{block}.attn_kv_a_mqa", f"{source}.kv_a_proj_with_mqa", latent.kv + latent.rope, dim),
        as_is(f"{block}.attn_kv_a_norm.weight", f"{source}.kv_a_layernorm.weight", (latent.kv,)),
        TensorSource(f"{block}.attn_k_b.weight", (n, latent.kv, latent.nope), (whole,), keys),
        TensorSource(f"{block}.attn_v_b.weight", (n, latent.v, latent.kv), (whole,), values),
        *linear(f"{block}.attn_output", f"{source}.o_proj", dim, n * latent.v),
    ]


def _mixture(checkpoint: Checkpoint, block: str, source: str, dim: int, n: int) -> list[TensorSource]:
    ff, n_shared = checkpoint.integer("moe_intermediate_size"), _count(checkpoint, "n_shared_experts")
    tensors = [
        as_is(f"{block}.ffn_gate_inp.weight", f"{source}.gate.weight", (n, dim)),
        *experts(checkpoint, block, f"{source}.experts", n, ff, dim),
    ]
    if n_shared:
        tensors += mlp_tensors(block, f"{source}.shared_experts", dim, n_shared * ff, suffix="_shexp")
    if _is_v3(checkpoint):
        tensors.append(as_is(f"{block}.exp_probs_b.bias", f"{source}.gate.e_score_correction_bias", (n,)))
    return tensors


def _mixture_metadata(checkpoint: Checkpoint, n_experts: int) -> dict[str, Any]:
    keys: dict[str, Any] = {
        f"{ARCH}.expert_shared_count": _count(checkpoint, "n_shared_experts"),
        f"{ARCH}.expert_feed_forward_length": checkpoint.integer(
            "moe_intermediate_size" if n_experts else "intermediate_size"
        ),
    }
    if not n_experts:
        return keys
    keys[f"{ARCH}.expert_count"] = n_experts
    keys[f"{ARCH}.expert_used_count"] = experts_used(checkpoint, n_experts, 8 if _is_v3(checkpoint) else 6)
    # with "greedy", experts are chosen from all groups, whatever config.json says about groups
    if checkpoint.config.get("n_group") is not None and checkpoint.config.get("topk_group") is not None:
        greedy = checkpoint.config.get("topk_method") == "greedy"
        keys[f"{ARCH}.expert_group_count"] = 1 if greedy else checkpoint.integer("n_group")
        keys[f"{ARCH}.expert_group_used_count"] = 1 if greedy else checkpoint.integer("topk_group")
    # llama.cpp's converter writes no key if config.json has none, and readers then use softmax; but V3 uses a sigmoid
    scores = checkpoint.config.get("scoring_func") or ("sigmoid" if _is_v3(checkpoint) else None)
    if scores is not None:
        checkpoint.require("scoring_func", scores, *_GATING)
        keys[f"{ARCH}.expert_gating_func"] = int(_GATING[scores])
    if checkpoint.config.get("routed_scaling_factor") is not None:
        keys[f"{ARCH}.expert_weights_scale"] = checkpoint.number("routed_scaling_factor")
    if checkpoint.config.get("norm_topk_prob"):
        keys[f"{ARCH}.expert_weights_norm"] = True
    return keys


def _is_v3(checkpoint: Checkpoint) -> bool:
    return "V3" in (checkpoint.architecture or "") or checkpoint.config.get("model_type") == "deepseek_v3"


def _yarn(rope: Rope) -> dict[str, Any]:
    if rope.kind != "yarn" or rope.settings.get("mscale_all_dim") is None:
        return {}
    magnitude = float(rope.number("mscale_all_dim"))
    if rope.number("mscale", magnitude) != magnitude:
        raise ConversionError(
            f"{rope.checkpoint.model / 'config.json'}: RoPE's mscale is {rope.settings['mscale']} and mscale_all_dim "
            f"{magnitude}; a GGUF file can only express equal values"
        )
    return {f"{ARCH}.rope.scaling.yarn_log_multiplier": 0.1 * magnitude}
