"""Find the metadata of a model that nothing reads: a key that is ignored may change what the model should compute."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from hotshoe.media import MEDIA
from hotshoe.tasks import Task
from hotshoe_core.gguf import GGUFArray

if TYPE_CHECKING:
    from hotshoe.nn import Module
    from hotshoe_core.gguf import Metadata

__all__ = ["HARMLESS", "NEUTRAL", "check_all_read", "find_unread"]

HARMLESS = {
    "vocab_size": "the vocabulary itself says how many tokens it has",
    "tensor_data_layout": "says which converter made the file",
    "rope.scaling.finetuned": "says how the model was trained; the families that switch RoPE by it read it",
    "attention.layer_norm_epsilon": "converters write both; a model whose norms are RMS norms has no use for it",
    "attention.layer_norm_rms_epsilon": "converters write both; a model whose norms are LayerNorms has no use for it",
}
"""Keys that no result depends on, and why. A model adds its own with ``unused_keys()``."""

_OF_ENCODERS = ("vision.", "audio.", "mm.")
"""Starts of keys of encoders of pictures or sound in the same file. The text does not depend on them."""
_SHARED_BY_ENCODERS = ("gen.", "has_")
"""Starts of keys in a file of encoders on which no encoder of pictures or sound depends."""

_OFF = (0, 1)  # of a factor: readers take 0 for "not given"
NEUTRAL: dict[str, tuple[float | bool | str, ...]] = {
    "attention.clamp_kqv": (0,),
    "attention.head_count": (0,),
    "attention.max_alibi_bias": (0,),
    "attention.scale": (0,),
    "attention.shared_kv_layers": (0,),
    "attention.temperature_length": (0,),
    "attention.temperature_scale": (0,),
    "attention.value_scale": _OFF,
    "attn_logit_softcapping": (0,),
    "embedding_length_out": (0,),
    "embedding_scale": _OFF,
    "expert_count": (0,),
    "expert_group_count": _OFF,
    "expert_group_used_count": _OFF,
    "expert_shared_count": (0,),
    "expert_used_count": (0,),
    "expert_weights_norm": (False,),
    "expert_weights_scale": _OFF,
    "final_logit_softcapping": (0,),
    "interleave_moe_layer_step": _OFF,
    "leading_dense_block_count": (0,),
    "logit_scale": _OFF,
    "n_deepstack_layers": (0,),
    "nextn_predict_layers": (0,),
    "residual_scale": _OFF,
    "rope.scale_linear": _OFF,
    "rope.scaling.alpha": (0,),
    "rope.scaling.attn_factor": _OFF,
    "rope.scaling.factor": _OFF,
    "rope.scaling.type": ("none",),
    "rope.scaling.yarn_log_multiplier": (0,),
    "router_logit_softcapping": (0,),
    "swiglu_clamp_exp": (0,),
    "swiglu_clamp_shexp": (0,),
    "swin_norm": (False,),
    "use_parallel_residual": (False,),
}
"""Values with which a key asks for what every model computes that does not read it."""


def find_unread(metadata: Metadata, model: Module) -> dict[str, Any]:
    """The keys ``<architecture>.*`` that were not read and that could change what the model computes; their values.

    Call it when the model has been made from a config that was read from these metadata.
    """
    harmless = HARMLESS | model.unused_keys()
    others: tuple[str, ...] = _OF_ENCODERS
    if metadata.architecture == "clip":
        own: Any = model
        others = (*_SHARED_BY_ENCODERS, *(f"{medium.section}." for medium in MEDIA if medium is not own.medium))
    unread = {k: v for k, v in metadata.arch.unread.items() if not k.startswith(others)}
    return {k: v for k, v in unread.items() if k not in harmless and not _is_neutral(k, v, model)}


def check_all_read(metadata: Metadata, model: Module) -> None:
    """Raise ModelFileError if ``find_unread`` finds a key; the message names it and its value."""
    unread = find_unread(metadata, model)
    if not unread:
        return
    key, value = next(iter(unread.items()))
    others = [f"{metadata.architecture}.{other}" for other in list(unread)[1:5]]
    more = f"; the same holds for {', '.join(others)}" if others else ""
    raise metadata.arch.error(
        key,
        f"is {_shown(value)}, but the model does not read this key: it would compute something else than the file asks "
        f"for{more}",
        f"upgrade hotshoe, or report the file; if you know that the key changes nothing, remove it: gguf-new-metadata "
        f"--remove-metadata {metadata.architecture}.{key} FILE NEW_FILE (from the gguf package)",
    )


def _is_neutral(key: str, value: Any, model: Module) -> bool:
    if key in _RELATED:
        return _RELATED[key](value, model)
    values = value.tolist() if isinstance(value, GGUFArray) else [value]
    return key in NEUTRAL and all(v in NEUTRAL[key] for v in values)


def _shown(value: Any) -> str:
    return f"an array of {len(value)} values" if isinstance(value, GGUFArray) else repr(value)[:80]


# Keys whose neutral value depends on the model.
_RELATED: dict[str, Callable[[Any, Module], bool]] = {
    "attention.causal": lambda value, model: value is (model.task is Task.TEXT or model.causal),
    # the names of the labels; the classifier's matrix says how many there are
    "classifier.output_labels": lambda _, model: model.task is Task.RERANK,
    # the runners of embeddings read it when they are made
    "pooling_type": lambda value, model: model.task is not Task.TEXT or value == 0,
    "attention.sliding_window": lambda v, model: (
        v == 0 or (type(v) is int and v >= getattr(model.config, "n_ctx", v + 1))
    ),  # an encoder of pictures has no context
}
