"""Clients that pull, create and delete models, by Ollama's own package; and without permission."""

from __future__ import annotations

import hashlib
import os
from contextlib import ExitStack
from pathlib import Path

import pytest

ollama = pytest.importorskip("ollama", reason="the package ollama is not installed")

from tests.serve.conftest import VERSE, Server  # noqa: E402 | after importorskip
from tests.serve.test_models import OPTIONS, A, C, home  # noqa: E402, F401 | a fixture
from tests.store.conftest import FakeHub, hub  # noqa: E402, F401 | a fixture

NAME = "org/kjv-GGUF"


@pytest.mark.usefixtures("home")
def test_pull_create_and_delete(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811 | the fixture
    monkeypatch.setenv("HF_ENDPOINT", hub.url)
    hub.repositories[NAME] = {"kjv-3m-Q8_0.gguf": VERSE.read_bytes()}
    server = Server(*OPTIONS, "--allow-changes")
    stack = ExitStack()
    try:
        client = stack.enter_context(ollama.Client(server.url))
        lines = list(client.pull(NAME, stream=True))
        assert (lines[0].status, lines[-1].status) == ("pulling manifest", "success")
        assert any(line.completed == line.total == VERSE.stat().st_size for line in lines)
        pulled = f"{NAME}:Q8_0"
        assert pulled in {model.model for model in client.list().models}
        options = {"num_predict": 5, "temperature": 0}
        want = client.generate(pulled, "In the beginning", options=options).response
        client.create("mine", from_=pulled)
        assert client.generate("mine", "In the beginning", options=options).response == want
        client.create("mine", from_=C)  # the name has another model from now on
        assert client.show("mine").capabilities == ["embedding"]
        assert client.embed("mine", "x").embeddings
        client.create("mine", from_=pulled)
        assert client.generate("mine", "In the beginning", options=options).response == want
        assert "license" in server.post("/api/create", {"model": "mine", "from": pulled, "license": "x"}).headers.get(
            "x-hotshoe-ignored", ""
        )
        digest = client.create_blob(VERSE)
        assert digest == f"sha256:{hashlib.sha256(VERSE.read_bytes()).hexdigest()}"
        client.create("uploaded", files={"verse.gguf": digest})
        assert client.generate("uploaded", "In the beginning", options=options).response == want
        for name in ("uploaded", "mine", pulled):
            client.delete(name)
            assert name not in {model.model for model in client.list().models}
        with pytest.raises(ollama.ResponseError, match="hotshoe deletes only what it brought"):
            client.delete(A)
        with pytest.raises(ollama.ResponseError, match="status 404"):
            client.pull("org/other")
        with pytest.raises(ollama.ResponseError, match="expected ORG/REPO"):
            client.pull("http://127.0.0.1:9/x")
        assert A in {model.model for model in client.list().models}
        data = Path(os.environ["HOTSHOE_DATA_DIR"])
        assert list((data / "uploads").iterdir()) == []
        wrong = server.post("/api/blobs/sha256:" + "0" * 64, b"x")
        assert (wrong.status_code, "expected 000000000000" in wrong.text) == (400, True)
        assert list((data / "uploads").iterdir()) == []
        wrong = server.post("/api/create", {"model": "../x", "from": A})
        assert (wrong.status_code, "expected letters" in wrong.text) == (400, True)
    finally:
        stack.close()
        assert server.stop() == 0


@pytest.mark.usefixtures("home")
def test_without_permission(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811 | the fixture
    """A model that is here is pulled without the network, as clients ask at each start."""
    monkeypatch.setenv("HF_ENDPOINT", hub.url)
    server = Server(f"verse={VERSE}", *OPTIONS)
    stack = ExitStack()
    try:
        client = stack.enter_context(ollama.Client(server.url))
        for name in (A, "verse"):
            assert client.pull(name).status == "success"
        for refused, options in ((client.pull, {}), (client.delete, {}), (client.create, {"from_": A})):
            with pytest.raises(ollama.ResponseError, match="--allow-changes allows it"):
                refused(NAME, **options)
        assert server.post("/api/blobs/sha256:" + "0" * 64, b"x").status_code == 403
        assert hub.requests == []
    finally:
        stack.close()
        assert server.stop() == 0
