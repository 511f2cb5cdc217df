"""How weights are prefetched while one row is multiplied: the fastest way, or the one that a variable names."""

from __future__ import annotations

import os

from hotshoe_core.errors import OptionError
from hotshoe_core.errors.text import shown
from hotshoe_core.tensors.dtypes import DType
from hotshoe_ggml.native import ffi, kernels

__all__ = ["VARIABLE", "WAYS", "force_prefetching", "prefetching"]

VARIABLE = "HOTSHOE_GGML_PREFETCH"

WAYS = {
    "page": "one line of the next page for each block",
    "near": "every line, 1 KiB ahead",
    "far": "every line, 8 KiB ahead",
}
"""The ways by name, in the order of their numbers in ``hotshoe_quants.h``, which begin at 1."""


def force_prefetching() -> None:
    """Make all products prefetch in the way that ``HOTSHOE_GGML_PREFETCH`` names; without it, in the fastest way.

    Raises OptionError if the variable names no way.
    """
    name = os.environ.get(VARIABLE, "")
    if name and name not in WAYS:
        expected = " or ".join(WAYS)
        raise OptionError(
            f"{VARIABLE} is {shown(name)}; expected {expected}",
            hint="unset it: hotshoe then measures which is the fastest",
        )
    kernels().hotshoe_quants_force_prefetch(list(WAYS).index(name) + 1 if name else 0)


def prefetching() -> dict[str, str]:
    """For each type that was measured: the way in use, and the GB/s that one thread read in every way."""
    found = {}
    speeds = ffi.new("float[]", len(WAYS))
    for dtype in DType:
        way = kernels().hotshoe_quants_prefetch(dtype.id, speeds)
        if way and any(speeds):
            rates = ", ".join(f"{name} {speed:.0f}" for name, speed in zip(WAYS, speeds, strict=True))
            found[dtype.name.lower()] = f"{list(WAYS.values())[way - 1]} (GB/s of one thread: {rates})"
    return found
