"""Sounds in OpenAI's requests, to a tiny model that reads them."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.engine.test_audio import wav
from tests.serve.conftest import Server
from tests.support.rewrite import rewrite
from tests.towers.row import sound
from tests.towers.sounds import SOUNDS, MadeSound
from tests.towers.test_hearing import PARTS

WAV = base64.b64encode(wav(sound(1.0))).decode()


@pytest.fixture(scope="module")
def hearing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("hearing")
    made = MadeSound("qwen2-audio", SOUNDS["qwen2-audio"], folder / "made")
    path = rewrite(made.path, folder / "tiny.gguf", {"tokenizer.chat_template": PARTS})
    made.file("f16").rename(Path(folder) / "mmproj-tiny-f16.gguf")
    running = Server(f"tiny={path}", "--device", "cpu", "--threads", "1")
    yield running
    assert running.stop() == 0


def _body(part: dict[str, Any]) -> dict[str, Any]:
    content = [part, {"type": "text", "text": "what is said?"}]
    return {"model": "tiny", "messages": [{"role": "user", "content": content}], "temperature": 0, "max_tokens": 3}


def test_openai(hearing: Server) -> None:
    part = {"type": "input_audio", "input_audio": {"data": WAV, "format": "wav"}}
    response = hearing.post("/v1/chat/completions", _body(part))
    assert response.status_code == 200, response.text
    assert response.json()["usage"]["prompt_tokens"] > 25  # 25 rows for each second
    again = hearing.post("/v1/chat/completions", _body(part)).json()
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] > 25


def test_responses(hearing: Server) -> None:
    content = [
        {"type": "input_audio", "input_audio": {"data": WAV, "format": "wav"}},
        {"type": "input_text", "text": "what is said?"},
    ]
    body = {"model": "tiny", "input": [{"role": "user", "content": content}], "temperature": 0, "max_output_tokens": 3}
    response = hearing.post("/v1/responses", body)
    assert response.status_code == 200, response.text
    assert response.json()["usage"]["input_tokens"] > 25


def test_what_it_says_of_itself(hearing: Server) -> None:
    assert "audio" in hearing.post("/api/show", {"model": "tiny"}).json()["capabilities"]


@pytest.mark.parametrize(
    ("part", "message"),
    [
        ({"type": "input_audio", "input_audio": {"format": "wav"}}, "the sound is not in the request"),
        ({"type": "audio_url", "audio_url": {"url": "https://example.org/a.wav"}}, "fetches no addresses"),
        ({"type": "input_audio", "input_audio": {"data": WAV[:1000], "format": "wav"}}, "ends after"),
        ({"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}, "reads texts and sounds"),
    ],
)
def test_errors(hearing: Server, part: dict[str, Any], message: str) -> None:
    response = hearing.post("/v1/chat/completions", _body(part))
    assert response.status_code == 400
    assert message in response.json()["error"]["message"]
