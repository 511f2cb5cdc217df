"""PlacementParams: which devices hold which layers of a model. Options are named as in llama.cpp."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from hotshoe_core.errors import PlacementError
from hotshoe_core.errors.arguments import described

__all__ = ["PlacementParams"]


@dataclass(frozen=True, slots=True)
class PlacementParams:
    """Which devices hold which layers of a model.

    "The devices" are those that a model is loaded on, except the CPU; the CPU holds the rest. Checked when created:
    raises PlacementError for an invalid value, or for two options that exclude each other.
    """

    n_gpu_layers: int | Literal["auto", "all"] = "auto"
    """How many of the last layers are on the devices. All layers + 1, or "all": the output too.

    "auto": as many as fit into their free memory; fewer if memory runs out during loading.
    """

    tensor_split: tuple[float, ...] | None = None
    """How the devices share their layers: a number for each device, in the order named. None: by free memory."""

    main_gpu: int | None = None
    """The device, counted from 0, that is filled first and holds the output. Others take what does not fit there."""

    cpu_moe: int | bool = 0
    """How many of the first layers keep their experts on the CPU. True: all layers."""

    kv_offload: bool = True
    """False: keys, values and recurrent states stay on the CPU, and attention over them is computed there."""

    layer_devices: tuple[str, ...] | None = None
    """The name of each layer's device. The input is with the first layer, the output with the last."""

    fallback: bool = True
    """False: an op that the layer's device cannot run is an error; it does not run on another device."""

    def __post_init__(self) -> None:
        self._check_n_gpu_layers()
        if self.tensor_split is not None:
            object.__setattr__(self, "tensor_split", _shares(self.tensor_split))
        if self.main_gpu is not None and not _is_count(self.main_gpu):
            raise PlacementError(f"main_gpu is {described(self.main_gpu)}; expected a device's number, from 0")
        if not isinstance(self.cpu_moe, bool) and not _is_count(self.cpu_moe):
            raise PlacementError(
                f"cpu_moe is {described(self.cpu_moe)}; expected a number of layers, or True for the experts of all"
            )
        for name in ("kv_offload", "fallback"):
            if not isinstance(getattr(self, name), bool):
                raise PlacementError(f"{name} is {described(getattr(self, name))}; expected True or False")
        if self.layer_devices is not None:
            self._check_layer_devices(self.layer_devices)
        if self.tensor_split is not None and self.main_gpu is not None:
            raise PlacementError("tensor_split and main_gpu exclude each other", hint="give one of them")

    def _check_n_gpu_layers(self) -> None:
        n = self.n_gpu_layers
        if not _is_count(n) and not (isinstance(n, str) and n in ("auto", "all")):
            raise PlacementError(
                f"n_gpu_layers is {described(n)}; expected a number of layers, 'auto' or 'all'",
                hint="n_gpu_layers='all' for all of them",
            )

    def _check_layer_devices(self, layers: object) -> None:
        named = isinstance(layers, (list, tuple)) and layers and all(isinstance(name, str) and name for name in layers)
        if not named:
            raise PlacementError(
                f"layer_devices is {described(layers)}; expected a device's name for each layer",
                hint='layer_devices=("cpu",) * 8 + ("cuda:0",) * 24',
            )
        object.__setattr__(self, "layer_devices", tuple(self.layer_devices or ()))
        for name in ("n_gpu_layers", "tensor_split", "main_gpu"):
            if getattr(self, name) != getattr(_DEFAULT, name):
                raise PlacementError(f"layer_devices and {name} exclude each other", hint="give one of them")

    @property
    def adapts(self) -> bool:
        """Whether layers may be moved, because no option says where they are."""
        return self.n_gpu_layers == "auto" and self.layer_devices is None and self.tensor_split is None

    @property
    def asks_for_devices(self) -> tuple[str, ...]:
        """The options that need a device other than the CPU."""
        options = [] if self.n_gpu_layers in ("auto", 0) else [f"n_gpu_layers={self.n_gpu_layers!r}"]
        options += [f"{n}={v}" for n in ("tensor_split", "main_gpu") if (v := getattr(self, n)) is not None]
        return tuple(options)

    @property
    def asks_for_cpu(self) -> tuple[str, ...]:
        """The options that put something on the CPU."""
        options = [f"n_gpu_layers={self.n_gpu_layers}"] if isinstance(self.n_gpu_layers, int) else []
        options += [f"cpu_moe={self.cpu_moe}"] if self.cpu_moe else []
        return (*options, *(() if self.kv_offload else ("kv_offload=False",)))

    @property
    def advice(self) -> str:
        """The option to change if memory runs out."""
        if self.layer_devices is not None:
            return "give that device fewer layers in layer_devices"
        if self.tensor_split is not None:
            return "give that device a smaller share in tensor_split, or lower n_gpu_layers"
        if self.n_gpu_layers != "auto":
            return "lower n_gpu_layers, or leave it out, to use as many layers as fit"
        return "use a smaller context or batch, a more quantized file, or another device"


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _MAX_NUMBER


def _shares(given: object) -> tuple[float, ...]:
    """Return numbers of 0 or more, at least one of them above 0. Raises PlacementError for anything else."""
    shares = [_share(n) for n in given] if isinstance(given, Sequence) and not isinstance(given, str) else []
    if not any(shares) or not all(0 <= share < math.inf for share in shares):
        raise PlacementError(
            f"tensor_split is {described(given)}; expected a number for each device, 0 or more, such as (3, 1)"
        )
    return tuple(shares)


def _share(value: object) -> float:
    """Return the value as a float; -1 if it is not a number."""
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return -1.0
    return float(value) if abs(value) < _MAX_NUMBER else math.inf


_MAX_NUMBER = 1 << 31  # above every sensible number of layers or share
_DEFAULT = PlacementParams()
