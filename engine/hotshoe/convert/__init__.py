"""Hugging Face folders to GGUF files: ``convert(folder, "model-f16.gguf", "f16")``.

A family of models is one module with a function ``plan(checkpoint) -> Plan``: which tensors the file holds, of which
shape, from which tensors of the checkpoint, and which metadata. Reading, element types, writing and the errors they
share are done once. ``plan`` is found by entry point, in whatever distribution it is:

    [project.entry-points."hotshoe.converters"]
    MineForCausalLM = "my_package.convert:plan"    # architectures[0] of config.json
    mine = "my_package.convert:plan"               # model_type, for folders that state no architecture

    from hotshoe.convert import Checkpoint, Plan, as_is, linear, make_plan, outer_recipes, read_rope, read_sizes

    def plan(checkpoint: Checkpoint) -> Plan:
        sizes, rope = read_sizes(checkpoint), read_rope(checkpoint, "yarn")
        recipes = outer_recipes(checkpoint, sizes, tied=False)
        for i in range(sizes.n_layers):
            recipes += [as_is(f"blk.{i}.attn_norm.weight", f"model.layers.{i}.norm.weight", (sizes.dim,)), ...]
        metadata = sizes.metadata("mine") | rope.metadata("mine")
        return make_plan(checkpoint, "mine", recipes, metadata, vocab=sizes.vocab)

What such a module builds on, all of it importable from here:

- ``Checkpoint``: the folder: ``integer``, ``number``, ``require`` read config.json with errors that name the key.
- ``Plan``, ``PlannedTensor``: what is to be written. Values of the metadata become the GGUF type of their Python type.
- ``Recipe``, and functions that make one or more: ``as_is``, ``linear``, ``reshaped``, ``rope_order``, ``stacked``,
  ``half_of``, ``experts``. ``Array`` is what a recipe computes with; ``has`` asks for a tensor of the checkpoint.
- Text models: ``Sizes``, ``read_sizes``, ``Rope``, ``read_rope``, ``outer_recipes``, ``make_plan``, ``experts_used``,
  ``refuse_quantized``.
- Others: ``plan_recipes`` gives the tensors alone, ``match_tensors`` does by the gguf package's table of names,
  ``tokenizer_metadata`` and ``wordpiece_metadata`` the keys of BPE's
  and of WordPiece's tokenizer files, ``checkpoint.sentence.metadata`` those of a sentence-transformers folder.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hotshoe.convert._checkpoint import Checkpoint
    from hotshoe.convert._convert import convert
    from hotshoe.convert._experts import experts, experts_used
    from hotshoe.convert._names import match_tensors
    from hotshoe.convert._plan import Plan, PlannedTensor
    from hotshoe.convert._recipes import (
        Array,
        Recipe,
        as_is,
        half_of,
        has,
        plan_recipes,
        reshaped,
        rope_order,
        stacked,
    )
    from hotshoe.convert._rope import Rope, read_rope
    from hotshoe.convert._text import Sizes, linear, make_plan, outer_recipes, read_sizes, refuse_quantized
    from hotshoe.convert._tokens import tokenizer_metadata
    from hotshoe.convert._wordpiece import wordpiece_metadata

__all__ = [
    "Array",
    "Checkpoint",
    "Plan",
    "PlannedTensor",
    "Recipe",
    "Rope",
    "Sizes",
    "as_is",
    "convert",
    "experts",
    "experts_used",
    "half_of",
    "has",
    "linear",
    "make_plan",
    "match_tensors",
    "outer_recipes",
    "plan_recipes",
    "read_rope",
    "read_sizes",
    "refuse_quantized",
    "reshaped",
    "rope_order",
    "stacked",
    "tokenizer_metadata",
    "wordpiece_metadata",
]

# imported on first use
_HOMES = {
    "_convert": ("convert",),
    "_checkpoint": ("Checkpoint",),
    "_experts": ("experts", "experts_used"),
    "_names": ("match_tensors",),
    "_plan": ("Plan", "PlannedTensor"),
    "_recipes": (*("Array", "Recipe", "as_is", "half_of", "has", "plan_recipes", "reshaped", "rope_order", "stacked"),),
    "_rope": ("Rope", "read_rope"),
    "_text": ("Sizes", "linear", "make_plan", "outer_recipes", "read_sizes", "refuse_quantized"),
    "_tokens": ("tokenizer_metadata",),
    "_wordpiece": ("wordpiece_metadata",),
}
_HOME = {name: module for module, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
