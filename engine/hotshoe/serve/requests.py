"""What dialects share: reading a request's fields, the server's own errors, and the numbers of an answer."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any, TypeVar

import msgspec

from hotshoe.media import AUDIO, IMAGE, MEDIA, Medium
from hotshoe.serve import wire
from hotshoe.serve.processes import BusyError, JobFailedError, ModelProcess, ProcessLostError

__all__ = [
    "Answer",
    "RequestError",
    "explain",
    "fields_of",
    "must_call",
    "joined",
    "media_part",
    "parse",
    "pictures_of_ollama",
    "plain_messages",
    "refuse",
    "schema_of_tool",
    "tools_of",
]

S = TypeVar("S", bound=msgspec.Struct)

_BAD_INPUT = frozenset(
    {
        *("InputTooLongError", "InputEmptyError", "SamplingError", "GrammarError", "ChatTemplateError"),
        *("TokenizerError", "ModelError", "ImageError", "AudioError", "CacheFullError"),
    }
)
"""Errors of a model's process that the request caused."""


_NEAR = 0.8
"""The likeness, from 0 to 1, from which on a name is taken for a misspelt one."""


class RequestError(Exception):
    """An error that is told to the client: a status of HTTP, and the field that it is about."""

    def __init__(self, status: int, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.code = code


def explain(error: Exception) -> RequestError:
    """The error for the client, from one of the model's process."""
    if isinstance(error, RequestError):
        return error
    if isinstance(error, BusyError):
        return RequestError(429, str(error), code="rate_limit_exceeded")
    if isinstance(error, ProcessLostError):
        return RequestError(503, str(error), code="process_ended")
    if not isinstance(error, JobFailedError):
        raise error
    failed = error.failed
    if failed.kind == "InputTooLongError":
        return RequestError(
            400, f"{failed.message} (the server's --ctx; or shorten the text)", code="context_length_exceeded"
        )
    message = failed.message + (f" ({failed.hint})" if failed.hint else "")
    if failed.kind in _BAD_INPUT:
        return RequestError(400, message, code="invalid_value")
    return RequestError(503, message, code=_snake(failed.kind))


def _snake(name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name.removesuffix("Error")).lower()


def parse(body: bytes, kind: type[S]) -> tuple[S, list[str]]:
    """A request's body as ``kind``, and the names of the fields that ``kind`` lacks. A null is an absent field.

    Raises RequestError, which names the field, if the body is not valid.
    """
    try:
        raw = msgspec.json.decode(body)
        place = _large_integer(raw)
    except (msgspec.DecodeError, RecursionError) as error:
        raise RequestError(400, f"the body is not valid JSON: {error}") from None
    if not isinstance(raw, dict):
        raise RequestError(400, f"the body is {type(raw).__name__}; expected a JSON object")
    if place is not None:
        place = place.removeprefix(".")
        raise RequestError(400, f"{place} is out of range: an integer has at most 64 bits", param=place)
    known = fields_of(kind)
    given = {name: value for name, value in raw.items() if value is not None}
    try:
        found = msgspec.convert({name: v for name, v in given.items() if name in known}, kind)
    except (msgspec.ValidationError, RecursionError) as error:
        text, _, place = str(error).partition(" - at `$.")
        missing = re.match(r"Object missing required field `(\w+)`", text)
        param = missing[1] if missing else place.rstrip("`") or None
        raise RequestError(400, f"{param or 'the body'}: {text}", param=param) from None
    unknown = [name for name in given if name not in known]
    near = {name: get_close_matches(name, known, 1, _NEAR) for name in unknown}
    return found, [f"{name} ({near[name][0]}?)" if near[name] else name for name in unknown]


def _large_integer(value: Any) -> str | None:
    """Where an integer stands that does not fit into 64 bits; None if all fit."""
    if isinstance(value, int):
        return None if -(2**63) <= value < 2**64 else ""
    if isinstance(value, dict):
        for name, each in value.items():
            if (found := _large_integer(each)) is not None:
                return f".{name}{found}"
    elif isinstance(value, list):
        for i, each in enumerate(value):
            if (found := _large_integer(each)) is not None:
                return f"[{i}]{found}"
    return None


def fields_of(kind: type[msgspec.Struct]) -> frozenset[str]:
    """The names of a struct's fields, as they stand in JSON."""
    return frozenset(kind.__struct_encode_fields__)


def refuse(request: msgspec.Struct, names: Mapping[str, Iterable[Any]]) -> None:
    """Raise RequestError for a field of a feature that is not there, unless it has one of the harmless values."""
    for name, harmless in names.items():
        value = getattr(request, name)
        if value is not None and value not in list(harmless):
            raise RequestError(400, f"{name} is not supported", param=name, code="unsupported_parameter")


def plain_messages(messages: list[dict[str, Any]], ready: wire.Ready) -> list[dict[str, Any]]:
    """Messages whose contents are texts, or lists of texts, pictures and sounds. ``developer`` is ``system``.

    ready: the model. Raises RequestError for a part that the model cannot read, a message without
    a role, and a call that is not valid.
    """
    found = []
    for i, message in enumerate(messages):
        role, content = message.get("role"), message.get("content")
        if not isinstance(role, str):
            raise RequestError(400, f"messages[{i}] has no role", param=f"messages[{i}].role")
        given = message.get("tool_calls") or []
        if not isinstance(given, list):
            raise RequestError(400, f"messages[{i}].tool_calls is not a list", param=f"messages[{i}].tool_calls")
        calls = [_call(i, j, call) for j, call in enumerate(given)]
        if content is None and calls:
            content = ""
        if isinstance(content, list):
            content = joined([_part_of(f"messages[{i}].content[{j}]", part, ready) for j, part in enumerate(content)])
        if found_pictures := pictures_of_ollama(f"messages[{i}].images", message.get("images"), ready):
            content = joined([*found_pictures, *([content] if isinstance(content, str) else content or [])])
        if not isinstance(content, (str, list)):
            raise RequestError(
                400,
                f"messages[{i}].content is {type(content).__name__}; expected a text or a list of parts",
                param=f"messages[{i}].content",
            )
        entry: dict[str, Any] = {"role": "system" if role == "developer" else role, "content": content}
        if calls:
            entry["tool_calls"] = calls
        for name in ("tool_call_id", "name", "reasoning_content"):
            if isinstance(message.get(name), str):
                entry[name] = message[name]
        if isinstance(message.get("tool_name"), str):  # Ollama's name
            entry["name"] = message["tool_name"]
        found.append(entry)
    if not found:
        raise RequestError(400, "messages is empty; expected one message or more", param="messages")
    return found


def _call(i: int, j: int, call: Any) -> dict[str, Any]:
    """A call of an earlier message, with its arguments as an object, which chat templates expect."""
    place = f"messages[{i}].tool_calls[{j}]"
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise RequestError(400, f"{place} has no function with a name", param=place)
    arguments = function.get("arguments") or {}
    if isinstance(arguments, str):
        with contextlib.suppress(msgspec.DecodeError, RecursionError):  # invalid JSON of a model stays a text
            arguments = msgspec.json.decode(arguments)
    found = {"type": "function", "function": {"name": function["name"], "arguments": arguments}}
    return found | ({"id": call["id"]} if isinstance(call.get("id"), str) else {})


def must_call(choice: Any, tools: list[dict[str, Any]] | None) -> list[str] | None:
    """The tools of which one is to be called: "required", "any", or a tool by name; None for "auto" and "none".

    Raises RequestError for another value, and for a tool that the request does not have.
    """
    kind = choice.get("type") if isinstance(choice, dict) else choice
    if kind in (None, "auto", "none"):
        return None
    names = [tool["function"]["name"] for tool in tools or ()]
    if kind in ("required", "any") and names:
        return names
    if kind in ("function", "tool", "custom") and isinstance(choice, dict):
        function = choice.get("function")
        name = function.get("name") if isinstance(function, dict) else choice.get("name")
        if name in names:
            return [str(name)]
        raise RequestError(400, f"tool_choice: there is no tool {name!r:.80}", param="tool_choice")
    why = "there are no tools" if kind in ("required", "any") else "expected auto, none, required, or a tool by name"
    raise RequestError(400, f"tool_choice is {choice!r:.80}: {why}", param="tool_choice")


def tools_of(tools: list[Any] | None) -> list[dict[str, Any]] | None:
    """The tools of a request; None if it has no tools. Raises RequestError unless each is a function with a name."""
    for i, tool in enumerate(tools or ()):
        function = (
            tool.get("function") if isinstance(tool, dict) and tool.get("type", "function") == "function" else None
        )
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise RequestError(400, f"tools[{i}] is not {{type: function, function: {{name, …}}}}", param=f"tools[{i}]")
        schema_of_tool(f"tools[{i}].function.parameters", function.get("parameters"))
    return tools or None


def schema_of_tool(place: str, schema: Any) -> dict[str, Any]:
    """The JSON schema of a tool's arguments; one of an object without properties, if it is missing or empty.

    Raises RequestError unless it is an object whose properties are objects: templates and grammars read these.
    """
    if schema is None or schema == {}:
        return {"type": "object", "properties": {}}
    properties = schema.get("properties", {}) if isinstance(schema, dict) else None
    if not isinstance(properties, dict):
        what = f"{place}.properties" if isinstance(schema, dict) else place
        raise RequestError(400, f"{what} is not an object; expected a JSON schema", param=what)
    for name, value in properties.items():
        if not isinstance(value, (dict, bool)):
            what = f"{place}.properties.{name}"
            raise RequestError(400, f"{what:.200} is not a JSON schema", param=f"{what:.200}")
    found: dict[str, Any] = schema
    return found


def _part_of(place: str, part: Any, ready: wire.Ready) -> str | dict[str, Any]:
    if isinstance(part, dict) and part.get("type") in ("text", "input_text") and isinstance(part.get("text"), str):
        text: str = part["text"]
        return text
    if (found := media_part(place, part, ready)) is not None:
        return found
    kind = part.get("type") if isinstance(part, dict) else type(part).__name__
    raise RequestError(
        400, f"{place} is {kind!r:.40}; this model reads {_reads(ready)}", param=place, code="unsupported_content"
    )


def _reads(ready: wire.Ready) -> str:
    """What a model reads, in words."""
    more = [medium.many for medium, can in ((IMAGE, ready.sees), (AUDIO, ready.hears)) if can]
    return " and ".join(["texts", *more]) if more else "texts only"


def media_part(place: str, part: Any, ready: wire.Ready) -> dict[str, Any] | None:
    """The picture or the sound in a part of OpenAI's or a block of Anthropic's; None if it is another kind of part.

    Raises RequestError if the model does not read it, or if the part does not hold the file itself.
    """
    kind = part.get("type") if isinstance(part, dict) else None
    medium = next((medium for medium in MEDIA if kind in medium.types), None)
    if medium is None:
        return None
    if not (ready.sees if medium is IMAGE else ready.hears):
        raise RequestError(
            400, f"{place} is a {medium.one}; this model reads {_reads(ready)}", param=place, code="unsupported_content"
        )
    source, given = part.get("source"), part.get("input_audio")
    # Anthropic's form, then OpenAI's for sounds; the file itself says its format
    if isinstance(source, dict) and source.get("type") == "base64" and isinstance(source.get("data"), str):
        return _part(medium, f"data:{source.get('media_type', f'{medium.name}/any')};base64,{source['data']}")
    if isinstance(given, dict) and isinstance(given.get("data"), str):
        return _part(medium, f"data:audio/any;base64,{given['data']}")
    url = part.get(f"{medium.name}_url") or part.get(medium.name)
    url = url.get("url") if isinstance(url, dict) else url
    if isinstance(url, str) and url[:5].lower() == "data:":
        return _part(medium, url)
    raise RequestError(
        400, f"{place}: the {medium.one} is not in the request; this server fetches no addresses and no stored files: "
        f"send {medium.example}", param=place, code=f"invalid_{medium.name}",
    )  # fmt: skip


def pictures_of_ollama(place: str, images: Any, ready: wire.Ready) -> list[dict[str, Any]]:
    """The pictures in Ollama's field ``images``: files in base64. Raises RequestError as ``media_part`` does."""
    if not images:
        return []
    if not ready.sees:
        raise RequestError(400, f"{place}: this model reads {_reads(ready)}", param=place, code="unsupported_content")
    if not isinstance(images, list) or not all(isinstance(image, str) for image in images):
        raise RequestError(400, f"{place} is not a list of texts in base64", param=place)
    return [_part(IMAGE, f"data:image/any;base64,{image}") for image in images]


def joined(contents: list[str | dict[str, Any]], separator: str = "") -> str | list[dict[str, Any]]:
    """A content of texts, pictures and sounds: one text if there are only texts, else a list of parts."""
    texts = [part for part in contents if isinstance(part, str)]
    if len(texts) == len(contents):
        return separator.join(texts)
    return [{"type": "text", "text": part} if isinstance(part, str) else part for part in contents]


def _part(medium: Medium, url: str) -> dict[str, Any]:
    return {"type": medium.name, medium.name: url}


@dataclass
class Answer:
    """A text that is being written for a client, with its numbers at the end."""

    process: ModelProcess
    job: wire.TextJob
    ignored: list[str]
    text: str = ""
    reasoning: str = ""
    calls: list[wire.CallMade] = field(default_factory=list)
    logprobs: list[wire.TokenLogprob] = field(default_factory=list)
    finished: wire.Finished | None = None

    async def pieces(self) -> AsyncIterator[wire.Piece | wire.CallMade]:
        """Run the job; yield its parts. Raises RequestError."""
        async for event in self.events():
            if not isinstance(event, wire.Started):
                yield event

    async def events(self) -> AsyncIterator[wire.Started | wire.Piece | wire.CallMade]:
        """Run the job; yield its beginning and its parts. Raises RequestError."""

        def make(id: int) -> wire.TextJob:
            return msgspec.structs.replace(self.job, id=id)

        try:
            async for event in self.process.run(make):
                if isinstance(event, wire.Piece):
                    if event.kind == "reasoning":
                        self.reasoning += event.text
                    else:
                        self.text += event.text
                    self.logprobs += event.logprobs
                    yield event
                elif isinstance(event, wire.CallMade):
                    self.calls.append(event)
                    yield event
                elif isinstance(event, wire.Started):
                    yield event
                elif isinstance(event, wire.Finished):
                    self.finished = event
                    self.process.recent.append({"at": round(time.time(), 1)} | self.timings())
        except (BusyError, JobFailedError, ProcessLostError) as error:
            raise explain(error) from error

    async def whole(self) -> wire.Finished:
        """Run the job to its end. Raises RequestError."""
        async for _ in self.pieces():
            pass
        assert self.finished is not None
        return self.finished

    def timings(self) -> dict[str, Any]:
        """Where the time went, and on which device: the answer to "why was it slow"."""
        done, ready = self.finished, self.process.ready
        if done is None:
            return {}
        computed = done.n_prompt - done.n_cached
        return {
            "device": ready.device if ready else "",
            "why": ready.why if ready else "",
            "queued_ms": round(1e3 * done.queued_seconds, 1),
            "cache_n": done.n_cached,
            "cache_differs": done.difference,
            "prompt_n": computed,
            "prompt_ms": round(1e3 * done.prompt_seconds, 1),
            "prompt_per_second": _rate(computed, done.prompt_seconds),
            "predicted_n": done.n_tokens,
            "predicted_ms": round(1e3 * done.decode_seconds, 1),
            "predicted_per_second": _rate(done.n_tokens - 1, done.decode_seconds),
            "draft_n": done.n_drafted,
            "draft_n_accepted": done.n_accepted,
            "ignored": self.ignored,
        }


def _rate(n: int, seconds: float) -> float:
    return round(n / seconds, 2) if seconds > 0 and n > 0 else 0.0
