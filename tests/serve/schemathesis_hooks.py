"""What schemathesis is told about the server of test_openapi.py: the names of models, and to ask for short texts."""

from __future__ import annotations

from typing import Any

import schemathesis

_MODELS = {"embed": "vectors", "rank": "ranks"}
_NEED_A_MODEL = ("/api/", "/v1/messages")
_LENGTH_OF = {
    "/v1/completions": "max_tokens",
    "/v1/chat/completions": "max_tokens",
    "/v1/messages": "max_tokens",
    "/v1/responses": "max_output_tokens",
    "/completion": "n_predict",
    "/infill": "n_predict",
}
_LENGTHS = ("max_tokens", "max_completion_tokens", "max_output_tokens", "n_predict")
_LONGEST = 4


@schemathesis.hook
def map_body(context: Any, body: Any) -> Any:
    """A body for a model that exists, with messages of known roles, so that what comes after is read too.

    What is invalid stays invalid: only valid values are replaced. One body in four stays as it is.
    """
    if not isinstance(body, dict) or len(str(body)) % 4 == 0:
        return body
    path = context.operation.path
    name = next(
        (name for part, name in _MODELS.items() if part in path),
        "verse" if path in ("/completion", "/v1/completions") else "smol",
    )
    if isinstance(body.get("model"), str) or (not path.startswith(_NEED_A_MODEL) and "model" not in body):
        body["model"] = name
    for field in _LENGTHS:
        if isinstance(body.get(field), int):
            body[field] = min(body[field], _LONGEST)
    if (field := _LENGTH_OF.get(path)) is not None and body.get(field) is None:
        body[field] = _LONGEST  # a null, too, asks for a text as long as the context
    if path in ("/api/chat", "/api/generate") and isinstance(options := body.setdefault("options", {}), dict):
        options["num_predict"] = _LONGEST
    messages = body.get("messages")
    for message in messages if isinstance(messages, list) else ():
        if isinstance(message, dict):
            message |= {"role": message.get("role") or "user", "content": message.get("content") or "x"}
    return body
