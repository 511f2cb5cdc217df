"""Convert InternLM 2: queries, keys and values are one matrix, in groups of heads."""

from __future__ import annotations

from hotshoe.convert import Array, Checkpoint, FileLayout, Recipe, Rules, interleave, make_layout, read_rope, read_sizes

__all__ = ["describe"]


def describe(checkpoint: Checkpoint) -> FileLayout:
    """Describe the file. Raises ModelFileError if config.json is invalid, ConversionError if GGUF cannot express it."""
    checkpoint.expect(hidden_act="silu", bias=False)
    sizes, rope = read_sizes(checkpoint), read_rope(checkpoint, "linear")
    groups, queries = sizes.n_kv_heads, sizes.n_heads // sizes.n_kv_heads
    stored = ((sizes.n_heads + 2 * groups) * sizes.head_dim, sizes.dim)

    def part(start: int, end: int) -> Recipe:
        """Some heads of each group, which has the heads of its queries, then one of keys and one of values."""

        def make(value: Array) -> Array:
            heads = value.reshape(groups, queries + 2, sizes.head_dim, -1)[:, start:end].reshape(-1, sizes.dim)
            return interleave(len(heads) // sizes.head_dim).make(heads) if end < queries + 2 else heads

        return Recipe(make, stored)

    rules = Rules(
        names={
            "tok_embeddings": "token_embd",
            "output": "output",
            "layers.attention_norm": "attn_norm",
            "layers.attention.wqkv": ("attn_q", "attn_k", "attn_v"),
            "layers.attention.wo": "attn_output",
        },
        recipes={
            "attn_q.weight": part(0, queries),
            "attn_k.weight": part(queries, queries + 1),
            "attn_v.weight": part(queries + 1, queries + 2),
        },
    )
    return make_layout(checkpoint, "internlm2", sizes.keys() | rope.keys(), rules, vocab=sizes.vocab)
