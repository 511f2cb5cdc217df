"""Fit: choose which layers go to which device, by free memory and by the user's options. No backend is used here.

Devices other than the CPU take the last layers, from the last one backwards, and then the output. The input's weights
stay on the CPU if it takes part. A layer's cache is on the layer's device. Each device holds consecutive layers, in the
order in which the devices are named; devices of the same size are filled to the same fraction.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hotshoe.placement.params import PlacementParams
from hotshoe.placement.sizes import ModelSizes
from hotshoe_core import Device, DeviceType, Placement
from hotshoe_core.errors import PlacementError

__all__ = ["Fitted", "fit", "fits", "room_for", "usage"]

_LEFT_FREE = 1 << 30  # bytes for what a driver, its libraries and other programs allocate later
_SHARE_LEFT_FREE = 0.05  # of the free memory, if that is more; of a small device, a quarter is left at most
_SHOWN = 8  # names in a message
_STEPS = 40  # bisection steps for the fraction to which devices are filled


@dataclass(frozen=True, slots=True)
class Fitted:
    """A placement and what it takes."""

    placement: Placement
    planned: Mapping[str, int]
    """Bytes on each device."""

    fits: bool
    """Whether these bytes are free, as far as that is known."""

    n_layers: int
    """Layers on devices other than the CPU."""


def fit(
    sizes: ModelSizes, devices: Sequence[Device], params: PlacementParams, free: Mapping[str, int] | None = None
) -> Fitted:
    """Choose a placement on these devices; one of them may be the CPU.

    free: free bytes of each device by name, 0 if unknown; None: what the devices report. Raises PlacementError for
    options that are not possible with these devices or this model.
    """
    free = {d.name: d.memory_free for d in devices} if free is None else free
    host = next((d for d in devices if d.type is DeviceType.CPU), None)
    others = [d for d in devices if d is not host]
    _require_possible(sizes, devices, others, host, params)
    n = len(sizes.layers)
    if params.layer_devices is not None:
        layers = list(params.layer_devices)
        placement = Placement(layers[0], tuple(layers), layers[-1])
    elif not others:
        assert host is not None  # there is at least one device
        placement = Placement(host.name, (host.name,) * n, host.name)
    else:
        placement = _shared(sizes, others, host, params, free)
    placement = _with_cpu_parts(placement, sizes, host, params)
    planned = usage(sizes, placement)
    on_host = host.name if host is not None else ""
    return Fitted(placement, planned, fits(planned, devices, free), sum(name != on_host for name in placement.layers))


def fits(planned: Mapping[str, int], devices: Sequence[Device], free: Mapping[str, int]) -> bool:
    """Whether these bytes are free, as far as that is known. Integrated GPUs share the CPU's memory."""
    for device in devices:
        left, size = free.get(device.name, 0), planned.get(device.name, 0)
        if device.type is DeviceType.CPU:
            size += sum(planned.get(d.name, 0) for d in devices if d.type is DeviceType.IGPU)
        if left and size > left:
            return False
    return True


def usage(sizes: ModelSizes, placement: Placement) -> dict[str, int]:
    """Return the bytes that each device needs for weights, caches and temporaries."""
    used = dict.fromkeys(placement.devices, 0)
    used[placement.input] += sizes.input
    last = placement.device(len(sizes.layers))
    used[last] += sizes.output + (sizes.tied if last != placement.input else 0)
    for i, layer in enumerate(sizes.layers):
        used[placement.device(i)] += layer.weights
        used[placement.device_of_state(i)] += layer.cache
        used[placement.device_of_weight(i, ("linear_experts",))] += layer.experts
    return {name: size + sizes.graph for name, size in used.items()}


def room_for(sizes: ModelSizes, layers: Sequence[int], params: PlacementParams, *, with_output: bool) -> int:
    """Return the free bytes with which a device takes exactly these layers, and perhaps the output; at least 1."""
    parts = _parts(sizes, params)
    taken = sum(parts[i] for i in layers) + parts[-1] * with_output
    return _free_for(taken + sizes.graph) if taken else 1


