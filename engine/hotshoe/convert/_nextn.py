"""The layer of Qwen 3.5 and Qwen3-Next that drafts tokens: its tensors follow those of the last layer in a file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, NamedTuple

from hotshoe.convert._checkpoint import Checkpoint
from hotshoe.convert._match import Recipe, plus

__all__ = ["DraftingLayer", "find_drafting_layer"]

_NAMES = {
    "mtp.fc": "nextn.eh_proj",
    "mtp.pre_fc_norm_embedding": "nextn.enorm",
    "mtp.pre_fc_norm_hidden": "nextn.hnorm",
    "mtp.norm": "nextn.shared_head_norm",
}
_LAYER = "mtp.layers.0."
_ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj", "q_norm", "k_norm")
_PARTS = ("input_layernorm", *(f"self_attn.{name}" for name in _ATTENTION))


class DraftingLayer(NamedTuple):
    """What a converter needs to write it. The mappings are empty if the checkpoint has no complete one."""

    checkpoint: Checkpoint
    """With its tensors named as those of one more layer."""

    keys: Mapping[str, Any] = MappingProxyType({})
    names: Mapping[str, str] = MappingProxyType({})
    recipes: Mapping[str, Recipe] = MappingProxyType({})


def find_drafting_layer(checkpoint: Checkpoint, keys: dict[str, Any]) -> DraftingLayer:
    """Return the drafting layer, if the checkpoint has one, and all of it. keys: those of the model's layers."""
    n, tensors = keys["block_count"], checkpoint.tensors
    whole = all(f"{name}.weight" in tensors for name in (*_NAMES, *(_LAYER + part for part in _PARTS)))
    of_its_own = "mtp.embed_tokens.weight" in tensors  # readers expect the model's embedding
    if checkpoint.config.get("mtp_num_hidden_layers", 1) != 1 or not whole or of_its_own:
        return DraftingLayer(checkpoint)
    renamed = {}
    for name, tensor in tensors.items():
        stem, _, kind = name.rpartition(".")
        if stem in _NAMES:
            name = f"model.layers.{n}.{_NAMES[stem]}.{kind}"
        elif name.startswith(_LAYER):
            name = f"model.layers.{n}.{name.removeprefix(_LAYER)}"
        renamed[name] = tensor
    longer = {
        "block_count": n + 1,
        "nextn_predict_layers": 1,
        "attention.recurrent_layers": [*keys["attention.recurrent_layers"], False],
    }
    return DraftingLayer(
        replace(checkpoint, tensors=renamed),
        longer,
        {f"layers.{name}": name for name in _NAMES.values()},
        {f"{name}.weight": plus(1.0) for stem, name in _NAMES.items() if stem != "mtp.fc"},
    )
