"""The clients that people have, unchanged: the packages openai and ollama."""

from __future__ import annotations

import json
import re
from typing import Any

import numpy as np
import pytest

import hotshoe
from hotshoe.serve.app import make_app
from hotshoe.serve.front import Front
from tests.serve.conftest import DATA, ROOT, VERSE, Server

openai = pytest.importorskip("openai", reason="the package openai is not installed")
ollama = pytest.importorskip("ollama", reason="the package ollama is not installed")

QUESTION: list[dict[str, str]] = [{"role": "user", "content": "What is the capital of Japan?"}]


@pytest.fixture
def client(server: Server) -> Any:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as opened:
        yield opened


def test_models(client: Any) -> None:
    found = {model.id: model for model in client.models.list()}
    assert set(found) >= {"verse", "vectors", "ranks"}
    assert found["verse"].context_length == 512
    assert client.models.retrieve("verse").context_length == 512
    with pytest.raises(openai.NotFoundError, match="there is no model 'other'"):
        client.models.retrieve("other")


def test_a_completion_is_that_of_the_python_interface(client: Any) -> None:
    with hotshoe.load_model(VERSE, "cpu", n_threads=1, task="text") as model:
        expected = model.generate("In the beginning", temperature=0, max_tokens=20)
        drawn = model.generate("In the beginning", seed=5, temperature=1.1, top_k=0, max_tokens=20)
    given = {"model": "verse", "prompt": "In the beginning", "max_tokens": 20}
    done = client.completions.create(**given, temperature=0)
    assert done.choices[0].text == expected.text
    assert done.choices[0].finish_reason == "length"
    assert (done.usage.prompt_tokens, done.usage.completion_tokens) == (expected.n_prompt, 20)
    other = client.completions.create(**given, temperature=1.1, seed=5, extra_body={"top_k": 0})
    assert other.choices[0].text == drawn.text
    assert other.timings["device"] == "cpu"


def test_several_prompts_and_choices_in_one_request(client: Any) -> None:
    given = {"model": "verse", "max_tokens": 8, "temperature": 1, "seed": 3}
    done = client.completions.create(**given, prompt=["And God said", "The Lord"], n=2)
    assert [choice.index for choice in done.choices] == [0, 1, 2, 3]
    alone = [client.completions.create(**(given | {"seed": seed}), prompt=prompt).choices[0].text
             for prompt in ("And God said", "The Lord") for seed in (3, 4)]  # fmt: skip
    assert [choice.text for choice in done.choices] == alone
    n_prompt = [client.completions.create(**given, prompt=p).usage.prompt_tokens for p in ("And God said", "The Lord")]
    assert done.usage.prompt_tokens == sum(n_prompt), "choices share a prompt"


def test_a_stream_is_the_whole_text_in_pieces(client: Any) -> None:
    given = {"model": "verse", "prompt": "In the beginning", "max_tokens": 12, "temperature": 0}
    whole = client.completions.create(**given).choices[0].text
    chunks = list(client.completions.create(**given, stream=True, stream_options={"include_usage": True}))
    assert "".join(chunk.choices[0].text for chunk in chunks[:-1]) == whole
    assert chunks[-2].choices[0].finish_reason == "length"
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == 12
    assert chunks[-1].usage.prompt_tokens_details.cached_tokens > 0


def test_log_probabilities_and_stop_texts(client: Any) -> None:
    given = {"model": "verse", "prompt": "In the beginning", "max_tokens": 12, "temperature": 0}
    done = client.completions.create(**given, logprobs=3).choices[0]
    assert "".join(done.logprobs.tokens) == done.text
    assert all(len(top) == 3 and max(top.values()) == pytest.approx(chosen)
               for top, chosen in zip(done.logprobs.top_logprobs, done.logprobs.token_logprobs))  # fmt: skip
    word = done.text.split()[2]
    stopped = client.completions.create(**given, stop=word).choices[0]
    assert stopped.finish_reason == "stop"
    assert stopped.text == done.text[: done.text.index(word)]
    first = client.completions.create(**given, logprobs=0).choices[0].logprobs.tokens[0]
    with hotshoe.load_model(VERSE, "cpu", n_threads=1, task="text") as model:
        [id] = [i for i in range(model.tokenizer.vocab_size) if model.tokenizer.decode([i]) == first]
    banned = client.completions.create(**given, logprobs=0, logit_bias={str(id): -100}).choices[0]
    assert banned.logprobs.tokens[0] != first


def test_a_grammar_holds(client: Any) -> None:
    pytest.importorskip("llguidance")
    given = {"model": "verse", "prompt": "He said:", "max_tokens": 40}
    done = client.completions.create(**given, extra_body={"grammar": 'root ::= "yes" | "no"'}).choices[0]
    assert done.text in ("yes", "no")
    assert done.finish_reason == "stop"


