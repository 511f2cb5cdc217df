"""A server in a process of its own, as `hotshoe serve` starts it."""

from __future__ import annotations

import contextlib
import json
import re
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

httpx = pytest.importorskip("httpx", reason="the tests of the server ask it with httpx")
pytest.importorskip("starlette", reason="hotshoe[serve] is not installed")

from tests.support.smollm2 import find_smollm2  # noqa: E402 | after importorskip

ROOT = Path(__file__).parents[2]
VERSE = ROOT / "examples" / "models" / "kjv-3m-q8_0.gguf"
DATA = ROOT / "tests" / "data" / "llamacpp"


class Server:
    """A running server. ``lines`` is what it printed."""

    def __init__(self, *arguments: str) -> None:
        command = [sys.executable, "-m", "hotshoe", "serve", "--port", "0", "--prefix-disk", "0", *arguments]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        self.lines: list[str] = []
        address = None
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line)
            if (found := re.search(r"listening at (http://\S+:\d+)", line)) is not None:
                address = found[1]
                break
        assert address is not None, "".join(self.lines)
        self.url = address
        self._reading = threading.Thread(target=self._read, daemon=True)
        self._reading.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        with contextlib.suppress(ValueError):
            self.lines += self.process.stderr

    def post(self, path: str, body: Any, **options: Any) -> Any:
        """The response to a JSON body; bytes are sent as they are."""
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        return httpx.post(self.url + path, content=content, timeout=60, **options)

    def get(self, path: str, **options: Any) -> Any:
        return httpx.get(self.url + path, timeout=60, **options)

    def stop(self) -> int:
        """Stop it as Ctrl-C does; return its exit code."""
        self.process.send_signal(signal.SIGINT)
        try:
            return self.process.wait(60)
        finally:
            self.process.kill()
            self._reading.join()
            assert self.process.stderr is not None
            self.process.stderr.close()


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """A server with a text model without a chat format, an embedding model, a reranker and, if it is there, SmolLM2."""
    smollm2 = find_smollm2()
    models = [f"verse={VERSE}", f"vectors={DATA / 'Qwen3Embedding.gguf'}"]
    models += [f"ranks={DATA / 'BertForSequenceClassification.gguf'}", *([f"smol={smollm2}"] if smollm2 else [])]
    running = Server(*models, "--device", "cpu", "--threads", "1")
    yield running
    assert running.stop() == 0


@pytest.fixture
def chat_server(server: Server) -> Server:
    """The server, if it has a model that chats."""
    if find_smollm2() is None:
        pytest.skip("SmolLM2's weights are not installed")
    return server


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)
