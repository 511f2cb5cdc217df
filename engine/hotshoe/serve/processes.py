"""ModelProcess: the front's side of a model's process. It starts it, sends jobs, and hands out the events."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import logging
import os
import sys
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from hotshoe.serve import wire
from hotshoe.serve.room import Room
from hotshoe_core.errors.text import format_bytes

__all__ = ["BusyError", "JobFailedError", "ModelProcess", "ModelSpec", "ProcessLostError"]

_log = logging.getLogger(__name__)
_FINAL = (wire.Finished, wire.Vectors, wire.Scores, wire.Counted, wire.Tokens, wire.Detokenized)
_ALLOCATION = {"MALLOC_MMAP_THRESHOLD_": str(1 << 20), "MALLOC_ARENA_MAX": "2"}
"""For glibc: large blocks go back to the system when they are freed, so that memory does not grow with the load."""
_SECONDS_TO_END = 10.0
_SECONDS_TO_DIE = 1.0
_N_RECENT = 20
_WORKER = "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from hotshoe.serve.worker import main; main()"
"""The program of a model's process. It imports from where the server does: ``-I`` adds no other folders."""


@dataclass(frozen=True)
class ModelSpec:
    """A model that the server offers, and how it is loaded."""

    name: str
    path: str
    device: str | None
    n_ctx: int | None = None
    options: dict[str, Any] = field(default_factory=dict)
    """Keyword arguments of ``hotshoe.load_model``."""
    stored: str = ""
    """The name under which `hotshoe list` has it; "" for a file."""
    pinned: bool = False
    """Whether it stays loaded when another model needs room."""
    keep_alive: float | None = None
    """Seconds without a request after which it is unloaded; None: when another model needs room."""


class JobFailedError(Exception):
    """A job ended with an error of the model's process. ``failed`` says which."""

    def __init__(self, failed: wire.Failed) -> None:
        super().__init__(failed.message)
        self.failed = failed


class ProcessLostError(Exception):
    """The model's process ended while it worked. The next request starts it again."""


class BusyError(Exception):
    """As many jobs as are allowed wait for the model already."""


