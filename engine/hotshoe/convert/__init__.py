"""Convert Hugging Face folders to GGUF files: ``convert(folder, "model-f16.gguf", "f16")``.

A converter is a function ``describe(checkpoint) -> FileLayout``. The model of the architecture declares which tensors
the file has, and a table says what checkpoints call them. So a converter says three things: the metadata, what it
requires of config.json, and how tensors are made that differ. This package reads the checkpoint, converts element
types, writes the file and reports errors. Converters are found by entry point, in any installed distribution:

    [project.entry-points."hotshoe.converters"]
    MineForCausalLM = "my_package.convert:describe"    # architectures[0] of config.json
    mine = "my_package.convert:describe"               # model_type, for folders without an architecture

    from hotshoe.convert import Checkpoint, FileLayout, Rules, make_layout, plus, read_rope, read_sizes

    def describe(checkpoint: Checkpoint) -> FileLayout:
        checkpoint.expect(hidden_act="silu")
        sizes, rope = read_sizes(checkpoint), read_rope(checkpoint, "yarn")
        rules = Rules(names={"layers.mlp.in_proj": "ffn_up"}, recipes={"attn_norm.weight": plus(1.0)})
        return make_layout(checkpoint, "mine", sizes.keys() | rope.keys(), rules, vocab=sizes.vocab)

The encoders of pictures and sounds of the same folders are converted by ``hotshoe.convert.towers``: docs/towers.md.

``open_checkpoint``, ``open_weights`` and ``find_converter`` are for programs that look into checkpoints.

Converters can import from here:

- ``Checkpoint``: the folder. ``integer``, ``number``, ``biases`` and ``require`` read config.json; ``text``,
  ``vision`` and ``audio`` are the parts of a model that also reads pictures or sounds; ``refusal`` and ``invalid`` make
  errors that name it.
- ``make_layout``: makes the FileLayout. ``Rules``: what differs between the checkpoint's tensors and the model's;
  ``Names`` is the type of its table. ``Recipe``, ``plus``, ``interleave``, ``from_groups``, ``minus_exp``: how a tensor
  is made. ``Array``: the type of its values.
- ``ModelSizes``, ``read_sizes``, ``Rope``, ``read_rope``, ``refuse_quantized``: for text models. ``expert_keys`` and
  ``mixture_keys``: for those with experts. ``windowed_layers`` and ``window_keys``: for those with a sliding window in
  some layers.
- ``tokenizer_metadata``, ``wordpiece_metadata``: read tokenizer files.
- ``make_tower_layout``, ``tower_keys`` and ``audio_keys``: for encoders of pictures and sounds. ``read_preprocessor``,
  ``processor_count``, ``processor_edge`` and ``expect_of_processor`` read how pictures are processed;
  ``refuse_other_rope`` checks their RoPE.
- ``Settings``: the content of config.json, or a part of it, for a converter that completes it.
- ``FileLayout``, ``TensorLayout``: what is written, for a converter that does without ``make_layout``. A metadata value
  gets the GGUF type of its Python type.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hotshoe.convert._checkpoint import Checkpoint, open_checkpoint, open_weights
    from hotshoe.convert._convert import convert, find_converter
    from hotshoe.convert._layout import FileLayout, TensorLayout
    from hotshoe.convert._match import Array, Recipe, Rules, from_groups, interleave, minus_exp, plus
    from hotshoe.convert._mixture import expert_keys, mixture_keys, window_keys, windowed_layers
    from hotshoe.convert._names import Names
    from hotshoe.convert._rope import Rope, read_rope
    from hotshoe.convert._schema import make_layout
    from hotshoe.convert._settings import Settings
    from hotshoe.convert._sizes import ModelSizes, read_sizes, refuse_quantized
    from hotshoe.convert._tokens import tokenizer_metadata
    from hotshoe.convert._tower import (
        audio_keys,
        expect_of_processor,
        make_tower_layout,
        processor_count,
        processor_edge,
        read_preprocessor,
        refuse_other_rope,
        tower_keys,
    )
    from hotshoe.convert._wordpiece import wordpiece_metadata

__all__ = [
    "Array",
    "Checkpoint",
    "FileLayout",
    "ModelSizes",
    "Names",
    "Recipe",
    "Rope",
    "Rules",
    "Settings",
    "TensorLayout",
    "audio_keys",
    "convert",
    "expect_of_processor",
    "expert_keys",
    "find_converter",
    "from_groups",
    "interleave",
    "make_layout",
    "make_tower_layout",
    "minus_exp",
    "mixture_keys",
    "open_checkpoint",
    "open_weights",
    "plus",
    "processor_count",
    "processor_edge",
    "read_preprocessor",
    "read_rope",
    "read_sizes",
    "refuse_other_rope",
    "refuse_quantized",
    "tokenizer_metadata",
    "tower_keys",
    "window_keys",
    "windowed_layers",
    "wordpiece_metadata",
]

# imported on first use
_MODULES = {
    "_checkpoint": ("Checkpoint", "open_checkpoint", "open_weights"),
    "_convert": ("convert", "find_converter"),
    "_layout": ("FileLayout", "TensorLayout"),
    "_match": ("Array", "Recipe", "Rules", "from_groups", "interleave", "minus_exp", "plus"),
    "_mixture": ("expert_keys", "mixture_keys", "window_keys", "windowed_layers"),
    "_names": ("Names",),
    "_rope": ("Rope", "read_rope"),
    "_schema": ("make_layout",),
    "_settings": ("Settings",),
    "_sizes": ("ModelSizes", "read_sizes", "refuse_quantized"),
    "_tokens": ("tokenizer_metadata",),
    "_tower": (
        "audio_keys",
        "expect_of_processor",
        "make_tower_layout",
        "processor_count",
        "processor_edge",
        "read_preprocessor",
        "refuse_other_rope",
        "tower_keys",
    ),
    "_wordpiece": ("wordpiece_metadata",),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULE_OF[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
