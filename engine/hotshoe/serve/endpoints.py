"""The endpoints that take a JSON body: their paths, what answers them, and the form of their bodies and errors."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, NamedTuple

import msgspec
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from hotshoe.serve import anthropic, changes, native, ollama, openai, rerank, responses
from hotshoe.serve.front import Front, json_response
from hotshoe.serve.requests import RequestError

__all__ = ["ENDPOINTS", "Endpoint", "respond"]

_log = logging.getLogger(__name__)
_RETRY_AFTER = "1"


class Endpoint(NamedTuple):
    """A path that answers a JSON body."""

    path: str
    handler: Callable[[Front, bytes], Coroutine[Any, Any, Any]]
    body: type[msgspec.Struct]
    error_body: Callable[[RequestError], Any] = openai.error_body
    method: str = "POST"


_MESSAGES = anthropic.MessagesRequest, anthropic.error_body

ENDPOINTS = (
    Endpoint("/v1/chat/completions", openai.chat, openai.ChatRequest),
    Endpoint("/v1/completions", openai.completions, openai.CompletionRequest),
    Endpoint("/v1/embeddings", openai.embeddings, openai.EmbeddingsRequest),
    Endpoint("/v1/responses", responses.responses, responses.ResponsesRequest),
    Endpoint("/v1/messages", anthropic.messages, *_MESSAGES),
    Endpoint("/v1/messages/count_tokens", anthropic.count_tokens, *_MESSAGES),
    *(Endpoint(path, rerank.rerank, rerank.RerankRequest) for path in ("/v1/rerank", "/v2/rerank", "/rerank")),
    Endpoint("/completion", native.completion, native.CompletionRequest),
    Endpoint("/infill", native.infill, native.CompletionRequest),
    Endpoint("/tokenize", native.tokenize, native.TokenizeRequest),
    Endpoint("/detokenize", native.detokenize, native.DetokenizeRequest),
    *(Endpoint(f"/api/{name}", handler, body, ollama.error_body) for name, (handler, body) in ollama.ACTIONS.items()),
    Endpoint("/api/pull", changes.pull_model, changes.NameRequest, ollama.error_body),
    Endpoint("/api/create", changes.create, changes.CreateRequest, ollama.error_body),
    Endpoint("/api/delete", changes.delete_model, changes.NameRequest, ollama.error_body, "DELETE"),
)


async def respond(endpoint: Endpoint, work: Awaitable[Response]) -> Response:
    """The response of a handler, or that of the error that it raised. Raises ClientDisconnect."""
    try:
        return await work
    except ClientDisconnect:
        raise
    except RequestError as error:
        response = json_response(endpoint.error_body(error), status=error.status)
        if error.status == 429:
            response.headers["retry-after"] = _RETRY_AFTER
        return response
    except Exception as error:
        _log.exception("a request of %s failed", endpoint.path)
        failed = RequestError(500, f"{type(error).__name__}: {error}; the server's log has more", code="internal")
        return json_response(endpoint.error_body(failed), status=500)
