"""Reasoning and calls of tools, with a model that writes what it is told, and the clients that people have."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from hotshoe.serve.requests import schema_of_tool
from tests.serve.conftest import Server
from tests.support.scripted import make_scripted

openai = pytest.importorskip("openai", reason="the package openai is not installed")
ollama = pytest.importorskip("ollama", reason="the package ollama is not installed")

THINK = ["<think>", "I need", " the file.", "</think>"]
CALL = ["<tool_call>", '{"name": "read_file",', ' "arguments": {"path": "a.txt"}}', "</tool_call>"]
ANSWER = ["It says ", "hello."]
TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "read_file",
            "parameters": {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]},
        },
    }
]
QUESTION: dict[str, Any] = {"role": "user", "content": "What is in a.txt? " + "Look closely. " * 100}


@pytest.fixture(scope="module")
def scripted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("scripted")
    agent = make_scripted(folder / "agent.gguf", [*THINK, "\n\n", "Let me", " look. ", *CALL], ANSWER)
    broken = make_scripted(folder / "broken.gguf", ["Well. ", *CALL[:2], "</tool_call>"], ANSWER)
    hasty = make_scripted(folder / "hasty.gguf", [*THINK, *CALL], ANSWER)
    server = Server(str(agent), str(broken), str(hasty), "--device", "cpu", "--threads", "1")
    yield server
    assert server.stop() == 0


@pytest.fixture
def client(scripted: Server) -> Iterator[Any]:
    with openai.OpenAI(base_url=f"{scripted.url}/v1", api_key="none", max_retries=0) as opened:
        yield opened


def test_a_conversation_with_a_tool(client: Any) -> None:
    given = {"model": "agent", "tools": TOOLS, "temperature": 0}
    first = client.chat.completions.create(messages=[QUESTION], **given)
    message = first.choices[0].message
    assert first.choices[0].finish_reason == "tool_calls"
    assert (message.content, message.reasoning_content) == ("Let me look.", "I need the file.")
    [call] = message.tool_calls
    assert (call.type, call.function.name) == ("function", "read_file")
    assert json.loads(call.function.arguments) == {"path": "a.txt"}
    answered = {"role": "tool", "tool_call_id": call.id, "content": "hello"}
    second = client.chat.completions.create(messages=[QUESTION, message.model_dump(), answered], **given)
    assert second.choices[0].message.content == "It says hello."
    assert second.choices[0].message.tool_calls is None
    assert second.choices[0].finish_reason == "stop"
    cached = second.usage.prompt_tokens_details.cached_tokens
    assert cached >= first.usage.prompt_tokens, "the second turn computes only what is new"


def test_a_stream_with_a_tool(client: Any) -> None:
    chunks = list(
        client.chat.completions.create(
            model="agent", messages=[QUESTION], tools=TOOLS, temperature=0, stream=True, tool_choice="auto"
        )
    )
    deltas = [chunk.choices[0].delta for chunk in chunks]
    assert "".join(getattr(d, "reasoning_content", None) or "" for d in deltas) == "I need the file."
    assert "".join(d.content or "" for d in deltas) == "Let me look."
    [call] = [call for d in deltas for call in d.tool_calls or []]
    assert (call.index, call.function.name) == (0, "read_file")
    assert json.loads(call.function.arguments) == {"path": "a.txt"}
    assert chunks[-1].choices[0].finish_reason == "tool_calls"


def test_without_tools_or_thinking_nothing_else_changes(client: Any) -> None:
    done = client.chat.completions.create(
        model="agent", messages=[QUESTION], tools=TOOLS, tool_choice="none", max_tokens=3, temperature=0
    )
    assert done.choices[0].message.reasoning_content == "I need the file."
    assert done.choices[0].finish_reason == "length"


def test_a_damaged_call_is_text(client: Any) -> None:
    done = client.chat.completions.create(model="broken", messages=[QUESTION], tools=TOOLS, temperature=0)
    assert done.choices[0].message.tool_calls is None
    assert done.choices[0].message.content == 'Well.\n<tool_call>{"name": "read_file",</tool_call>'
    assert done.choices[0].finish_reason == "stop"
    parts = client.chat.completions.create(model="broken", messages=[QUESTION], temperature=0, stream=True)
    text = "".join(part.choices[0].delta.content or "" for part in parts)
    assert text == done.choices[0].message.content


def test_ollama_with_a_tool(scripted: Server) -> None:
    with ollama.Client(scripted.url) as client:
        assert client.show("agent").capabilities == ["completion", "tools", "thinking"]
        options = {"temperature": 0}
        done = client.chat("agent", [QUESTION], tools=TOOLS, options=options)
        [call] = done.message.tool_calls
        assert (call.function.name, call.function.arguments) == ("read_file", {"path": "a.txt"})
        assert (done.message.content, done.message.thinking) == ("Let me look.", "I need the file.")
        answered = {"role": "tool", "tool_name": "read_file", "content": "hello"}
        messages = [QUESTION, done.message, answered]
        parts = list(client.chat("agent", messages, tools=TOOLS, options=options, stream=True))
        assert "".join(part.message.content or "" for part in parts) == "It says hello."


OTHER = {"type": "function", "function": {"name": "list_files", "parameters": {"type": "object", "properties": {}}}}
PATHS = ["README.md", "b.txt"]
CHOSEN = {
    "name": "open_file",
    "parameters": {"type": "object", "properties": {"path": {"enum": PATHS}}, "required": ["path"]},
}


@pytest.mark.parametrize("model", ["agent", "hasty"])
def test_a_call_that_is_asked_for_is_made(scripted: Server, model: str) -> None:
    """The models want to call read_file, or to write a text first."""
    tools = [*TOOLS, OTHER, {"type": "function", "function": CHOSEN}]
    named = {"type": "function", "function": {"name": "open_file"}}
    body = {"model": model, "messages": [QUESTION], "tools": tools, "temperature": 0, "tool_choice": named}
    [choice] = scripted.post("/v1/chat/completions", body | {"parallel_tool_calls": False}).json()["choices"]
    [call] = choice["message"]["tool_calls"]
    assert call["function"]["name"] == "open_file"
    assert json.loads(call["function"]["arguments"])["path"] in PATHS
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["reasoning_content"] == "I need the file."
    ours = {"model": model, "input": QUESTION["content"], "temperature": 0, "parallel_tool_calls": False}
    flat = [{"type": "function"} | tool["function"] for tool in tools]
    answer = scripted.post(
        "/v1/responses", ours | {"tools": flat, "tool_choice": {"type": "function", "name": "list_files"}}
    )
    [found] = [item for item in answer.json()["output"] if item["type"] == "function_call"]
    assert (found["name"], json.loads(found["arguments"])) == ("list_files", {})
    theirs = [{"name": t["function"]["name"], "input_schema": t["function"]["parameters"]} for t in tools]
    choice = {"type": "any", "disable_parallel_tool_use": True}
    body = {"model": model, "max_tokens": 500, "messages": [QUESTION], "tools": theirs[1:], "tool_choice": choice}
    answer = scripted.post("/v1/messages", body | {"temperature": 0}).json()
    [found] = [block for block in answer["content"] if block["type"] == "tool_use"]
    assert found["name"] in ("list_files", "open_file")
    assert answer["stop_reason"] == "tool_use"


def test_a_budget_of_reasoning_does_not_replace_a_grammar(scripted: Server) -> None:
    body = {"model": "agent", "messages": [QUESTION], "max_tokens": 40, "reasoning_budget": 5}
    for more in ({"grammar": 'root ::= "a"'}, {"response_format": {"type": "json_object"}}):
        response = scripted.post("/v1/chat/completions", body | more)
        assert response.status_code == 400, response.text
        assert "limit of the reasoning and a grammar or schema" in response.json()["error"]["message"]


def test_reasoning_has_a_budget(scripted: Server) -> None:
    body = {"model": "agent", "messages": [QUESTION], "temperature": 0, "max_tokens": 40}
    reasoning = []
    for budget in (None, 5, 1, 0):
        [choice] = scripted.post("/v1/chat/completions", body | {"reasoning_budget": budget}).json()["choices"]
        reasoning.append(choice["message"].get("reasoning_content", ""))
        assert choice["message"]["content"].startswith("Let me look."), "it goes on as after its own end"
    assert reasoning == ["I need the file.", "I need the file.", "I need", ""]
    theirs = {"model": "agent", "messages": [QUESTION], "temperature": 0, "max_tokens": 40}
    answer = scripted.post("/v1/messages", theirs | {"thinking": {"type": "enabled", "budget_tokens": 1}})
    assert [b["thinking"] for b in answer.json()["content"] if b["type"] == "thinking"] == ["I need"]
    assert "x-hotshoe-ignored" not in answer.headers


def test_requests_at_the_edge_are_answered(scripted: Server) -> None:
    body = {"model": "agent", "messages": [QUESTION], "max_tokens": 2}
    assert scripted.post("/v1/chat/completions", body | {"n": 2, "seed": 2**64 - 1}).status_code == 200
    call = {"function": {"name": "f", "arguments": "[" * 200_000}}
    deep = body | {"messages": [QUESTION, {"role": "assistant", "tool_calls": [call]}, QUESTION]}
    assert scripted.post("/v1/chat/completions", deep).status_code == 400, "it is passed on, and is too long"


@pytest.mark.parametrize(
    ("change", "param", "words"),
    [
        ({"tools": [{}]}, "tools[0]", "type: function"),
        ({"tools": [{"type": "web_search"}]}, "tools[0]", "type: function"),
        (
            {"tools": [{"type": "function", "function": {"name": "x", "parameters": {"properties": None}}}]},
            "tools[0].function.parameters.properties",
            "tools[0].function.parameters.properties is not an object",
        ),
        ({"tool_choice": "always"}, "tool_choice", "expected auto"),
        ({"tool_choice": {"type": "function", "function": {"name": "x"}}}, "tool_choice", "no tool 'x'"),
        ({"tool_choice": "required", "tools": []}, "tool_choice", "no tools"),
        ({"tool_choice": "required", "grammar": "root ::= x"}, None, "asks for a call"),
        ({"messages": [{"role": "assistant", "tool_calls": [{"function": {}}]}]}, "messages[0].tool_calls[0]", "name"),
        ({"chat_template_kwargs": {"unheard_of": 1}}, None, "unheard_of"),
        ({"chat_template_kwargs": {"documents": [{}]}}, None, "documents"),
        ({"chat_template_kwargs": {"messages": [1]}}, "chat_template_kwargs", "'messages'"),
        ({"chat_template_kwargs": {"tools": [1]}}, "chat_template_kwargs", "'tools'"),
        ({"chat_template_kwargs": {"self": 1}}, "chat_template_kwargs", "'self'"),
        ({"messages": [{"role": "assistant", "tool_calls": 5}]}, "messages[0].tool_calls", "not a list"),
        ({"response_format": {"type": "json_schema", "json_schema": "x"}}, "response_format", "json_schema"),
    ],
)
def test_a_wrong_request(scripted: Server, change: dict[str, Any], param: str | None, words: str) -> None:
    body = {"model": "agent", "messages": [QUESTION], "tools": TOOLS} | change
    response = scripted.post("/v1/chat/completions", body)
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"] == param
    assert words in response.json()["error"]["message"]


def test_an_empty_schema_of_a_tool_is_that_of_an_object() -> None:
    """Templates read its properties."""
    assert schema_of_tool("x", {}) == schema_of_tool("x", None) == {"type": "object", "properties": {}}
