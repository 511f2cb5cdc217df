"""OpenAI's newer dialect: responses. Nothing is stored, so a request holds the whole conversation."""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncIterator
from typing import Any

import msgspec

from hotshoe.serve import wire
from hotshoe.serve.front import Front, json_response
from hotshoe.serve.openai import error_body, schema_of
from hotshoe.serve.requests import (
    Answer,
    RequestError,
    joined,
    media_part,
    must_call,
    parse,
    plain_messages,
    refuse,
    schema_of_tool,
)

__all__ = ["responses"]

_HARMLESS = (
    *("store", "include", "metadata", "user", "service_tier", "prompt_cache_key", "prompt_cache_retention"),
    *("safety_identifier", "parallel_tool_calls", "max_tool_calls", "client_metadata"),
)
_MISSING: dict[str, tuple[Any, ...]] = {
    "previous_response_id": ("",),
    "conversation": (),
    "prompt": (),
    "background": (False,),
    "truncation": ("disabled",),
    "top_logprobs": (0,),
}
"""Fields that are not supported, and the values that ask for nothing."""
_FREE_TEXT = {"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"]}
"""The parameters of a custom tool, which takes a text: models call functions with objects."""


class ResponsesRequest(msgspec.Struct, kw_only=True):
    """The body of ``/v1/responses``."""

    model: str = ""
    input: str | list[dict[str, Any]]
    instructions: str | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: Any = None
    parallel_tool_calls: bool | None = None
    stream: bool = False
    temperature: float | None = None
    top_p: float | None = None
    max_output_tokens: int | None = None
    text: dict[str, Any] | None = None
    reasoning: dict[str, Any] | None = None
    previous_response_id: str | None = None
    conversation: Any = None
    prompt: Any = None
    background: bool | None = None
    truncation: str | None = None
    top_logprobs: int | None = None


async def responses(front: Front, body: bytes) -> Any:
    """Answer ``/v1/responses``."""
    request, unknown = parse(body, ResponsesRequest)
    refuse(request, _MISSING)
    process = front.process(request.model)
    ready = await front.loaded(process.spec.name)
    tools, custom = _tools(request, unknown)
    if tools and not ready.calls:
        raise RequestError(
            400, "tools: the chat format of this model has no tools, or their calls cannot be read", param="tools"
        )
    names = {"temperature": "temperature", "top_p": "top_p", "max_output_tokens": "max_tokens"}
    params = {ours: value for theirs, ours in names.items() if (value := getattr(request, theirs)) is not None}
    job = wire.TextJob(
        0,
        messages=plain_messages(_messages(request, ready), ready),
        params=params,
        json_schema=_schema(request.text, unknown),
        tools=tools or None,
        must_call=must_call(request.tool_choice, tools),
        several_calls=request.parallel_tool_calls is not False,
        template_options=_options(request.reasoning, ready, unknown),
    )
    answer = Answer(process, job, front.ignored(unknown, _HARMLESS))
    writer = _Writer(answer, custom)
    if request.stream:
        return front.stream(writer.events(), [answer])
    await answer.whole()
    return json_response(writer.whole(), answer.ignored)


def _messages(request: ResponsesRequest, ready: wire.Ready) -> list[dict[str, Any]]:
    """The conversation as messages: what the assistant thought, said and called in one turn is one message."""
    found: list[dict[str, Any]] = []
    if request.instructions:
        found.append({"role": "system", "content": request.instructions})
    if isinstance(request.input, str):
        return [*found, {"role": "user", "content": request.input}]
    for i, item in enumerate(request.input):
        kind = item.get("type", "message")
        place = f"input[{i}]"
        if kind == "message":
            if item.get("role") == "assistant":
                _turn(found)["content"] += _text(item.get("content"), place)
            else:
                found.append({"role": item.get("role"), "content": _content(item.get("content"), place, ready)})
        elif kind in ("function_call", "custom_tool_call"):
            arguments = item.get("arguments") if kind == "function_call" else {"input": item.get("input", "")}
            function = {"name": item.get("name"), "arguments": arguments}
            _turn(found).setdefault("tool_calls", []).append({"id": item.get("call_id"), "function": function})
        elif kind in ("function_call_output", "custom_tool_call_output"):
            text = _text(item.get("output"), place)
            found.append({"role": "tool", "tool_call_id": str(item.get("call_id")), "content": text})
        elif kind == "reasoning":
            thoughts = [item.get(name) or [] for name in ("content", "summary")]
            if not all(isinstance(parts, list) for parts in thoughts):
                raise RequestError(400, f"{place}: content or summary is not a list of parts", param=place)
            texts = [str(part.get("text") or "") for parts in thoughts for part in parts if isinstance(part, dict)]
            if texts := [text for text in texts if text]:
                turn = _turn(found)
                before = [turn["reasoning_content"]] if "reasoning_content" in turn else []
                turn["reasoning_content"] = "\n".join(before + texts)
        else:
            raise RequestError(400, f"{place} is of type {kind!r:.40}, which is not supported", param=place)
    return found


