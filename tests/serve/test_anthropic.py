"""Anthropic's dialect, by the package anthropic, unchanged, with a model that writes what it is told."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.serve.conftest import VERSE, Server
from tests.support.scripted import make_scripted

anthropic = pytest.importorskip("anthropic", reason="the package anthropic is not installed")

FIRST = ["<think>", "I need", " the file.", "</think>", "\n\n", "Let me", " look. ", "<tool_call>",
         '{"name": "read_file",', ' "arguments": {"path": "a.txt"}}', "</tool_call>"]  # fmt: skip
TOOLS = [{"name": "read_file", "description": "Reads", "input_schema": {"type": "object",
          "properties": {"path": {"type": "string"}}}, "cache_control": {"type": "ephemeral"}}]  # fmt: skip
QUESTION: dict[str, Any] = {"role": "user", "content": "What is in a.txt? " + "Look closely. " * 100}
GIVEN: dict[str, Any] = {"model": "agent", "max_tokens": 100, "tools": TOOLS}


@pytest.fixture(scope="module")
def scripted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    path = make_scripted(tmp_path_factory.mktemp("scripted") / "agent.gguf", FIRST, ["It says ", "hello."])
    server = Server(str(path), f"verse={VERSE}", "--device", "cpu", "--threads", "1")
    yield server
    assert server.stop() == 0


@pytest.fixture
def client(scripted: Server) -> Iterator[Any]:
    with anthropic.Anthropic(base_url=scripted.url, api_key="none", max_retries=0) as opened:
        yield opened


def system(number: int) -> list[dict[str, Any]]:
    """What an agent sends: a line that is different each time, and a text that is not."""
    return [
        {"type": "text", "text": f"x-anthropic-billing-header: cc_version=1; cch={number:05d};"},
        {"type": "text", "text": "You are an agent.", "cache_control": {"type": "ephemeral"}},
    ]


def test_a_conversation_with_a_tool(client: Any) -> None:
    first = client.messages.create(**GIVEN, system=system(1), messages=[QUESTION])
    thinking, text, use = first.content
    assert (thinking.type, thinking.thinking) == ("thinking", "I need the file.")
    assert (text.type, text.text) == ("text", "Let me look.")
    assert (use.type, use.name, use.input) == ("tool_use", "read_file", {"path": "a.txt"})
    assert first.stop_reason == "tool_use"
    result = {"type": "tool_result", "tool_use_id": use.id, "content": [{"type": "text", "text": "hello"}]}
    answered = {"role": "user", "content": [result]}
    messages = [QUESTION, {"role": "assistant", "content": first.model_dump()["content"]}, answered]
    second = client.messages.create(**GIVEN, system=system(2), messages=messages)
    assert [block.text for block in second.content] == ["It says hello."]
    assert second.stop_reason == "end_turn"
    whole = first.usage.input_tokens + first.usage.cache_read_input_tokens
    assert second.usage.cache_read_input_tokens >= whole, "the billing header does not spoil the prefix"


def test_a_stream(client: Any) -> None:
    with client.messages.stream(**GIVEN, messages=[QUESTION]) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_message()
    assert kinds[0] == "message_start"
    assert kinds[-1] == "message_stop"
    assert [block.type for block in final.content] == ["thinking", "text", "tool_use"]
    assert final.content[1].text == "Let me look."
    assert final.content[2].input == {"path": "a.txt"}
    assert (final.stop_reason, final.usage.output_tokens) == ("tool_use", len(FIRST))
    assert final.usage.input_tokens + final.usage.cache_read_input_tokens > 100


def test_how_an_answer_ends(client: Any) -> None:
    plain = GIVEN | {"tools": [], "messages": [QUESTION]}
    assert client.messages.create(**(plain | {"max_tokens": 2})).stop_reason == "max_tokens"
    stopped = client.messages.create(**plain, stop_sequences=["look"])
    assert (stopped.stop_reason, stopped.stop_sequence) == ("stop_sequence", "look")
    assert stopped.content[-1].text == "Let me"


def test_tokens_are_counted_as_they_are_read(client: Any) -> None:
    given = {"model": "agent", "messages": [QUESTION], "tools": TOOLS, "system": system(1)}
    counted = client.messages.count_tokens(**given).input_tokens
    done = client.messages.create(**GIVEN, messages=[QUESTION], system=system(3))
    assert counted == done.usage.input_tokens + done.usage.cache_read_input_tokens


def test_names_of_anthropics_models_are_the_first_text_model(client: Any) -> None:
    done = client.messages.create(**(GIVEN | {"model": "claude-haiku-4-5"}), messages=[QUESTION])
    assert done.model == "agent"
    with pytest.raises(anthropic.NotFoundError, match="there is no model 'gpt-9'"):
        client.messages.create(**(GIVEN | {"model": "gpt-9"}), messages=[QUESTION])


def test_what_a_client_may_send_without_effect(scripted: Server) -> None:
    body = GIVEN | {
        "messages": [QUESTION],
        "metadata": {"user_id": "me"},
        "context_management": {"edits": []},
        "thinking": {"type": "enabled", "budget_tokens": 2000},
        "output_config": {"effort": "high"},
        "temperature": 0.5,
    }
    response = scripted.post("/v1/messages?beta=true", body, headers={"anthropic-beta": "anything-2026-01-01"})
    assert response.status_code == 200
    assert response.headers["x-hotshoe-ignored"] == ("context_management, metadata, output_config.effort")


def test_a_result_that_is_an_error_says_so() -> None:
    from hotshoe.serve.anthropic import _converted

    block = {"type": "tool_result", "tool_use_id": "t", "content": "no such file", "is_error": True}
    assert _converted(0, {"role": "user", "content": [block]}, False)[0]["content"] == "Error: no such file"


def test_what_the_server_did_not_expect_is_an_error_of_the_dialect(monkeypatch: pytest.MonkeyPatch) -> None:
    from starlette.testclient import TestClient

    from hotshoe.serve import app
    from hotshoe.serve.front import Front

    async def broken(*_: Any) -> None:
        raise KeyError("x")

    monkeypatch.setattr(app, "ENDPOINTS", [endpoint._replace(handler=broken) for endpoint in app.ENDPOINTS])
    response = TestClient(app.make_app(Front([])), base_url="http://localhost").post("/v1/messages", json={})
    assert (response.status_code, response.json()["type"]) == (500, "error")


@pytest.mark.parametrize(
    ("change", "kind", "words"),
    [
        ({"max_tokens": None}, "invalid_request_error", "max_tokens"),
        ({"messages": []}, "invalid_request_error", "at least one message"),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "invalid_request_error", "reads texts only"),
        ({"messages": [{"role": "user", "content": 5}]}, "invalid_request_error", "a list of blocks"),
        (
            {"messages": [{"role": "user", "content": [{"type": "tool_result", "content": 5}]}]},
            "invalid_request_error",
            "content.0.content is not",
        ),
        ({"tools": [{"type": "web_search_20250305", "name": "x"}]}, "invalid_request_error", "does not run"),
        ({"tool_choice": {"type": "tool", "name": "x"}}, "invalid_request_error", "there is no tool 'x'"),
        ({"messages": [{"role": "user", "content": "a" * 9000}]}, "invalid_request_error", "tokens > 8192 maximum"),
        ({"model": "verse", "tools": []}, "invalid_request_error", "template"),
    ],
)
def test_a_wrong_request(scripted: Server, change: dict[str, Any], kind: str, words: str) -> None:
    response = scripted.post("/v1/messages", GIVEN | {"messages": [QUESTION]} | change)
    assert response.status_code == 400, response.text
    error = response.json()
    assert (error["type"], error["error"]["type"]) == ("error", kind)
    assert words in error["error"]["message"]
    if "maximum" in words:
        assert error["error"]["message"].startswith("prompt is too long: ")
