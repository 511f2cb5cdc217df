"""OpenAI's dialect: models, chat/completions, completions and embeddings.

Each field of a request is honoured, or refused by name; a field that cannot change the answer, or that is unknown, is
named in the header ``x-hotshoe-ignored``, and with ``--strict`` refused.
"""

from __future__ import annotations

import base64
import time
import uuid
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any, Literal

import msgspec
import numpy as np

from hotshoe.serve import wire
from hotshoe.serve.front import Front, gather, json_response, merged
from hotshoe.serve.requests import Answer, RequestError, must_call, parse, plain_messages, refuse, tools_of

__all__ = ["chat", "completions", "embeddings", "error_body", "model", "models", "schema_of", "shortened"]

_HARMLESS = (
    *("user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key", "prompt_cache_retention"),
    "verbosity",
)
"""Fields that cannot change the answer of a model on this machine, or only how it is stored or paid for."""
_MISSING: dict[str, tuple[Any, ...]] = {
    "functions": ([],),
    "function_call": ("none", "auto"),
    "modalities": (["text"],),
    "audio": (),
    "web_search_options": (),
}
"""Fields of a chat that are not supported, and the values that ask for nothing."""
_TAKEN = frozenset({"self", "messages", "tools", "add_generation_prompt"})
"""Names that ``chat_template_kwargs`` cannot have: the server gives the template these itself."""
_MAX_CHOICES = 16
_MAX_STOPS = 64
_REASONS = {"context": "length", "cancelled": "stop"}


class Sampling(msgspec.Struct, kw_only=True):
    """The fields that all requests for a text share; those after ``seed`` are hotshoe's own."""

    model: str = ""
    temperature: float | None = None
    top_p: float | None = None
    max_tokens: int | None = None
    n: int = 1
    stop: str | list[str] | None = None
    stream: bool = False
    stream_options: dict[str, Any] | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    seed: int | None = None
    top_k: int | None = None
    min_p: float | None = None
    typical_p: float | None = None
    repetition_penalty: float | None = None
    grammar: str | None = None

    def params(self) -> dict[str, Any]:
        """The fields of SamplingParams."""
        names = [
            *("temperature", "top_p", "max_tokens", "presence_penalty", "frequency_penalty", "seed"),
            *("top_k", "min_p", "typical_p", "repetition_penalty"),
        ]
        found = {name: value for name in names if (value := getattr(self, name)) is not None}
        if self.stop:
            found["stop"] = self.stop
        if self.logit_bias:
            found["logit_bias"] = {_token_id(key): value for key, value in self.logit_bias.items()}
        return found

    def check(self) -> None:
        """Raise RequestError for a value that is out of range before the model sees it."""
        if not 1 <= self.n <= _MAX_CHOICES:
            raise RequestError(400, f"n is {self.n}; expected 1 to {_MAX_CHOICES}", param="n")
        if isinstance(self.stop, list) and len(self.stop) > _MAX_STOPS:
            raise RequestError(400, f"stop has {len(self.stop)} texts; expected at most {_MAX_STOPS}", param="stop")


class ChatRequest(Sampling, kw_only=True):
    """The body of ``/v1/chat/completions``."""

    messages: list[dict[str, Any]]
    max_completion_tokens: int | None = None
    logprobs: bool = False
    top_logprobs: int | None = None
    response_format: dict[str, Any] | None = None
    tools: list[Any] | None = None
    tool_choice: Any = None
    parallel_tool_calls: bool = True
    reasoning_budget: int | None = None
    functions: list[Any] | None = None
    function_call: Any = None
    reasoning_effort: Any = None
    modalities: list[str] | None = None
    audio: Any = None
    prediction: dict[str, Any] | None = None
    web_search_options: Any = None
    chat_template_kwargs: dict[str, Any] | None = None


class CompletionRequest(Sampling, kw_only=True):
    """The body of ``/v1/completions``."""

    prompt: str | list[Any]
    """A text, token ids, or a list of either."""
    logprobs: int | None = None
    echo: bool = False
    suffix: str | None = None
    best_of: int | None = None