def _turn(messages: list[dict[str, Any]]) -> dict[str, Any]:
    """The message of the assistant that is going on, or a new one."""
    if not messages or messages[-1]["role"] != "assistant":
        messages.append({"role": "assistant", "content": ""})
    return messages[-1]


def _content(content: Any, place: str, ready: wire.Ready) -> str | list[dict[str, Any]]:
    """The content of a message, with its pictures and sounds."""
    if not isinstance(content, list):
        return _text(content, place)
    parts = [(media_part(f"{place}.content[{j}]", part, ready), part) for j, part in enumerate(content)]
    return joined([_text([part], place) if found is None else found for found, part in parts])


def _text(content: Any, place: str) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise RequestError(400, f"{place} has no text", param=place)
    found = []
    for part in content:
        kind = part.get("type") if isinstance(part, dict) else type(part).__name__
        if kind not in ("input_text", "output_text", "text", "refusal"):
            raise RequestError(
                400, f"{place} has a part of type {kind!r:.40}; this model reads texts only", param=place,
                code="unsupported_content",
            )  # fmt: skip
        found.append(str(part.get("text", part.get("refusal", ""))))
    return "".join(found)


def _tools(request: ResponsesRequest, unknown: list[str]) -> tuple[list[dict[str, Any]], set[str]]:
    """The tools as functions, and the names of those that take a text. Tools that OpenAI runs are without effect."""
    found, custom = [], set[str]()
    for i, tool in enumerate(request.tools or ()):
        kind, name = tool.get("type"), tool.get("name")
        if kind not in ("function", "custom"):
            unknown.append(f"tools[{i}]")
            continue
        if not isinstance(name, str):
            raise RequestError(400, f"tools[{i}] has no name", param=f"tools[{i}].name")
        parameters = schema_of_tool(f"tools[{i}].parameters", tool.get("parameters"))
        if kind == "custom":
            custom.add(name)
            parameters = _FREE_TEXT
        function = {"name": name, "description": tool.get("description") or "", "parameters": parameters}
        found.append({"type": "function", "function": function})
    return (found if request.tool_choice != "none" else []), custom


def _schema(text: dict[str, Any] | None, unknown: list[str]) -> dict[str, Any] | None:
    format = (text or {}).get("format") or {"type": "text"}
    if not isinstance(format, dict):
        raise RequestError(400, "text.format is not an object", param="text.format")
    unknown += [f"text.{name}" for name in text or () if name != "format"]
    if format.get("type") == "json_schema":  # in chat/completions the schema is one level deeper
        format = {"type": "json_schema", "json_schema": format}
    return schema_of(format)


def _options(reasoning: dict[str, Any] | None, ready: wire.Ready, unknown: list[str]) -> dict[str, Any]:
    options = {}
    for name, value in (reasoning or {}).items():
        if name == "effort" and value is not None and "reasoning_effort" in ready.chat_template:
            options["reasoning_effort"] = value
        elif value is not None:
            unknown.append(f"reasoning.{name}")
    return options


