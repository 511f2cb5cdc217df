"""Ollama's dialect: version, tags, ps, show, chat, generate, embed and embeddings. Answers are lines of JSON."""

from __future__ import annotations

import hashlib
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from hotshoe.serve import wire
from hotshoe.serve.durations import seconds_of
from hotshoe.serve.front import Front, json_response
from hotshoe.serve.openai import shortened
from hotshoe.serve.processes import ModelProcess
from hotshoe.serve.requests import (
    Answer,
    RequestError,
    joined,
    parse,
    pictures_of_ollama,
    plain_messages,
    refuse,
    tools_of,
)
from hotshoe_core.errors import OptionError

__all__ = ["ACTIONS", "LISTS", "capabilities", "error_body"]

_VERSION = "0.12.0"
"""The version of Ollama whose interface this is; clients refuse older ones."""
_OPTIONS = {
    "temperature": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "typical_p": "typical_p",
    "repeat_penalty": "repetition_penalty",
    "presence_penalty": "presence_penalty",
    "frequency_penalty": "frequency_penalty",
    "seed": "seed",
    "stop": "stop",
}
"""Ollama's options, and the fields of SamplingParams."""
_HARMLESS = ("num_gpu", "num_thread", "num_batch", "main_gpu", "use_mmap", "numa", "num_keep", "low_vram")
_NANOSECONDS = 1e9


class ChatRequest(msgspec.Struct, kw_only=True):
    """The body of ``/api/chat``."""

    model: str
    messages: list[dict[str, Any]] = []
    stream: bool = True
    format: str | dict[str, Any] | None = None
    options: dict[str, Any] = {}
    tools: list[Any] | None = None
    think: bool | str | None = None
    keep_alive: int | float | str | None = None


class GenerateRequest(msgspec.Struct, kw_only=True):
    """The body of ``/api/generate``."""

    model: str
    prompt: str = ""
    system: str | None = None
    stream: bool = True
    raw: bool = False
    format: str | dict[str, Any] | None = None
    options: dict[str, Any] = {}
    suffix: str | None = None
    images: list[Any] | None = None
    template: str | None = None
    context: list[int] | None = None
    think: bool | str | None = None
    keep_alive: int | float | str | None = None


class EmbedRequest(msgspec.Struct, kw_only=True):
    """The body of ``/api/embed``."""

    model: str
    input: str | list[str]
    truncate: bool = True
    dimensions: int | None = None
    keep_alive: int | float | str | None = None


class EmbeddingsRequest(msgspec.Struct, kw_only=True):
    """The body of ``/api/embeddings``, the older form of ``/api/embed``."""

    model: str
    prompt: str
    keep_alive: int | float | str | None = None


class ShowRequest(msgspec.Struct, kw_only=True):
    """The body of ``/api/show``."""

    model: str = ""
    name: str = ""


def error_body(error: RequestError) -> dict[str, Any]:
    """An error as Ollama's clients read it."""
    return {"error": error.message}


def _now() -> str:
    return datetime.now(UTC).isoformat().replace("+00:00", "Z")


def _details(process: ModelProcess) -> dict[str, Any]:
    family = process.about.architecture if process.about else ""
    return {"format": "gguf", "family": family, "families": [family] if family else []}


def _entry(process: ModelProcess) -> dict[str, Any]:
    path = Path(process.spec.path)
    found = path.stat() if path.is_file() else None
    digest = hashlib.sha256(f"{path.absolute()} {found.st_mtime_ns if found else 0}".encode()).hexdigest()
    modified = datetime.fromtimestamp(found.st_mtime if found else 0, UTC).isoformat()
    return {
        "name": process.spec.name,
        "model": process.spec.name,
        "modified_at": modified,
        "size": found.st_size if found else 0,
        "digest": digest,
        "details": _details(process),
    }


def _tags(front: Front) -> dict[str, Any]:
    return {"models": [_entry(process) | {"name": name, "model": name} for name, process in front.listed().items()]}


def _ps(front: Front) -> dict[str, Any]:
    """The models that are loaded, with the device of each, and why it was chosen."""
    found = []
    for process in front.processes.values():
        if (ready := process.ready) is not None:
            on_gpu = 0 if ready.device == "cpu" else ready.nbytes
            found.append(
                _entry(process)
                | {"size_vram": on_gpu, "context_length": ready.n_ctx, "device": ready.device, "why": ready.why}
                | {"requests": process.n_jobs, "expires_at": _expires_at(process), "pinned": process.is_pinned}
                | {"size_needed": sum(process.needs.values())}
            )
    gone = [unloaded._asdict() for unloaded in front.room.unloaded]
    return {"models": found, "unloaded": gone}


def _expires_at(process: ModelProcess) -> str:
    """When the model is unloaded if nobody uses it until then."""
    if process.keep_alive is None:
        return "9999-12-31T23:59:59Z"
    left = process.last_used + process.keep_alive - time.monotonic()
    return datetime.fromtimestamp(time.time() + left, UTC).isoformat().replace("+00:00", "Z")


