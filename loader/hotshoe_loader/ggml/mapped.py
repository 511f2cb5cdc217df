"""Which ``libggml-base`` files are in this process already: there may only be one.

Every ggml 0.x calls its base library ``libggml-base.so.0``, so a backend library opened later binds to whichever
came first, and structs of two versions meet in one call.
"""

from __future__ import annotations

from pathlib import Path

from hotshoe_core.contract.mapped_libraries import is_same_file, mapped_libraries

__all__ = ["foreign_bases", "is_mapped"]

_STEM = "ggml-base"


def foreign_bases(ours: Path) -> list[str]:
    """Paths of mapped ``libggml-base`` files that are not ``ours``."""
    return [path for path in mapped_libraries(_STEM) if not is_same_file(path, ours)]


def is_mapped(ours: Path) -> bool:
    """Whether ``ours`` is in this process already."""
    return any(is_same_file(path, ours) for path in mapped_libraries(_STEM))
