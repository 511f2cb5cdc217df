"""Convert Llama Nemotron and DeciLM, whose layers differ in their heads and in the size of their MLP."""

from __future__ import annotations

from typing import Any

from hotshoe.convert import Array, Checkpoint, FileLayout, Recipe, Rules, make_layout, read_rope, read_sizes

__all__ = ["describe"]

_MULTIPLE = 256  # of the hidden elements of an MLP


def describe(checkpoint: Checkpoint) -> FileLayout:
    """Describe the file. Raises ModelFileError if config.json is invalid, ConversionError if GGUF cannot express it."""
    checkpoint.expect(hidden_act="silu", attention_bias=False, mlp_bias=False)
    sizes, rope = read_sizes(checkpoint, dense=False), read_rope(checkpoint, "llama3")
    keys = sizes.keys() | rope.keys() | {"vocab_size": sizes.vocab, "rope.dimension_count": sizes.head_dim}
    if (blocks := checkpoint.config.get("block_configs")) is not None:
        keys |= {"attention.key_length": sizes.head_dim, "attention.value_length": sizes.head_dim}
        keys |= _block_keys(checkpoint, blocks, sizes.n_layers, sizes.n_heads, sizes.dim)
    elif (heads := checkpoint.config.get("num_key_value_heads_per_layer")) is not None:
        keys["attention.head_count_kv"] = heads

    has_linear = any(name.endswith("linear_attn.weight") for name in checkpoint.tensors)

    def interleave(value: Array) -> Array:
        """As ``hotshoe.convert.interleave``, for any number of heads."""
        heads = value.reshape(-1, 2, sizes.head_dim // 2, value.shape[-1])
        return heads.swapaxes(1, 2).reshape(value.shape)

    rules = Rules(
        names={"layers.self_attn.linear_attn": "attn_output"} if has_linear else {},
        recipes=dict.fromkeys(("attn_q.weight", "attn_k.weight"), Recipe(interleave, by_rows=True)),
        constants=rope.llama3_factors(sizes.head_dim),
    )
    return make_layout(checkpoint, "deci", keys, rules, vocab=sizes.vocab)


def _block_keys(checkpoint: Checkpoint, blocks: Any, n: int, n_heads: int, dim: int) -> dict[str, Any]:
    heads, kv_heads, widths = [], [], []
    if not isinstance(blocks, list) or len(blocks) != n:
        raise checkpoint.invalid("block_configs", blocks, f"a list of {n}")
    for block in blocks:
        try:
            attention, multiplier = block["attention"], block["ffn"]["ffn_mult"] or 0.0
            group, is_linear = attention["n_heads_in_group"], attention["replace_with_linear"]
            width = int(2 * multiplier * dim / 3)
            if group and not 1 <= group <= n_heads:
                raise ValueError(group)
            kv_heads.append(n_heads // group if group else 0)
        except (KeyError, TypeError, ValueError, ArithmeticError):
            raise checkpoint.invalid("block_configs", block, "an object with attention and ffn") from None
        heads.append(n_heads if group or is_linear else 0)
        widths.append(-(-width // _MULTIPLE) * _MULTIPLE)
    return {"attention.head_count": heads, "attention.head_count_kv": kv_heads, "feed_forward_length": widths}
