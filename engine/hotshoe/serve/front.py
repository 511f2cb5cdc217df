"""The front process: routes of HTTP to the dialects, who may ask, and the models' processes."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import ipaddress
import logging
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Sequence
from typing import Any, TypeVar

import msgspec
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from hotshoe.serve import ollama, openai, rerank, wire
from hotshoe.serve.processes import BusyError, JobFailedError, ModelProcess, ModelSpec, ProcessLostError
from hotshoe.serve.requests import Answer, RequestError, explain

__all__ = ["Front", "gather", "json_response", "make_app", "merged"]

T = TypeVar("T")
Handler = Callable[["Front", bytes], Coroutine[Any, Any, Any]]
_log = logging.getLogger(__name__)
_MAX_BODY = 32 << 20
_RETRY_AFTER = "1"
_HEARTBEAT = 15.0  # seconds of silence after which a line that clients ignore keeps the connection open


class Front:
    """The models that the server offers, and what all dialects need of them."""

    def __init__(
        self,
        specs: Sequence[ModelSpec],
        *,
        max_jobs: int = 64,
        keys: frozenset[str] = frozenset(),
        hosts: frozenset[str] = frozenset(),
        strict: bool = False,
    ) -> None:
        """max_jobs: requests of a model that wait or are computed; more get status 429. keys: who may ask; empty for
        everybody. hosts: names of this server in addition to localhost and addresses. strict: refuse fields that would
        be ignored.
        """
        loading = asyncio.Lock()
        self.processes = {spec.name: ModelProcess(spec, loading, max_jobs) for spec in specs}
        self.max_jobs = max_jobs
        self.keys = keys
        self.hosts = hosts
        self.strict = strict
        self.started = int(time.time())

    def process(self, name: str) -> ModelProcess:
        """The model with this name; the only one, if the request names none. Raises RequestError if it is unknown."""
        if not name and len(self.processes) == 1:
            return next(iter(self.processes.values()))
        found = self.processes.get(name) or self.processes.get(name.removesuffix(":latest"))
        if found is None:
            names = ", ".join(self.processes)
            raise RequestError(
                404, f"there is no model {name!r:.200}; this server has {names}", param="model", code="model_not_found"
            )
        return found

    def ignored(self, unknown: Iterable[str], harmless: Iterable[str]) -> list[str]:
        """The fields that have no effect. Raises RequestError for one of them if the server is strict."""
        names = sorted(unknown)
        if self.strict and names:
            why = "has no effect" if names[0] in harmless else "is unknown"
            raise RequestError(400, f"{names[0]} {why}, and this server is strict", param=names[0])
        return names

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

    async def load_all(self) -> None:
        """Load all models, one after the other. Raises JobFailedError."""
        for process in self.processes.values():
            await process.start()

    async def stop(self) -> None:
        """End all processes."""
        await asyncio.gather(*(process.stop() for process in self.processes.values()))


def _headers(ignored: Sequence[str]) -> dict[str, str]:
    names = ", ".join(name for name in ignored if name.isascii() and name.isprintable())
    return {"x-hotshoe-ignored": names[:1000]} if names else {}


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


class _Gate:
    """Refuses requests that come from a web page of another site, that have no key, or whose body is too long."""

    def __init__(self, app: ASGIApp, front: Front) -> None:
        self.app = app
        self.front = front

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        request = Request(scope)
        error = self._refusal(request)
        if error is not None:
            await json_response(openai.error_body(error), status=error.status)(scope, receive, send)
            return
        await self.app(scope, receive, send)

    def _refusal(self, request: Request) -> RequestError | None:
        for header in ("host", "origin"):
            value = request.headers.get(header, "")
            if value and not self._is_ours(value.partition("://")[2] or value):
                return RequestError(
                    403, f"{header} is {value!r:.200}, which is not a name of this server (--allow-host adds one)"
                )
        if self.front.keys and request.url.path != "/health":
            given = request.headers.get("x-api-key") or request.headers.get("authorization", "").removeprefix("Bearer ")
            if not sum(hmac.compare_digest(given.encode(), key.encode()) for key in self.front.keys):
                return RequestError(401, "the API key is missing or wrong", code="invalid_api_key")
        return None

    def _is_ours(self, host: str) -> bool:
        """An address, localhost, or an allowed name. A page of another site has another name (DNS rebinding)."""
        name = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
        if name == "localhost" or name.endswith(".localhost") or name in self.front.hosts:
            return True
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True


async def _body(request: Request) -> bytes:
    """The body. Raises RequestError beyond 32 MiB."""
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > _MAX_BODY:
            raise RequestError(413, f"the body is longer than {_MAX_BODY >> 20} MiB", code="body_too_long")
    return bytes(body)


async def _unless_gone(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """The result of ``work``, which is cancelled if the client leaves. Raises ClientDisconnect then."""
    task = asyncio.ensure_future(work)

    async def gone() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    watching = asyncio.ensure_future(gone())
    try:
        await asyncio.wait((task, watching), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientDisconnect
        return task.result()
    finally:
        for each in (task, watching):
            each.cancel()
        await asyncio.gather(task, watching, return_exceptions=True)


def _route(front: Front, path: str, handler: Handler, error_body: Callable[[RequestError], Any]) -> Route:
    async def answer(request: Request) -> Response:
        try:
            return await _unless_gone(request, handler(front, await _body(request)))
        except ClientDisconnect:
            return Response(status_code=499)
        except RequestError as error:
            response = json_response(error_body(error), status=error.status)
            if error.status == 429:
                response.headers["retry-after"] = _RETRY_AFTER
            return response

    return Route(path, answer, methods=["POST"])


def _get(front: Front, path: str, found: Callable[[Front], Any]) -> Route:
    async def answer(_: Request) -> Response:
        return json_response(found(front))

    return Route(path, answer, methods=["GET"])


def make_app(front: Front) -> Starlette:
    """The application of the server. Models are loaded when it starts, and their processes end with it."""

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        try:
            yield
        finally:
            await front.stop()

    routes = [
        _get(front, "/health", lambda _: {"status": "ok"}),
        _get(front, "/v1/models", openai.models),
        _route(front, "/v1/chat/completions", openai.chat, openai.error_body),
        _route(front, "/v1/completions", openai.completions, openai.error_body),
        _route(front, "/v1/embeddings", openai.embeddings, openai.error_body),
        *(_route(front, path, rerank.rerank, openai.error_body) for path in ("/v1/rerank", "/v2/rerank", "/rerank")),
        *(_get(front, f"/api/{name}", found) for name, found in ollama.LISTS.items()),
        *(_route(front, f"/api/{name}", found, ollama.error_body) for name, found in ollama.ACTIONS.items()),
    ]
    app = Starlette(routes=routes, lifespan=lifespan)
    app.add_middleware(_Gate, front=front)
    return app
