"""Anthropic's dialect: messages and messages/count_tokens."""

from __future__ import annotations

import re
import uuid
from collections.abc import AsyncIterator
from typing import Any

import msgspec

from hotshoe.serve import wire
from hotshoe.serve.front import Front, json_response
from hotshoe.serve.processes import ModelProcess
from hotshoe.serve.requests import (
    Answer,
    RequestError,
    joined,
    media_part,
    must_call,
    parse,
    schema_of_tool,
)

__all__ = ["count_tokens", "error_body", "messages"]

_HARMLESS = ("metadata", "service_tier", "context_management", "container", "mcp_servers", "inference_geo", "betas")
_ERRORS = {400: "invalid_request_error", 401: "authentication_error", 403: "permission_error", 404: "not_found_error",
           413: "request_too_large", 429: "rate_limit_error", 503: "overloaded_error"}  # fmt: skip
_REASONS = {"length": "max_tokens", "context": "model_context_window_exceeded"}


class MessagesRequest(msgspec.Struct, kw_only=True):
    """The body of ``/v1/messages``; of ``count_tokens`` without what concerns the answer."""

    model: str
    messages: list[dict[str, Any]]
    max_tokens: int | None = None
    system: str | list[dict[str, Any]] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: dict[str, Any] | None = None
    stop_sequences: list[str] | None = None
    stream: bool = False
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    thinking: dict[str, Any] | None = None
    output_config: dict[str, Any] | None = None


def error_body(error: RequestError) -> dict[str, Any]:
    """An error as Anthropic's clients read it."""
    message = error.message
    too_long = re.search(r"(\d+) tokens were given; the context holds (\d+)", message)
    if too_long is not None:  # the words by which clients know it
        message = f"prompt is too long: {too_long[1]} tokens > {too_long[2]} maximum"
    return {"type": "error", "error": {"type": _ERRORS.get(error.status, "api_error"), "message": message}}


async def messages(front: Front, body: bytes) -> Any:
    """Answer ``/v1/messages``."""
    request, unknown = parse(body, MessagesRequest)
    if request.max_tokens is None:
        raise RequestError(400, "max_tokens: Field required", param="max_tokens")
    process = _process(front, request.model)
    ready = await front.loaded(process.spec.name)
    job = _job(request, ready, unknown)
    names = {"max_tokens": "max_tokens", "temperature": "temperature", "top_p": "top_p", "top_k": "top_k"}
    params = {ours: value for theirs, ours in names.items() if (value := getattr(request, theirs)) is not None}
    if request.stop_sequences:
        params["stop"] = request.stop_sequences
    answer = Answer(process, msgspec.structs.replace(job, params=params), front.ignored(unknown, _HARMLESS))
    head = {"id": f"msg_{uuid.uuid4().hex}", "type": "message", "role": "assistant", "model": process.spec.name}
    if request.stream:
        return front.stream(_events(answer, head), [answer])
    done = await answer.whole()
    content: list[dict[str, Any]] = []
    if answer.reasoning:
        content.append({"type": "thinking", "thinking": answer.reasoning, "signature": ""})
    if answer.text or not answer.calls:
        content.append({"type": "text", "text": answer.text})
    content += [_use(call) | {"input": _input(call)} for call in answer.calls]
    found = head | {"content": content, **_ending(answer), "usage": _usage(done.n_prompt, done.n_cached, done.n_tokens)}
    return json_response(found | {"timings": answer.timings()}, answer.ignored)


async def count_tokens(front: Front, body: bytes) -> Any:
    """Answer ``/v1/messages/count_tokens``."""
    request, unknown = parse(body, MessagesRequest)
    process = _process(front, request.model)
    job = _job(request, await front.loaded(process.spec.name), unknown)

    def make(number: int) -> wire.CountJob:
        return wire.CountJob(number, job.messages or [], job.tools, job.template_options)

    event = await front.result(process, make)
    return json_response({"input_tokens": event.n_tokens}, front.ignored(unknown, _HARMLESS))


def _process(front: Front, name: str) -> ModelProcess:
    """The model with this name. A name of Anthropic's own, which agents send unasked, is the first text model."""
    if name.startswith("claude-") and name not in front.processes:
        for process in front.processes.values():
            if process.ready is None or process.ready.task == "text":
                return process
    return front.process(name)


