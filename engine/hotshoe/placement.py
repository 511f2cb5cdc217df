"""Which device holds which layer of a model, where it runs on several."""

from __future__ import annotations

from collections.abc import Sequence

from hotshoe_core import Device, Placement

__all__ = ["split_layers"]


def split_layers(devices: Sequence[Device], n_layers: int) -> Placement:
    """The layers in one run a device, in the devices' order and by their free memory; equally where one tells none.

    What comes before the layers is on the first device that has any, what comes after them on the last.
    """
    free = [d.memory_free for d in devices]
    shares = free if all(free) else [1] * len(devices)
    total, so_far, bounds = sum(shares), 0, [0]
    for share in shares:
        so_far += share
        bounds.append(round(n_layers * so_far / total))
    layers = [d.name for d, start, stop in zip(devices, bounds, bounds[1:], strict=False) for _ in range(stop - start)]
    return Placement(layers[0] if layers else devices[0].name, tuple(layers), layers[-1] if layers else devices[0].name)
