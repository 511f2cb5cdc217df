"""PlacementParams: where a user wants a model's layers, under the names that llama.cpp gave them."""

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
    """Checked when it is made: raises PlacementError for a value that makes no sense, or two that exclude each other.

    "The devices" are those that a model is loaded on, but for the CPU: what is not on them is on the CPU.
    """

    gpu_layers: int | Literal["auto", "all"] = "auto"
    """How many layers, the last ones, are on the devices; one more than the model has, or "all", for the output too.

    "auto": as many as their free memory takes, and fewer where one has less than it said.
    """

    tensor_split: tuple[float, ...] | None = None
    """How the layers on the devices are shared: a number for each device, in the order named. None: by free memory."""

    main_gpu: int | None = None
    """The device, counted from 0, that is filled first and holds the output; others take what it has no room for."""

    cpu_moe: int | bool = 0
    """The experts of so many layers, the first ones, stay on the CPU; True: those of all layers."""

    kv_offload: bool = True
    """False: keys and values, and recurrent states, stay on the CPU, and attention over them is computed there."""

    layers: tuple[str, ...] | None = None
    """The device of each layer by its name; the input is with the first, the output with the last."""

    fallback: bool = True
    """False: an op that its layer's device cannot run is an error, and does not run on another."""

    def __post_init__(self) -> None:
        self._check_gpu_layers()
        if self.tensor_split is not None:
            object.__setattr__(self, "tensor_split", _shares(self.tensor_split))
        if self.main_gpu is not None and not _is_count(self.main_gpu):
            raise PlacementError(f"main_gpu is {described(self.main_gpu)}; expected a device's place, counted from 0")
        if not isinstance(self.cpu_moe, bool) and not _is_count(self.cpu_moe):
            raise PlacementError(
                f"cpu_moe is {described(self.cpu_moe)}; expected a number of layers, or True for the experts of all"
            )
        for name in ("kv_offload", "fallback"):
            if not isinstance(getattr(self, name), bool):
                raise PlacementError(f"{name} is {described(getattr(self, name))}; expected True or False")
        if self.layers is not None:
            self._check_layers(self.layers)
        if self.tensor_split is not None and self.main_gpu is not None:
            raise PlacementError("both tensor_split and main_gpu say how devices share the layers", hint="give one")

    def _check_gpu_layers(self) -> None:
        n = self.gpu_layers
        if not _is_count(n) and not (isinstance(n, str) and n in ("auto", "all")):
            raise PlacementError(
                f"gpu_layers is {described(n)}; expected a number of layers, 'auto' or 'all'",
                hint="gpu_layers='all' for all of them",
            )

    def _check_layers(self, layers: object) -> None:
        named = isinstance(layers, (list, tuple)) and layers and all(isinstance(name, str) and name for name in layers)
        if not named:
            raise PlacementError(
                f"layers is {described(layers)}; expected a device's name for each layer",
                hint='layers=("cpu",) * 8 + ("cuda:0",) * 24',
            )
        object.__setattr__(self, "layers", tuple(self.layers or ()))
        for name in ("gpu_layers", "tensor_split", "main_gpu"):
            if getattr(self, name) != getattr(_DEFAULT, name):
                raise PlacementError(f"both layers and {name} say where layers are", hint="give one of them")

    @property
    def adapts(self) -> bool:
        """Whether nothing was said of where layers are, so that they may be moved."""
        return self.gpu_layers == "auto" and self.layers is None and self.tensor_split is None

    @property
    def asks_for_devices(self) -> tuple[str, ...]:
        """The options that need a device beside the CPU."""
        asked = [] if self.gpu_layers in ("auto", 0) else [f"gpu_layers={self.gpu_layers!r}"]
        asked += [f"{n}={v}" for n in ("tensor_split", "main_gpu") if (v := getattr(self, n)) is not None]
        return tuple(asked)

    @property
    def asks_for_cpu(self) -> tuple[str, ...]:
        """The options that put something on the CPU."""
        asked = [f"gpu_layers={self.gpu_layers}"] if isinstance(self.gpu_layers, int) else []
        asked += [f"cpu_moe={self.cpu_moe}"] if self.cpu_moe else []
        return (*asked, *(() if self.kv_offload else ("kv_offload=False",)))

    @property
    def advice(self) -> str:
        """What to change where these options leave too little memory."""
        if self.layers is not None:
            return "give that device fewer layers in layers= (--layer-devices)"
        if self.tensor_split is not None:
            return "give that device a smaller share in tensor_split= (--tensor-split), or lower gpu_layers="
        if self.gpu_layers != "auto":
            return "lower gpu_layers= (--gpu-layers), or leave it out: as many layers as fit are chosen then"
        return "use a smaller context or batch, a more quantized file, or another device"


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _MOST


def _shares(given: object) -> tuple[float, ...]:
    """Numbers of which at least one is above 0, none below."""
    shares = [_share(n) for n in given] if isinstance(given, Sequence) and not isinstance(given, str) else []
    if not any(shares) or not all(0 <= share < math.inf for share in shares):
        raise PlacementError(
            f"tensor_split is {described(given)}; expected a number for each device, 0 or more, such as (3, 1)"
        )
    return tuple(shares)


def _share(value: object) -> float:
    """-1 for what is no number."""
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return -1.0
    return float(value) if abs(value) < _MOST else math.inf


_MOST = 1 << 31  # a number of layers, or a share, that nobody means
_DEFAULT = PlacementParams()
