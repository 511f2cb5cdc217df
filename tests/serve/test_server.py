"""What a server must bear: many clients, clients that leave, processes that die, wrong and hostile requests."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.serve.conftest import VERSE, Server

TEXT = {"model": "verse", "prompt": "In the beginning", "max_tokens": 30, "temperature": 0}


def requests_of(server: Server, name: str) -> int:
    """The requests that a model works on now."""
    found = server.get("/api/ps").json()["models"]
    return int(next(m["requests"] for m in found if m["name"] == name))


def wait_until_free(server: Server, name: str) -> None:
    end = time.monotonic() + 30
    while requests_of(server, name):
        assert time.monotonic() < end, "a slot is taken by nobody"
        time.sleep(0.05)


def test_many_clients_get_what_one_gets(server: Server) -> None:
    prompts = [f"{'And the Lord said unto Moses ' * (i % 5)}verse {i}" for i in range(24)]
    bodies = [TEXT | {"prompt": prompt, "max_tokens": 5 + i % 20} for i, prompt in enumerate(prompts)]
    alone = [server.post("/v1/completions", body).json()["choices"][0]["text"] for body in bodies]
    with ThreadPoolExecutor(24) as pool:
        together = list(pool.map(lambda body: server.post("/v1/completions", body).json(), bodies))
    same = [a == b["choices"][0]["text"] for a, b in zip(alone, together)]
    assert sum(same) >= len(same) - 1  # 8-bit products: what others compute may decide a near tie (docs/models.md)
    wait_until_free(server, "verse")


def test_a_client_that_leaves_gives_its_place_back(server: Server) -> None:
    body = TEXT | {"max_tokens": 480, "temperature": 1, "stream": True}
    for _ in range(5):
        with httpx.stream("POST", f"{server.url}/v1/completions", json=body, timeout=60) as response:
            next(response.iter_bytes())
    waiting = [socket.create_connection(tuple_of(server)) for _ in range(3)]
    for connection in waiting:
        content = json.dumps(body | {"stream": False}).encode()
        connection.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
                           b"Content-Length: %d\r\n\r\n%s" % (len(content), content))  # fmt: skip
    for connection in waiting:
        connection.close()
    wait_until_free(server, "verse")


def tuple_of(server: Server) -> tuple[str, int]:
    host, _, port = server.url.removeprefix("http://").rpartition(":")
    return host, int(port)


WRONG: list[tuple[str, Any, int, str | None, str]] = [
    ("/v1/completions", b"{", 400, None, "not valid JSON"),
    ("/v1/completions", b"[" * 100_000, 400, None, "not valid JSON"),
    ("/v1/completions", [], 400, None, "expected a JSON object"),
    ("/v1/completions", TEXT | {"model": "other"}, 404, "model", "this server has verse"),
    ("/v1/completions", TEXT | {"model": "../../etc/passwd"}, 404, "model", "there is no model"),
    ("/v1/completions", TEXT | {"prompt": 5}, 400, "prompt", "Expected"),
    ("/v1/completions", TEXT | {"prompt": []}, 400, "prompt", "empty"),
    ("/v1/completions", TEXT | {"prompt": [99999999]}, 400, None, "99999999"),
    ("/v1/completions", TEXT | {"temperature": "hot"}, 400, "temperature", "Expected `float"),
    ("/v1/completions", TEXT | {"temperature": -1}, 400, None, "temperature is -1"),
    ("/v1/completions", TEXT | {"seed": 2**70}, 400, "seed", "out of range"),
    ("/v1/completions", TEXT | {"n": 1000}, 400, "n", "expected 1 to 16"),
    ("/v1/completions", TEXT | {"best_of": 4}, 400, "best_of", "not supported"),
    ("/v1/completions", TEXT | {"logit_bias": {"x": 1}}, 400, "logit_bias", "id of a token"),
    ("/v1/completions", TEXT | {"logit_bias": {"--5": 1}}, 400, "logit_bias", "id of a token"),
    ("/v1/completions", TEXT | {"prompt": [1, [2**70]]}, 400, "prompt[1][0]", "out of range"),
    ("/v1/completions", TEXT | {"grammar": "root ::= nowhere"}, 400, None, "grammar"),
    ("/v1/completions", {"model": "vectors", "prompt": "x"}, 400, None, "an embedding model"),
    ("/v1/chat/completions", {"model": "verse"}, 400, "messages", "missing required field"),
    ("/v1/chat/completions", {"model": "verse", "messages": []}, 400, "messages", "empty"),
    ("/v1/chat/completions", {"model": "verse", "messages": [{"role": "user", "content": "x"}]}, 400, None, "template"),
    ("/v1/chat/completions", {"messages": [{"content": "x"}], "model": "verse"}, 400, "messages[0].role", "no role"),
    ("/v1/chat/completions",
     {"model": "verse", "messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
     400, "messages[0].content[0]", "reads texts only"),
    ("/v1/chat/completions", {"model": "verse", "messages": [{"role": "user", "content": "x", "images": ["AAAA"]}]},
     400, "messages[0].images", "reads texts only"),
    ("/v1/chat/completions", {"model": "verse", "messages": [{"role": "user", "content": "x"}],
      "tools": [{"type": "function", "function": {"name": "f"}}]},
     400, "tools", "has no tools"),
    ("/v1/embeddings", {"model": "vectors", "input": [1, 2]}, 400, "input", "check_embedding_ctx_length"),
    ("/v1/embeddings", {"model": "vectors", "input": []}, 400, "input", "empty"),
    ("/v1/embeddings", {"model": "vectors", "input": "x", "dimensions": 10**6}, 400, "dimensions", "this model has"),
    ("/v1/embeddings", {"model": "verse", "input": "x"}, 400, None, "a text model"),
    ("/v1/rerank", {"model": "ranks", "query": "q", "documents": []}, 400, "documents", "empty"),
    ("/v1/rerank", {"model": "ranks", "query": "q", "documents": [5]}, 400, "documents[0]", "not a text"),
]  # fmt: skip


@pytest.mark.parametrize(("path", "body", "status", "param", "words"), WRONG)
def test_a_wrong_request_is_told_which_field(
    server: Server, path: str, body: Any, status: int, param: str | None, words: str
) -> None:
    response = server.post(path, body)
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert words in error["message"]
    assert error["param"] == param


def test_a_text_that_is_too_long_is_refused_with_both_numbers(server: Server) -> None:
    response = server.post("/v1/completions", TEXT | {"prompt": "and " * 600})
    error = response.json()["error"]
    assert (response.status_code, error["code"]) == (400, "context_length_exceeded")
    assert "602 tokens were given; the context holds 512" in error["message"]
    chunks = server.post("/v1/completions", TEXT | {"prompt": "and " * 600, "stream": True}).text.split("\n\n")
    assert json.loads(chunks[0].removeprefix("data: "))["error"]["code"] == "context_length_exceeded"


def test_a_field_without_effect_is_named_and_a_null_is_absent(server: Server) -> None:
    body = TEXT | {"user": "me", "unheard_of": 1, "temprature": 1, "stop": None, "suffix": None, "seed": None}
    response = server.post("/v1/completions", body)
    assert response.status_code == 200
    names = ["temprature (temperature?)", "unheard_of", "user"]
    assert response.headers["x-hotshoe-ignored"] == ", ".join(names)
    assert response.json()["timings"]["ignored"] == names
    assert "x-hotshoe-ignored" not in server.post("/v1/completions", TEXT).headers
    for odd in (" y1e ", " ", "", "é", "a" * 998 + "  b"):  # names that a header cannot have as they stand
        assert server.post("/v1/completions", TEXT | {odd: 1}).status_code == 200


def test_pages_of_other_sites_and_unknown_paths(server: Server) -> None:
    assert server.get("/v1/models", headers={"host": "evil.example"}).status_code == 403
    assert server.get("/v1/models", headers={"origin": "https://evil.example"}).status_code == 403
    assert server.get("/v1/models", headers={"origin": "http://localhost:3000"}).status_code == 200
    assert server.get("/v1/models", headers={"origin": "http://127.0.0.1:3000"}).status_code == 200
    lan = {"host": "192.168.1.5:8080"}
    assert server.get("/v1/models", headers=lan | {"origin": "http://192.168.1.5:8080"}).status_code == 200
    for origin in ("http://192.0.2.1", "http://192.0.2.1:8080", "null"):  # also a page that has no name
        assert server.get("/v1/models", headers=lan | {"origin": origin}).status_code == 403
    assert "access-control-allow-origin" not in server.get("/v1/models").headers
    assert server.get("/").json()["hotshoe"] == "running"
    for response, status in ((server.get("/nowhere"), 404), (server.get("/v1/completions"), 405)):
        assert response.status_code == status
        assert "this server has no GET /" in response.json()["error"]["message"]


def test_a_body_without_end_is_cut(server: Server) -> None:
    def endless() -> Any:
        for _ in range(40):
            yield b" " * (1 << 20)

    response = httpx.post(f"{server.url}/v1/completions", content=endless(), timeout=60)
    assert response.status_code == 413


@pytest.mark.skipif(sys.platform != "linux", reason="it finds the processes with Linux's ps")
def test_a_process_that_is_killed_costs_its_requests_only() -> None:
    """The next request loads the model again; the other model goes on."""
    server = Server(f"a={VERSE}", f"b={VERSE}", "--device", "cpu", "--threads", "1")
    try:
        children = subprocess.run(
            ["ps", "-o", "pid=", "--ppid", str(server.process.pid)], capture_output=True, text=True, check=True
        )
        first = min(int(pid) for pid in children.stdout.split())
        long = TEXT | {"max_tokens": 480, "temperature": 1, "n": 16, "top_k": 0}
        with ThreadPoolExecutor(2) as pool:
            lost = pool.submit(server.post, "/v1/completions", long | {"model": "a"})
            going_on = pool.submit(server.post, "/v1/completions", long | {"model": "b"})
            while not requests_of(server, "a") or not requests_of(server, "b"):
                time.sleep(0.01)
            os.kill(first, signal.SIGKILL)
            assert lost.result().status_code == 503
            assert "starts it again" in lost.result().json()["error"]["message"]
            assert going_on.result().status_code == 200
        assert server.post("/v1/completions", TEXT | {"model": "a"}).status_code == 200
    finally:
        assert server.stop() == 0
    assert "Traceback" not in "".join(server.lines)
    assert "was ended by signal 9; the next request starts it again" in "".join(server.lines)


def test_keys_limits_and_strictness(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("# who may ask\none\n\ntwo\n  # three\n")
    options = ("--api-keys", str(keys), "--max-requests", "1", "--strict", "--device", "cpu", "--threads", "1")
    server = Server(str(VERSE), *options)
    try:
        assert server.get("/health").status_code == 200
        for headers in (
            {},
            {"authorization": "Bearer three"},
            {"authorization": "Bearer # who may ask"},
            {"authorization": "Bearer # three"},
            {"x-api-key": "ünknown"},
        ):
            sent = {name: value.encode() for name, value in headers.items()}
            response = server.get("/v1/models", headers=sent)
            assert (response.status_code, response.json()["error"]["code"]) == (401, "invalid_api_key")
        allowed = {"authorization": "Bearer two"}
        assert server.get("/v1/models", headers={"x-api-key": "one"}).status_code == 200
        body = {"prompt": "x", "max_tokens": 2, "user": "me"}  # one model: it need not be named
        strict = server.post("/v1/completions", body, headers=allowed)
        assert (strict.status_code, strict.json()["error"]["param"]) == (400, "user")
        body = {"prompt": "x", "max_tokens": 400, "temperature": 1}
        with ThreadPoolExecutor(8) as pool:
            found = list(pool.map(lambda _: server.post("/v1/completions", body, headers=allowed), range(8)))
        assert {response.status_code for response in found} == {200, 429}
        assert next(r for r in found if r.status_code == 429).headers["retry-after"] == "1"
    finally:
        assert server.stop() == 0


def test_what_cannot_be_served(tmp_path: Path) -> None:
    def said(*arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "hotshoe", "serve", *arguments], capture_output=True, text=True, check=False
        )
        assert done.returncode == 2, done.stderr
        assert "Traceback" not in done.stderr
        return done.stderr

    assert "nowhere.gguf does not exist" in said("nowhere.gguf")
    assert "two models are called kjv-3m-q8_0" in said(str(VERSE), str(VERSE))
    damaged = tmp_path / "damaged.gguf"
    damaged.write_bytes(VERSE.read_bytes()[:1000])
    assert "damaged.gguf" in said(str(damaged), "--port", "0")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert "cannot listen at 127.0.0.1" in said(str(VERSE), "--port", str(taken.getsockname()[1]))
    assert "--port is 80000; expected 0 to 65535" in said(str(VERSE), "--port", "80000")
    assert "has no key" in said(str(VERSE), "--api-keys", os.devnull)
