"""Changes to the models of this machine, in Ollama's dialect: pull, delete and create. Only with --allow-changes."""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import secrets
import threading
from collections.abc import AsyncIterator
from typing import Any

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse

from hotshoe.serve.front import Front, json_response
from hotshoe.serve.requests import RequestError, parse, refuse
from hotshoe.store import find, records
from hotshoe.store.delete import delete
from hotshoe.store.download import RemoteFile, pull
from hotshoe.store.names import CREATED_NAME
from hotshoe_core.errors import HotshoeError

__all__ = ["create", "delete_model", "pull_model", "upload"]

_DIGEST = re.compile(r"sha256:([0-9a-f]{64})")


class NameRequest(msgspec.Struct, kw_only=True):
    """The body of ``/api/pull`` and ``/api/delete``."""

    model: str = ""
    name: str = ""
    stream: bool = True
    insecure: bool = False


class CreateRequest(msgspec.Struct, kw_only=True):
    """The body of ``/api/create``."""

    model: str
    from_: str | None = msgspec.field(default=None, name="from")
    files: dict[str, str] | None = None
    stream: bool = True
    template: str | None = None
    system: str | None = None
    parameters: dict[str, Any] | None = None
    quantize: str | None = None
    adapters: dict[str, str] | None = None
    modelfile: str | None = None


def _require(front: Front, what: str) -> None:
    if not front.may_change:
        raise RequestError(403, f"{what} is not allowed; hotshoe serve --allow-changes allows it", code="not_allowed")


def _lines(front: Front, lines: AsyncIterator[dict[str, Any]]) -> StreamingResponse:
    async def encoded() -> AsyncIterator[bytes]:
        try:
            async for line in lines:
                yield msgspec.json.encode(line) + b"\n"
        except HotshoeError as error:
            yield msgspec.json.encode({"error": str(error)}) + b"\n"
        front.look(again=True)

    return StreamingResponse(encoded(), media_type="application/x-ndjson")


async def _last(lines: AsyncIterator[dict[str, Any]], front: Front) -> Response:
    last: dict[str, Any] = {}
    try:
        async for line in lines:
            last = line
    except HotshoeError as error:
        raise RequestError(500, str(error)) from None
    front.look(again=True)
    return json_response(last)


async def pull_model(front: Front, body: bytes) -> Any:
    """Answer ``/api/pull``: a model that is here is a success; another one comes from the hub, if that is allowed."""
    request, _ = parse(body, NameRequest)
    name = request.model or request.name
    refuse(request, {"insecure": (False,)})
    try:
        front.process(name)
    except RequestError:
        _require(front, "pulling a model")
        lines = _pulled(name)
    else:
        lines = _success()
    return _lines(front, lines) if request.stream else await _last(lines, front)


async def _success() -> AsyncIterator[dict[str, Any]]:
    yield {"status": "success"}


async def _pulled(name: str) -> AsyncIterator[dict[str, Any]]:
    """The lines of a pull. It ends when its client leaves; the next one goes on from there."""
    loop, queue, gone = asyncio.get_running_loop(), asyncio.Queue[dict[str, Any] | None](), threading.Event()

    def put(line: dict[str, Any] | None) -> None:
        loop.call_soon_threadsafe(queue.put_nowait, line)

    def progress(file: RemoteFile, n: int) -> None:
        if gone.is_set():
            raise ConnectionAbortedError("the client left")
        what = {"digest": f"sha256:{file.digest}", "total": file.size, "completed": n}
        put({"status": f"pulling {file.digest[:12]}"} | what)

    def work() -> None:
        try:
            pull(name, say=lambda line: put({"status": line}), progress=progress)
        finally:
            put(None)

    yield {"status": "pulling manifest"}
    working = asyncio.ensure_future(asyncio.to_thread(work))
    try:
        while (line := await queue.get()) is not None:
            yield line
        await working
    finally:
        gone.set()
        working.add_done_callback(lambda task: task.cancelled() or task.exception())
    yield {"status": "success"}