async def _kept(front: Front, name: str, given: float | str | None) -> wire.Ready:
    """Load a model unless it is loaded. ``keep_alive`` says for how long it stays when nobody uses it."""
    process = front.process(name)
    if given is not None:
        process.keep_alive = None if process.is_pinned else _seconds(given)
    return await front.loaded(name)


def _seconds(keep_alive: float | str) -> float | None:
    try:
        return seconds_of("keep_alive", keep_alive)
    except OptionError as error:
        raise RequestError(400, error.message, param="keep_alive") from None


def capabilities(ready: wire.Ready) -> list[str]:
    """What a model can do, in Ollama's words."""
    kind = {"text": "completion", "embedding": "embedding", "rerank": "rerank"}[ready.task]
    return [
        kind,
        *["tools"] * ready.calls,
        *["thinking"] * ready.thinks,
        *["vision"] * ready.sees,
        *["audio"] * ready.hears,
    ]


async def _show(front: Front, body: bytes) -> Any:
    request, _ = parse(body, ShowRequest)
    process = front.process(request.model or request.name)
    ready = await front.described(request.model or request.name)
    info = {
        "general.architecture": ready.architecture,
        "general.basename": ready.name,
        f"{ready.architecture}.context_length": ready.n_ctx,  # what this server takes, not what the file says
        f"{ready.architecture}.embedding_length": ready.dim,
    }
    return front.json(
        {
            "details": _details(process),
            "model_info": info,
            "capabilities": capabilities(ready),
            "template": ready.chat_template,
            "parameters": f"num_ctx {ready.n_ctx}",
            "modelfile": "",
            "modified_at": _entry(process)["modified_at"],
        }
    )


async def _load_or_unload(
    front: Front, request: ChatRequest | GenerateRequest, unknown: list[str], empty: dict[str, Any]
) -> Any:
    """Answer a request without a text: it loads the model or, if ``keep_alive`` is 0, unloads it."""
    process, ignored = front.process(request.model), front.ignored(unknown, _HARMLESS)
    unloads = request.keep_alive is not None and _seconds(request.keep_alive) == 0
    if unloads and process.n_jobs:
        raise RequestError(409, f"{process.name} works on {process.n_jobs} requests; unload it after them")
    if unloads:
        await process.stop()
    else:
        await _kept(front, request.model, request.keep_alive)
    done = {"done": True, "done_reason": "unload" if unloads else "load"}
    return json_response({"model": request.model, "created_at": _now()} | empty | done, ignored)


async def _chat(front: Front, body: bytes) -> Any:
    request, unknown = parse(body, ChatRequest)
    if not request.messages:
        return await _load_or_unload(front, request, unknown, {"message": {"role": "assistant", "content": ""}})
    ready, tools = await _kept(front, request.model, request.keep_alive), tools_of(request.tools)
    if tools and not ready.calls:
        raise RequestError(400, f"{request.model} does not support tools", param="tools")
    options = {} if request.think is None else {"enable_thinking": bool(request.think)}
    if request.think and not ready.thinks:
        raise RequestError(400, f"{request.model} does not support thinking", param="think")
    options = {name: value for name, value in options.items() if name in ready.chat_template}
    job = wire.TextJob(
        0, messages=plain_messages(request.messages, ready), tools=tools, template_options=options,
        **_format(request.format),
    )  # fmt: skip

    def written(text: str, reasoning: str, calls: list[wire.CallMade]) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": text}
        if reasoning:
            message["thinking"] = reasoning
        if calls:
            message["tool_calls"] = [{"function": {"name": c.name, "arguments": _object(c)}} for c in calls]
        return {"message": message}

    return await _answer(front, request, unknown, job, written)


def _object(call: wire.CallMade) -> Any:
    """The arguments of a call, as Ollama's clients read them."""
    try:
        return msgspec.json.decode(call.arguments)
    except msgspec.DecodeError:
        return {}


async def _generate(front: Front, body: bytes) -> Any:
    request, unknown = parse(body, GenerateRequest)
    refuse(
        request,
        {"template": ("",), "context": ([],), "think": (False,)},
    )
    if not (request.prompt or request.suffix or request.images):
        return await _load_or_unload(front, request, unknown, {"response": ""})
    ready = await _kept(front, request.model, request.keep_alive)
    if request.suffix or request.raw or not ready.chats:
        refuse(request, {"images": ([],)})
        if request.system:
            raise RequestError(
                400, "system needs a model with a chat format, no suffix, and raw: false", param="system"
            )
        job = wire.TextJob(0, prompt=request.prompt, suffix=request.suffix or None, **_format(request.format))
    else:
        system: list[dict[str, Any]] = [{"role": "system", "content": request.system}] if request.system else []
        pictures = pictures_of_ollama("images", request.images, ready)
        messages: list[dict[str, Any]] = [*system, {"role": "user", "content": joined([*pictures, request.prompt])}]
        job = wire.TextJob(0, messages=messages, **_format(request.format))
    return await _answer(front, request, unknown, job, lambda text, _, __: {"response": text})


def _format(format: str | dict[str, Any] | None) -> dict[str, Any]:
    if format in (None, ""):
        return {}
    if isinstance(format, dict):
        return {"json_schema": format}
    if format == "json":
        return {"json_schema": {"type": "object"}}
    raise RequestError(400, f"format is {format!r:.100}; expected 'json' or a JSON schema", param="format")


