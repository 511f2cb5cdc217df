"""The dialect of llama.cpp's server: completion, infill, tokenize, detokenize and props."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import msgspec

from hotshoe.serve import wire
from hotshoe.serve.front import Front, json_response
from hotshoe.serve.requests import Answer, RequestError, parse

__all__ = ["completion", "detokenize", "infill", "props", "tokenize"]

_HARMLESS = (
    *("cache_prompt", "id_slot", "n_keep", "samplers", "n_cache_reuse", "t_max_predict_ms", "timings_per_token"),
    *("return_tokens", "post_sampling_probs"),
)
_STOPS = {"stop": "eos", "length": "limit", "context": "limit", "cancelled": "none"}


class CompletionRequest(msgspec.Struct, kw_only=True):
    """The body of ``/completion`` and of ``/infill``."""

    model: str = ""
    prompt: str | list[int] = ""
    n_predict: int = -1
    stream: bool = False
    stop: list[str] = []
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    typical_p: float | None = None
    repeat_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    seed: int | None = None
    grammar: str | None = None
    json_schema: dict[str, Any] | None = None
    input_prefix: str = ""
    input_suffix: str = ""
    input_extra: list[dict[str, Any]] = []

    def params(self) -> dict[str, Any]:
        """The fields of SamplingParams."""
        names = ("temperature", "top_k", "top_p", "min_p", "typical_p", "presence_penalty", "frequency_penalty", "seed")
        found = {name: value for name in names if (value := getattr(self, name)) is not None}
        if found.get("seed") == -1:
            del found["seed"]
        if self.repeat_penalty is not None:
            found["repetition_penalty"] = self.repeat_penalty
        if self.n_predict >= 0:
            found["max_tokens"] = self.n_predict
        return found | ({"stop": self.stop} if self.stop else {})


class TokenizeRequest(msgspec.Struct, kw_only=True):
    """The body of ``/tokenize``."""

    content: str
    model: str = ""
    add_special: bool = False
    parse_special: bool = True
    with_pieces: bool = False


class DetokenizeRequest(msgspec.Struct, kw_only=True):
    """The body of ``/detokenize``."""

    tokens: list[int]
    model: str = ""


async def completion(front: Front, body: bytes) -> Any:
    """Answer ``/completion``."""
    request, unknown = parse(body, CompletionRequest)
    for name in ("input_prefix", "input_suffix", "input_extra"):
        if getattr(request, name):
            raise RequestError(400, f"{name} is a field of /infill", param=name)
    return await _answer(front, request, unknown, wire.TextJob(0, prompt=request.prompt))


async def infill(front: Front, body: bytes) -> Any:
    """Answer ``/infill``: the text between ``input_prefix`` and ``input_suffix``; ``prompt`` follows the prefix."""
    request, unknown = parse(body, CompletionRequest)
    if not isinstance(request.prompt, str):
        raise RequestError(400, "prompt has token ids; expected a text", param="prompt")
    files = []
    for i, extra in enumerate(request.input_extra):
        name, text = extra.get("filename", "file"), extra.get("text")
        if not isinstance(name, str) or not isinstance(text, str):
            raise RequestError(400, f"input_extra[{i}] is not {{filename, text}}", param=f"input_extra[{i}]")
        files.append((name, text))
    prefix = request.input_prefix + request.prompt
    job = wire.TextJob(0, prompt=prefix, suffix=request.input_suffix, files=files)
    return await _answer(front, request, unknown, job)


async def _answer(front: Front, request: CompletionRequest, unknown: list[str], job: wire.TextJob) -> Any:
    process = front.process(request.model)
    job = msgspec.structs.replace(
        job, params=request.params(), grammar=request.grammar, json_schema=request.json_schema
    )
    answer = Answer(process, job, front.ignored(unknown, _HARMLESS))

    def last(text: str) -> dict[str, Any]:
        done = answer.finished
        assert done is not None
        return {
            "content": text,
            "stop": True,
            "model": process.spec.name,
            "stop_type": "word" if done.stop_text is not None else _STOPS[done.reason],
            "stopping_word": done.stop_text or "",
            "truncated": False,
            "tokens_predicted": done.n_tokens,
            "tokens_evaluated": done.n_prompt,
            "tokens_cached": done.n_cached,
            "timings": answer.timings(),
        }

    async def events() -> AsyncIterator[bytes]:
        def event(value: Any) -> bytes:
            return b"data: " + msgspec.json.encode(value) + b"\n\n"

        try:
            async for piece in answer.pieces():
                if isinstance(piece, wire.Piece):
                    yield event({"content": piece.text, "stop": False})
            yield event(last(""))
        except RequestError as error:
            yield event({"error": {"code": error.status, "message": error.message, "type": "invalid_request_error"}})

    if request.stream:
        return front.stream(events(), [answer])
    await answer.whole()
    return json_response(last(answer.text), answer.ignored)


async def tokenize(front: Front, body: bytes) -> Any:
    """Answer ``/tokenize``."""
    request, unknown = parse(body, TokenizeRequest)
    event = await front.result(
        front.process(request.model),
        lambda number: wire.TokenizeJob(number, request.content, request.add_special, request.parse_special),
    )
    tokens: list[Any] = event.ids
    if request.with_pieces:
        tokens = [{"id": id, "piece": _piece(piece)} for id, piece in zip(event.ids, event.pieces, strict=True)]
    return front.json({"tokens": tokens}, front.ignored(unknown, ()))


def _piece(piece: bytes) -> str | list[int]:
    """A token's text; its bytes, if it is a part of a character."""
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return list(piece)


async def detokenize(front: Front, body: bytes) -> Any:
    """Answer ``/detokenize``."""
    request, unknown = parse(body, DetokenizeRequest)
    event = await front.result(front.process(request.model), lambda number: wire.DetokenizeJob(number, request.tokens))
    return front.json({"content": event.text}, front.ignored(unknown, ()))


async def props(front: Front, model: str) -> dict[str, Any]:
    """Return the answer of ``/props``: what a model is, and how it was loaded. No path: no client needs one."""
    ready = await front.loaded(model)
    return {
        "model_alias": front.process(model).spec.name,
        "default_generation_settings": {"n_ctx": ready.n_ctx},
        "total_slots": front.max_jobs,
        "chat_template": ready.chat_template,
        "modalities": {"vision": ready.sees, "audio": ready.hears},
        "device": ready.device,
        "why": ready.why,
    }
