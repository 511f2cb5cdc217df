"""Front: the models that the server offers, and how answers are sent. The dialects are written with it."""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
from starlette.responses import Response, StreamingResponse

from hotshoe.serve import wire
from hotshoe.serve.processes import BusyError, JobFailedError, ModelProcess, ModelSpec, ProcessLostError
from hotshoe.serve.requests import Answer, RequestError, explain
from hotshoe.serve.room import Room
from hotshoe.store import find
from hotshoe_core.errors import HotshoeError, similar

if TYPE_CHECKING:
    from hotshoe.serve.metrics import Metrics

__all__ = ["Front", "gather", "json_response", "merged"]

T = TypeVar("T")
_SECONDS_BETWEEN_LOOKS = 2.0
_SHOWN = 20  # names in a message
_HEARTBEAT = 15.0  # seconds of silence after which a line that clients ignore keeps the connection open


class Front:
    """The models that the server offers, and what all dialects need of them."""

    def __init__(
        self,
        specs: Sequence[ModelSpec],
        *,
        room: Room | None = None,
        aliases: Mapping[str, str] | None = None,
        stored: Callable[[], Iterable[ModelSpec]] = tuple,
        may_change: bool = False,
        max_jobs: int = 64,
        keys: frozenset[str] = frozenset(),
        hosts: frozenset[str] = frozenset(),
        strict: bool = False,
    ) -> None:
        """specs: the models that are loaded when the server starts. room: the memory that all share. aliases: other
        names of models. stored: returns the other models of this machine, which are loaded when a request names them.
        may_change: whether clients may pull, create and delete models. max_jobs: requests of a model that wait or are
        computed; more get status 429. keys: who may ask; empty for
        everybody. hosts: names of this server in addition to localhost and addresses. strict: refuse fields that would
        be ignored.
        """
        self.metrics = _metrics()
        """None without the package prometheus-client."""
        self.room = Room() if room is None else room
        self.max_jobs = max_jobs
        self.processes = {spec.name: self._process_of(spec) for spec in specs}
        self.first = tuple(self.processes.values())
        """The models that are loaded when the server starts."""
        self.aliases = dict(aliases or {})
        self.may_change = may_change
        self._stored = stored
        self._looked = -math.inf
        self.keys = keys
        self.hosts = hosts
        self.strict = strict
        self.started = int(time.time())

    def _process_of(self, spec: ModelSpec) -> ModelProcess:
        process = ModelProcess(spec, self.room, self.max_jobs)
        if self.metrics is not None:
            process.observe = self.metrics.observe
        return process

    def look(self, *, again: bool = False) -> None:
        """Look which models this machine has now, unless that was done a moment ago. again: look in any case."""
        if not again and time.monotonic() < self._looked + _SECONDS_BETWEEN_LOOKS:
            return
        specs = {spec.name: spec for spec in self._stored()}
        self._looked = time.monotonic()
        for name, process in list(self.processes.items()):
            is_used = process in self.first or process.is_loaded or process.is_loading or process.n_jobs
            if specs.get(name) != process.spec and not is_used:  # it is gone, or the name has another model now
                del self.processes[name]
                self.room.tenants.remove(process)
        for name, spec in specs.items():
            if name not in self.processes:
                self.processes[name] = self._process_of(spec)

    def listed(self) -> dict[str, ModelProcess]:
        """All models by the names that clients can use, aliases included."""
        self.look()
        others = {alias: process for alias, name in self.aliases.items() if (process := self.processes.get(name))}
        return self.processes | others

    def process(self, name: str) -> ModelProcess:
        """The model with this name; the only one, if the request names none. Raises RequestError if it is unknown."""
        if not name and len(self.first) == 1:
            return self.first[0]
        if (found := self._find(name)) is None:
            self.look()
            found = self._find(name)
        if found is None:
            names = list(self.processes)
            near = similar(name, [*names, *self.aliases])
            known = f"did you mean {near!r}?" if near else f"this server has {', '.join(names[:_SHOWN]) or 'none'}"
            raise RequestError(
                404, f"there is no model {name!r:.200}; {known}", param="model", code="model_not_found"
            )  # fmt: skip
        return found

    def _find(self, name: str) -> ModelProcess | None:
        """The model with this name: an alias, its own name, or a name that means it."""
        name = self.aliases.get(name, name)
        for each in (name, name.removesuffix(":latest")):
            if (found := self.processes.get(each)) is not None:
                return found
        try:
            return self.processes.get(find(name).name)
        except HotshoeError:
            return None

    def ignored(self, unknown: Iterable[str], harmless: Iterable[str]) -> list[str]:
        """The fields that have no effect. Raises RequestError for one of them if the server is strict."""
        names = sorted(unknown)
        if self.strict and names:
            why = "has no effect" if names[0] in harmless else "is unknown"
            raise RequestError(400, f"{names[0]} {why}, and this server is strict", param=names[0])
        return names

    async def loaded(self, name: str) -> wire.Ready:
        """What a model says of itself; it is loaded if it is not. Raises RequestError."""
        process = self.process(name)
        try:
            return await process.start()
        except (JobFailedError, ProcessLostError) as error:
            raise explain(error) from error

    async def described(self, name: str) -> wire.Ready:
        """What a model says of itself, without loading it. Raises RequestError."""
        try:
            return await self.process(name).describe()
        except JobFailedError as error:
            raise explain(error) from error

    async def result(self, process: ModelProcess, make: Callable[[int], wire.Job]) -> Any:
        """The only event of a job. Raises RequestError."""
        try:
            events = [event async for event in process.run(make)]
        except (BusyError, JobFailedError, ProcessLostError) as error:
            raise explain(error) from error
        return events[-1]

    def json(self, value: Any, ignored: Sequence[str] = ()) -> Response:
        """An answer as JSON."""
        return json_response(value, ignored)

    def stream(
        self, chunks: AsyncIterator[bytes], answers: Sequence[Answer], media_type: str = "text/event-stream"
    ) -> Response:
        """An answer that is sent while it is written."""
        beat = b": still working\n\n" if media_type == "text/event-stream" else b"\n"
        headers = _headers(answers[0].ignored) | {"cache-control": "no-cache"}
        return StreamingResponse(_with_heartbeat(chunks, beat), media_type=media_type, headers=headers)

    async def stop(self) -> None:
        """End all processes."""
        await asyncio.gather(*(process.stop() for process in self.processes.values()))


