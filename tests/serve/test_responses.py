"""OpenAI's responses, by the package openai, unchanged, with a model that writes what it is told."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.serve.conftest import Server
from tests.support.scripted import make_scripted

openai = pytest.importorskip("openai", reason="the package openai is not installed")

FIRST = ["<think>", "I need", " the file.", "</think>", "\n\n", "Let me", " look. ", "<tool_call>",
         '{"name": "read_file",', ' "arguments": {"path": "a.txt"}}', "</tool_call>"]  # fmt: skip
PATCH = ["<tool_call>", '{"name": "patch", "arguments":', ' {"input": "*** Begin\\n+x"}}', "</tool_call>"]
TOOLS: list[dict[str, Any]] = [
    {"type": "function", "name": "read_file", "strict": True,
     "parameters": {"type": "object", "properties": {"path": {"type": "string"}}}},
    {"type": "custom", "name": "patch", "description": "Changes files", "format": {"type": "text"}},
]  # fmt: skip
QUESTION: dict[str, Any] = {"role": "user", "content": [{"type": "input_text", "text": "What is in a.txt? " * 50}]}
GIVEN: dict[str, Any] = {"model": "agent", "tools": TOOLS, "instructions": "You are an agent.", "store": False}


@pytest.fixture(scope="module")
def scripted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("scripted")
    agent = make_scripted(folder / "agent.gguf", FIRST, ["It says ", "hello."])
    patcher = make_scripted(folder / "patcher.gguf", PATCH, ["Done ", "it."])
    server = Server(str(agent), str(patcher), "--device", "cpu", "--threads", "1")
    yield server
    assert server.stop() == 0


@pytest.fixture
def client(scripted: Server) -> Iterator[Any]:
    with openai.OpenAI(base_url=f"{scripted.url}/v1", api_key="none", max_retries=0) as opened:
        yield opened


def test_a_conversation_with_a_tool(client: Any) -> None:
    first = client.responses.create(**GIVEN, input=[QUESTION])
    thought, message, call = first.output
    assert first.status == "completed"
    assert (thought.type, thought.content[0].text) == ("reasoning", "I need the file.")
    assert first.output_text == message.content[0].text == "Let me look."
    assert (call.type, call.name, json.loads(call.arguments)) == ("function_call", "read_file", {"path": "a.txt"})
    result = {
        "type": "function_call_output",
        "call_id": call.call_id,
        "output": [{"type": "input_text", "text": "hello"}],
    }
    history = [QUESTION, *(item.model_dump() for item in first.output), result]
    second = client.responses.create(**GIVEN, input=history)
    assert second.output_text == "It says hello."
    assert second.usage.input_tokens_details.cached_tokens >= first.usage.input_tokens


def test_a_stream(client: Any) -> None:
    with client.responses.stream(**GIVEN, input=[QUESTION]) as stream:
        events = list(stream)
        final = stream.get_final_response()
    kinds = [event.type for event in events]
    assert kinds[0] == "response.created"
    assert kinds[-1] == "response.completed"
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert "".join(e.delta for e in events if e.type == "response.output_text.delta") == "Let me look."
    assert "".join(e.delta for e in events if e.type == "response.reasoning_text.delta") == "I need the file."
    assert [item.type for item in final.output] == ["reasoning", "message", "function_call"]
    done = [e.item for e in events if e.type == "response.output_item.done"]
    assert [item.id for item in done] == [item.id for item in final.output]
    assert final.usage.output_tokens == len(FIRST)


def test_a_custom_tool_takes_a_text(client: Any) -> None:
    given = GIVEN | {"model": "patcher"}
    first = client.responses.create(**given, input="Change it")
    [call] = first.output
    assert (call.type, call.name, call.input) == ("custom_tool_call", "patch", "*** Begin\n+x")
    result = {"type": "custom_tool_call_output", "call_id": call.call_id, "output": "ok"}
    history = [{"role": "user", "content": "Change it"}, call.model_dump(), result]
    assert client.responses.create(**given, input=history).output_text == "Done it."
    with client.responses.stream(**given, input="Change it") as stream:
        [delta] = [e.delta for e in stream if e.type == "response.custom_tool_call_input.delta"]
    assert delta == "*** Begin\n+x"


def test_an_answer_that_is_cut(client: Any) -> None:
    done = client.responses.create(**GIVEN, input="x", max_output_tokens=2)
    assert (done.status, done.incomplete_details.reason) == ("incomplete", "max_output_tokens")


def test_what_has_no_effect_is_named(scripted: Server) -> None:
    body = GIVEN | {"input": "x", "tools": [*TOOLS, {"type": "web_search"}], "include": ["reasoning.encrypted_content"],
                    "reasoning": {"effort": "low", "summary": "auto"}, "text": {"verbosity": "low"}}  # fmt: skip
    response = scripted.post("/v1/responses", body)
    assert response.status_code == 200, response.text
    ignored = "include, reasoning.effort, reasoning.summary, store, text.verbosity, tools[2]"
    assert response.headers["x-hotshoe-ignored"] == ignored


def test_a_failure_in_a_stream(scripted: Server) -> None:
    text = scripted.post("/v1/responses", GIVEN | {"input": "a" * 9000, "stream": True}).text
    last = json.loads(text.strip().splitlines()[-1].removeprefix("data: "))
    assert last["type"] == "response.failed"
    assert last["response"]["error"]["code"] == "context_length_exceeded"


def test_all_thoughts_of_a_turn_are_kept() -> None:
    from hotshoe.serve.responses import ResponsesRequest, _messages
    from hotshoe.serve.wire import Ready

    ready = Ready("text", "llama", "tiny", 64, 1, "cpu", "", True)
    assert _messages(ResponsesRequest(input=[{"type": "reasoning", "summary": [{"text": ""}]}]), ready) == []
    items = [{"type": "reasoning", "summary": [{"text": text}]} for text in ("one", "two")]
    assert _messages(ResponsesRequest(input=items), ready)[0]["reasoning_content"] == "one\ntwo"


@pytest.mark.parametrize(
    ("change", "param", "words"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id", "not supported"),
        ({"truncation": "auto"}, "truncation", "not supported"),
        ({"tool_choice": "always"}, "tool_choice", "expected auto"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0]", "item_reference"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image"}]}]},
            "input[0].content[0]",
            "reads texts only",
        ),
        ({"input": [{"type": "reasoning", "content": 5}]}, "input[0]", "not a list"),
        ({"text": {"format": "x"}}, "text.format", "not an object"),
        ({"tools": [{"type": "function"}]}, "tools[0].name", "no name"),
        ({"text": {"format": {"type": "json_schema"}}}, "response_format", "json_schema"),
    ],
)
def test_a_wrong_request(scripted: Server, change: dict[str, Any], param: str, words: str) -> None:
    response = scripted.post("/v1/responses", GIVEN | {"input": "x"} | change)
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert error["param"] == param
    assert words in error["message"]
