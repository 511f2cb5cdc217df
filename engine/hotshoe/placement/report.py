"""PlacementReport: which device holds which layers of a loaded model, and what was moved."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from hotshoe_core import Placement

__all__ = ["PlacementReport", "describe"]


@dataclass(frozen=True, slots=True)
class PlacementReport:
    """Which device holds which layers. ``str(report)`` describes it in one line or more."""

    placement: Placement
    moved: tuple[str, ...] = ()
    """What was moved to other devices because memory ran out, one sentence for each time."""

    def __str__(self) -> str:
        return "\n".join([describe(self.placement), *self.moved])


def describe(placement: Placement) -> str:
    """Describe a placement: ``"input and layers 0-3 on cpu; layers 4-15 and output on cuda:0"``."""
    n = len(placement.layers)
    named = [placement.input, *placement.layers, placement.device(n)]
    runs = []
    for device, members in groupby(range(-1, n + 1), key=lambda i: named[i + 1]):
        runs.append(f"{_parts(list(members), n)} on {device}")
    for what, devices in (("the experts", placement.experts), ("the cache", placement.cache)):
        for device in dict.fromkeys(d for d in devices if d):
            layers = [i for i, d in enumerate(devices) if d == device]
            runs.append(f"{what} of {_layers(layers, n)} on {device}")
    return "; ".join(runs)


def _parts(members: Sequence[int], n: int) -> str:
    """Name consecutive members: -1 is the input, 0 to n - 1 are layers, ``n`` is the output."""
    if len(members) == n + 2:
        return "everything"
    layers = [i for i in members if 0 <= i < n]
    words = ["input"] if members[0] == -1 else []
    words += [_layers(layers, n)] if layers else []
    words += ["output"] if members[-1] == n else []
    return " and ".join(words)


def _layers(layers: Sequence[int], n: int) -> str:
    if len(layers) == n:
        return "all layers"
    if len(layers) == 1:
        return f"layer {layers[0]}"
    whole = layers[-1] - layers[0] + 1 == len(layers)
    return f"layers {layers[0]}-{layers[-1]}" if whole else f"layers {', '.join(map(str, layers))}"