def _metrics() -> Metrics | None:
    try:
        from hotshoe.serve.metrics import Metrics
    except ImportError:
        return None
    return Metrics()


def _headers(ignored: Sequence[str]) -> dict[str, str]:
    names = ", ".join(name for name in ignored if name.isascii() and name.isprintable())[:1000].strip()
    return {"x-hotshoe-ignored": names} if names else {}  # HTTP forbids spaces around the value


def json_response(value: Any, ignored: Sequence[str] = (), status: int = 200) -> Response:
    """A response with a value as JSON, and a header that names the fields without effect."""
    return Response(msgspec.json.encode(value), status, _headers(ignored), "application/json")


async def gather(works: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """The results of all; if one fails, the others are cancelled."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def merged(sources: Sequence[AsyncIterator[T]]) -> AsyncIterator[tuple[int, T | None]]:
    """What the sources yield, with their number, as it comes; ``(i, None)`` when one has ended."""
    queue: asyncio.Queue[tuple[int, T | BaseException | None]] = asyncio.Queue()

    async def read(i: int, source: AsyncIterator[T]) -> None:
        try:
            async for value in source:
                queue.put_nowait((i, value))
            queue.put_nowait((i, None))
        except Exception as error:
            queue.put_nowait((i, error))

    tasks = [asyncio.create_task(read(i, source)) for i, source in enumerate(sources)]
    left = len(tasks)
    try:
        while left:
            i, value = await queue.get()
            if isinstance(value, BaseException):
                raise value
            left -= value is None
            yield i, value
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _with_heartbeat(chunks: AsyncIterator[bytes], beat: bytes) -> AsyncIterator[bytes]:
    source = merged([chunks])
    waiting = asyncio.ensure_future(anext(source))
    try:
        while True:
            done, _ = await asyncio.wait((waiting,), timeout=_HEARTBEAT)
            if not done:
                yield beat
                continue
            _, chunk = waiting.result()
            if chunk is None:
                return
            waiting = asyncio.ensure_future(anext(source))
            yield chunk
    finally:
        waiting.cancel()
        with contextlib.suppress(asyncio.CancelledError, StopAsyncIteration, Exception):
            await waiting
        await source.aclose()  # type: ignore[attr-defined]  # an async generator
