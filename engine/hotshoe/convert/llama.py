"""Convert Llama, Mistral and SmolVLM, which GGUF calls "llama", and SmolVLM's encoder of pictures."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hotshoe.convert import (
    Checkpoint,
    FileLayout,
    Recipe,
    Rules,
    interleave,
    make_layout,
    make_tower_layout,
    read_rope,
    read_sizes,
    tower_keys,
)
from hotshoe.convert._siglip import SIGLIP_BIASES, SIGLIP_NAMES
from hotshoe.convert._tower import processor_edge, read_preprocessor

__all__ = ["describe", "describe_llama", "describe_smolvlm", "describe_smolvlm_tower"]

_MISTRAL_KV_HEADS = 8  # default of num_key_value_heads in transformers' MistralConfig


def describe(checkpoint: Checkpoint) -> FileLayout:
    """Describe the file. Raises ModelFileError if config.json is invalid, ConversionError if GGUF cannot express it."""
    default = _MISTRAL_KV_HEADS if checkpoint.architecture == "MistralForCausalLM" else None
    return describe_llama(checkpoint, default, {})


def describe_llama(
    checkpoint: Checkpoint,
    n_kv_heads: int | None,
    more: dict[str, Any],
    *,
    arch: str = "llama",
    theta: float = 10_000.0,
    tied: bool = False,
    activation: str = "silu",
    also: Rules | None = None,
) -> FileLayout:
    """Describe the file of a model whose blocks are those of "llama".

    n_kv_heads: the default of num_key_value_heads; None for as many as query heads. more: keys of variants.
    theta, tied, activation: the architecture's defaults of rope_theta and tie_word_embeddings, and its hidden_act.
    also: rules for further tensors.
    """
    checkpoint.expect(hidden_act=activation)
    sizes = read_sizes(checkpoint, n_kv_heads=n_kv_heads)
    rope = read_rope(checkpoint, "linear", "llama3", "yarn", theta=theta)
    keys = sizes.keys() | {"vocab_size": sizes.vocab, "rope.dimension_count": sizes.head_dim}
    if checkpoint.config.get("sliding_window") is not None:
        # only the first Mistral; llama.cpp's converter writes no key, so that its readers ignore the window
        keys["attention.sliding_window"] = checkpoint.integer("sliding_window")
    also = also or Rules()
    biases = checkpoint.biases(attention_bias=["attn_*"], mlp_bias=["ffn_gate", "ffn_up", "ffn_down"])
    rules = replace(
        also,
        required=[*biases, *also.required],
        # RoPE pairs (2i, 2i + 1) in GGUF's "llama", but (i, i + head_dim / 2) in transformers
        recipes={
            f"{name}.{kind}": interleave(n)
            for name, n in (("attn_q", sizes.n_heads), ("attn_k", sizes.n_kv_heads))
            for kind in ("weight", "bias")
        }
        | dict(also.recipes),
        constants=rope.llama3_factors(sizes.head_dim) | dict(also.constants),
    )
    return make_layout(checkpoint, arch, keys | more | rope.keys(), rules, vocab=sizes.vocab, tied=tied)


_VISION, _CONNECTOR = "model.vision_model.", "model.connector."


def describe_smolvlm(checkpoint: Checkpoint) -> FileLayout:
    """Describe the text model of SmolVLM and Idefics3. Raises as ``describe`` does."""
    text = checkpoint.text(_VISION, _CONNECTOR)
    tensors = {name.replace("model.text_model.", "model.", 1): tensor for name, tensor in text.tensors.items()}
    return describe_llama(replace(text, tensors=tensors), None, {})


def describe_smolvlm_tower(checkpoint: Checkpoint) -> FileLayout:
    """Describe the encoder of SmolVLM and Idefics3. Raises as ``describe`` does."""
    vision = checkpoint.vision(_VISION, _CONNECTOR)
    # what config.json leaves out
    for name, value in (("hidden_size", 1152), ("num_attention_heads", 16), ("intermediate_size", 3072)):
        vision.config.setdefault(name, value)
    vision.expect(hidden_act="gelu_pytorch_tanh")
    processor, keys = read_preprocessor(checkpoint), tower_keys(checkpoint, vision)
    image_size = keys["vision.image_size"]
    if not processor.get("do_image_splitting", True):
        raise checkpoint.refusal("do_image_splitting is false; a file cannot say that pictures are not cut")
    if processor_edge(checkpoint, processor, "max_image_size", "longest_edge") not in (None, image_size):
        raise checkpoint.refusal(f"max_image_size is not image_size, {image_size}; a file has one of them")
    longest = processor_edge(checkpoint, processor, "size", "longest_edge")
    keys |= {
        "use_gelu": True,
        "vision.attention.layer_norm_epsilon": vision.number("layer_norm_eps", 1e-6),
        "vision.projector.scale_factor": checkpoint.integer("scale_factor", 2),
        "vision.preproc_image_size": image_size if longest is None else longest,
    }
    rules = Rules(
        names=SIGLIP_NAMES | {"modality_projection.proj": "mm.model.fc"},
        recipes={"v.patch_embd.weight": Recipe(full_precision=True)},
        required=SIGLIP_BIASES,
    )
    return make_tower_layout(checkpoint, vision, "idefics3", keys, rules)
