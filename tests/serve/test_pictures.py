"""Pictures in requests of each dialect, to a small trained model that says what they show."""

from __future__ import annotations

import base64
import io
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.serve.conftest import VERSE, Server

ROOT = Path(__file__).parents[2]
MODEL = ROOT / "examples" / "models" / "shapes-q8_0.gguf"

sys.path.insert(0, str(ROOT / "examples"))
from shapes import ANSWERS, draw, random_scene  # noqa: E402

QUESTION = "How many shapes are there?"
SCENE = random_scene(random.Random(5))
TRUE = ANSWERS[QUESTION](SCENE)


def _png() -> str:
    out = io.BytesIO()
    draw(SCENE).save(out, "PNG")
    return base64.b64encode(out.getvalue()).decode()


URL = f"data:image/png;base64,{_png()}"


@pytest.fixture(scope="module")
def seeing() -> Iterator[Server]:
    running = Server(f"shapes={MODEL}", f"verse={VERSE}", "--device", "cpu", "--threads", "1")
    yield running
    assert running.stop() == 0


def _openai(part: dict[str, Any]) -> dict[str, Any]:
    content = [part, {"type": "text", "text": QUESTION}]
    return {"model": "shapes", "messages": [{"role": "user", "content": content}], "temperature": 0, "max_tokens": 30}


def test_openai(seeing: Server) -> None:
    response = seeing.post("/v1/chat/completions", _openai({"type": "image_url", "image_url": {"url": URL}}))
    assert response.status_code == 200, response.text
    assert response.json()["choices"][0]["message"]["content"].strip() == TRUE
    again = seeing.post("/v1/chat/completions", _openai({"type": "image_url", "image_url": {"url": URL}})).json()
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] > 16


def test_responses(seeing: Server) -> None:
    content = [{"type": "input_image", "image_url": URL}, {"type": "input_text", "text": QUESTION}]
    body = {"model": "shapes", "input": [{"role": "user", "content": content}], "temperature": 0}
    output = seeing.post("/v1/responses", body).json()["output"]
    assert output[0]["content"][0]["text"].strip() == TRUE


def test_anthropic(seeing: Server) -> None:
    source = {"type": "base64", "media_type": "image/png", "data": _png()}
    content = [{"type": "image", "source": source}, {"type": "text", "text": QUESTION}]
    body = {"model": "shapes", "max_tokens": 30, "temperature": 0, "messages": [{"role": "user", "content": content}]}
    assert seeing.post("/v1/messages", body).json()["content"][0]["text"].strip() == TRUE
    assert seeing.post("/v1/messages/count_tokens", body).json()["input_tokens"] > 16


def test_ollama(seeing: Server) -> None:
    options = {"stream": False, "options": {"temperature": 0, "num_predict": 30}}
    message = {"role": "user", "content": QUESTION, "images": [_png()]}
    chat = seeing.post("/api/chat", {"model": "shapes", "messages": [message], **options})
    assert chat.json()["message"]["content"].strip() == TRUE
    whole = seeing.post("/api/generate", {"model": "shapes", "prompt": QUESTION, "images": [_png()], **options})
    assert whole.json()["response"].strip() == TRUE
    assert "vision" in seeing.post("/api/show", {"model": "shapes"}).json()["capabilities"]
    assert "vision" not in seeing.post("/api/show", {"model": "verse"}).json()["capabilities"]


@pytest.mark.parametrize(
    ("part", "message"),
    [
        ({"type": "image_url", "image_url": {"url": "https://example.org/a.png"}}, "fetches no addresses"),
        ({"type": "image_url"}, "not in the request"),
        ({"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}, "is not a picture"),
        ({"type": "input_audio", "input_audio": {}}, "reads texts and pictures"),
    ],
)
def test_errors(seeing: Server, part: dict[str, Any], message: str) -> None:
    response = seeing.post("/v1/chat/completions", _openai(part))
    assert response.status_code == 400
    assert message in response.json()["error"]["message"]


def test_a_model_that_reads_texts_only(seeing: Server) -> None:
    body = _openai({"type": "image_url", "image_url": {"url": URL}}) | {"model": "verse"}
    response = seeing.post("/v1/chat/completions", body)
    assert response.status_code == 400
    assert "this model reads texts only" in response.json()["error"]["message"]
