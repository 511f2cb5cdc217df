"""The application: routes of HTTP to the dialects, and who may ask."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import ipaddress
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, TypeVar

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from hotshoe.serve import anthropic, changes, native, ollama, openai, page_files
from hotshoe.serve.endpoints import ENDPOINTS, Endpoint, respond
from hotshoe.serve.front import Front, json_response
from hotshoe.serve.openapi import description
from hotshoe.serve.requests import RequestError
from hotshoe.serve.status import Devices, status
from hotshoe_core.errors.install import pip_install

__all__ = ["make_app"]

T = TypeVar("T")
_MAX_BODY = 32 << 20


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
            shape = anthropic.error_body if request.url.path.startswith("/v1/messages") else openai.error_body
            await json_response(shape(error), status=error.status)(scope, receive, send)
            return
        await self.app(scope, receive, send)

    def _refusal(self, request: Request) -> RequestError | None:
        if header := self._foreign(request):
            value = request.headers[header]
            return RequestError(
                403, f"{header} is {value!r:.200}, which is not a name of this server (--allow-host adds one)"
            )
        if self.front.keys and request.url.path != "/health" and not page_files.is_page(request.url.path):
            given = request.headers.get("x-api-key") or request.headers.get("authorization", "").removeprefix("Bearer ")
            if not sum(hmac.compare_digest(given.encode(), key.encode()) for key in self.front.keys):
                return RequestError(401, "the API key is missing or wrong", code="invalid_api_key")
        return None

    def _foreign(self, request: Request) -> str:
        """The header that names another site; "" if both are allowed.

        A client may call the server by an address, by localhost, or by an allowed name. Another name is that of a site
        which leads here (DNS rebinding). A page may ask if it is of this machine, of the same host, or of an allowed
        name.
        """
        host, origin = (_host_of(request.headers.get(header, "")) for header in ("host", "origin"))
        if host and not (self._is_allowed(host) or _address(host)):
            return "host"
        page = _address(origin)
        if origin and origin != host and not (self._is_allowed(origin) or (page and page.is_loopback)):
            return "origin"
        return ""

    def _is_allowed(self, name: str) -> bool:
        return name == "localhost" or name.endswith(".localhost") or name in self.front.hosts


def _host_of(value: str) -> str:
    """The name or address in a header, without its scheme and its port."""
    value = value.partition("://")[2] or value
    return value[1:].partition("]")[0] if value.startswith("[") else value.partition(":")[0]


def _address(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(name)
    except ValueError:
        return None


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


def _route(front: Front, endpoint: Endpoint) -> Route:
    async def answer(request: Request) -> Response:
        async def work() -> Response:
            return await _unless_gone(request, endpoint.handler(front, await _body(request)))

        try:
            return await respond(endpoint, work())
        except ClientDisconnect:
            return Response(status_code=499)

    return Route(endpoint.path, answer, methods=[endpoint.method])


def _get(front: Front, path: str, found: Callable[[Front], Any]) -> Route:
    async def answer(_: Request) -> Response:
        return json_response(found(front))

    return Route(path, answer, methods=["GET"])


def _model(front: Front) -> Callable[[Request], Coroutine[Any, Any, Response]]:
    async def answer(request: Request) -> Response:
        try:
            return json_response(openai.model(front, request.path_params["name"]))
        except RequestError as error:
            return json_response(openai.error_body(error), status=error.status)

    return answer


async def _root(request: Request) -> Response:
    """The page for a browser, and a line of JSON for other programs."""
    page = page_files.page_response("index.html", request)
    if page is not None and "text/html" in request.headers.get("accept", ""):
        return page
    return json_response({"hotshoe": "running", "models": "/v1/models", "help": "docs/serve.md"})


def _devices(devices: Devices) -> Callable[[Request], Coroutine[Any, Any, Response]]:
    async def answer(_: Request) -> Response:
        try:
            return json_response(await devices.get())
        except RequestError as error:
            return json_response(openai.error_body(error), status=error.status)

    return answer


def _metrics(front: Front) -> Callable[[Request], Coroutine[Any, Any, Response]]:
    async def answer(_: Request) -> Response:
        if front.metrics is None:
            install = pip_install("hotshoe[serve]")
            error = RequestError(501, f"/metrics needs the package prometheus-client: {install}")
            return json_response(openai.error_body(error), status=501)
        return Response(front.metrics.text(front.processes.values()), media_type="text/plain; version=0.0.4")

    return answer


def _props(front: Front) -> Callable[[Request], Coroutine[Any, Any, Response]]:
    async def answer(request: Request) -> Response:
        try:
            return json_response(await native.props(front, request.query_params.get("model", "")))
        except RequestError as error:
            return json_response(openai.error_body(error), status=error.status)

    return answer


def _upload(front: Front) -> Callable[[Request], Coroutine[Any, Any, Response]]:
    async def answer(request: Request) -> Response:
        try:
            return await changes.upload(front, request)
        except RequestError as error:
            return json_response(ollama.error_body(error), status=error.status)

    return answer


def make_app(front: Front) -> Starlette:
    """The application of the server. The first request of a model loads it unless it is loaded; all end with it."""

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        unloading = asyncio.create_task(front.room.unload_unused())
        try:
            yield
        finally:
            unloading.cancel()
            await front.stop()

    routes = [
        _get(front, "/health", lambda _: {"status": "ok"}),
        Route("/", _root, methods=["GET"]),
        _get(front, "/openapi.json", lambda _: description()),
        *page_files.routes(),
        _get(front, "/api/status", status),
        Route("/api/devices", _devices(Devices()), methods=["GET"]),
        Route("/metrics", _metrics(front), methods=["GET"]),
        Route("/props", _props(front), methods=["GET"]),
        _get(front, "/v1/models", openai.models),
        Route("/v1/models/{name:path}", _model(front), methods=["GET"]),
        *(_get(front, f"/api/{name}", found) for name, found in ollama.LISTS.items()),
        *(_route(front, endpoint) for endpoint in ENDPOINTS),
        Route("/api/blobs/{digest}", _upload(front), methods=["HEAD", "POST"]),
    ]

    async def not_here(request: Request, error: Exception) -> Response:
        status = error.status_code if isinstance(error, HTTPException) else 500
        what = f"{request.method} {request.url.path}"
        return json_response(
            openai.error_body(RequestError(status, f"this server has no {what}; docs/serve.md lists what it has")),
            status=status,
        )

    app = Starlette(routes=routes, lifespan=lifespan, exception_handlers={404: not_here, 405: not_here})
    app.add_middleware(_Gate, front=front)
    return app
