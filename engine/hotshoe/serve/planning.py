"""Plan a model in its process: the context with which it is loaded, and the memory that it takes of each device.

A context that nobody gave is the largest that fits without moving a layer off a GPU.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import hotshoe
from hotshoe.load_request import ONLY_TEXT, model_class_of, open_file
from hotshoe.placement.plan import Plan
from hotshoe.serve import wire
from hotshoe.tasks import Task
from hotshoe_core import Device, DeviceType

__all__ = ["Choice", "choose"]

_SEQUENCES = (4, 2, 1)
"""The texts of full length for which the cache has room, if no option says it: the first number that fits."""
_LEAST = 2048
"""The tokens of a context that nobody gave, if no larger one fits."""
_STEP = 256
_PRECISION = 64
"""The largest context is found to this part of what the model was trained for."""
_LEFT_FREE = 0.1
"""The part of the CPU's room that a context of unknown size leaves to other programs."""
_SLACK = 1 << 30
"""Bytes of a GPU that a placement leaves free for its driver (hotshoe.placement.fit)."""


class Choice(NamedTuple):
    """How a model is loaded."""

    planned: wire.Planned
    n_ctx: int | None
    options: dict[str, Any]
    """Keyword arguments of ``hotshoe.load_model``."""


def choose(load: wire.Load) -> Choice:
    """Choose context and cache for a model. Raises as ``hotshoe.plan_model`` does."""
    with open_file(load.path) as file:
        model_class = model_class_of(file)
        trained = model_class.config_type().from_metadata(file.metadata).n_ctx  # type: ignore[attr-defined]
    is_text = model_class.task is Task.TEXT
    options = {name: value for name, value in load.options.items() if is_text or name not in ONLY_TEXT}
    given = options.get("n_sequences")
    counts = _SEQUENCES if given is None else (given,)

    def plan(n_ctx: int | None, n: int, free: Mapping[str, int] | None = None) -> Plan:
        more = {"n_sequences": n} if is_text else {}
        return hotshoe.plan_model(load.path, load.device, n_ctx=n_ctx, free=free, **(options | more))

    if not is_text:
        first = plan(None, 1)
        room = _room(first, load)
        return Choice(_planned(plan(None, 1, room), first, load), None, options)
    least = load.n_ctx or min(trained, _LEAST)
    first = plan(least, counts[-1])
    room = _room(first, load)
    plan_in_room = functools.cache(functools.partial(plan, free=room))
    if load.n_ctx is not None:
        n_ctx, n = least, next((n for n in counts if plan_in_room(least, n).fits), counts[-1])
    else:
        n_ctx, n = _largest(first, room, load, plan, trained, least, counts)
    return Choice(_planned(plan_in_room(n_ctx, n), first, load), n_ctx, options | {"n_sequences": n})


def _largest(
    first: Plan,
    room: Mapping[str, int],
    load: wire.Load,
    plan: Callable[..., Plan],
    trained: int,
    least: int,
    counts: tuple[int, ...],
) -> tuple[int, int]:
    """The largest context, and for how many texts of this length the cache has room."""
    left = dict(room)
    for device in first.devices:
        if device.type is DeviceType.CPU and device.name in left:
            left[device.name] = max(1, int(left[device.name] * (1 - _LEFT_FREE)) - load.reserve)
    on_host = _layers_on_host(plan(least, counts[-1], room))

    def is_good(n_ctx: int, n: int) -> bool:
        found = plan(n_ctx, n, left)
        return found.fits and _layers_on_host(found) <= on_host

    for n in counts:
        if is_good(trained, n):
            return trained, n
    low, high = least, trained
    while high - low > max(_STEP, trained // _PRECISION):
        middle = (low + high) // 2 // _STEP * _STEP
        if middle <= low:
            break
        low, high = (middle, high) if is_good(middle, counts[-1]) else (low, middle)
    return low, counts[-1]


def _layers_on_host(plan: Plan) -> int:
    hosts = {device.name for device in plan.devices if device.type is DeviceType.CPU}
    return sum(name in hosts for name in plan.placement.layers)


def _total(device: Device, load: wire.Load) -> int:
    """The bytes of a device for all models together; 0 if unknown."""
    limited = load.limit is not None and device.type is DeviceType.CPU
    return min(device.memory_total or load.limit or 0, load.limit or 0) if limited else device.memory_total


def _room(plan: Plan, load: wire.Load) -> dict[str, int]:
    """The bytes of each device that the model can take if all models are unloaded that can be, where that is known."""
    found = {}
    for device in plan.devices:
        free, total = plan.free.get(device.name, 0), _total(device, load)
        if not free:
            continue
        room = free + load.extra.get(device.name, 0)
        if total:
            room = min(room, total - load.held.get(device.name, 0))
        found[device.name] = max(1, room)
    return found


def _planned(plan: Plan, first: Plan, load: wire.Load) -> wire.Planned:
    needs = {}
    for device in plan.devices:
        taken = plan.memory.on(device.name).total
        if taken:
            needs[device.name] = taken if device.type is DeviceType.CPU else int(taken * 1.06) + _SLACK
    free = {device.name: n for device in first.devices if (n := first.free.get(device.name, 0))}
    total = {device.name: n for device in first.devices if (n := _total(device, load))}
    return wire.Planned(needs, free, total, plan.n_ctx, plan.fits)
