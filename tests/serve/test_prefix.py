"""What was cached of a prompt and why not more, also after the server was started again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hotshoe.serve.marks import without_marks
from tests.serve.conftest import VERSE, Server
from tests.support.smollm2 import require_smollm2

STORY = "In the beginning the river was wide and slow, and nobody had crossed it. " * 12


def ask(server: Server, prompt: str, **more: Any) -> dict[str, Any]:
    response = server.post("/v1/completions", {"model": "", "prompt": prompt, "max_tokens": 2, "temperature": 0} | more)
    assert response.status_code == 200, response.text
    timings: dict[str, Any] = response.json()["timings"] | {"text": response.json()["choices"][0]["text"]}
    return timings


def test_a_reply_says_where_a_prompt_left_what_was_cached(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOTSHOE_CACHE_DIR", str(folder))
    server = Server(f"verse={VERSE}", "--device", "cpu", "--threads", "1", "--prefix-disk", "64MiB")
    try:
        told = f"kept in {folder / 'prefixes'}, up to 64.0 MiB; --prefix-disk 0 writes none"
        assert any(told in line for line in server.lines)
        first = ask(server, STORY + "The end.")
        assert (first["cache_n"], first["cache_differs"]) == (0, None)
        second = ask(server, STORY + "And then?")
        assert second["cache_differs"]["position"] == second["cache_n"] > 100
        assert second["cache_differs"]["before"] in STORY
        assert second["cache_differs"]["cached"] != second["cache_differs"]["prompt"]
        assert ask(server, STORY + "And then?")["cache_differs"] is None
    finally:
        assert server.stop() == 0
    server = Server(
        f"verse={VERSE}", "--device", "cpu", "--threads", "1", "--prefix-disk", "64MiB"
    )  # it found the files of the first one
    try:
        again = ask(server, STORY + "The end.")
        assert again["cache_n"] == first["prompt_n"] - 1
        assert again["text"] == first["text"]
    finally:
        assert server.stop() == 0


def test_a_conversation_goes_on_after_its_model_was_swapped(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What another model displaced is loaded again, and the first turn is not computed again."""
    monkeypatch.setenv("HOTSHOE_CACHE_DIR", str(folder))
    one, other = f"one={VERSE}", f"other={VERSE}"
    server = Server(one, other, "--device", "cpu", "--threads", "1", "--prefix-disk", "64MiB", "--ctx", "512")
    try:
        first = ask(server, STORY, model="one", max_tokens=8)
        assert server.post("/api/generate", {"model": "one", "keep_alive": 0}).json()["done_reason"] == "unload"
        ask(server, "And God said", model="other")
        assert [model["name"] for model in server.get("/api/ps").json()["models"]] == ["other"]
        second = ask(server, STORY + first["text"] + " And then?", model="one")
        assert first["prompt_n"] > 300  # more than a block of the store
        assert second["cache_n"] >= first["prompt_n"]
    finally:
        assert server.stop() == 0


def test_marks_do_not_spoil_the_prefix_in_any_dialect(folder: Path) -> None:
    server = Server(f"smol={require_smollm2()}", "--device", "cpu", "--threads", "1")

    def messages(i: int) -> list[dict[str, str]]:
        mark = f"x-anthropic-billing-header: cc_version=2; cch={i:05d};\n"
        return [{"role": "system", "content": mark + STORY}, {"role": "user", "content": "Hello"}]

    try:
        found = []
        for i, (path, name) in enumerate((("/v1/chat/completions", "max_tokens"), ("/api/chat", ""))):
            body = {"model": "smol", "messages": messages(i), "stream": False, "temperature": 0}
            body |= {name: 2} if name else {"options": {"num_predict": 2}}
            found.append(server.post(path, body).json()["timings"])
        assert found[1]["cache_n"] == found[0]["prompt_n"] - 1
    finally:
        assert server.stop() == 0


def test_marks() -> None:
    only = {"role": "system", "content": "x-anthropic-billing-header: a=1"}
    user = {"role": "user", "content": "x-anthropic-billing-header: a=1"}
    assert without_marks([only, user]) == [user]  # what a person writes stays
    assert without_marks([{"role": "developer", "content": f"{only['content']}\nBe brief."}]) == [
        {"role": "developer", "content": "Be brief."}
    ]