class EmbeddingsRequest(msgspec.Struct, kw_only=True):
    """The body of ``/v1/embeddings``."""

    model: str = ""
    input: str | list[Any]
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: int | None = None


def error_body(error: RequestError) -> dict[str, Any]:
    """An error as OpenAI's clients read it."""
    kind = "invalid_request_error" if error.status < 500 and error.status != 429 else "server_error"
    if error.status == 429:
        kind = "rate_limit_error"
    return {"error": {"message": error.message, "type": kind, "param": error.param, "code": error.code}}


def models(front: Front) -> dict[str, Any]:
    """The answer of ``/v1/models``: every model, with its context if it is loaded."""
    data = [model(front, name) for name in front.listed()]
    ends = {"first_id": data[0]["id"], "last_id": data[-1]["id"]} if data else {}
    return {"object": "list", "data": data, "has_more": False, **ends}


def model(front: Front, name: str) -> dict[str, Any]:
    """The answer of ``/v1/models/NAME``, with the fields of OpenAI and of Anthropic."""
    process = front.process(name)
    created = datetime.fromtimestamp(front.started, UTC).isoformat().replace("+00:00", "Z")
    found: dict[str, Any] = {"id": name, "object": "model", "created": front.started, "owned_by": "me"}
    found |= {"type": "model", "display_name": name, "created_at": created, "lifecycle": "active"}
    if process.about is not None:
        n_ctx = process.about.n_ctx
        found |= {"task": process.about.task, "context_length": n_ctx, "max_input_tokens": n_ctx}
    return found


async def chat(front: Front, body: bytes) -> Any:
    """Answer ``/v1/chat/completions``."""
    request, unknown = parse(body, ChatRequest)
    request.check()
    refuse(request, _MISSING)
    params = request.params()
    if request.max_completion_tokens is not None:
        params["max_tokens"] = request.max_completion_tokens
    if request.logprobs:
        params["logprobs"] = request.top_logprobs or 0
    elif request.top_logprobs:
        raise RequestError(400, "top_logprobs is given, but logprobs is not true", param="top_logprobs")
    options = dict(request.chat_template_kwargs or {})
    if taken := sorted(options.keys() & _TAKEN):
        raise RequestError(
            400, f"chat_template_kwargs has {taken[0]!r}, which it cannot change",
            param="chat_template_kwargs",
        )  # fmt: skip
    if request.reasoning_effort is not None:
        options["reasoning_effort"] = request.reasoning_effort
    tools = tools_of(request.tools) if request.tool_choice != "none" else None
    ready = await front.loaded(request.model)
    if tools and not ready.calls:
        raise RequestError(
            400, "tools: the chat format of this model has no tools, or their calls cannot be read", param="tools"
        )
    called = must_call(request.tool_choice, tools)
    if called and (request.grammar or request.response_format):
        raise RequestError(400, "tool_choice asks for a call, and response_format or grammar for a text")
    if request.reasoning_budget is not None and not ready.thinks:
        raise RequestError(400, "reasoning_budget: this model has no reasoning", param="reasoning_budget")
    job = wire.TextJob(
        0, must_call=called, several_calls=request.parallel_tool_calls, reasoning_budget=request.reasoning_budget,
        messages=plain_messages(request.messages, ready), json_schema=schema_of(request.response_format),
        grammar=request.grammar, tools=tools, template_options=options, prediction=_predicted(request.prediction),
    )  # fmt: skip
    answers = _answers(front, request, [job], params, unknown)
    shape = _Chat(request)
    return front.stream(_chunks(shape, answers, request), answers) if request.stream else await _whole(shape, answers)


