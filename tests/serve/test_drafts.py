"""Guessed tokens behind the server: OpenAI's ``prediction``, the timings and the counters."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

from tests.serve.conftest import Server
from tests.support.smollm2 import require_smollm2

QUESTION = [{"role": "user", "content": "Name the planets, from the sun outwards."}]


@pytest.fixture(scope="module")
def smol() -> Iterator[Server]:
    running = Server(f"smol={require_smollm2()}", "--device", "cpu", "--threads", "1")
    yield running
    assert running.stop() == 0


def ask(server: Server, **more: Any) -> Any:
    body = {"model": "smol", "messages": QUESTION, "temperature": 0, "max_tokens": 40} | more
    response = server.post("/v1/chat/completions", body)
    assert response.status_code == 200, response.text
    return response.json()


def test_a_prediction_makes_an_answer_faster_and_does_not_change_it(smol: Server) -> None:
    plain = ask(smol)
    text = plain["choices"][0]["message"]["content"]
    parts = [{"type": "text", "text": text[:20]}, {"type": "text", "text": text[20:]}]
    for content in (text, parts):
        found = ask(smol, prediction={"type": "content", "content": content})
        assert found["choices"] == plain["choices"]
        assert found["timings"]["draft_n"] >= found["timings"]["draft_n_accepted"] > 18
    wrong = ask(smol, prediction={"type": "content", "content": "Something else, about the sun and the planets."})
    assert wrong["choices"] == plain["choices"]


@pytest.mark.parametrize(
    "prediction",
    [
        {},
        {"type": "content"},
        {"type": "content", "content": []},
        {"type": "content", "content": [7]},
        {"type": "content", "content": [{"type": "image_url"}]},
        {"type": "other", "content": "x"},
    ],
)
def test_a_wrong_prediction_is_refused(smol: Server, prediction: dict[str, Any]) -> None:
    body = {"model": "smol", "messages": QUESTION, "prediction": prediction}
    response = smol.post("/v1/chat/completions", body)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "prediction"
    assert 'expected {"type": "content"' in response.json()["error"]["message"]


def test_the_counters(smol: Server) -> None:
    def read() -> dict[str, float]:
        return {
            name: float(value)
            for name, value in re.findall(r"^hotshoe_(\w+)_tokens_total\{.*\} (\S+)$", smol.get("/metrics").text, re.M)
        }

    ask(smol)
    before = read()
    found = ask(smol, prediction={"type": "content", "content": ask(smol)["choices"][0]["message"]["content"]})
    after = read()
    assert after["drafted"] - before["drafted"] >= found["timings"]["draft_n"] > 0
    assert after["accepted"] - before["accepted"] >= found["timings"]["draft_n_accepted"] > 0
