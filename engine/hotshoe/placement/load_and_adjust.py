"""Settling a model on several devices: fit, load, and where memory runs out move layers and load again."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence

from hotshoe.placement.fit import Fitted, fit, room_for
from hotshoe.placement.params import PlacementParams
from hotshoe.placement.report import in_words
from hotshoe.placement.sizes import Build, ModelSizes, measure
from hotshoe.runner.base import LoadedModel
from hotshoe_core import Backend, BackendMemory, Device, DeviceType
from hotshoe_core.contract.backend import Progress
from hotshoe_core.errors import InsufficientMemoryError

__all__ = ["load_settled", "with_advice"]

logger = logging.getLogger("hotshoe.placement")

_MOVED = (1, 1, 2, 4, 8, 16, 32, 64)
"""How many layers are moved at the first failure, at the second, …"""


def load_settled(
    open_backend: Callable[[], Backend],
    build: Build,
    n_layers: int,
    params: PlacementParams,
    *,
    progress: Progress | None = None,
    dry: bool = False,
) -> LoadedModel:
    """The model that ``build`` loads, on the devices that ``open_backend`` opens, its largest graph allocated.

    dry: the backend allocates nothing; that it would not fit is found by comparing with the memory that is free.
    ``moved`` of the model says what was moved. Raises InsufficientMemoryError where nothing may or can be moved, and
    PlacementError for options that cannot be honoured; nothing stays open then.
    """
    backend = open_backend()
    try:
        sizes = measure(build, n_layers, backend.cache_config())
        attempts = _Attempts(sizes, backend.devices, params, backend.memory_free())
        while True:
            backend.strict = not params.fallback
            try:
                model = build(backend, attempts.fitted.placement, progress)
                model.reserve()
            except InsufficientMemoryError as error:
                if not attempts.give_way(error.memory):
                    raise with_advice(error, backend.devices, params) from None
            else:
                if not dry or not attempts.give_way(_over_full(model.memory(), attempts.free)):
                    attempts.tell()
                    model.moved = tuple(attempts.moved)
                    return model
            backend.close()  # with all that was loaded
            backend = open_backend()
    except BaseException:
        backend.close()
        raise


def _over_full(memory: BackendMemory, free: Mapping[str, int]) -> BackendMemory:
    """The part of a plan that does not fit, marked as failed: of devices that have less than it takes."""
    over = BackendMemory()
    for device in memory.devices:
        left = free.get(device.device, 0)
        if left and device.total > left:
            over.fail(device.device, "graph", device.total - left)
    return over


class _Attempts:
    """What was tried, and what there is left to try."""

    def __init__(
        self, sizes: ModelSizes, devices: Sequence[Device], params: PlacementParams, free: Mapping[str, int]
    ) -> None:
        self.free = dict(free)
        self.moved: list[str] = []
        self.fitted: Fitted = fit(sizes, devices, params, free)
        self._sizes = sizes
        self._devices = devices
        self._params = params
        self._rooms = dict(free)  # as much of it as turned out to be usable
        self._host = next((d for d in devices if d.type is DeviceType.CPU), None)

    def give_way(self, failed: BackendMemory) -> bool:
        """Take layers off the device that had no memory; False if there is none, or nothing may be moved."""
        host = self._host.name if self._host else ""
        short = next((d for d in failed.devices if d.failed and d.device != host), None)
        if short is None or not self._params.adapts or len(self.moved) == len(_MOVED):
            return False
        before = self.fitted.placement
        there = [i for i, name in enumerate(before.layers) if name == short.device]
        kept = there[_MOVED[len(self.moved)] :]
        with_output = before.output == short.device and bool(kept)
        self._rooms[short.device] = room_for(self._sizes, kept, self._params, with_output=with_output)
        after = fit(self._sizes, self._devices, self._params, self._rooms)
        if after.placement == before or (self._host is None and not after.fits):
            return False
        n = len(there) - after.placement.layers.count(short.device)
        what = f"{n} of its {len(there)} layers" if n > 0 else "the output"
        self.moved.append(f"{short.device} had too little memory ({', '.join(short.failures)}): moved {what} off it")
        self.fitted = after
        return True

    def tell(self) -> None:
        """Say what was done in one line, where that is not what one would expect."""
        n, placement = len(self._sizes.layers), self.fitted.placement
        meant = self._params.adapts and self._host is not None and len(self._devices) > 1
        if self.moved or (meant and self.fitted.n_layers < n):
            left = "" if self.moved else f"{self.fitted.n_layers} of {n} layers fit on the devices: "
            logger.warning("%s%s", "".join(f"{m}; " for m in self.moved) + left, in_words(placement))
        else:
            logger.info("%s", in_words(placement))


def with_advice(
    error: InsufficientMemoryError, devices: Sequence[Device], params: PlacementParams
) -> InsufficientMemoryError:
    """The same error with the option to change."""
    hint = params.advice
    if params.adapts and not any(d.type is DeviceType.CPU for d in devices):
        names = ",".join(d.name for d in devices)
        hint = f"let the CPU hold what does not fit: device='{names},cpu' (--device {names},cpu); or {hint}"
    return InsufficientMemoryError(error.message, memory=error.memory, hint=hint)
