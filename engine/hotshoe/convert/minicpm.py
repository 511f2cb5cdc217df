"""Convert MiniCPM 1 to 4."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hotshoe.convert import Rules, interleave, make_layout, read_rope, read_sizes

if TYPE_CHECKING:
    from hotshoe.convert import Checkpoint, FileLayout

__all__ = ["describe"]


def describe(checkpoint: Checkpoint) -> FileLayout:
    """Describe the file. Raises ModelFileError if config.json is invalid, ConversionError if GGUF cannot express it."""
    checkpoint.require("hidden_act", "silu", "silu")
    sizes, rope = read_sizes(checkpoint), read_rope(checkpoint, "longrope")
    keys = sizes.keys() | rope.keys()
    keys |= {
        "embedding_scale": checkpoint.number("scale_emb"),
        "residual_scale": checkpoint.number("scale_depth") / sizes.n_layers**0.5,
        "logit_scale": sizes.dim / checkpoint.number("dim_model_base"),
    }
    constants = {}
    if rope.kind == "longrope":
        keys["rope.scaling.type"], n = "longrope", sizes.head_dim // 2
        constants = {f"rope_factors_{kind}.weight": rope.numbers(f"{kind}_factor", n) for kind in ("long", "short")}
        if rope.original_context() != sizes.context:
            raise checkpoint.refusal("LongRoPE extends the context, which files of this architecture cannot express")
    recipes = {"attn_q.weight": interleave(sizes.n_heads), "attn_k.weight": interleave(sizes.n_kv_heads)}
    rules = Rules(recipes=recipes, constants=constants)
    return make_layout(checkpoint, "minicpm", keys, rules, vocab=sizes.vocab)