def _require_possible(
    sizes: ModelSizes,
    devices: Sequence[Device],
    others: Sequence[Device],
    host: Device | None,
    params: PlacementParams,
) -> None:
    named = ", ".join(d.name for d in devices)
    if params.asks_for_devices and not others:
        raise PlacementError(
            f"{', '.join(params.asks_for_devices)}: expected a GPU or another device; the model is on {named} only",
            hint=f"leave it out to use {named}; `hotshoe doctor` says how to use a GPU",
        )
    if params.asks_for_cpu and host is None:
        raise PlacementError(
            f"{', '.join(params.asks_for_cpu)}: the devices ({named}) do not include the CPU, which holds the rest",
            hint="add the CPU to the devices: cpu, or cpu=32GiB if they are simulated",
        )
    if params.tensor_split is not None and len(params.tensor_split) != len(others):
        raise PlacementError(
            f"tensor_split has {len(params.tensor_split)} numbers; there are {len(others)} devices other than the CPU "
            f"({', '.join(d.name for d in others)})"
        )
    if params.main_gpu is not None and params.main_gpu >= len(others):
        raise PlacementError(
            f"main_gpu is {params.main_gpu}; the devices other than the CPU are "
            + ", ".join(f"{i}: {d.name}" for i, d in enumerate(others))
        )
    n = len(sizes.layers)
    if isinstance(params.n_gpu_layers, int) and params.n_gpu_layers > n + 1:
        raise PlacementError(
            f"n_gpu_layers is {params.n_gpu_layers}; the model has {n} layers; {n + 1} includes the output",
            hint="n_gpu_layers='all' for everything",
        )
    if params.cpu_moe and not any(layer.experts for layer in sizes.layers):
        raise PlacementError(f"cpu_moe={params.cpu_moe}: the model has no experts", hint="leave it out")
    if params.cpu_moe is not True and params.cpu_moe > n:
        raise PlacementError(f"cpu_moe is {params.cpu_moe}; the model has {n} layers", hint="cpu_moe=True for all")
    if not params.kv_offload and not any(layer.cache for layer in sizes.layers):
        raise PlacementError("kv_offload=False: the model has no cache of keys, values or states", hint="leave it out")
    if params.layer_devices is not None:
        unknown = sorted(set(params.layer_devices) - {d.name for d in devices})
        if unknown:
            raise PlacementError(f"layer_devices names {', '.join(unknown[:_SHOWN])}; the devices are {named}")
        if len(params.layer_devices) != n:
            raise PlacementError(
                f"layer_devices names {len(params.layer_devices)} layers; expected {n}, those of the model",
                hint=f"the model has the layers 0 to {n - 1}",
            )


def _with_cpu_parts(placement: Placement, sizes: ModelSizes, host: Device | None, params: PlacementParams) -> Placement:
    """Put the experts and caches that the options keep on the CPU there."""
    n = len(sizes.layers)
    experts: tuple[str, ...] = ()
    cache: tuple[str, ...] = ()
    if host is not None and _n_cpu_moe(params, n):
        experts = (host.name,) * _n_cpu_moe(params, n)
    if host is not None and not params.kv_offload:
        cache = (host.name,) * n
    return Placement(placement.input, placement.layers, placement.output, experts, cache)


def _n_cpu_moe(params: PlacementParams, n_layers: int) -> int:
    return n_layers if params.cpu_moe is True else int(params.cpu_moe)


def _shared(
    sizes: ModelSizes,
    others: Sequence[Device],
    host: Device | None,
    params: PlacementParams,
    free: Mapping[str, int],
) -> Placement:
    """Put the last layers on the devices other than the CPU, consecutive on each, and the rest on the CPU if used."""
    order = list(others)
    if params.main_gpu is not None:
        order.append(order.pop(params.main_gpu))  # it gets the last layers and the output
    parts = _parts(sizes, params)
    rooms = _rooms(sizes, order, host, free, sum(parts))
    n = len(sizes.layers)
    if host is None:
        count, with_output = n, True
        parts[0] += sizes.input
        parts[-1] -= sizes.tied if len(order) == 1 else 0
    elif params.n_gpu_layers == "auto" and params.tensor_split is None:
        with_output = _n_fitting(parts, rooms) == len(parts)
        count = n if with_output else _n_fitting(parts[:-1], rooms)
    else:
        requested = params.n_gpu_layers if isinstance(params.n_gpu_layers, int) else n + 1
        count, with_output = min(requested, n), requested > n
    taken = parts[n - count : n] + parts[n:] * with_output
    if params.tensor_split is not None:
        runs = _by_shares(len(taken), params.tensor_split)
    else:
        runs = _balanced(taken, rooms, filled_first=len(order) - 1 if params.main_gpu is not None else None)
    names = [order[i].name for i in runs]
    rest = host.name if host is not None else (names[0] if names else order[0].name)
    layers = (*[rest] * (n - count), *names[:count])
    return Placement(rest, layers, names[-1] if with_output else rest)


