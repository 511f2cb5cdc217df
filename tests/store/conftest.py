"""A hub on loopback that can lie, and a home folder of its own for each test."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
VERSE = ROOT / "examples" / "models" / "kjv-3m-q8_0.gguf"
COMMIT = "a" * 40


class FakeHub:
    """A hub with repositories. ``files`` has the bytes of each path; the other attributes say how it misbehaves."""

    def __init__(self) -> None:
        self.repositories: dict[str, dict[str, bytes]] = {}
        self.commit = COMMIT
        self.status: dict[str, int] = {}
        """The status of each request whose path contains the key."""
        self.headers: dict[str, str] = {}
        """Headers of these answers."""
        self.sends: dict[str, bytes] = {}
        """Other bytes of a file than those whose hash it says."""
        self.cut_after: int | None = None
        """Send so many bytes of a file, then close the connection, once for each request."""
        self.ranges = True
        """Whether it knows Range."""
        self.requests: list[tuple[str, str | None]] = []
        """Path and Range of each request."""
        self.tokens: list[str | None] = []
        self.entry: dict[str, Any] = {}
        """Fields that replace those of each file."""
        hub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: Any) -> None:
                pass

            def do_GET(self) -> None:
                hub.answer(self)

            do_HEAD = do_GET  # noqa: N815 | the name of the library

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        path = request.path.partition("?")[0]
        if path == "/api/agent-harnesses":  # huggingface_hub asks this of each hub
            self._send(request, 404, b"", {})
            return
        self.requests.append((path, request.headers.get("Range")))
        self.tokens.append(request.headers.get("Authorization"))
        status = next((status for part, status in self.status.items() if part in path), None)
        repository = "/".join(path.removeprefix("/api/models").split("/")[1:3])
        if status is None and repository not in self.repositories:
            status = 404
        if status is not None:
            body = b'{"error": "no"}'
            self._send(request, status, body, self.headers)
        elif path.startswith("/api/"):
            self._send(request, 200, json.dumps(self._info(repository)).encode(), {})
        else:
            self._send_file(request, repository, path.partition(f"/resolve/{self.commit}/")[2])

    def _info(self, repository: str) -> dict[str, Any]:
        files = self.repositories[repository].items()
        return {"id": repository, "sha": self.commit, "siblings": [self._sibling(name, data) for name, data in files]}

    def _sibling(self, name: str, data: bytes) -> dict[str, Any]:
        digest = hashlib.sha256(data).hexdigest()
        lfs = {"sha256": digest, "size": len(data), "pointerSize": 134}
        return {"rfilename": name, "size": len(data), "blobId": "b" * 40, "lfs": lfs} | self.entry

    def _send(self, request: BaseHTTPRequestHandler, status: int, body: bytes, headers: dict[str, str]) -> None:
        request.send_response(status)
        for name, value in {"Content-Length": str(len(body)), "X-Repo-Commit": self.commit, **headers}.items():
            request.send_header(name, value)
        request.end_headers()
        request.wfile.write(body)

    def _send_file(self, request: BaseHTTPRequestHandler, repository: str, name: str) -> None:
        data = self.sends.get(name, self.repositories[repository][name])
        given = request.headers.get("Range") if self.ranges else None
        start = int(given.removeprefix("bytes=").partition("-")[0]) if given else 0
        body = data[start:]
        request.send_response(206 if given else 200)
        request.send_header("Content-Length", str(len(body)))
        if given:
            request.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
        request.end_headers()
        if self.cut_after is None:
            request.wfile.write(body)
        else:
            request.wfile.write(body[: self.cut_after])
            request.wfile.flush()
            request.close_connection = True
            request.connection.shutdown(2)


@pytest.fixture
def hub() -> Iterator[FakeHub]:
    found = FakeHub()
    yield found
    found.server.shutdown()
    found.server.server_close()


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The home folder, in which there is no model yet."""
    folder = tmp_path / "home"
    folder.mkdir()
    for name in list(os.environ):
        if name.startswith(("HF_", "HUGGINGFACE_", "OLLAMA_", "XDG_DATA")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.setenv("USERPROFILE", str(folder))
    monkeypatch.setenv("HOTSHOE_DATA_DIR", str(folder / "data"))
    monkeypatch.setenv("HF_HOME", str(folder / "hf"))
    return folder


def hotshoe(*arguments: str, hub: FakeHub | None = None, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run a command; its hub is the given one, and nobody otherwise."""
    address = {"HF_ENDPOINT": hub.url if hub else "http://127.0.0.1:9"}
    return subprocess.run(
        [sys.executable, "-m", "hotshoe", *arguments],
        capture_output=True, text=True, stdin=subprocess.DEVNULL, env=os.environ | address | environ, timeout=120,
    )  # fmt: skip