class ModelProcess:
    """The process of one model. It is started by the first job, and again by the first one after it ended."""

    def __init__(self, spec: ModelSpec, room: Room, max_jobs: int) -> None:
        """room: the memory that it shares with other models. max_jobs: more raise BusyError."""
        self.spec = spec
        self.ready: wire.Ready | None = None
        """What the model said of itself; None while it is not loaded."""
        self.about: wire.Ready | None = None
        """The same, also while it is not loaded, if it was loaded or described before."""
        self.n_ctx = spec.n_ctx
        """The context of a text model, once it is known: it does not change when the model is loaded again."""
        self.needs: dict[str, int] = {}
        self.last_used = time.monotonic()
        self.keep_alive = spec.keep_alive
        self._room = room
        room.tenants.append(self)
        self.observe: Callable[[str, wire.Event, float], None] = lambda name, event, seconds: None
        """Told each event of a job, with the seconds since the job came."""
        self._load: asyncio.Task[wire.Ready] | None = None
        """The newest load. It belongs to no job: a client that leaves does not end it for others."""
        self._n_waiting = 0
        self._max_jobs = max_jobs
        self._process: asyncio.subprocess.Process | None = None
        self._reader: asyncio.Task[None] | None = None
        self._queues: dict[int, asyncio.Queue[wire.Event | None]] = {}
        self._unread: set[int] = set()
        """The jobs of which nothing came back yet: they wait, or their prompt is being read."""
        self.n_pieces = 0
        """The pieces of text that were written since the server started; most are one token."""
        self.recent: deque[dict[str, Any]] = deque(maxlen=_N_RECENT)
        """The numbers of the newest answers, the newest last."""
        self._ids = itertools.count(1)

    @property
    def n_jobs(self) -> int:
        """The jobs that wait or are computed."""
        return self._n_waiting + len(self._queues)

    @property
    def name(self) -> str:
        """The name of the model."""
        return self.spec.name

    @property
    def is_loaded(self) -> bool:
        """Whether the model is loaded."""
        return self.ready is not None

    @property
    def is_pinned(self) -> bool:
        """Whether it stays loaded when another model needs room."""
        return self.spec.pinned

    @property
    def n_unread(self) -> int:
        """The jobs that wait for a place, or whose prompt is being read."""
        return self._n_waiting + len(self._unread)

    @property
    def is_loading(self) -> bool:
        """Whether the model is being loaded now."""
        return self._load is not None and not self._load.done()

    async def start(self) -> wire.Ready:
        """Load the model if it is not loaded. Raises JobFailedError with the reason if that fails.

        All who wait for a load get its result. Raises ProcessLostError if ``stop`` ends it.
        """
        if self.ready is not None:
            return self.ready
        if self._load is None or self._load.done():
            self._load = asyncio.create_task(self._start())
            self._load.add_done_callback(lambda task: task.cancelled() or task.exception())  # nobody may wait for it
        load = self._load
        try:
            return await asyncio.shield(load)
        except asyncio.CancelledError:
            if load.cancelled():
                raise ProcessLostError(f"the server stopped loading {self.spec.name}") from None
            raise

    async def _start(self) -> wire.Ready:
        async with self._room.lock:
            while (ready := await self._start_alone()) is None:
                if self._room.is_busy(self):
                    await self._room.wait()
            return ready

    async def _start_alone(self) -> wire.Ready | None:
        """Load the model; None if it has to wait for the memory of a model that works."""
        was_busy, busy = self._room.is_busy(self), False
        process, event = await self._launch(False)
        try:
            if isinstance(event, wire.Planned):
                victims = self._room.victims(event, self) if event.fits else None
                busy = victims is None and (was_busy or self._room.is_busy(self))
                if victims is None and not busy:
                    event = _no_room(self.spec.name, event)
                elif victims is not None:
                    if not await self._room.unload_all(victims, f"{self.spec.name} needs its memory"):
                        return None
                    self.needs, self.n_ctx = event.needs, event.n_ctx
                    self._send(wire.Proceed())
                    event = await self._read(process)
        finally:
            if not isinstance(event, wire.Ready):  # it failed, or was given up
                self._process = None
                await _kill(process)
        if busy:
            return None
        if not isinstance(event, wire.Ready):
            raise JobFailedError(self._failure(event))
        self.ready = self.about = event
        self.last_used = time.monotonic()  # a model that is loaded for later is kept as long as any other
        self._reader = asyncio.create_task(self._distribute(process))
        return event

    async def _launch(self, describe: bool) -> tuple[asyncio.subprocess.Process, wire.Event | None]:
        """Start the process; return it with its first answer."""
        spec, room = self.spec, self._room
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-I", "-c", _WORKER, json.dumps(sys.path), spec.name),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env=_ALLOCATION | os.environ,
        )
        load = wire.Load(
            *(spec.stored or spec.path, spec.device, self.n_ctx, spec.options, room.held(self), room.extra(self)),
            *(room.limit, room.reserve, describe),
        )
        event = None
        try:
            if not describe:
                self._process = process
            assert process.stdin is not None
            with contextlib.suppress(ConnectionError, RuntimeError):
                process.stdin.write(wire.encode(load))
            event = await self._read(process)
            return process, event
        finally:
            if event is None:
                self._process = None if self._process is process else self._process
                await _kill(process)

    async def describe(self) -> wire.Ready:
        """What the model says of itself, without loading it. Raises JobFailedError."""
        if self.about is None:
            async with self._room.describing:
                if self.about is None:
                    process, event = await self._launch(True)
                    await _kill(process)
                    if not isinstance(event, wire.Planned) or event.about is None:
                        raise JobFailedError(self._failure(event))
                    if self.about is None:  # it may have been loaded meanwhile
                        self.about, self.n_ctx = event.about, event.n_ctx
        return self.about

    def _failure(self, event: wire.Event | None) -> wire.Failed:
        what = f"{self.spec.path}: the process ended while it loaded the model"
        return event if isinstance(event, wire.Failed) else wire.Failed(None, "ProcessLost", what)

    async def run(self, make: Callable[[int], wire.Job]) -> AsyncIterator[wire.Event]:
        """Run a job; yield its events. ``make`` gets its id. Cancels the job if the caller stops before its end.

        Raises BusyError, JobFailedError and ProcessLostError.
        """
        if self.n_jobs >= self._max_jobs:
            raise BusyError(f"{self.spec.name} has {self._max_jobs} requests already (--max-requests)")
        start = time.perf_counter()
        self._n_waiting += 1
        try:
            await self.start()
        finally:
            self._n_waiting -= 1
        if self.ready is None:
            raise self._lost()
        id = next(self._ids)
        queue: asyncio.Queue[wire.Event | None] = asyncio.Queue()
        self._queues[id] = queue
        self._unread.add(id)
        finished = False
        try:
            self._send(make(id))
            while not finished:
                event = await queue.get()
                finished = event is None or isinstance(event, (*_FINAL, wire.Failed))
                if event is None:
                    raise self._lost()
                self.observe(self.spec.name, event, time.perf_counter() - start)
                if isinstance(event, wire.Failed):
                    raise JobFailedError(event)
                yield event
        finally:
            del self._queues[id]
            self.last_used = time.monotonic()
            self._room.notice()
            self._unread.discard(id)
            if not finished and self.ready is not None:
                self._send(wire.Cancel(id))

    def _lost(self) -> ProcessLostError:
        return ProcessLostError(f"the process of {self.spec.name} ended; the next request starts it again")

    def _send(self, order: wire.Order) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        with contextlib.suppress(ConnectionError, RuntimeError):  # it has ended, which _distribute tells all jobs
            self._process.stdin.write(wire.encode(order))

    async def _read(self, process: asyncio.subprocess.Process) -> wire.Event | None:
        assert process.stdout is not None
        try:
            length = wire.length_of(await process.stdout.readexactly(4))
            return wire.decode_event(await process.stdout.readexactly(length))
        except asyncio.IncompleteReadError:
            return None
        except (ValueError, msgspec.MsgspecError):
            _log.exception("the process of %s sent something that is not a message", self.spec.name)
            return None

    async def _distribute(self, process: asyncio.subprocess.Process) -> None:
        while (event := await self._read(process)) is not None:
            queue = (
                self._queues.get(event.id)
                if not isinstance(event, (wire.Ready, wire.Planned)) and event.id is not None
                else None
            )
            self._unread.discard(getattr(event, "id", 0))
            self.n_pieces += isinstance(event, wire.Piece)
            if queue is not None:  # its client may have left
                queue.put_nowait(event)
        if self._process is process:
            self.ready, self._process = None, None
            queues = list(self._queues.values())
            with contextlib.suppress(TimeoutError):  # a signal to a process that has just ended hides how it ended
                await asyncio.wait_for(process.wait(), _SECONDS_TO_DIE)
            code = await _kill(process)  # it may have closed its pipe only, or sent what cannot be read
            how = f"was ended by signal {-code}" if code < 0 else f"ended with code {code}"
            _log.error("the process of %s (%d) %s; the next request starts it again", self.spec.name, process.pid, how)
            for queue in queues:
                queue.put_nowait(None)
            self._room.notice()

    async def stop(self) -> None:
        """End the process, which gives its memory back. Jobs that it works on raise ProcessLostError."""
        if self._load is not None and not self._load.done():
            self._load.cancel()
            await asyncio.wait([self._load])
        process, self._process, self.ready = self._process, None, None
        self.keep_alive = self.spec.keep_alive  # what a request asked for ends with the unloading
        queues = list(self._queues.values())
        if process is None:
            return
        assert process.stdin is not None
        process.stdin.close()
        try:
            await asyncio.wait_for(process.wait(), _SECONDS_TO_END)
        except TimeoutError:
            await _kill(process)
        for queue in queues:
            queue.put_nowait(None)


def _no_room(name: str, planned: wire.Planned) -> wire.Failed:
    """The error for a model that does not fit, also if all models are unloaded that can be."""
    lacks = [
        f"{format_bytes(n)} on {device}, of {format_bytes(planned.total.get(device) or planned.free[device])}"
        for device, n in planned.needs.items()
        if device in planned.free
    ]
    what = f"{name} needs {' and '.join(lacks)}; pinned models and other programs have too much of it"
    hint = "a smaller quantization, a smaller context (--ctx), or fewer pinned models"
    return wire.Failed(None, "InsufficientMemoryError", what, hint)


async def _kill(process: asyncio.subprocess.Process) -> int:
    """End a process if it has not ended; return its code."""
    with contextlib.suppress(ProcessLookupError):
        process.kill()
    return await process.wait()