def _parts(sizes: ModelSizes, params: PlacementParams) -> list[int]:
    """Return the bytes of each layer, and last the output, on the device that it goes to."""
    n_cpu_moe = _n_cpu_moe(params, len(sizes.layers))
    layers = [
        layer.weights + layer.cache * params.kv_offload + layer.experts * (i >= n_cpu_moe)
        for i, layer in enumerate(sizes.layers)
    ]
    return [*layers, sizes.output + sizes.tied]


def _rooms(
    sizes: ModelSizes, devices: Sequence[Device], host: Device | None, free: Mapping[str, int], whole: int
) -> list[float]:
    """Return the bytes of layers that each device can take: all of them if its free memory is unknown."""
    rooms = []
    for device in devices:
        left = free.get(device.name, 0)
        known = left > 0
        if device.type is DeviceType.IGPU and host is not None and free.get(host.name, 0):
            shared = free[host.name] - sizes.input - sizes.graph  # the same memory: do not count it twice
            left, known = min(left, shared) if known else shared, True
        rooms.append(max(0.0, _usable(left) - sizes.graph) if known else float(whole))
    return rooms


def _usable(free: float) -> float:
    """The bytes that may be planned for of those that a driver reports as free."""
    return free - max(_SHARE_LEFT_FREE * free, min(_LEFT_FREE, free / 4))


def _free_for(size: int) -> int:
    """The free bytes of which ``size`` may be planned for: the inverse of ``_usable``."""
    return int(max(size / (1 - _SHARE_LEFT_FREE), min(size + _LEFT_FREE, size / 0.75))) + 1


def _n_fitting(parts: Sequence[int], rooms: Sequence[float]) -> int:
    """Return how many parts the devices can take, from the last backwards. More room never reduces the number."""
    return len(_runs(parts, rooms))


def _runs(parts: Sequence[int], rooms: Sequence[float]) -> list[int]:
    """Return the device of each part, for as many of the last parts as fit. The last device is filled first."""
    taken: list[int] = []
    device = len(rooms) - 1
    left = rooms[-1] if rooms else 0.0
    for part in reversed(parts):
        while device >= 0 and part > left:
            device -= 1
            left = rooms[device] if device >= 0 else 0.0
        if device < 0:
            break
        left -= part
        taken.append(device)
    return taken[::-1]


def _balanced(parts: Sequence[int], rooms: Sequence[float], filled_first: int | None) -> list[int]:
    """Return the device of each part, so that the fullest device is filled as little as possible.

    If the parts do not fit, devices are filled beyond their room. filled_first: a device that is filled completely
    before the others take anything.
    """
    if not any(rooms):
        rooms = [1.0] * len(rooms)

    def runs(fraction: float) -> list[int]:
        return _runs(parts, [r if i == filled_first and fraction <= 1 else r * fraction for i, r in enumerate(rooms)])

    low, high = 0.0, 1.0
    if len(runs(low)) == len(parts):
        return runs(low)
    while len(runs(high)) < len(parts):
        low, high = high, high * 2
    for _ in range(_STEPS):
        middle = (low + high) / 2
        low, high = (low, middle) if len(runs(middle)) == len(parts) else (middle, high)
    return runs(high)


def _by_shares(n: int, shares: Sequence[float]) -> list[int]:
    """Divide ``n`` parts by these shares, rounded as llama.cpp does: part i goes to the share that contains i / n."""
    total, so_far = sum(shares), 0.0
    ends = [(so_far := so_far + share) / total for share in shares]
    return [next(d for d, end in enumerate(ends) if i / n < end or d == len(ends) - 1) for i in range(n)]
