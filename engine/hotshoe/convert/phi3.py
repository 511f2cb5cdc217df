"""Convert Phi-3 and Phi-4: one matrix for queries, keys and values, one for gate and up, and LongRoPE."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from hotshoe.convert import TensorSource, as_is, linear, make_layout, non_layer_tensors, read_rope, read_sizes
from hotshoe_core.errors import ConversionError

if TYPE_CHECKING:
    from hotshoe.convert import Array, Checkpoint, FileLayout, Rope

__all__ = ["describe"]

ARCH = "phi3"


def describe(checkpoint: Checkpoint) -> FileLayout:
    """Describe the file. Raises ModelFileError if config.json is invalid, ConversionError if GGUF cannot express it."""
    checkpoint.require("hidden_act", "silu", "silu")
    sizes = read_sizes(checkpoint)
    if sizes.q != sizes.dim:
        raise ConversionError(
            f"{checkpoint.model / 'config.json'}: head_dim is {sizes.head_dim}; for this architecture a GGUF file can "
            f"only express hidden_size / num_attention_heads, {sizes.dim / sizes.n_heads:g}"
        )
    rope = read_rope(checkpoint, "longrope")
    share = rope.number("partial_rotary_factor", checkpoint.number("partial_rotary_factor", 1.0))
    n_rotated = int(share * sizes.dim) // sizes.n_heads
    tensors = non_layer_tensors(checkpoint, sizes, tied=False) + _factors(rope, n_rotated)
    for i in range(sizes.n_layers):
        block, layer = f"blk.{i}", f"model.layers.{i}"
        tensors += [
            as_is(f"{block}.attn_norm.weight", f"{layer}.input_layernorm.weight", (sizes.dim,)),
            as_is(f"{block}.ffn_norm.weight", f"{layer}.post_attention_layernorm.weight", (sizes.dim,)),
            *linear(f"{block}.attn_qkv", f"{layer}.self_attn.qkv_proj", sizes.q + 2 * sizes.kv, sizes.dim),
            *linear(f"{block}.attn_output", f"{layer}.self_attn.o_proj", sizes.dim, sizes.q),
            *linear(f"{block}.ffn_up", f"{layer}.mlp.gate_up_proj", 2 * sizes.ff, sizes.dim),
            *linear(f"{block}.ffn_down", f"{layer}.mlp.down_proj", sizes.dim, sizes.ff),
        ]
    window = checkpoint.config.get("sliding_window")
    metadata = sizes.metadata(ARCH, heads=False) | {
        f"{ARCH}.rope.dimension_count": n_rotated,
        f"{ARCH}.rope.scaling.original_context_length": rope.original_context(),
        # 0 means no window; readers assume a window if the key is missing, because old files of such models lack it
        f"{ARCH}.attention.sliding_window": 0 if window is None else checkpoint.integer("sliding_window"),
        **_scale(checkpoint, rope),
    }
    return make_layout(checkpoint, ARCH, tensors, metadata | rope.metadata(ARCH), vocab=sizes.vocab)


def _factors(rope: Rope, n_rotated: int) -> list[TensorSource]:
    """The divisors of RoPE's frequencies: one set for texts up to the original context, one for longer texts."""
    if rope.kind != "longrope":
        return []
    return [
        _constant(f"rope_factors_{n}.weight", rope.numbers(f"{n}_factor", n_rotated // 2)) for n in ("long", "short")
    ]


def _constant(name: str, values: Array) -> TensorSource:
    return TensorSource(name, values.shape, (), lambda _: values)


def _scale(checkpoint: Checkpoint, rope: Rope) -> dict[str, Any]:
    if rope.kind != "longrope":
        return {}
    original = rope.original_context()
    scale = checkpoint.integer("max_position_embeddings") / original
    # Source: LongRoPE (Ding et al. 2024), as in transformers
    factor = math.sqrt(1 + math.log(scale) / math.log(original)) if scale > 1 and original > 1 else 1.0
    if rope.settings.get("attention_factor") is not None:
        factor = float(rope.number("attention_factor"))
    return {f"{ARCH}.rope.scaling.attn_factor": factor}