def _job(request: MessagesRequest, ready: wire.Ready, unknown: list[str]) -> wire.TextJob:
    """The job of a request. Adds the fields without effect to ``unknown``."""
    found: list[dict[str, Any]] = []
    system = _system(request.system)
    if system:
        found.append({"role": "system", "content": system})
    for i, message in enumerate(request.messages):
        found += _converted(i, message, ready)
    if not request.messages:
        raise RequestError(400, "messages: at least one message is required", param="messages")
    choice = (request.tool_choice or {"type": "auto"}).get("type")
    tools = [_tool(i, tool) for i, tool in enumerate(request.tools or ())] if choice != "none" else []
    called = must_call(request.tool_choice, tools)
    budget = (request.thinking or {}).get("budget_tokens") if ready.thinks else None
    if budget is not None and (type(budget) is not int or budget < 0):
        raise RequestError(400, "thinking.budget_tokens is not a number of tokens", param="thinking.budget_tokens")
    if tools and not ready.calls:
        raise RequestError(400, "tools: the chat format of this model has no tools, or their calls cannot be read")
    return wire.TextJob(
        0, messages=found, tools=tools or None, template_options=_options(request, ready, unknown), must_call=called,
        several_calls=not (request.tool_choice or {}).get("disable_parallel_tool_use"), reasoning_budget=budget,
    )  # fmt: skip


def _options(request: MessagesRequest, ready: wire.Ready, unknown: list[str]) -> dict[str, Any]:
    """Variables of the chat template for thinking and effort, where it has them."""
    options: dict[str, Any] = {}
    thinking = request.thinking or {}
    if "type" in thinking and "enable_thinking" in ready.chat_template:
        options["enable_thinking"] = thinking["type"] != "disabled"
    elif thinking.get("type", "disabled") != "disabled" and not ready.thinks:
        unknown.append("thinking")
    known = ("type", "budget_tokens") if ready.thinks else ("type",)
    unknown += [f"thinking.{name}" for name in thinking if name not in known]
    for name, value in (request.output_config or {}).items():
        if name == "effort" and "reasoning_effort" in ready.chat_template:
            options["reasoning_effort"] = value
        elif name == "format":
            raise RequestError(400, "output_config.format is not supported", param="output_config.format")
        else:
            unknown.append(f"output_config.{name}")
    return options


def _system(system: str | list[dict[str, Any]] | None) -> str:
    text = system if isinstance(system, str) else "\n".join(_text("system", block) for block in system or ())
    return text.strip("\n")


def _text(place: str, block: Any) -> str:
    if isinstance(block, dict) and block.get("type") == "text" and isinstance(block.get("text"), str):
        text: str = block["text"]
        return text
    kind = block.get("type") if isinstance(block, dict) else type(block).__name__
    raise RequestError(400, f"{place}: a block of type {kind!r:.40}; this model reads texts only", param=place)


def _converted(i: int, message: dict[str, Any], ready: wire.Ready) -> list[dict[str, Any]]:
    """A message in OpenAI's form: results of tools are messages of their own."""
    role, content = message.get("role"), message.get("content")
    if role not in ("user", "assistant", "system"):
        raise RequestError(400, f"messages.{i}.role is {role!r:.40}; expected user or assistant", param=f"messages.{i}")
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
    if not isinstance(blocks, list):
        raise RequestError(400, f"messages.{i}.content is not a text or a list of blocks", param=f"messages.{i}")
    texts: list[str | dict[str, Any]] = []
    calls, thoughts, results = [], [], []
    for j, block in enumerate(blocks):
        place, kind = f"messages.{i}.content.{j}", block.get("type") if isinstance(block, dict) else None
        if kind == "tool_use":
            function = {"name": block.get("name"), "arguments": block.get("input") or {}}
            calls.append({"id": block.get("id"), "type": "function", "function": function})
        elif kind == "tool_result":
            inner = block.get("content") or ""
            if not isinstance(inner, (str, list)):
                raise RequestError(400, f"{place}.content is not a text or a list of blocks", param=place)
            text = inner if isinstance(inner, str) else "\n".join(_text(place, each) for each in inner)
            text = f"Error: {text}" if block.get("is_error") else text
            results.append({"role": "tool", "tool_call_id": str(block.get("tool_use_id")), "content": text})
        elif kind == "thinking":
            thoughts.append(str(block.get("thinking", "")))
        elif kind != "redacted_thinking":
            found_part = media_part(place, block, ready)
            texts.append(_text(place, block) if found_part is None else found_part)
    found = list(results)
    if texts or calls or thoughts or not results:
        entry: dict[str, Any] = {"role": role, "content": joined(texts, "\n")}
        if calls:
            entry["tool_calls"] = calls
        if thoughts:
            entry["reasoning_content"] = "\n".join(thoughts)
        found.append(entry)
    return found


