"""Several models in one server: names of hotshoe list, loaded on demand, unloaded for each other; kill -9."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.serve.conftest import DATA, VERSE, Server

VECTORS = DATA / "Qwen3Embedding.gguf"
TEXT = {"prompt": "In the beginning", "max_tokens": 8, "temperature": 0}
OPTIONS = ("--device", "cpu", "--threads", "1")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home folder with models of LM Studio: two text models, and an embedding model."""
    for name in list(os.environ):
        if name.startswith(("HF_", "HUGGINGFACE_", "OLLAMA_")):
            monkeypatch.delenv(name)
    for name, value in {"HOME": "", "HF_HOME": "hf", "HOTSHOE_DATA_DIR": "data"}.items():
        monkeypatch.setenv(name, str(tmp_path / value))
    for name, source in (("a/one-Q8_0", VERSE), ("b/two-Q8_0", VERSE), ("c/vectors", VECTORS)):
        path = tmp_path / ".lmstudio/models/org" / f"{name}.gguf"
        path.parent.mkdir(parents=True)
        shutil.copy(source, path)
    return tmp_path


A, B, C = "lmstudio:org/a:Q8_0", "lmstudio:org/b:Q8_0", "lmstudio:org/c:vectors"


@contextmanager
def serving(*arguments: str) -> Iterator[Server]:
    server = Server(*arguments, *OPTIONS)
    try:
        yield server
    finally:
        assert server.stop() == 0


def loaded(server: Server) -> list[str]:
    return sorted(model["name"] for model in server.get("/api/ps").json()["models"])


def expires_at(server: Server, name: str) -> str:
    models = server.get("/api/ps").json()["models"]
    return str(next(model["expires_at"] for model in models if model["name"] == name))


def need_of(server: Server, name: str) -> int:
    server.post("/v1/completions", TEXT | {"model": name})
    return int(next(model["size_needed"] for model in server.get("/api/ps").json()["models"] if model["name"] == name))


def test_models_of_the_list_are_loaded_when_they_are_named(home: Path) -> None:
    with serving("verse=" + str(VERSE), "--alias", f"gpt-4o={A}") as server:
        assert {model["id"] for model in server.get("/v1/models").json()["data"]} == {"verse", A, B, C, "gpt-4o"}
        assert {model["name"] for model in server.get("/api/tags").json()["models"]} == {"verse", A, B, C, "gpt-4o"}
        assert loaded(server) == ["verse"]
        want = server.post("/v1/completions", TEXT | {"model": "verse"}).json()["choices"][0]["text"]
        for name in ("gpt-4o", A, "lmstudio:org/a"):
            answer = server.post("/v1/completions", TEXT | {"model": name}).json()
            assert answer["choices"][0]["text"] == want
        assert loaded(server) == [A, "verse"]
        assert len(server.post("/v1/embeddings", {"model": C, "input": "x"}).json()["data"]) == 1


@pytest.mark.parametrize(
    "name",
    ["/etc/passwd", "../x", str(VERSE), "http://127.0.0.1:9/x", "hf.co/org/a", "org/a", "lmstudio:../../x", "ollama:x"],
)
def test_a_request_cannot_name_a_path_or_an_address(home: Path, name: str) -> None:
    with serving("verse=" + str(VERSE)) as server:
        for path, body in (("/v1/completions", TEXT | {"model": name}), ("/api/show", {"model": name})):
            answer = server.post(path, body)
            assert answer.status_code == 404, answer.text
        assert loaded(server) == ["verse"]


def test_only_the_models_of_the_command(home: Path) -> None:
    with serving("verse=" + str(VERSE), "--only") as server:
        assert [model["id"] for model in server.get("/v1/models").json()["data"]] == ["verse"]
        assert server.post("/v1/completions", TEXT | {"model": A}).status_code == 404


def test_a_model_is_unloaded_when_another_needs_its_memory(home: Path) -> None:
    with serving() as server:
        need = need_of(server, A)
    with serving("--memory", str(round(need * 1.5)), "--ctx", "512") as server:
        for name in (A, B, A):
            assert server.post("/v1/completions", TEXT | {"model": name}).status_code == 200
            assert loaded(server) == [name]
        gone = server.get("/api/ps").json()["unloaded"]
        assert [(entry["name"], entry["why"]) for entry in gone] == [
            (A, f"{B} needs its memory"),
            (B, f"{A} needs its memory"),
        ]
        assert any(f"{A} was unloaded: {B} needs its memory" in line for line in server.lines)
        listed = subprocess.run(
            [sys.executable, "-m", "hotshoe", "ps", "--url", server.url], capture_output=True, text=True
        )
        assert listed.returncode == 0, listed.stderr
        assert A in listed.stdout
        assert f"{B} was unloaded: {A} needs its memory" in " ".join(listed.stdout.split())
        assert "requested" in listed.stdout, "why this device"


def test_a_model_is_not_unloaded_while_it_answers(home: Path) -> None:
    """The request for the other model waits until the text is complete."""
    with serving() as server:
        need = need_of(server, A)
    with serving("--memory", str(round(need * 1.5)), "--ctx", "512") as server:
        order = []
        body = TEXT | {"model": A, "max_tokens": 400, "stream": True, "temperature": 1}

        def other() -> None:
            assert server.post("/v1/completions", TEXT | {"model": B}).status_code == 200
            order.append("other")

        waiting = threading.Thread(target=other)
        with httpx.stream("POST", f"{server.url}/v1/completions", json=body, timeout=60) as response:
            lines = response.iter_lines()
            next(lines)
            waiting.start()
            assert [line for line in lines if line][-1] == "data: [DONE]"
            order.append("text")
        waiting.join()
        assert order == ["text", "other"]
        assert loaded(server) == [B]


