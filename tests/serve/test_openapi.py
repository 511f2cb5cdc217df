"""The description of the interface, answers against the types of OpenAI's and Anthropic's packages, and schemathesis.

``pip install schemathesis`` in any environment, and SCHEMATHESIS=PROGRAM, runs the last test; SECONDS=600 for longer.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.serve.conftest import ROOT, Server
from tests.serve.test_agents import two_calls

CHECKS = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"


def test_the_description_names_every_route_and_every_field(server: Server) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    from hotshoe.serve.app import make_app
    from hotshoe.serve.endpoints import ENDPOINTS
    from hotshoe.serve.front import Front
    from hotshoe.serve.requests import fields_of

    found = server.get("/openapi.json").json()
    routes = {(route.path, method) for route in make_app(Front([])).routes for method in route.methods}  # type: ignore[attr-defined]
    described = {(path, method.upper()) for path, item in found["paths"].items() for method in item}
    assert described <= routes
    assert {path for path, method in routes - described if method in ("POST", "DELETE")} == {"/api/blobs/{digest}"}
    for endpoint in ENDPOINTS:
        body = found["paths"][endpoint.path][endpoint.method.lower()]["requestBody"]
        name = body["content"]["application/json"]["schema"]["$ref"].rpartition("/")[2]
        schema = found["components"]["schemas"][name]
        jsonschema.Draft202012Validator.check_schema(schema)
        assert set(schema["properties"]) == fields_of(endpoint.body)
    chat = {"$ref": "#/components/schemas/hotshoe.serve.openai.ChatRequest", "components": found["components"]}
    good = {"model": "verse", "messages": [{"role": "user", "content": "x"}], "stop": None, "temperature": 1}
    jsonschema.validate(good, chat)
    for wrong in ({"messages": None}, {"temperature": "hot"}, {"n": 1.5}, {"stop": [1]}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(good | wrong, chat)
        assert server.post("/v1/chat/completions", good | wrong).json()["error"]["param"].startswith(next(iter(wrong)))


@pytest.fixture(scope="module")
def agent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server whose model thinks, calls a tool twice, and answers when a tool has answered."""
    running = Server(str(two_calls(tmp_path_factory.mktemp("agent") / "agent.gguf", "look", "at")), "--ctx", "8192")
    yield running
    assert running.stop() == 0


QUESTION = {"role": "user", "content": "What is there?"}
SCHEMA = {"type": "object", "properties": {"at": {"type": "string"}}, "required": ["at"]}


def events(text: str) -> list[Any]:
    """The values of server-sent events."""
    lines = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
    return [json.loads(line) for line in lines if line != "[DONE]"]


def test_openais_types_take_every_answer(agent: Server, server: Server) -> None:
    openai = pytest.importorskip("openai")
    types, adapter = openai.types, pytest.importorskip("pydantic").TypeAdapter

    def check(kind: Any, value: Any) -> None:
        adapter(kind).validate_json(json.dumps(value), strict=True)

    tool = {"type": "function", "function": {"name": "look", "parameters": SCHEMA}}
    body = {"messages": [QUESTION], "tools": [tool], "logprobs": True, "top_logprobs": 2}
    whole = agent.post("/v1/chat/completions", body).json()
    assert len(whole["choices"][0]["message"]["tool_calls"]) == 2
    check(types.chat.ChatCompletion, whole)
    streamed = agent.post("/v1/chat/completions", body | {"stream": True, "stream_options": {"include_usage": True}})
    for chunk in events(streamed.text):
        check(types.chat.ChatCompletionChunk, chunk)
    given = {"model": "verse", "prompt": "And", "max_tokens": 3, "logprobs": 2}
    check(types.Completion, server.post("/v1/completions", given).json())
    for chunk in events(server.post("/v1/completions", given | {"stream": True}).text):
        for choice in chunk["choices"]:  # a null before the end, as OpenAI sends it; its type has no stream
            choice["finish_reason"] = choice["finish_reason"] or "stop"
        check(types.Completion, chunk)
    check(types.CreateEmbeddingResponse, server.post("/v1/embeddings", {"model": "vectors", "input": "x"}).json())
    check(list[types.Model], server.get("/v1/models").json()["data"])
    asked = {"input": "What?", "tools": [{"type": "function", "name": "look", "parameters": SCHEMA, "strict": False}]}
    answer = agent.post("/v1/responses", asked).json()
    assert [item["type"] for item in answer["output"]] == ["reasoning", "function_call", "function_call"]
    check(types.responses.Response, answer)
    found = events(agent.post("/v1/responses", asked | {"stream": True}).text)
    assert found[-1]["type"] == "response.completed"
    for event in found:
        check(types.responses.ResponseStreamEvent, event)
    for event in events(agent.post("/v1/responses", {"input": "What?", "stream": True}).text):
        check(types.responses.ResponseStreamEvent, event)


def test_anthropics_types_take_every_answer(agent: Server) -> None:
    anthropic = pytest.importorskip("anthropic")
    types, adapter = anthropic.types, pytest.importorskip("pydantic").TypeAdapter

    def check(kind: Any, value: Any) -> None:
        adapter(kind).validate_json(json.dumps(value), strict=True)

    tool = {"name": "look", "input_schema": SCHEMA}
    body = {"model": "claude-x", "max_tokens": 500, "messages": [QUESTION], "tools": [tool]}
    whole = agent.post("/v1/messages", body).json()
    assert [block["type"] for block in whole["content"]] == ["thinking", "tool_use", "tool_use"]
    check(types.Message, whole)
    found = events(agent.post("/v1/messages", body | {"stream": True}).text)
    assert found[-1]["type"] == "message_stop"
    for event in found:
        if event["type"] != "ping":  # which the package handles before its types
            check(types.RawMessageStreamEvent, event)
    del body["max_tokens"]
    check(types.MessageTokensCount, agent.post("/v1/messages/count_tokens", body).json())
    check(types.ErrorResponse, agent.post("/v1/messages", body).json())
    check(list[types.ModelInfo], agent.get("/v1/models").json()["data"])


def test_schemathesis_finds_nothing(chat_server: Server, tmp_path: Path) -> None:
    program, seconds = os.environ.get("SCHEMATHESIS"), os.environ.get("SECONDS", "20")
    if program is None:
        pytest.skip("needs schemathesis: pip install schemathesis, in an environment of its own; SCHEMATHESIS=PROGRAM")
    variables = {"SCHEMATHESIS_HOOKS": "tests.serve.schemathesis_hooks", "PYTHONPATH": str(ROOT)}
    options = ["--continue-on-failure", "--suppress-health-check", "all", "--no-color", "--request-timeout", "60"]
    done = subprocess.run(
        [program, "run", f"{chat_server.url}/openapi.json", "--checks", CHECKS, "--max-time", seconds, *options],
        env=os.environ | variables, cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-20000:] + done.stderr
    assert "Traceback" not in "".join(chat_server.lines)
