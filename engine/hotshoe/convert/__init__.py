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
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hotshoe.convert._checkpoint import Checkpoint
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
    "DTYPES",
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

DTYPES = ("f32", "f16", "bf16", "q8_0", "q4_0")

# imported on first use: the command line asks for DTYPES and nothing else
_HOMES = {
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


def convert(
    source: str | Path,
    destination: str | Path,
    dtype: str = "f16",
    *,
    progress: Callable[[float], None] | None = None,
    overwrite: bool = False,
) -> Path:
    """Writes the model in the folder ``source`` to the GGUF file ``destination`` and returns its path.

    ``dtype`` is the element type of the large weights: "f32", "f16", "bf16", "q8_0" or "q4_0" (with
    it, the matrix that gives the logits is q8_0). Vectors, norms, expert routers, and position and token-type
    embeddings stay f32, as llama.cpp's converter leaves them. ``progress`` is called with a fraction from
    0 to 1. The file appears under its name only when it is complete; until then nothing by that name is touched.

    Raises ModelFileError for a folder or file that is not what it should be, UnknownArchitectureError for a
    model that no installed distribution converts, ModelError where several claim to, ConversionError for a checkpoint
    or request that cannot be met.
    """
    from hotshoe.convert._checkpoint import open_checkpoint
    from hotshoe.convert._write import check_request, write

    target, element = check_request(destination, dtype, overwrite)
    checkpoint = open_checkpoint(source)
    write(_plan_of(checkpoint), checkpoint, target, element, progress)
    return target


def _plan_of(checkpoint: Checkpoint) -> Plan:
    from hotshoe import families
    from hotshoe.convert._plan import Plan
    from hotshoe_core.errors import ModelError, UnknownArchitectureError, did_you_mean

    name = checkpoint.architecture or checkpoint.config.get("model_type")
    known = families.names(families.CONVERTERS)
    if not isinstance(name, str) or name not in known:
        what = f"a {name}" if isinstance(name, str) else "a model of no architecture that config.json names"
        # the others are model types, each beside its architecture
        architectures = [other for other in known if other[:1].isupper()]
        raise UnknownArchitectureError(
            f"{checkpoint.folder} holds {what}, which hotshoe cannot convert; it converts: {', '.join(architectures)}",
            hint=did_you_mean(str(name), known),
        )
    plan = families.find(families.CONVERTERS, name)(checkpoint)
    if not isinstance(plan, Plan):
        raise ModelError(
            f"the entry point {name!r} of {families.CONVERTERS!r} gave a {type(plan).__name__}; "
            "expected a function of a Checkpoint that returns a hotshoe.convert.Plan"
        )
    return plan
