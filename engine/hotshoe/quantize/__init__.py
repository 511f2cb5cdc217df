"""Quantize GGUF files: ``quantize_model("model-f16.gguf", "model-q4_k_m.gguf", "q4_k_m")``.

A file type is a mix of block formats. Most weights get the format that the type is named after; the most sensitive ones
get more bits. The mixes are those of llama.cpp, and the file is the same as its tool writes, byte for byte.

- ``quantize_model`` writes the file; ``QuantizeParams`` changes the mix.
- ``plan_quantization`` returns what would be written: the old and the new type of each tensor, and the sizes.
- ``FILE_TYPES`` are all types that a file can have.
- ``ImportanceMatrix`` says how much each column of each weight matters. It is read from a file, or collected by
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

# imported on first use: the command line often needs FILE_TYPES only
_MODULES = {
    "_collect": ("collect_importance",),
    "_filetypes": ("FILE_TYPES", "FileType"),
    "_imatrix": ("Importance", "ImportanceMatrix"),
    "_plan": ("Change", "QuantizeParams"),
    "_quantize": ("QuantizationPlan", "plan_quantization", "quantize_model"),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULE_OF[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
