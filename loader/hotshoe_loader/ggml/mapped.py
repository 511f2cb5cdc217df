"""Which ``libggml-base`` files this process has loaded. A process can use only one.

Every ggml 0.x calls its base library ``libggml-base.so.0``. So a backend library that is opened later binds to the
first base in the process, and one version's structs would be passed to the other version's functions.
"""

from __future__ import annotations

from pathlib import Path

from hotshoe_core.contract.mapped_libraries import is_same_file, mapped_libraries

__all__ = ["other_bases", "is_mapped"]

_STEM = "ggml-base"


def other_bases(ours: Path) -> list[str]:
    """The paths of loaded ``libggml-base`` files other than ``ours``."""
    return [path for path in mapped_libraries(_STEM) if not is_same_file(path, ours)]


def is_mapped(ours: Path) -> bool:
    """Whether ``ours`` is loaded."""
    return any(is_same_file(path, ours) for path in mapped_libraries(_STEM))