def _params(process: ModelProcess, options: dict[str, Any], unknown: list[str]) -> dict[str, Any]:
    """Fields of SamplingParams, from Ollama's options. Adds the options without effect to ``unknown``."""
    params: dict[str, Any] = {}
    for name, value in options.items():
        if value is None:
            continue
        if name in _OPTIONS:
            params[_OPTIONS[name]] = value
        elif name == "num_predict":
            if value != -1:
                params["max_tokens"] = value
        elif name == "repeat_last_n":
            params["penalty_window"] = None if value == -1 else value
        elif name == "num_ctx":
            n_ctx = process.ready.n_ctx if process.ready else 0
            if isinstance(value, int) and value > n_ctx:
                raise RequestError(
                    400,
                    f"num_ctx is {value}, but {process.spec.name} was loaded with a context of {n_ctx} tokens (--ctx)",
                    param="options.num_ctx",
                )
        else:
            unknown.append(f"options.{name}")
    return params


Written = Callable[[str, str, list[wire.CallMade]], dict[str, Any]]
"""Makes the part of an answer from its text, its reasoning and its calls."""


async def _answer(front: Front, request: Any, unknown: list[str], job: wire.TextJob, written: Written) -> Any:
    start = time.perf_counter()
    await front.loaded(request.model)
    loaded = time.perf_counter()
    process = front.process(request.model)
    params = _params(process, request.options, unknown)
    answer = Answer(process, msgspec.structs.replace(job, params=params), front.ignored(unknown, _HARMLESS))

    def head() -> dict[str, Any]:
        return {"model": request.model, "created_at": _now()}

    def last() -> dict[str, Any]:
        done = answer.finished
        assert done is not None
        return {
            "done": True,
            "done_reason": "length" if done.reason in ("length", "context") else "stop",
            "total_duration": round((time.perf_counter() - start) * _NANOSECONDS),
            "load_duration": round((loaded - start) * _NANOSECONDS),
            "prompt_eval_count": done.n_prompt,
            "prompt_eval_duration": round(done.prompt_seconds * _NANOSECONDS),
            "eval_count": done.n_tokens,
            "eval_duration": round(done.decode_seconds * _NANOSECONDS),
            "timings": answer.timings(),
        }

    async def lines() -> AsyncIterator[bytes]:
        try:
            async for piece in answer.pieces():
                if isinstance(piece, wire.CallMade):
                    part = written("", "", [piece])
                else:
                    part = written("", piece.text, []) if piece.kind == "reasoning" else written(piece.text, "", [])
                yield msgspec.json.encode(head() | part | {"done": False}) + b"\n"
            yield msgspec.json.encode(head() | written("", "", []) | last()) + b"\n"
        except RequestError as error:
            yield msgspec.json.encode(error_body(error)) + b"\n"

    if request.stream:
        return front.stream(lines(), [answer], "application/x-ndjson")
    await answer.whole()
    return json_response(head() | written(answer.text, answer.reasoning, answer.calls) | last(), answer.ignored)


async def _embed(front: Front, body: bytes) -> Any:
    request, unknown = parse(body, EmbedRequest)
    ignored = front.ignored(unknown, _HARMLESS)
    texts = [request.input] if isinstance(request.input, str) else request.input
    await _kept(front, request.model, request.keep_alive)
    vectors, n = await _vectors(front, request.model, texts, request.truncate)
    if request.dimensions is not None:
        vectors = [shortened(v, request.dimensions) for v in vectors]
    found = {"model": request.model, "embeddings": [v.tolist() for v in vectors], "prompt_eval_count": n}
    return front.json(found, ignored)


async def _embeddings(front: Front, body: bytes) -> Any:
    request, unknown = parse(body, EmbeddingsRequest)
    ignored = front.ignored(unknown, _HARMLESS)
    await _kept(front, request.model, request.keep_alive)
    [vector], _ = await _vectors(front, request.model, [request.prompt], True)
    return front.json({"embedding": vector.tolist()}, ignored)


async def _vectors(
    front: Front, model: str, texts: list[str], truncate: bool
) -> tuple[list[np.ndarray[Any, Any]], int]:
    if not texts:
        return [], 0
    event = await front.result(front.process(model), lambda number: wire.EmbedJob(number, texts, truncate))
    return [np.frombuffer(v, "<f4") for v in event.vectors], event.n_tokens


LISTS: dict[str, Callable[[Any], Any]] = {
    "version": lambda _: {"version": _VERSION},
    "tags": _tags,
    "ps": _ps,
}
"""What GET answers."""
ACTIONS: dict[str, tuple[Callable[[Any, bytes], Coroutine[Any, Any, Any]], type[msgspec.Struct]]] = {
    "show": (_show, ShowRequest),
    "chat": (_chat, ChatRequest),
    "generate": (_generate, GenerateRequest),
    "embed": (_embed, EmbedRequest),
    "embeddings": (_embeddings, EmbeddingsRequest),
}
"""What POST answers, and the form of the body."""