@pytest.mark.parametrize("dim", [None, 8])
def test_embeddings(client: Any, dim: int | None) -> None:
    with hotshoe.load_model(DATA / "Qwen3Embedding.gguf", "cpu", n_threads=1, task="embedding") as model:
        expected = np.asarray(model.embed(["one", "another text"]))
    options = {} if dim is None else {"dimensions": dim}
    if dim is not None:
        expected = expected[:, :dim] / np.linalg.norm(expected[:, :dim], axis=1, keepdims=True)
    for encoding in ("float", "base64"):  # the package decodes base64 itself if nothing is said
        given = {} if encoding == "base64" else {"encoding_format": "float"}
        found = client.embeddings.create(model="vectors", input=["one", "another text"], **given, **options)
        np.testing.assert_allclose([entry.embedding for entry in found.data], expected, atol=1e-6)
    assert found.usage.prompt_tokens == found.usage.total_tokens > 0


def test_rerank(server: Server) -> None:
    documents = ["first", {"text": "second"}, "third"]
    found = server.post("/v1/rerank", {"model": "ranks", "query": "q", "documents": documents, "top_n": 2}).json()
    with hotshoe.load_model(DATA / "BertForSequenceClassification.gguf", "cpu", n_threads=1, task="rerank") as model:
        expected = model.rank("q", ["first", "second", "third"], top_n=2)
    assert [r["index"] for r in found["results"]] == [index for index, _ in expected]
    assert [r["relevance_score"] for r in found["results"]] == pytest.approx([score for _, score in expected])
    body = {"query": "q", "documents": documents, "model": "ranks", "return_documents": True}
    assert {r["document"]["text"] for r in server.post("/rerank", body).json()["results"]} == {
        "first",
        "second",
        "third",
    }


def test_a_chat(client: Any, chat_server: Server) -> None:
    done = client.chat.completions.create(model="smol", messages=QUESTION, temperature=0, max_completion_tokens=20)
    assert "Tokyo" in done.choices[0].message.content
    assert done.choices[0].finish_reason == "stop"
    parts = [{"role": "developer", "content": "Be brief."}, {"role": "user", "content": [
        {"type": "text", "text": "What is the capital"}, {"type": "text", "text": " of Japan?"}]}]  # fmt: skip
    chunks = list(client.chat.completions.create(model="smol", messages=parts, temperature=0, stream=True))
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "Tokyo" in "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    top = client.chat.completions.create(
        model="smol", messages=QUESTION, temperature=0, max_tokens=3, logprobs=True, top_logprobs=2
    )
    entries = top.choices[0].logprobs.content
    assert "".join(entry.token for entry in entries) == top.choices[0].message.content
    assert all(entry.top_logprobs[0].token == entry.token for entry in entries)


def test_a_chat_that_fits_a_schema(client: Any, chat_server: Server) -> None:
    pytest.importorskip("llguidance")
    schema = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 20}}, "required": ["city"],
              "additionalProperties": False}  # fmt: skip
    wanted = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
    done = client.chat.completions.create(model="smol", messages=QUESTION, response_format=wanted, max_tokens=60)
    assert set(json.loads(done.choices[0].message.content)) == {"city"}


def test_ollama(server: Server, chat_server: Server) -> None:
    with ollama.Client(server.url) as client:
        names = [model.model for model in client.list().models]
        assert "smol" in names
        shown = client.show("smol")
        assert shown.capabilities == ["completion"]
        assert shown.modelinfo["llama.context_length"] == 8192, "all that it was trained for fits"
        options = {"temperature": 0, "num_predict": 20}
        done = client.chat("smol:latest", QUESTION, options=options, keep_alive="5m")
        assert "Tokyo" in done.message.content
        assert done.done_reason == "stop"
        pieces = list(client.chat("smol", QUESTION, stream=True, options=options))
        assert "".join(piece.message.content for piece in pieces) == done.message.content
        assert pieces[-1].eval_count == done.eval_count > 0
        assert "Tokyo" in client.generate("smol", QUESTION[0]["content"], options=options).response
        raw = client.generate("verse", "In the beginning", options={"temperature": 0, "num_predict": 8})
        assert raw.done_reason == "length"
        assert client.ps().models[0].context_length
        assert len(client.embed("vectors", ["a", "b"]).embeddings) == 2
        assert client.embeddings("vectors", "a").embedding == pytest.approx(client.embed("vectors", "a").embeddings[0])
        with pytest.raises(ollama.ResponseError, match="num_ctx is 9999, but smol was loaded with a context of 8192"):
            client.chat("smol", QUESTION, options={"num_ctx": 9999})


def test_the_page_runs_as_it_stands(chat_server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    page = (ROOT / "docs" / "serve.md").read_text(encoding="utf-8")
    [code] = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    code = code.replace("http://127.0.0.1:8080", chat_server.url).replace("SmolLM2-135M-Instruct.Q4_1", "smol")
    exec(compile(code, "docs/serve.md", "exec"), {})
    printed = capsys.readouterr().out.splitlines()
    [expected] = re.findall(r"content\)  # (.*)", code)
    assert printed[0] == expected
    assert printed[1].startswith("cpu cpu (ggml-cpu")
    paths = set(re.findall(r"`(/[a-z0-9/_.]+)`", page))
    routes = {getattr(route, "path", "") for route in make_app(Front([])).routes}
    routes = {path for path in routes if not path.startswith("/page/")}
    assert routes - {"/", "/v1/models/{name:path}", "/api/blobs/{digest}"} == paths
