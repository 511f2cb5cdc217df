"""The fuzz targets, and what one is.

A target is a module of this folder with

- ``run(seed) -> str``: one case, made from the seed alone. Returns "same" (equal to an oracle), "refused" (a typed
  error that says what is wrong) or "answered" (accepted, and sound); raises Fault for what must not be. Any other
  exception is a fault of the kind "untyped".
- ``setup()``, if it needs one: once in each process, before the first case.
- ``SEEDS``: those that once found something, tried first; ``SHARE``: how many more seeds `make test` tries.
"""

from __future__ import annotations

import functools
import importlib
from typing import Any

from tests.fuzz.fault import Fault

__all__ = ["TARGETS", "load", "outcome_of"]

TARGETS = (
    *("api", "files", "grammars", "keys", "misbuilt", "pictures", "plugins", "projectors", "quantize", "search"),
    *("sounds", "templates", "tokenizers", "traces"),
)


@functools.cache
def load(name: str) -> Any:
    """The module of a target, set up."""
    target = importlib.import_module(f"tests.fuzz.{name}")
    if hasattr(target, "setup"):
        target.setup()
    return target


def outcome_of(target: Any, seed: int) -> str:
    """The outcome of one case, in one line: a word, and for a fault what was found."""
    try:
        outcome: str = target.run(seed)
        return outcome
    except Fault as fault:
        return f"{fault.kind}: {' '.join(str(fault).split())[:400]}"
    except Exception as error:
        return f"untyped: {type(error).__name__}: {' '.join(str(error).split())[:400]}"