class _Writer:
    """Writes an answer as items: reasoning, a message, calls."""

    def __init__(self, answer: Answer, custom: set[str]) -> None:
        self.answer = answer
        self.custom = custom
        self.id = f"resp_{uuid.uuid4().hex}"
        self.created = int(time.time())
        self.items: list[dict[str, Any]] = []
        self._number = -1

    def response(self, status: str, **more: Any) -> dict[str, Any]:
        """The response as an object."""
        done = self.answer.finished
        usage = None
        if done is not None:
            usage = {
                "input_tokens": done.n_prompt,
                "input_tokens_details": {"cached_tokens": done.n_cached, "cache_write_tokens": 0},
                "output_tokens": done.n_tokens,
                "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": done.n_prompt + done.n_tokens,
            }
        found = {
            "id": self.id, "object": "response", "created_at": self.created, "status": status, "error": None,
            "incomplete_details": None, "instructions": None, "model": self.answer.process.spec.name,
            "output": self.items, "parallel_tool_calls": True, "tool_choice": "auto", "tools": [],
            "metadata": {}, "usage": usage, "store": False,
        }  # fmt: skip
        return found | ({"timings": self.answer.timings()} if done is not None else {}) | more

    def whole(self) -> dict[str, Any]:
        """The response of a finished answer."""
        answer = self.answer
        if answer.reasoning:
            self.items.append(_reasoning(answer.reasoning))
        if answer.text or not answer.calls:
            self.items.append(_message(answer.text))
        self.items += [self._call(call) for call in answer.calls]
        return self._ended()

    def _ended(self) -> dict[str, Any]:
        done = self.answer.finished
        assert done is not None
        if done.reason in ("length", "context"):
            return self.response("incomplete", incomplete_details={"reason": "max_output_tokens"})
        return self.response("completed")

    def _call(self, call: wire.CallMade) -> dict[str, Any]:
        ids = {"id": f"fc_{uuid.uuid4().hex}", "call_id": f"call_{uuid.uuid4().hex[:24]}", "status": "completed"}
        if call.name in self.custom:
            return {"type": "custom_tool_call", **ids, "name": call.name, "input": _free_text(call.arguments)}
        return {"type": "function_call", **ids, "name": call.name, "arguments": call.arguments}

    def _event(self, kind: str, **values: Any) -> bytes:
        self._number += 1
        body = msgspec.json.encode({"type": kind, "sequence_number": self._number, **values})
        return f"event: {kind}\ndata: ".encode() + body + b"\n\n"

    async def events(self) -> AsyncIterator[bytes]:
        """The events of an answer that is being written."""
        yield self._event("response.created", response=self.response("in_progress"))
        yield self._event("response.in_progress", response=self.response("in_progress"))
        now: dict[str, Any] | None = None  # the item that is open
        try:
            async for piece in self.answer.pieces():
                kind = "call" if isinstance(piece, wire.CallMade) else piece.kind
                if now is not None and now["type"] != {"content": "message"}.get(kind, kind):
                    for event in self._close(now):
                        yield event
                    now = None
                if isinstance(piece, wire.CallMade):
                    for event in self._whole_call(piece):
                        yield event
                    continue
                if now is None:
                    now = _message("") if kind == "content" else _reasoning("")
                    for event in self._open(now):
                        yield event
                now["content"][0]["text"] += piece.text
                name = "output_text" if kind == "content" else "reasoning_text"
                yield self._event(f"response.{name}.delta", **self._place(now), delta=piece.text, logprobs=[])
            for event in self._close(now) if now is not None else ():
                yield event
            final = self._ended()
            yield self._event(f"response.{final['status']}", response=final)
        except RequestError as error:
            failed = error_body(error)["error"]
            yield self._event(
                "response.failed",
                response=self.response(
                    "failed", error={"code": failed["code"] or failed["type"], "message": failed["message"]}
                ),
            )

    def _place(self, item: dict[str, Any]) -> dict[str, Any]:
        return {"item_id": item["id"], "output_index": len(self.items), "content_index": 0}

    def _open(self, item: dict[str, Any]) -> list[bytes]:
        empty = item | {"content": [], "status": "in_progress"}
        events = [self._event("response.output_item.added", output_index=len(self.items), item=empty)]
        if item["type"] == "message":
            part = {"type": "output_text", "text": "", "annotations": []}
            events.append(self._event("response.content_part.added", **self._place(item), part=part))
        return events

    def _close(self, item: dict[str, Any]) -> list[bytes]:
        text, name = item["content"][0]["text"], "output_text" if item["type"] == "message" else "reasoning_text"
        events = [self._event(f"response.{name}.done", **self._place(item), text=text, logprobs=[])]
        if item["type"] == "message":
            events.append(self._event("response.content_part.done", **self._place(item), part=item["content"][0]))
        events.append(self._event("response.output_item.done", output_index=len(self.items), item=item))
        self.items.append(item)
        return events

    def _whole_call(self, call: wire.CallMade) -> list[bytes]:
        item, index = self._call(call), len(self.items)
        field = "input" if item["type"] == "custom_tool_call" else "arguments"
        name = "custom_tool_call_input" if field == "input" else "function_call_arguments"
        place = {"item_id": item["id"], "output_index": index}
        self.items.append(item)
        return [
            self._event(
                "response.output_item.added", output_index=index, item=item | {field: "", "status": "in_progress"}
            ),
            self._event(f"response.{name}.delta", **place, delta=item[field]),
            self._event(f"response.{name}.done", **place, name=call.name, **{field: item[field]}),
            self._event("response.output_item.done", output_index=index, item=item),
        ]


def _message(text: str) -> dict[str, Any]:
    part = {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
    return {"type": "message", "id": f"msg_{uuid.uuid4().hex}", "status": "completed", "role": "assistant",
            "content": [part]}  # fmt: skip


def _reasoning(text: str) -> dict[str, Any]:
    part = {"type": "reasoning_text", "text": text}
    return {"type": "reasoning", "id": f"rs_{uuid.uuid4().hex}", "summary": [], "content": [part],
            "status": "completed"}  # fmt: skip


def _free_text(arguments: str) -> str:
    """The text for a custom tool, from the object that the model wrote."""
    try:
        value = msgspec.json.decode(arguments)
    except msgspec.DecodeError:
        return arguments
    text = value.get("input") if isinstance(value, dict) else None
    return text if isinstance(text, str) else arguments