async def completions(front: Front, body: bytes) -> Any:
    """Answer ``/v1/completions``."""
    request, unknown = parse(body, CompletionRequest)
    request.check()
    refuse(request, {"echo": (False,), "best_of": (1, request.n)})
    params = request.params()
    if request.logprobs is not None:
        params["logprobs"] = request.logprobs
    prompts, suffix = _prompts(request.prompt), request.suffix or None
    if suffix is not None and not all(isinstance(prompt, str) for prompt in prompts):
        raise RequestError(400, "suffix needs prompts that are texts", param="suffix")
    jobs = [wire.TextJob(0, prompt=prompt, suffix=suffix, grammar=request.grammar) for prompt in prompts]
    answers = _answers(front, request, jobs, params, unknown)
    shape = _Completion(request)
    return front.stream(_chunks(shape, answers, request), answers) if request.stream else await _whole(shape, answers)


async def embeddings(front: Front, body: bytes) -> Any:
    """Answer ``/v1/embeddings``."""
    request, unknown = parse(body, EmbeddingsRequest)
    process = front.process(request.model)
    ignored = front.ignored(unknown, _HARMLESS)
    texts = [request.input] if isinstance(request.input, str) else request.input
    if not texts:
        raise RequestError(400, "input is empty; expected one text or more", param="input")
    if not all(isinstance(text, str) for text in texts):
        raise RequestError(
            400,
            "input has token ids, or something that is not a text; this model has its own tokens: send texts "
            "(LangChain: OpenAIEmbeddings(check_embedding_ctx_length=False))",
            param="input",
        )
    event = await front.result(process, lambda number: wire.EmbedJob(number, texts))
    vectors = [shortened(np.frombuffer(v, "<f4"), request.dimensions) for v in event.vectors]
    data = [
        {
            "object": "embedding",
            "index": i,
            "embedding": base64.b64encode(v.tobytes()).decode() if request.encoding_format == "base64" else v.tolist(),
        }
        for i, v in enumerate(vectors)
    ]
    usage = {"prompt_tokens": event.n_tokens, "total_tokens": event.n_tokens}
    return front.json({"object": "list", "data": data, "model": process.spec.name, "usage": usage}, ignored)


def shortened(vector: np.ndarray[Any, Any], dim: int | None) -> np.ndarray[Any, Any]:
    """The first elements of a vector, with length 1 again (arXiv:2205.13147). Raises RequestError for too many."""
    if dim is None:
        return vector
    if not 1 <= dim <= len(vector):
        raise RequestError(400, f"dimensions is {dim}; this model has {len(vector)}", param="dimensions")
    part = vector[:dim]
    return part / max(float(np.linalg.norm(part)), 1e-12)


def _predicted(prediction: dict[str, Any] | None) -> str | None:
    """The text that the answer may repeat, from ``{"type": "content", "content": …}``. Raises RequestError."""
    if prediction is None:
        return None
    content = prediction.get("content")
    parts = [{"text": content}] if isinstance(content, str) else content
    texts = [part.get("text") if isinstance(part, dict) else None for part in parts] if isinstance(parts, list) else []
    found = [text for text in texts if isinstance(text, str)]
    if prediction.get("type") != "content" or not texts or len(found) < len(texts):
        raise RequestError(
            400, 'prediction: expected {"type": "content", "content": "a text"}, or parts of type text as content',
            param="prediction",
        )  # fmt: skip
    return "".join(found)


def _token_id(key: str) -> int:
    if not key.removeprefix("-").isdecimal() or len(key) > 12:
        raise RequestError(400, f"logit_bias has the key {key!r:.40}; expected the id of a token", param="logit_bias")
    return int(key)


def schema_of(response_format: dict[str, Any] | None) -> dict[str, Any] | None:
    """The JSON schema that a ``response_format`` asks for. Raises RequestError if it is not valid."""
    kind = (response_format or {"type": "text"}).get("type")
    if kind == "text":
        return None
    if kind == "json_object":
        return {"type": "object"}
    given = (response_format or {}).get("json_schema") if kind == "json_schema" else None
    schema = given.get("schema") if isinstance(given, dict) else None
    if not isinstance(schema, dict):
        raise RequestError(
            400,
            "response_format is not one of {type: text}, {type: json_object} and {type: json_schema, "
            "json_schema: {schema}}",
            param="response_format",
        )
    return schema


