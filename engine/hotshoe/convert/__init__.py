"""Convert Hugging Face folders to GGUF files: ``convert(folder, "model-f16.gguf", "f16")``.

A converter is a function ``describe(checkpoint) -> FileLayout``. It says which metadata and which tensors the file
holds, and from which tensors of the checkpoint each is made. This package reads the checkpoint, converts element types,
writes the file and reports errors. Converters are found by entry point, in any installed distribution:

    [project.entry-points."hotshoe.converters"]
    MineForCausalLM = "my_package.convert:describe"    # architectures[0] of config.json
    mine = "my_package.convert:describe"               # model_type, for folders without an architecture

    from hotshoe.convert import Checkpoint, FileLayout, as_is, make_layout, non_layer_tensors, read_rope, read_sizes

    def describe(checkpoint: Checkpoint) -> FileLayout:
        sizes, rope = read_sizes(checkpoint), read_rope(checkpoint, "yarn")
        tensors = non_layer_tensors(checkpoint, sizes, tied=False)
        for i in range(sizes.n_layers):
            tensors += [as_is(f"blk.{i}.attn_norm.weight", f"model.layers.{i}.norm.weight", (sizes.dim,)), ...]
        metadata = sizes.metadata("mine") | rope.metadata("mine")
        return make_layout(checkpoint, "mine", tensors, metadata, vocab=sizes.vocab)

``open_checkpoint``, ``open_weights`` and ``find_converter`` are for programs that look into checkpoints.

Converters can import from here:

- ``Checkpoint``: the folder. ``integer``, ``number`` and ``require`` read config.json; their errors name the key.
- ``FileLayout``, ``TensorLayout``: what is written. A metadata value gets the GGUF type of its Python type.
- ``TensorSource``: how a tensor is made. ``as_is``, ``linear``, ``reshaped``, ``rope_order``, ``stacked``, ``half_of``
  and ``experts`` make one or more. ``Array``: the type of values. ``has``: whether the checkpoint has a tensor.
- For text models: ``ModelSizes``, ``read_sizes``, ``Rope``, ``read_rope``, ``non_layer_tensors``,
  ``attention_tensors``, ``mlp_tensors``, ``make_layout``, ``experts_used``, ``refuse_quantized``.
- For other models: ``match_sources`` turns TensorSources into TensorLayouts; ``match_tensors`` makes TensorLayouts from
  the name table of the gguf package; ``tokenizer_metadata`` and ``wordpiece_metadata`` read tokenizer files;
  ``checkpoint.sentence.metadata`` has the keys of a sentence-transformers folder.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hotshoe.convert._checkpoint import Checkpoint, open_checkpoint, open_weights
    from hotshoe.convert._convert import convert, find_converter
    from hotshoe.convert._experts import experts, experts_used
    from hotshoe.convert._layout import FileLayout, TensorLayout
    from hotshoe.convert._names import match_tensors
    from hotshoe.convert._rope import Rope, read_rope
    from hotshoe.convert._sources import (
        Array,
        TensorSource,
        as_is,
        half_of,
        has,
        match_sources,
        reshaped,
        rope_order,
        stacked,
    )
    from hotshoe.convert._text import (
        ModelSizes,
        attention_tensors,
        linear,
        make_layout,
        mlp_tensors,
        non_layer_tensors,
        read_sizes,
        refuse_quantized,
    )
    from hotshoe.convert._tokens import tokenizer_metadata
    from hotshoe.convert._wordpiece import wordpiece_metadata

__all__ = [
    "Array",
    "Checkpoint",
    "FileLayout",
    "ModelSizes",
    "Rope",
    "TensorLayout",
    "TensorSource",
    "as_is",
    "attention_tensors",
    "convert",
    "experts",
    "experts_used",
    "find_converter",
    "half_of",
    "has",
    "linear",
    "make_layout",
    "match_sources",
    "match_tensors",
    "mlp_tensors",
    "non_layer_tensors",
    "open_checkpoint",
    "open_weights",
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
_MODULES = {
    "_convert": ("convert", "find_converter"),
    "_checkpoint": ("Checkpoint", "open_checkpoint", "open_weights"),
    "_experts": ("experts", "experts_used"),
    "_layout": ("FileLayout", "TensorLayout"),
    "_names": ("match_tensors",),
    "_rope": ("Rope", "read_rope"),
    "_sources": (
        "Array",
        "TensorSource",
        "as_is",
        "half_of",
        "has",
        "match_sources",
        "reshaped",
        "rope_order",
        "stacked",
    ),
    "_text": (
        *("ModelSizes", "attention_tensors", "linear", "make_layout", "mlp_tensors", "non_layer_tensors", "read_sizes"),
        "refuse_quantized",
    ),
    "_tokens": ("tokenizer_metadata",),
    "_wordpiece": ("wordpiece_metadata",),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULE_OF[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
