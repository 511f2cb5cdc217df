"""Load a model onto several devices: fit it, load it, and if memory runs out, move layers and load again."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence

from hotshoe.placement.fit import Fitted, fit, room_for
from hotshoe.placement.params import PlacementParams
from hotshoe.placement.report import describe
from hotshoe.placement.sizes import Build, M, ModelSizes, measure
from hotshoe_core import Backend, BackendMemory, Device, DeviceType
from hotshoe_core.contract.backend import Progress
from hotshoe_core.errors import InsufficientMemoryError

__all__ = ["load_and_adjust", "with_advice"]

logger = logging.getLogger("hotshoe.placement")

_MOVED = (1, 1, 2, 4, 8, 16, 32, 64)
"""How many layers are moved after the first failure, the second, …"""


def load_and_adjust(
    open_backend: Callable[[], Backend],
    build: Build[M],
    n_layers: int,
    params: PlacementParams,
    *,
    progress: Progress | None = None,
    dry: bool = False,
    free: Mapping[str, int] | None = None,
    reserved: int = 0,
) -> M:
    """Load a model with ``build`` onto the devices that ``open_backend`` opens, and allocate its largest graph.

    dry: the backend allocates nothing; instead, sizes are compared with the free memory. free: free bytes of devices by
    name, in place of those that the backend says. reserved: bytes of the first device that something else will take.
    The model's ``moved`` lists what was moved. Raises InsufficientMemoryError if memory runs out and nothing may or can
    be moved, and PlacementError for options that are not possible. Nothing stays open then.
    """
    backend = open_backend()
    try:
        sizes = measure(build, n_layers, backend.cache_config())
        left = {**backend.memory_free(), **(free or {})}
        first = backend.devices[0].name
        if left.get(first):  # 0: unknown
            left[first] = max(1, left[first] - reserved)
        attempts = _Attempts(sizes, backend.devices, params, left)
        while True:
            backend.strict = not params.fallback
            try:
                model = build(backend, attempts.fitted.placement, progress)
                model.reserve()
            except InsufficientMemoryError as error:
                if not attempts.move_layers(error.memory):
                    raise with_advice(error, backend.devices, params) from None
            else:
                if not dry or not attempts.move_layers(_overfull(model.memory(), attempts.free)):
                    attempts.log()
                    model.moved = tuple(attempts.moved)
                    return model
            backend.close()  # frees everything that was loaded
            backend = open_backend()
    except BaseException:
        backend.close()
        raise


def _overfull(memory: BackendMemory, free: Mapping[str, int]) -> BackendMemory:
    """Return what does not fit as failed allocations of the devices that have too little free memory."""
    over = BackendMemory()
    for device in memory.devices:
        left = free.get(device.device, 0)
        if left and device.total > left:
            over.fail(device.device, "graph", device.total - left)
    return over


class _Attempts:
    """The current fit, and what was moved before it."""

    def __init__(
        self, sizes: ModelSizes, devices: Sequence[Device], params: PlacementParams, free: Mapping[str, int]
    ) -> None:
        self.free = dict(free)
        self.moved: list[str] = []
        self.fitted: Fitted = fit(sizes, devices, params, free)
        self._sizes = sizes
        self._devices = devices
        self._params = params
        self._rooms = dict(free)  # free bytes, reduced where they turned out not to be usable
        self._host = next((d for d in devices if d.type is DeviceType.CPU), None)

    def move_layers(self, failed: BackendMemory) -> bool:
        """Move layers off the device whose memory ran out. Return False if nothing may or can be moved."""
        host = self._host.name if self._host else ""
        short = next((d for d in failed.devices if d.failed and d.device != host), None)
        if short is None or not self._params.adapts or len(self.moved) == len(_MOVED):
            return False
        before = self.fitted.placement
        held = [i for i, name in enumerate(before.layers) if name == short.device]
        kept = held[_MOVED[len(self.moved)] :]
        with_output = before.output == short.device and bool(kept)
        self._rooms[short.device] = room_for(self._sizes, kept, self._params, with_output=with_output)
        after = fit(self._sizes, self._devices, self._params, self._rooms)
        if after.placement == before or (self._host is None and not after.fits):
            return False
        n = len(held) - after.placement.layers.count(short.device)
        moved = f"{n} of its {len(held)} layers" if n > 0 else "the output"
        self.moved.append(f"{short.device} had too little memory ({', '.join(short.failures)}): moved {moved} off it")
        self.fitted = after
        return True

    def log(self) -> None:
        """Log the placement; as a warning if layers were moved or do not fit on the devices."""
        n, placement = len(self._sizes.layers), self.fitted.placement
        expected = self._params.adapts and self._host is not None and len(self._devices) > 1
        if self.moved or (expected and self.fitted.n_layers < n):
            others = " and ".join(d.name for d in self._devices if d is not self._host)
            left = "" if self.moved else f"{self.fitted.n_layers} of {n} layers fit on {others}: "
            logger.warning("%s%s", "".join(f"{m}; " for m in self.moved) + left, describe(placement))
        else:
            logger.info("%s", describe(placement))


def with_advice(
    error: InsufficientMemoryError, devices: Sequence[Device], params: PlacementParams
) -> InsufficientMemoryError:
    """Return the error with a hint that names the option to change."""
    hint = params.advice
    if params.adapts and not any(d.type is DeviceType.CPU for d in devices):
        names = ",".join(d.name for d in devices)
        hint = f"let the CPU hold what does not fit: device='{names},cpu'; or {hint}"
    return InsufficientMemoryError(error.message, memory=error.memory, hint=hint)
