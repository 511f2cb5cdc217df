"""The classes of LangChain, LlamaIndex and Haystack, unchanged: ``pip install --group frameworks``.

The model is scripted: it thinks, calls a tool twice, and answers when a tool has answered.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.serve.conftest import Server
from tests.serve.test_agents import two_calls

pytestmark = pytest.mark.filterwarnings("default")  # of their packages
COMMANDS = ["cat a.txt", "echo hotshoe > b.txt"]
ANSWER = "a.txt says hello, and b.txt says hotshoe."


@pytest.fixture(scope="module")
def agent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    path = two_calls(tmp_path_factory.mktemp("agent") / "agent.gguf", "run", "command")
    running = Server(str(path), "--ctx", "8192")
    yield running
    assert running.stop() == 0


def run(command: str) -> str:
    """Run a command."""
    return f"{command}: done"


def langchain_models(agent: Server) -> Iterator[Any]:
    openai = pytest.importorskip("langchain_openai")
    anthropic, ollama = pytest.importorskip("langchain_anthropic"), pytest.importorskip("langchain_ollama")
    given = {"model": "agent", "base_url": f"{agent.url}/v1", "api_key": "none"}
    yield openai.ChatOpenAI(**given)
    yield openai.ChatOpenAI(**given, use_responses_api=True)
    yield anthropic.ChatAnthropic(model="agent", base_url=agent.url, api_key="none", max_tokens=500)
    yield ollama.ChatOllama(model="agent", base_url=agent.url)


def test_langchain(agent: Server) -> None:
    messages = pytest.importorskip("langchain_core.messages")
    for model in langchain_models(agent):
        bound = model.bind_tools([run])
        conversation: list[Any] = [messages.HumanMessage("What is in a.txt? Write b.txt.")]
        call = bound.invoke(conversation)
        assert [each["args"]["command"] for each in call.tool_calls] == COMMANDS, type(model)
        assert [each["name"] for each in call.tool_calls] == ["run", "run"]
        conversation.append(call)
        conversation += [messages.ToolMessage(run(**each["args"]), tool_call_id=each["id"]) for each in call.tool_calls]
        done = bound.invoke(conversation)
        assert done.text == ANSWER, type(model)
        assert done.usage_metadata["output_tokens"] > 0
        assert done.usage_metadata["input_tokens"] > 10
        whole: Any = None
        for chunk in bound.stream(conversation[:1]):
            whole = chunk if whole is None else whole + chunk
        assert [each["args"]["command"] for each in whole.tool_calls] == COMMANDS, type(model)
        assert "".join(chunk.text for chunk in bound.stream(conversation)) == ANSWER


def test_langchain_embeddings(server: Server) -> None:
    openai, ollama = pytest.importorskip("langchain_openai"), pytest.importorskip("langchain_ollama")
    given = {"model": "vectors", "base_url": f"{server.url}/v1", "api_key": "none"}
    made = openai.OpenAIEmbeddings(**given, check_embedding_ctx_length=False)
    other = ollama.OllamaEmbeddings(model="vectors", base_url=server.url)
    vectors = made.embed_documents(["one", "two"])
    assert len(vectors) == 2
    assert vectors[0] == pytest.approx(other.embed_query("one"), abs=1e-6)
    assert made.embed_query("two") == pytest.approx(vectors[1], abs=1e-6)


def test_langchain_structured(chat_server: Server) -> None:
    openai = pytest.importorskip("langchain_openai")
    pytest.importorskip("llguidance")
    schema = {"title": "answer", "type": "object", "properties": {"city": {"type": "string", "maxLength": 20}},
              "required": ["city"], "additionalProperties": False}  # fmt: skip
    model = openai.ChatOpenAI(model="smol", base_url=f"{chat_server.url}/v1", api_key="none", max_tokens=60)
    assert set(model.with_structured_output(schema, method="json_schema").invoke("Capital of Japan?")) == {"city"}


def test_llamaindex(agent: Server, server: Server) -> None:
    like = pytest.importorskip("llama_index.llms.openai_like")
    from llama_index.core.llms import ChatMessage
    from llama_index.core.tools import FunctionTool
    from llama_index.embeddings.openai_like import OpenAILikeEmbedding

    base = {"api_base": f"{agent.url}/v1", "api_key": "none"}
    model = like.OpenAILike(
        model="agent", **base, is_chat_model=True, is_function_calling_model=True, context_window=8192
    )
    question = ChatMessage(role="user", content="What is in a.txt? Write b.txt.")
    tool = FunctionTool.from_defaults(fn=run)
    called = model.chat_with_tools([tool], chat_history=[question], allow_parallel_tool_calls=True)
    calls = model.get_tool_calls_from_response(called)
    assert [call.tool_kwargs["command"] for call in calls] == COMMANDS
    results = [
        ChatMessage(role="tool", content=run(**c.tool_kwargs), additional_kwargs={"tool_call_id": c.tool_id})
        for c in calls
    ]
    history = [question, called.message, *results]
    assert model.chat(history).message.content == ANSWER
    assert "".join(chunk.delta or "" for chunk in model.stream_chat(history)) == ANSWER
    text = like.OpenAILike(model="verse", api_base=f"{server.url}/v1", api_key="none", max_tokens=8, context_window=512)
    assert text.complete("In the beginning").text
    embed = OpenAILikeEmbedding(model_name="vectors", api_base=f"{server.url}/v1", api_key="none")
    one, two = embed.get_text_embedding_batch(["one", "two"])
    assert one != two
    assert embed.get_query_embedding("one") == pytest.approx(one, abs=1e-6)


def haystack_models(agent: Server) -> Iterator[Any]:
    generators = pytest.importorskip("haystack.components.generators.chat")
    from haystack.utils import Secret

    yield generators.OpenAIChatGenerator(
        model="agent", api_base_url=f"{agent.url}/v1", api_key=Secret.from_token("none")
    )
    ollama = pytest.importorskip("haystack_integrations.components.generators.ollama")
    yield ollama.OllamaChatGenerator(model="agent", url=agent.url)


def test_haystack(agent: Server, server: Server) -> None:
    pytest.importorskip("haystack")
    from haystack.components.embedders import OpenAIDocumentEmbedder, OpenAITextEmbedder
    from haystack.dataclasses import ChatMessage, Document
    from haystack.tools import create_tool_from_function
    from haystack.utils import Secret

    for model in haystack_models(agent):
        tools = [create_tool_from_function(run)]
        question = ChatMessage.from_user("What is in a.txt? Write b.txt.")
        [reply] = model.run(messages=[question], tools=tools)["replies"]
        assert [call.arguments["command"] for call in reply.tool_calls] == COMMANDS, type(model)
        results = [ChatMessage.from_tool(run(**call.arguments), origin=call) for call in reply.tool_calls]
        pieces: list[Any] = []
        history = [question, reply, *results]
        [done] = model.run(messages=history, tools=tools, streaming_callback=pieces.append)["replies"]
        assert done.text == "".join(piece.content for piece in pieces) == ANSWER, type(model)
    given = {"model": "vectors", "api_base_url": f"{server.url}/v1", "api_key": Secret.from_token("none")}
    vector = OpenAITextEmbedder(**given).run(text="one")["embedding"]
    [found] = OpenAIDocumentEmbedder(**given, progress_bar=False).run(documents=[Document(content="one")])["documents"]
    assert found.embedding == pytest.approx(vector, abs=1e-6)