def _prompts(prompt: Any) -> list[Any]:
    if isinstance(prompt, str):
        return [prompt]
    if not prompt:
        raise RequestError(400, "prompt is empty; expected one or more", param="prompt")
    prompts: list[Any] = [prompt] if isinstance(prompt[0], int) else prompt
    for one in prompts:
        if not isinstance(one, str) and not (isinstance(one, list) and all(type(id) is int for id in one)):
            raise RequestError(400, "prompt is not a text, token ids, or a list of either", param="prompt")
    return prompts


def _answers(
    front: Front, request: Sampling, jobs: list[wire.TextJob], params: dict[str, Any], unknown: list[str]
) -> list[Answer]:
    """An answer for each job and choice. A seed is that of the first choice; the others get seed + 1 and so on."""
    process = front.process(request.model)
    ignored = front.ignored(unknown, _HARMLESS)
    if len(jobs) * request.n > front.max_jobs:
        n = len(jobs) * request.n
        raise RequestError(400, f"{n} texts in one request; expected at most {front.max_jobs}: split it", param="n")
    found = []
    for job in jobs:
        for i in range(request.n):
            own = params | ({"seed": (params["seed"] + i) % 2**64} if "seed" in params else {})
            found.append(Answer(process, msgspec.structs.replace(job, params=own), ignored))
    return found


class _Shape:
    """How an answer is written: as a chat, or as a completion."""

    prefix: str
    kind: str

    def __init__(self, request: Sampling) -> None:
        self.request = request
        self.id = f"{self.prefix}-{uuid.uuid4().hex}"
        self.created = int(time.time())
        self._n_calls: dict[int, int] = {}

    def head(self, answer: Answer, chunk: bool) -> dict[str, Any]:
        kind = f"{self.kind}.chunk" if chunk and self.kind == "chat.completion" else self.kind
        return {"id": self.id, "object": kind, "created": self.created, "model": answer.process.spec.name}

    def first(self, index: int) -> dict[str, Any] | None:
        """The choice of the first chunk, if there is one before the text."""
        return None

    def piece(self, index: int, piece: wire.Piece | wire.CallMade) -> dict[str, Any]:
        raise NotImplementedError

    def end(self, index: int, reason: str) -> dict[str, Any]:
        raise NotImplementedError

    def choice(self, index: int, answer: Answer) -> dict[str, Any]:
        raise NotImplementedError


