"""Pool: give each line to the target that is free, and to another one if that is lost."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from hotshoe.batch.lines import BadLine, Reply, Request
from hotshoe_core.errors import HotshoeError

__all__ = ["NoTargetError", "Pool", "Target", "TargetGoneError", "TargetLostError"]

_LOST = "server_lost"
_MAX_TRIES = 3
_SECONDS_BUSY = 1.0
_SECONDS_TO_GIVE_UP = 60.0
_DELAYS = 0.5, 10.0  # seconds between attempts to reach a lost target: the first, and the longest


class TargetLostError(Exception):
    """A target cannot be reached. ``started`` says whether it may have worked on the request."""

    def __init__(self, message: str, *, started: bool) -> None:
        super().__init__(message)
        self.started = started


class TargetGoneError(Exception):
    """A target will not come back."""


class NoTargetError(HotshoeError):
    """No target is left to answer."""


class Target(Protocol):
    """What answers requests: a model of this machine, a server, a node of a cluster."""

    name: str

    async def start(self) -> None:
        """Get ready, also after it was lost. Raises TargetLostError, TargetGoneError, HotshoeError."""

    async def answer(self, request: Request) -> Reply:
        """The answer. Raises TargetLostError."""

    async def stop(self) -> None:
        """End it, if the pool started it."""


@dataclass(eq=False)
class _Work:
    """A line, and where it failed."""

    request: Request
    failed: list[str] = field(default_factory=list)
    """The names of the targets that were lost, or were not available, while they worked on it."""

    @property
    def is_suspect(self) -> bool:
        """Whether it is tried for the last time. It is then alone, as another line may be what ended its targets."""
        return len(self.failed) == _MAX_TRIES - 1


@dataclass
class _Seat:
    """A target, and whether it can be used now."""

    target: Target
    is_lost: bool = False
    is_gone: bool = False
    why: str = ""
    lost_at: float = 0.0
    """The time of the event loop when it was lost."""
    reviving: asyncio.Task[None] | None = None
    flying: list[_Work] = field(default_factory=list)
    """What the target works on."""
    said_busy: bool = False


class Pool:
    """Answers lines with several targets. Each gets the next line when it is free.

    A line whose target is lost, or answers status 429 or 503, goes to another one, or to the same one later. A third
    loss or status 503 is its answer: a request may be what ends every server. The third time its target works on
    nothing else, so that a line is not blamed for another one.
    """

    def __init__(self, targets: Sequence[Target], parallel: int, say: Callable[[str], None]) -> None:
        """parallel: the requests that each target works on at a time. say: is told of lost targets."""
        self._seats = [_Seat(target) for target in targets]
        self._parallel = parallel
        self._say = say
        self._again: deque[_Work] = deque()
        self._changed = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._failure: asyncio.Future[None] = self._loop.create_future()

    async def start(self) -> None:
        """Start all targets at the same time. Raises NoTargetError if none starts, HotshoeError if one is wrong."""
        results = await asyncio.gather(*(seat.target.start() for seat in self._seats), return_exceptions=True)
        for seat, error in zip(self._seats, results):
            if isinstance(error, (TargetLostError, TargetGoneError)):
                seat.is_lost, seat.why = True, str(error)
                seat.is_gone = isinstance(error, TargetGoneError)
            elif error is not None:
                raise error
        lost = [seat for seat in self._seats if seat.is_lost]
        if len(lost) == len(self._seats):
            raise self._none_left()
        for seat in lost:
            self._say(f"{seat.target.name} cannot be used: {seat.why}" + ("" if seat.is_gone else "; trying again"))
            self._begin_to_revive(seat)

    async def stop(self) -> None:
        """End all targets."""
        for seat in self._seats:
            if seat.reviving is not None:
                seat.reviving.cancel()
        await asyncio.gather(*(seat.target.stop() for seat in self._seats), return_exceptions=True)

    async def run(self, lines: Iterator[Request | BadLine], write: Callable[[Request | BadLine, Reply], None]) -> None:
        """Answer all lines. ``write`` gets each line once, with its answer. Raises NoTargetError."""
        self._lines, self._write, self._is_exhausted = lines, write, False
        loops = [asyncio.create_task(self._answer_for(seat)) for seat in self._seats for _ in range(self._parallel)]
        try:
            working = asyncio.gather(*loops)
            await asyncio.wait((working, self._failure), return_when=asyncio.FIRST_COMPLETED)
            if self._failure.done():
                self._failure.result()
            await working
        finally:
            for loop in loops:
                loop.cancel()
            await asyncio.gather(*loops, return_exceptions=True)
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await working

    async def _answer_for(self, seat: _Seat) -> None:
        while (work := await self._take(seat)) is not None:
            try:
                reply = await seat.target.answer(work.request)
            except TargetLostError as error:
                self._lose(seat, error)
                if not error.started:
                    self._return(seat, work)
                    continue
                reply = Reply(0, code=_LOST, error=f"{seat.target.name} was lost while it worked on this: {error}")
            if reply.status == 429:
                self._return(seat, work)
                self._say_busy(seat)
                await asyncio.sleep(_SECONDS_BUSY if reply.retry_after is None else reply.retry_after)
                continue
            if reply.status == 503 or reply.code == _LOST:
                work.failed.append(seat.target.name)
                if len(work.failed) < _MAX_TRIES:
                    self._return(seat, work)
                    if reply.status:
                        await asyncio.sleep(_SECONDS_BUSY if reply.retry_after is None else reply.retry_after)
                    continue
            seat.flying.remove(work)
            self._write(work.request, reply)
            self._changed.set()

    async def _take(self, seat: _Seat) -> _Work | None:
        """The next line for a target, when it can be used and there is one; None when all lines are answered."""
        while True:
            if not seat.is_lost and (work := self._next(seat)) is not None:
                seat.flying.append(work)
                return work
            is_flying = any(other.flying for other in self._seats)
            if seat.is_gone or (self._is_exhausted and not self._again and not is_flying):
                return None
            self._changed.clear()
            await self._changed.wait()

    def _next(self, seat: _Seat) -> _Work | None:
        if any(work.is_suspect for work in seat.flying):
            return None
        usable = [other.target.name for other in self._seats if not other.is_lost]
        for work in self._again:
            if seat.target.name not in work.failed or all(name in work.failed for name in usable):
                if work.is_suspect and seat.flying:
                    return None
                self._again.remove(work)
                return work
        for line in self._lines:
            if isinstance(line, Request):
                return _Work(line)
            self._write(line, Reply(0, code="invalid_line", error=line.why))
        if not self._is_exhausted:
            self._is_exhausted = True
            self._changed.set()
        return None

    def _return(self, seat: _Seat, work: _Work) -> None:
        seat.flying.remove(work)
        self._again.append(work)
        self._changed.set()

    def _say_busy(self, seat: _Seat) -> None:
        if not seat.said_busy:
            seat.said_busy = True
            self._say(f"{seat.target.name} is busy (status 429): its requests wait, or go elsewhere")

    def _lose(self, seat: _Seat, error: TargetLostError) -> None:
        if not seat.is_lost:
            seat.is_lost, seat.why = True, str(error)
            self._say(f"{seat.target.name} was lost: {error}")
            self._begin_to_revive(seat)

    def _begin_to_revive(self, seat: _Seat) -> None:
        seat.lost_at = self._loop.time()
        seat.reviving = asyncio.create_task(self._revive(seat))

    async def _revive(self, seat: _Seat) -> None:
        """Start a lost target again, as soon as that succeeds."""
        delay, longest = _DELAYS
        while True:
            try:
                await seat.target.start()
            except TargetLostError as error:
                seat.why = str(error)
            except TargetGoneError as error:
                seat.is_gone, seat.why = True, str(error)
                self._say(f"{seat.target.name} will not come back: {error}")
                self._changed.set()
            except Exception as error:  # of the target's options, or in the code: the run must not wait for it
                self._fail(error)
            else:
                seat.is_lost = False
                self._say(f"{seat.target.name} is back")
                self._changed.set()
                return
            long_ago = self._loop.time() - _SECONDS_TO_GIVE_UP
            if all(other.is_gone or (other.is_lost and other.lost_at < long_ago) for other in self._seats):
                self._fail(self._none_left())
            if seat.is_gone or self._failure.done():
                return
            await asyncio.sleep(delay)
            delay = min(2 * delay, longest)

    def _fail(self, error: Exception) -> None:
        if not self._failure.done():
            self._failure.set_exception(error)

    def _none_left(self) -> NoTargetError:
        reasons = "; ".join(f"{seat.target.name}: {seat.why}" for seat in self._seats)
        return NoTargetError(f"nothing is left to answer: {reasons}", hint="the same command goes on where this ended")