def _tool(i: int, tool: dict[str, Any]) -> dict[str, Any]:
    if tool.get("type", "custom") != "custom":
        raise RequestError(
            400, f"tools.{i} is of type {tool['type']!r:.40}, which this server does not run", param=f"tools.{i}"
        )
    if not isinstance(tool.get("name"), str):
        raise RequestError(400, f"tools.{i} has no name", param=f"tools.{i}.name")
    function = {"name": tool["name"], "parameters": schema_of_tool(f"tools.{i}.input_schema", tool.get("input_schema"))}
    if tool.get("description"):
        function["description"] = tool["description"]
    return {"type": "function", "function": function}


def _use(call: wire.CallMade) -> dict[str, Any]:
    return {"type": "tool_use", "id": f"toolu_{uuid.uuid4().hex[:24]}", "name": call.name, "input": {}}


def _input(call: wire.CallMade) -> Any:
    try:
        return msgspec.json.decode(call.arguments)
    except msgspec.DecodeError:
        return {}


def _ending(answer: Answer) -> dict[str, Any]:
    done = answer.finished
    assert done is not None
    reason = _REASONS.get(done.reason, "end_turn")
    if reason == "end_turn" and answer.calls:
        reason = "tool_use"
    elif done.stop_text is not None:
        reason = "stop_sequence"
    return {"stop_reason": reason, "stop_sequence": done.stop_text}


def _usage(n_prompt: int, n_cached: int, n_tokens: int) -> dict[str, int]:
    return {
        "input_tokens": n_prompt - n_cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": n_cached,
        "output_tokens": n_tokens,
    }


async def _events(answer: Answer, head: dict[str, Any]) -> AsyncIterator[bytes]:
    """Server-sent events: blocks that begin, grow and end."""

    def event(kind: str, **values: Any) -> bytes:
        return f"event: {kind}\ndata: ".encode() + msgspec.json.encode({"type": kind, **values}) + b"\n\n"

    index, now = -1, ""  # the block that is open
    try:
        async for piece in answer.events():
            if isinstance(piece, wire.Started):
                usage = _usage(piece.n_prompt, piece.n_cached, 0)
                start = head | {"content": [], "stop_reason": None, "stop_sequence": None, "usage": usage}
                yield event("message_start", message=start)
                yield event("ping")
                continue
            kind = "tool_use" if isinstance(piece, wire.CallMade) else piece.kind
            if kind != now or kind == "tool_use":
                if now:
                    yield event("content_block_stop", index=index)
                index, now = index + 1, kind
                yield event("content_block_start", index=index, content_block=_empty_block(piece))
            yield event("content_block_delta", index=index, delta=_delta(piece))
        if not now:
            index = 0
            yield event("content_block_start", index=0, content_block={"type": "text", "text": ""})
        yield event("content_block_stop", index=index)
        assert answer.finished is not None
        usage = {"output_tokens": answer.finished.n_tokens}
        yield event("message_delta", delta=_ending(answer), usage=usage, timings=answer.timings())
        yield event("message_stop")
    except RequestError as error:
        yield b"event: error\ndata: " + msgspec.json.encode(error_body(error)) + b"\n\n"


def _empty_block(piece: wire.Piece | wire.CallMade) -> dict[str, Any]:
    if isinstance(piece, wire.CallMade):
        return _use(piece)
    if piece.kind == "reasoning":
        return {"type": "thinking", "thinking": "", "signature": ""}
    return {"type": "text", "text": ""}


def _delta(piece: wire.Piece | wire.CallMade) -> dict[str, Any]:
    if isinstance(piece, wire.CallMade):
        return {"type": "input_json_delta", "partial_json": piece.arguments}
    if piece.kind == "reasoning":
        return {"type": "thinking_delta", "thinking": piece.text}
    return {"type": "text_delta", "text": piece.text}