class _Chat(_Shape):
    prefix, kind = "chatcmpl", "chat.completion"
    request: ChatRequest

    def _logprobs(self, entries: list[wire.TokenLogprob]) -> dict[str, Any] | None:
        if not self.request.logprobs:
            return None
        return {"content": [self._entry(e) for e in entries], "refusal": None}

    def _entry(self, entry: wire.TokenLogprob) -> dict[str, Any]:
        def one(token: bytes, logprob: float) -> dict[str, Any]:
            return {"token": token.decode(errors="replace"), "logprob": logprob, "bytes": list(token)}

        return one(entry.token, entry.logprob) | {"top_logprobs": [one(*other) for other in entry.top]}

    def first(self, index: int) -> dict[str, Any]:
        delta = {"role": "assistant", "content": ""}
        return {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}

    def piece(self, index: int, piece: wire.Piece | wire.CallMade) -> dict[str, Any]:
        if isinstance(piece, wire.CallMade):
            number = self._n_calls.get(index, 0)
            self._n_calls[index] = number + 1
            delta: dict[str, Any] = {"tool_calls": [{"index": number} | _call(piece)]}
            return {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}
        logprobs = self._logprobs(piece.logprobs)
        delta = {"reasoning_content" if piece.kind == "reasoning" else "content": piece.text}
        return {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": None}

    def end(self, index: int, reason: str) -> dict[str, Any]:
        return {"index": index, "delta": {}, "logprobs": None, "finish_reason": reason}

    def choice(self, index: int, answer: Answer) -> dict[str, Any]:
        return {
            "index": index,
            "message": {"role": "assistant", "content": answer.text or (None if answer.calls else ""), "refusal": None}
            | ({"reasoning_content": answer.reasoning} if answer.reasoning else {})
            | ({"tool_calls": [_call(call) for call in answer.calls]} if answer.calls else {}),
            "logprobs": self._logprobs(answer.logprobs),
            "finish_reason": _reason(answer),
        }


class _Completion(_Shape):
    prefix, kind = "cmpl", "text_completion"
    request: CompletionRequest

    def _logprobs(self, entries: list[wire.TokenLogprob]) -> dict[str, Any] | None:
        if self.request.logprobs is None:
            return None
        return {
            "tokens": [e.token.decode(errors="replace") for e in entries],
            "token_logprobs": [e.logprob for e in entries],
            "top_logprobs": [{token.decode(errors="replace"): value for token, value in e.top} for e in entries],
        }

    def piece(self, index: int, piece: wire.Piece | wire.CallMade) -> dict[str, Any]:
        assert isinstance(piece, wire.Piece)  # a completion has no tools
        logprobs = self._logprobs(piece.logprobs)
        return {"index": index, "text": piece.text, "logprobs": logprobs, "finish_reason": None}

    def end(self, index: int, reason: str) -> dict[str, Any]:
        return {"index": index, "text": "", "logprobs": None, "finish_reason": reason}

    def choice(self, index: int, answer: Answer) -> dict[str, Any]:
        logprobs = self._logprobs(answer.logprobs)
        return {"index": index, "text": answer.text, "logprobs": logprobs, "finish_reason": _reason(answer)}


def _call(call: wire.CallMade) -> dict[str, Any]:
    function = {"name": call.name, "arguments": call.arguments}
    return {"id": f"call_{uuid.uuid4().hex[:24]}", "type": "function", "function": function}


def _reason(answer: Answer) -> str:
    assert answer.finished is not None
    if answer.calls and answer.finished.reason == "stop":
        return "tool_calls"
    return _REASONS.get(answer.finished.reason, answer.finished.reason)


def _usage(answers: list[Answer], n_choices: int) -> dict[str, Any]:
    """The tokens of a request. Several choices share a prompt, which counts once."""
    done = [a.finished for a in answers if a.finished is not None]
    each, written = done[:: max(1, n_choices)], sum(f.n_tokens for f in done)
    prompt = sum(f.n_prompt for f in each)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": written,
        "total_tokens": prompt + written,
        "prompt_tokens_details": {"cached_tokens": sum(f.n_cached for f in each)},
    }


async def _whole(shape: _Shape, answers: list[Answer]) -> Any:
    await gather([answer.whole() for answer in answers])
    found = shape.head(answers[0], chunk=False) | {
        "choices": [shape.choice(i, answer) for i, answer in enumerate(answers)],
        "usage": _usage(answers, shape.request.n),
        "timings": answers[0].timings(),
    }
    return json_response(found, answers[0].ignored)


async def _chunks(shape: _Shape, answers: list[Answer], request: Sampling) -> AsyncIterator[bytes]:
    """Server-sent events: chunks, the usage if it is asked for, and [DONE]. An error is an event too."""

    def event(value: Any) -> bytes:
        return b"data: " + msgspec.json.encode(value) + b"\n\n"

    head = shape.head(answers[0], chunk=True)
    with_usage = bool((request.stream_options or {}).get("include_usage"))
    try:
        for i in range(len(answers)):
            if (first := shape.first(i)) is not None:
                yield event(head | {"choices": [first]})
        async for i, piece in merged([answer.pieces() for answer in answers]):
            if piece is None:
                last = {"choices": [shape.end(i, _reason(answers[i]))], "timings": answers[i].timings()}
                yield event(head | last)
            else:
                yield event(head | {"choices": [shape.piece(i, piece)]})
        if with_usage:
            yield event(head | {"choices": [], "usage": _usage(answers, request.n)})
    except RequestError as error:
        yield event(error_body(error))
    yield b"data: [DONE]\n\n"