def test_a_pinned_model_stays(home: Path) -> None:
    with serving() as server:
        need = need_of(server, A)
    with serving("--memory", str(round(need * 1.5)), "--ctx", "512", "--pin", A) as server:
        assert server.post("/v1/completions", TEXT | {"model": A}).status_code == 200
        answer = server.post("/v1/completions", TEXT | {"model": B})
        assert answer.status_code == 503
        assert "pinned models" in answer.json()["error"]["message"]
        assert server.get("/api/ps").json()["models"][0]["pinned"]


def test_models_of_the_command_that_do_not_fit_together(home: Path) -> None:
    with serving() as server:
        need = need_of(server, A)
    with serving(f"a={VERSE}", f"b={VERSE}", "--memory", str(round(need * 1.5)), "--ctx", "512") as server:
        assert any("b is loaded when a request names it" in line for line in server.lines)
        assert loaded(server) == ["a"]
        assert server.post("/v1/completions", TEXT | {"model": "b"}).status_code == 200
        assert loaded(server) == ["b"]


def wait_until(condition: Any) -> None:
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_keep_alive(home: Path) -> None:
    with serving("verse=" + str(VERSE)) as server:
        ask = {"model": A, "prompt": "In", "stream": False, "options": {"num_predict": 2}}
        assert server.post("/api/generate", ask | {"keep_alive": "1h"}).status_code == 200
        assert expires_at(server, A) < "9999"
        assert server.post("/api/generate", ask | {"keep_alive": 0}).json()["response"]
        wait_until(lambda: loaded(server) == ["verse"])
        assert server.post("/api/generate", {"model": A}).json()["done_reason"] == "load"
        assert loaded(server) == [A, "verse"]
        assert expires_at(server, A) > "9999", "the 0 of an earlier request ended when the model was unloaded"
        assert server.post("/api/chat", {"model": A, "keep_alive": 0}).json()["done_reason"] == "unload"
        assert loaded(server) == ["verse"]
        wrong = server.post("/api/generate", ask | {"keep_alive": "soon"})
        assert (wrong.status_code, "expected a duration" in wrong.text) == (400, True)


def test_show_does_not_load(home: Path) -> None:
    with serving("verse=" + str(VERSE)) as server:
        shown = server.post("/api/show", {"model": A}).json()
        assert shown["model_info"]["llama.context_length"] == 512
        assert shown["capabilities"] == ["completion"]
        assert loaded(server) == ["verse"]
        context = server.get(f"/v1/models/{A}").json()["context_length"]
        assert context == 512
        server.post("/v1/completions", TEXT | {"model": A})
        assert server.get(f"/v1/models/{A}").json()["context_length"] == context
        ps = {model["name"]: model["context_length"] for model in server.get("/api/ps").json()["models"]}
        assert ps == {A: 512, "verse": 512}


def test_the_largest_context_that_fits_and_fixed_ones(home: Path) -> None:
    """The model was trained for 512 tokens; a context of one model is fixed, the other's is what its memory holds."""
    with serving(f"a={VERSE}", f"b={VERSE}", "--ctx", "a=64") as server:
        listed = {model["id"]: model.get("context_length") for model in server.get("/v1/models").json()["data"]}
        assert (listed["a"], listed["b"]) == (64, 512)
        long = TEXT | {"model": "a", "prompt": "And the Lord said " * 100}
        error = server.post("/v1/completions", long).json()["error"]
        assert error["code"] == "context_length_exceeded"
        assert "the context holds 64" in error["message"]


def pid_of(server: Server, name: str) -> int:
    command = subprocess.run(
        ["ps", "-ww", "-o", "pid=,args=", "--ppid", str(server.process.pid)], capture_output=True, text=True
    )
    return next(int(line.split()[0]) for line in command.stdout.splitlines() if line.endswith(f" {name}"))


@pytest.mark.skipif(sys.platform == "win32", reason="ps and SIGKILL are POSIX's")
def test_a_killed_process_does_not_stop_the_text_of_another_model() -> None:
    """While one model writes, the other is killed: its clients get 503, the next request loads it again, and the first
    one goes on at each moment between."""
    with serving(f"a={VERSE}", f"b={VERSE}", "--only") as server:
        seen, written = [0], list[Any]()
        marks: list[int] = []

        def write() -> None:
            for _ in range(20):
                body = TEXT | {"model": "a", "max_tokens": 450, "stream": True}
                reason = None
                with httpx.stream("POST", f"{server.url}/v1/completions", json=body, timeout=60) as response:
                    for line in response.iter_lines():
                        if line.startswith("data: {"):
                            reason = json.loads(line.removeprefix("data: "))["choices"][0]["finish_reason"]
                            seen[0] += 1
                written.append(reason)
                if len(marks) == 3:
                    return

        writer = threading.Thread(target=write)
        writer.start()
        with httpx.stream(
            "POST",
            f"{server.url}/v1/completions",
            json=TEXT | {"model": "b", "max_tokens": 450, "stream": True},
            timeout=60,
        ) as response:
            lines = response.iter_lines()
            next(lines)
            marks.append(seen[0])
            os.kill(pid_of(server, "b"), signal.SIGKILL)
            last = [line for line in lines if line.startswith("data: {")][-1]
        assert json.loads(last.removeprefix("data: "))["error"]["code"] == "process_ended"
        marks.append(seen[0])
        assert server.post("/v1/completions", TEXT | {"model": "b"}).status_code == 200
        marks.append(seen[0])
        writer.join()
        assert marks[1] < marks[2], "the first model wrote while the second one was loaded"
        assert set(written) == {"length"}, "each text is complete"
