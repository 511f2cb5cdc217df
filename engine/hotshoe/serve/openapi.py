"""The description of the server's interface (OpenAPI 3.1), made from the types that read the bodies of requests."""

from __future__ import annotations

from typing import Any

import msgspec

import hotshoe
from hotshoe.serve import anthropic, ollama, openai
from hotshoe.serve.endpoints import ENDPOINTS, Endpoint

__all__ = ["description"]

_TEXT = {"type": "string"}
_ERRORS: dict[Any, dict[str, Any]] = {
    openai.error_body: {
        "message": _TEXT,
        "type": _TEXT,
        "param": {"type": ["string", "null"]},
        "code": {"type": ["string", "null"]},
    },
    anthropic.error_body: {"type": _TEXT, "message": _TEXT},
}
"""What an error holds, by dialect. Ollama's is a text."""
_STATUSES = {
    400: "A field is wrong; the error names it",
    401: "The key is missing or wrong",
    403: "The request comes from a page of another site, or asks for a change that is not allowed",
    404: "There is no such model",
    409: "The model works, so it cannot be unloaded",
    413: "The body is too long",
    429: "The model has too many requests already",
    500: "An error in the server",
    503: "The model's process ended, or the model cannot be loaded now",
}
_LISTS = {
    "/health": "Whether the server runs", "/v1/models": "All models", "/api/version": "The version of Ollama's dialect",
    "/api/tags": "All models, in Ollama's dialect", "/api/ps": "The models that are loaded",
    "/api/status": "Models, memory, queues and recent answers", "/api/devices": "The devices of the machine",
}  # fmt: skip


def description() -> dict[str, Any]:
    """The interface as an OpenAPI document. Where a field may be missing, null means the same."""
    bodies = list(dict.fromkeys(endpoint.body for endpoint in ENDPOINTS))
    schemas, components = msgspec.json.schema_components(bodies, ref_template="#/components/schemas/{name}")
    for component in components.values():
        required = component.get("required", ())
        for name, schema in component.get("properties", {}).items():
            if name not in required:
                component["properties"][name] = _or_null(schema)
    paths = {path: {"get": _operation("get", path, what)} for path, what in _LISTS.items()}
    for endpoint in ENDPOINTS:
        operation = _operation(endpoint.method, endpoint.path, endpoint.path)
        operation["requestBody"] = {"required": True, "content": _json(schemas[bodies.index(endpoint.body)])}
        operation["responses"] |= {
            str(status): {"description": what, "content": _json(_error(endpoint))} for status, what in _STATUSES.items()
        }
        if "stream" in endpoint.body.__struct_fields__:
            kind = "application/x-ndjson" if endpoint.error_body is ollama.error_body else "text/event-stream"
            operation["responses"]["200"]["content"][kind] = {}
        paths[endpoint.path] = {endpoint.method.lower(): operation}
    return {
        "openapi": "3.1.0",
        "info": {"title": "hotshoe serve", "version": hotshoe.__version__},
        "paths": paths,
        "components": {"schemas": components},
    }


def _operation(method: str, path: str, what: str) -> dict[str, Any]:
    return {
        "operationId": f"{method.lower()}{path.replace('/', '_')}",
        "summary": what,
        "responses": {"200": {"description": "The answer", "content": _json({"type": "object"})}},
    }


def _json(schema: dict[str, Any]) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}


def _error(endpoint: Endpoint) -> dict[str, Any]:
    fields = _ERRORS.get(endpoint.error_body)
    error = _TEXT if fields is None else {"type": "object", "required": list(fields), "properties": fields}
    return {"type": "object", "required": ["error"], "properties": {"error": error}}


def _or_null(schema: dict[str, Any]) -> dict[str, Any]:
    if schema == {} or {"type": "null"} in schema.get("anyOf", ()):
        return schema
    default = {"default": schema["default"]} if "default" in schema else {}
    return {"anyOf": [{k: v for k, v in schema.items() if k != "default"}, {"type": "null"}], **default}
