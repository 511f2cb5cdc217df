"""GGUF files to smaller ones: ``quantize_model("model-f16.gguf", "model-q4_k_m.gguf", "q4_k_m")``.

A file type is a mix of block formats: most weights get the one it is named after, those that matter most get more bits.
The mixes are llama.cpp's, and so are the bytes: the file is the same as that of its own tool.

- ``quantize_model`` writes the file; ``QuantizeParams`` says how to depart from the mix.
- ``plan_quantization`` says what would be written: the old and the new type of each tensor, and the sizes.
- ``FILE_TYPES`` are all types a file can be written as.
- ``ImportanceMatrix``: how much each column of each weight matters, read from a file or collected by
  ``collect_importance`` from a model that reads a text. Types of fewer than 3 bits need one.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hotshoe.quantize._collect import collect_importance
    from hotshoe.quantize._filetypes import FILE_TYPES, FileType
    from hotshoe.quantize._imatrix import Importance, ImportanceMatrix
    from hotshoe.quantize._plan import Change, QuantizeParams
    from hotshoe.quantize._quantize import QuantizationPlan, plan_quantization, quantize_model

__all__ = [
    "FILE_TYPES",
    "Change",
    "FileType",
    "Importance",
    "ImportanceMatrix",
    "QuantizationPlan",
    "QuantizeParams",
    "collect_importance",
    "plan_quantization",
    "quantize_model",
]

# imported on first use: the command line asks for FILE_TYPES and nothing else
_HOMES = {
    "_collect": ("collect_importance",),
    "_filetypes": ("FILE_TYPES", "FileType"),
    "_imatrix": ("Importance", "ImportanceMatrix"),
    "_plan": ("Change", "QuantizeParams"),
    "_quantize": ("QuantizationPlan", "plan_quantization", "quantize_model"),
}
_HOME = {name: module for module, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