async def delete_model(front: Front, body: bytes) -> Any:
    """Answer ``/api/delete``: only models that were pulled or created, which nobody uses now."""
    request, _ = parse(body, NameRequest)
    _require(front, "deleting a model")
    process = front.process(request.model or request.name)
    if process in front.first or not process.spec.stored:
        raise RequestError(403, f"{process.name} was named when the server was started; it is not deleted")
    if process.n_jobs:
        raise RequestError(409, f"{process.name} works on {process.n_jobs} requests; delete it after them")
    try:
        model = find(process.spec.stored)
        await process.stop()
        delete(model)
    except HotshoeError as error:
        raise RequestError(403, str(error)) from None
    front.look(again=True)
    return Response(status_code=200)


async def create(front: Front, body: bytes) -> Any:
    """Answer ``/api/create``: a name for another model, or for a file that was uploaded."""
    request, unknown = parse(body, CreateRequest)
    _require(front, "creating a model")
    refuse(
        request,
        {
            "template": ("",),
            "system": ("",),
            "parameters": ({},),
            "quantize": ("",),
            "adapters": ({},),
            "modelfile": ("",),
        },
    )
    ignored = front.ignored(unknown, ())
    name = request.model.removesuffix(":latest")
    if not CREATED_NAME.fullmatch(name):
        raise RequestError(400, f"model is {name!r:.100}; expected letters, digits, '.', '_' and '-'", param="model")
    old = front.processes.get(name)
    if old is not None and (old in front.first or not records.read("created", name)):
        raise RequestError(409, f"there is a model {name!r} already", param="model")
    if old is not None and old.n_jobs:
        raise RequestError(409, f"{name} works on {old.n_jobs} requests; create it after them")
    if request.files:
        record = _uploaded(request.files)
    elif request.from_:
        stored = front.process(request.from_).spec.stored
        source = records.read("created", stored)
        record = source or {"from": stored}
        if not stored:
            raise RequestError(400, f"{request.from_} has no name of its own on this machine", param="from")
    else:
        raise RequestError(400, "expected from, or files with one GGUF file", param="from")
    records.remember("created", name, record | {"key": name})
    if old is not None:  # the name may have another model now
        await old.stop()
    front.look(again=True)
    return json_response({"status": "success"}, ignored)


def _uploaded(files: dict[str, str]) -> dict[str, Any]:
    [digest, *more] = files.values()
    found = _DIGEST.fullmatch(digest)
    path = records.data_folder() / "uploads" / f"sha256-{found[1]}.gguf" if found else None
    if more or path is None or found is None or not path.is_file():
        raise RequestError(400, "expected one file, which was sent to /api/blobs/sha256:… before", param="files")
    return {"file": str(path), "digest": found[1]}


async def upload(front: Front, request: Request) -> Response:
    """Answer ``/api/blobs/sha256:…``: HEAD says whether a file is there, POST brings it."""
    _require(front, "uploading a file")
    found = _DIGEST.fullmatch(request.path_params["digest"])
    if found is None:
        raise RequestError(400, "expected /api/blobs/sha256: and 64 hexadecimal digits")
    path = records.data_folder() / "uploads" / f"sha256-{found[1]}.gguf"
    if request.method == "HEAD":
        return Response(status_code=200 if path.is_file() else 404)
    path.parent.mkdir(parents=True, exist_ok=True)
    part, hashed = path.with_name(f"{secrets.token_hex(8)}.part"), hashlib.sha256()
    try:
        with open(part, "wb") as target:
            async for data in request.stream():
                hashed.update(data)
                await asyncio.to_thread(target.write, data)
        if hashed.hexdigest() != found[1]:
            raise RequestError(400, f"the file's hash is {hashed.hexdigest()[:12]}…; expected {found[1][:12]}…")
        os.replace(part, path)
    except ClientDisconnect:
        return Response(status_code=499)
    except OSError as error:
        raise RequestError(507, f"the file cannot be written: {error.strerror}") from None
    finally:
        part.unlink(missing_ok=True)
    return Response(status_code=201)
