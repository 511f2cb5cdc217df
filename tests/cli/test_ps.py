"""`hotshoe ps` with answers of a server."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from hotshoe.cli import main

MODEL: dict[str, Any] = {"name": "m", "size": 1024, "expires_at": "2026-01-02T03:04:05Z"}
OURS = MODEL | {"device": "cpu", "why": "it was requested", "context_length": 512, "requests": 0, "pinned": False}


@pytest.fixture
def answering() -> Iterator[Any]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps(server.answer).encode())  # type: ignore[attr-defined]

        def log_message(self, *_: Any) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def ps(server: Any, answer: Any) -> int:
    server.answer = answer
    return main(["ps", "--url", f"http://127.0.0.1:{server.server_port}"])


@pytest.mark.parametrize("answer", [{"models": [MODEL]}, {"models": [1]}, {"models": None}, []])
def test_the_answer_of_another_server(answering: Any, answer: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """Ollama's own server has the same address of the list, but tells less."""
    assert ps(answering, answer) == 2
    assert "is it the address of hotshoe serve?" in capsys.readouterr().err


@pytest.mark.skipif(not hasattr(time, "tzset"), reason="Windows has no tzset")
def test_times_are_those_of_this_machine(
    answering: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")  # not asked
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "XYZ-2")
        time.tzset()
        code = ps(answering, {"models": [OURS], "unloaded": [{"name": "n", "why": "w", "at": 0}]})
    time.tzset()
    said = capsys.readouterr().out
    assert code == 0
    assert "05:04:05" in said
    assert "02:00:00 n was unloaded" in said
