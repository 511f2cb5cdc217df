"""llama.cpp's dialect, and the metrics that Prometheus reads."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import hotshoe
from hotshoe.runner.infill import infill_prompt
from hotshoe_core.errors import ModelError
from tests.serve.conftest import VERSE, Server
from tests.support.rewrite import rewrite

PROMPT = "In the beginning"
FIM = {f"tokenizer.ggml.fim_{name}_token_id": 10 + i for i, name in enumerate(("pre", "suf", "mid", "rep", "sep"))}


@pytest.fixture(scope="module")
def code(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The shipped model, as if it could fill gaps."""
    return rewrite(VERSE, tmp_path_factory.mktemp("code") / "code.gguf", FIM)


@pytest.fixture(scope="module")
def native(code: Path) -> Iterator[Server]:
    running = Server(f"verse={VERSE}", f"code={code}", "--device", "cpu", "--threads", "1")
    yield running
    assert running.stop() == 0


def post(server: Server, path: str, **body: Any) -> Any:
    response = server.post(path, body)
    assert response.status_code == 200, response.text
    return response.json()


def test_the_prompt_of_a_gap(code: Path) -> None:
    with hotshoe.load_model(code, "reference", task="text") as model:
        tokenizer = model.tokenizer

        def encode(text: str) -> list[int]:
            return tokenizer.encode(text, add_special=False)

        start = [tokenizer.bos] if tokenizer.encode("a")[:1] == [tokenizer.bos] else []
        assert infill_prompt(tokenizer, "def f(", "return 1") == [
            *start, 10, *encode("def f("), 11, *encode("return 1"), 12
        ]  # fmt: skip
        found = infill_prompt(tokenizer, "a", "b", [("x.py", "y")], "z.py")
        assert found[len(start)] == 13
        assert found.count(14) == 2
    with hotshoe.load_model(VERSE, "reference", task="text") as model:
        with pytest.raises(ModelError, match="no tokens around a gap"):
            infill_prompt(model.tokenizer, "a", "b")


def test_completion(native: Server) -> None:
    found = post(native, "/completion", model="verse", prompt=PROMPT, n_predict=8, temperature=0)
    openai = post(native, "/v1/completions", model="verse", prompt=PROMPT, max_tokens=8, temperature=0)
    assert found["content"] == openai["choices"][0]["text"]
    assert (found["stop_type"], found["tokens_predicted"]) == ("limit", 8)
    assert found["tokens_evaluated"] == openai["usage"]["prompt_tokens"]
    response = native.post(
        "/completion",
        {"model": "verse", "prompt": PROMPT, "n_predict": 8, "temperature": 0, "stream": True, "cache_prompt": True},
    )
    assert response.headers["x-hotshoe-ignored"] == "cache_prompt"
    events = [json.loads(line[6:]) for line in response.text.splitlines() if line.startswith("data: ")]
    assert "".join(event["content"] for event in events) == found["content"]
    assert [event["stop"] for event in events] == [False] * (len(events) - 1) + [True]
    word = found["content"].split()[1]
    stopped = post(native, "/completion", model="verse", prompt=PROMPT, n_predict=8, temperature=0, stop=[word])
    assert (stopped["stop_type"], stopped["stopping_word"]) == ("word", word)


def test_a_gap_is_filled_in_each_dialect(native: Server) -> None:
    body = {"model": "code", "input_prefix": PROMPT, "input_suffix": " of the earth", "n_predict": 5, "temperature": 0}
    found = post(native, "/infill", **body)
    openai = post(
        native, "/v1/completions", model="code", prompt=PROMPT, suffix=" of the earth", max_tokens=5, temperature=0
    )
    options = {"num_predict": 5, "temperature": 0}
    ollama = post(
        native, "/api/generate", model="code", prompt=PROMPT, suffix=" of the earth", stream=False, options=options
    )
    assert found["content"] == openai["choices"][0]["text"] == ollama["response"]
    with_files = post(native, "/infill", **body, input_extra=[{"filename": "a.py", "text": "x = 1"}])
    assert with_files["tokens_evaluated"] > found["tokens_evaluated"]
    for wrong, words in (
        (body | {"model": "verse"}, "no tokens around a gap"),
        (body | {"input_extra": [{"filename": 1}]}, "input_extra[0]"),
        (body | {"prompt": [1, 2]}, "expected a text"),
    ):
        response = native.post("/infill", wrong)
        assert response.status_code == 400
        assert words in response.json()["error"]["message"]
    ignored = native.post("/api/generate", {"model": "code", "prompt": "a", "suffix": "b", "system": "c"})
    assert (ignored.status_code, "no suffix" in ignored.text) == (400, True)
    assert native.post("/completion", body).status_code == 400  # its fields are those of /infill


def test_tokens(native: Server) -> None:
    text = "In the beginning — 漢字"
    found = post(native, "/tokenize", model="verse", content=text)["tokens"]
    with hotshoe.load_model(VERSE, "reference", task="text") as model:
        assert found == model.tokenizer.encode(text, add_special=False)
    assert post(native, "/detokenize", model="verse", tokens=found)["content"].strip() == text
    pieces = post(native, "/tokenize", model="verse", content=text, with_pieces=True)["tokens"]
    assert [each["id"] for each in pieces] == found
    assert (
        b"".join(bytes(p) if isinstance(p := e["piece"], list) else p.encode() for e in pieces).decode().strip() == text
    )
    assert native.post("/detokenize", {"model": "verse", "tokens": [10**9]}).status_code == 400


def test_props(native: Server) -> None:
    found = native.get("/props", params={"model": "verse"}).json()
    assert found["default_generation_settings"]["n_ctx"] == 512
    assert found["device"] == "cpu"
    assert found["modalities"]["vision"] is False
    assert str(VERSE.parent) not in json.dumps(found)
    assert native.get("/props", params={"model": "nothing"}).status_code == 404


def test_metrics(native: Server) -> None:
    parser = pytest.importorskip("prometheus_client.parser")

    def read() -> dict[tuple[str, str], float]:
        response = native.get("/metrics")
        assert response.headers["content-type"].startswith("text/plain")
        return {
            (sample.name, sample.labels.get("result", "")): sample.value
            for family in parser.text_string_to_metric_families(response.text)
            for sample in family.samples
            if sample.labels["model"] == "verse" and "le" not in sample.labels
        }

    post(native, "/completion", model="verse", prompt=PROMPT, n_predict=1)
    before = read()
    done = post(native, "/completion", model="verse", prompt=PROMPT, n_predict=4, temperature=0)
    assert native.post("/completion", {"model": "verse", "prompt": "a" * 5000}).status_code == 400
    after = read()
    changes = {name: after[name] - before.get(name, 0) for name in after if after[name] != before.get(name)}
    assert changes["hotshoe_requests_total", "length"] == 1
    assert changes["hotshoe_requests_total", "InputTooLongError"] == 1
    assert changes["hotshoe_generated_tokens_total", ""] == 4
    assert changes["hotshoe_prompt_tokens_total", ""] == done["tokens_evaluated"]
    assert changes["hotshoe_cached_tokens_total", ""] == done["tokens_cached"] > 0
    assert changes["hotshoe_first_token_seconds_count", ""] == 1
    assert changes["hotshoe_token_seconds_count", ""] == 1
    assert (after["hotshoe_model_loaded", ""], after["hotshoe_requests_active", ""]) == (1, 0)
