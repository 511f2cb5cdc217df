"""Room: which models are unloaded so that another one fits, and one load at a time."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

from hotshoe.serve import wire

__all__ = ["Room", "Tenant", "Unloaded"]

_log = logging.getLogger(__name__)
_N_UNLOADED = 20
_SECONDS_BETWEEN_LOOKS = 1.0


class Tenant(Protocol):
    """A model that may be loaded."""

    needs: dict[str, int]
    """Bytes by device that it takes while it is loaded."""
    last_used: float
    """Seconds of ``time.monotonic``."""
    keep_alive: float | None
    """Seconds without a request after which it is unloaded; None: never."""

    @property
    def name(self) -> str: ...
    @property
    def is_loaded(self) -> bool: ...
    @property
    def is_pinned(self) -> bool: ...
    @property
    def n_jobs(self) -> int: ...
    async def stop(self) -> None: ...


class Unloaded(NamedTuple):
    """A model that was unloaded."""

    name: str
    why: str
    at: float
    """Seconds since 1970."""


class Room:
    """The memory of the devices, shared by all models of the server."""

    def __init__(self, limit: int | None = None) -> None:
        """limit: the most bytes of the computer's memory for all models together."""
        self.limit = limit
        self.lock = asyncio.Lock()
        """Held while a model is loaded: one at a time."""
        self.describing = asyncio.Lock()
        """Held while a model is described."""
        self.tenants: list[Tenant] = []
        self.may_unload = True
        """Whether models may be unloaded to make room. Not while the server loads the first ones."""
        self.reserve = 0
        """Bytes that a context whose size nobody gave leaves to models that are loaded next."""
        self.unloaded: deque[Unloaded] = deque(maxlen=_N_UNLOADED)
        """The newest models that were unloaded, the newest last."""
        self._changed = asyncio.Event()

    def _others(self, but: Tenant) -> list[Tenant]:
        return [tenant for tenant in self.tenants if tenant is not but and tenant.is_loaded]

    def _can_go(self, tenant: Tenant) -> bool:
        return self.may_unload and not tenant.is_pinned and not tenant.n_jobs

    def held(self, but: Tenant) -> dict[str, int]:
        """Bytes by device of the models that stay."""
        return _sum(t for t in self._others(but) if not self._can_go(t))

    def extra(self, but: Tenant) -> dict[str, int]:
        """Bytes by device of the models that can be unloaded."""
        return _sum(t for t in self._others(but) if self._can_go(t))

    def is_busy(self, but: Tenant) -> bool:
        """Whether another model works, and can be unloaded when it has finished."""
        return self.may_unload and any(t.n_jobs and not t.is_pinned for t in self._others(but))

    def victims(self, planned: wire.Planned, but: Tenant) -> list[Tenant] | None:
        """The models to unload so that the planned one fits: the least recently used that make room, and no more.

        None if that is not enough.
        """
        others = self._others(but)
        chosen: list[Tenant] = []
        for tenant in sorted(filter(self._can_go, others), key=lambda t: t.last_used):
            short = _short(planned, others, chosen)
            if any(tenant.needs.get(device) for device in short):
                chosen.append(tenant)
        if _short(planned, others, chosen):
            return None
        for tenant in reversed(chosen[:-1]):
            rest = [t for t in chosen if t is not tenant]
            if not _short(planned, others, rest):
                chosen = rest
        return chosen

    async def unload_all(self, tenants: Sequence[Tenant], why: str) -> bool:
        """Unload idle models, one after the other. False if one of them got a request meanwhile: it stays."""
        for tenant in tenants:
            if tenant.n_jobs:
                return False
            await self.unload(tenant, why)
        return True

    async def unload(self, tenant: Tenant, why: str) -> None:
        """Unload a model, and say so."""
        _log.warning("%s was unloaded: %s", tenant.name, why)
        self.unloaded.append(Unloaded(tenant.name, why, time.time()))
        await tenant.stop()

    def notice(self) -> None:
        """Tell those who wait that a model has finished its work, or was unloaded."""
        self._changed.set()

    async def wait(self) -> None:
        """Wait until a model has finished its work, or was unloaded."""
        self._changed.clear()
        await self._changed.wait()

    async def unload_unused(self) -> None:
        """Unload models that nobody used for as long as they are kept. Never returns."""
        while True:
            await asyncio.sleep(_SECONDS_BETWEEN_LOOKS)
            for tenant in filter(_is_unused, list(self.tenants)):
                async with self.lock:  # a model that is loaded meanwhile would not find its memory free
                    if _is_unused(tenant):
                        await self.unload(tenant, f"nobody used it for {tenant.keep_alive:g} seconds")


def _is_unused(tenant: Tenant) -> bool:
    """Whether nobody used a model for as long as it is kept."""
    if tenant.keep_alive is None or not tenant.is_loaded or tenant.n_jobs:
        return False
    return time.monotonic() - tenant.last_used >= tenant.keep_alive


def _sum(tenants: Iterable[Tenant]) -> dict[str, int]:
    found: dict[str, int] = {}
    for tenant in tenants:
        for device, n in tenant.needs.items():
            found[device] = found.get(device, 0) + n
    return found


def _short(planned: wire.Planned, others: Sequence[Tenant], gone: Sequence[Tenant]) -> list[str]:
    """The devices that have too little room if these models are gone. Unknown memory is enough."""
    freed, kept = _sum(gone), _sum(t for t in others if t not in gone)
    found = []
    for device, need in planned.needs.items():
        if device in planned.free:
            room = planned.free[device] + freed.get(device, 0)
            if device in planned.total:
                room = min(room, planned.total[device] - kept.get(device, 0))
            if need > room:
                found.append(device)
    return found
