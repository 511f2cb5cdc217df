"""`hotshoe batch` as a user runs it: with a model, with servers, and after it was killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

import hotshoe
from tests.batch.conftest import MODEL, VERSE, answers, batch, check_all, command, line, texts, write
from tests.serve.conftest import DATA, Server


def test_lines_of_every_kind(tmp_path: Path) -> None:
    prompt = {"prompt": "In the beginning", "temperature": 0, "max_tokens": 12}
    lines = [
        line("text", prompt | {"model": "verse"}),
        line("vector", {"model": "vectors", "input": ["one", "two"]}, "/v1/embeddings"),
        line("chat", {"model": "verse", "messages": [{"role": "user", "content": "x"}]}, "/v1/chat/completions"),
        line("response", {"model": "verse", "input": "x"}, "/v1/responses"),
        "\n",
        "not JSON\n",
        line("text", prompt | {"model": "verse"}),
        line("elsewhere", {"model": "verse"}, "/v1/files"),
        line("stream", prompt | {"model": "verse", "stream": True}),
        line("wrong", prompt | {"model": "verse", "temperature": "hot"}),
        line("unknown", prompt | {"model": "gpt-4o"}),
        '{"custom_id": "no body", "url": "/v1/completions"}\n',
        '{"custom_id": "list", "url": "/v1/completions", "body": []}',
    ]
    done = batch(
        write(tmp_path / "in.jsonl", lines), tmp_path / "out.jsonl", f"vectors={DATA / 'Qwen3Embedding.gguf'}", *MODEL
    )
    assert done.returncode == 1, done.stderr
    assert "12 of 12 requests are answered, 10 of them with an error" in done.stderr
    found = [json.loads(each) for each in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert sorted(answer["id"] for answer in found) == sorted(f"batch_req_{n}" for n in range(1, 14) if n != 5)
    by_number = {int(answer["id"].removeprefix("batch_req_")): answer for answer in found}
    with hotshoe.load_model(VERSE, "cpu", n_threads=1, task="text") as model:
        expected = model.generate("In the beginning", temperature=0, max_tokens=12).text
    assert by_number[1]["response"]["body"]["choices"][0]["text"] == expected
    assert len(by_number[2]["response"]["body"]["data"]) == 2
    for number, words in {3: "template", 4: "template", 10: "temperature", 11: "there is no model 'gpt-4o'"}.items():
        assert by_number[number]["error"] is None
        assert by_number[number]["response"]["status_code"] == (404 if number == 11 else 400)
        assert words in by_number[number]["response"]["body"]["error"]["message"]
    for number, words in {
        6: "line 6: the line is not a request", 7: "line 7: the custom_id is that of line 1 too",
        8: "line 8: url is '/v1/files'; expected one of /v1/chat/completions, ",
        9: "line 9: stream is set; a batch has no streams", 12: "line 12: the line is not a request: Object missing",
        13: "line 13: the line is not a request: Expected `object`",
    }.items():  # fmt: skip
        assert by_number[number]["response"] is None
        assert by_number[number]["error"]["code"] == "invalid_line"
        assert words in by_number[number]["error"]["message"]
    assert [by_number[n]["custom_id"] for n in (6, 7, 12, 13)] == [None, "text", "no body", "list"]
    again = batch(tmp_path / "in.jsonl", tmp_path / "out.jsonl", *MODEL)
    assert again.returncode == 1
    assert "12 of 12 requests are answered already" in again.stderr
    assert "to have these lines answered again, delete them there" in again.stderr


@pytest.mark.usefixtures("ctrl_c_raises")
def test_a_run_that_was_killed_goes_on(tmp_path: Path) -> None:
    """Nothing is lost, nothing is there twice, and what is there is not computed again."""
    n, output = 120, tmp_path / "out.jsonl"
    source = write(tmp_path / "in.jsonl", texts(n, 16))
    for k in range(3):
        running = subprocess.Popen(command(source, output, *MODEL, "--parallel", "4"), stderr=subprocess.DEVNULL)
        enough = 10 + 25 * k
        while not output.exists() or output.read_bytes().count(b"\n") < enough:
            assert running.poll() is None
            time.sleep(0.01)
        running.send_signal((signal.SIGKILL, signal.SIGTERM, signal.SIGINT)[k])
        assert running.wait(60) != 0
        with open(output, "ab") as file:
            file.write(
                b'{"id":"batch_req_9',
            )  # as a disk that was full leaves it
    before = output.read_bytes()[: -len(b'{"id":"batch_req_9')]
    before = before[: before.rindex(b"\n") + 1]
    assert 60 <= before.count(b"\n") < n
    done = batch(source, output, *MODEL)
    assert done.returncode == 0, done.stderr
    n_before = before.count(b"\n")
    assert f"{n_before} of {n} requests are answered already" in done.stderr
    assert output.read_bytes().startswith(before)
    check_all(output, n)


def test_servers_of_which_one_is_killed(tmp_path: Path) -> None:
    n, output = 160, tmp_path / "out.jsonl"
    source = write(tmp_path / "in.jsonl", texts(n, 16))
    options = ("--device", "cpu", "--threads", "1", "--max-requests", "4")  # fewer than are sent: status 429
    first, second = Server(f"verse={VERSE}", *options), Server(f"verse={VERSE}", *options)
    try:
        to = ("--to", f"{first.url}/v1/,{second.url}", "--parallel", "6")
        running = subprocess.Popen(command(source, output, *to), stderr=subprocess.PIPE, text=True)
        while not output.exists() or output.read_bytes().count(b"\n") < n // 4:
            assert running.poll() is None
            time.sleep(0.01)
        os.kill(first.process.pid, signal.SIGKILL)
        _, said = running.communicate(timeout=120)
        assert running.returncode == 0, said
        assert f"{first.url} was lost: " in said
        assert "is busy (status 429)" in said
        check_all(output, n)
    finally:
        first.stop()
        second.stop()
    done = batch(source, tmp_path / "other.jsonl", "--to", f"{first.url},{second.url}")
    assert done.returncode == 2
    assert "nothing is left to answer: " in done.stderr
    assert "the same command goes on where this ended" in done.stderr


def test_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, keys = write(tmp_path / "in.jsonl", texts(3)), tmp_path / "keys"
    keys.write_text("s3cret\n")
    server = Server(f"verse={VERSE}", "--device", "cpu", "--threads", "1", "--api-keys", str(keys))
    try:
        done = batch(source, tmp_path / "out.jsonl", "--to", server.url, "--key", "wrong")
        assert done.returncode == 2
        assert "refuses the key (status 401)" in done.stderr
        assert (tmp_path / "out.jsonl").read_bytes() == b""
        monkeypatch.setenv("HOTSHOE_API_KEY", "s3cret")
        assert batch(source, tmp_path / "out.jsonl", "--to", server.url).returncode == 0
        check_all(tmp_path / "out.jsonl", 3)
    finally:
        server.stop()


def test_wrong_arguments(tmp_path: Path) -> None:
    source, output = write(tmp_path / "in.jsonl", texts(3)), tmp_path / "out.jsonl"
    other = write(tmp_path / "other.jsonl", texts(3)[::-1])
    to = ("--to", "http://127.0.0.1:9")
    for arguments, words in (
        ((source, output), "neither MODEL nor --to is given"),
        ((source, output, VERSE, *to), "MODEL and --to are given"),
        ((source, output, *to, "--ray"), "not allowed with"),
        ((source, output, "nowhere.gguf"), "nowhere.gguf does not exist"),
        ((source, output, "--to", "127.0.0.1:80"), "expected http://HOST:PORT"),
        ((source, output, "--to", "http://a:99999"), "the port is not a number"),
        ((source, output, "--to", "http://[::1"), "or [ has no ]"),
        ((source, output, "--to", "http://a..b"), "the host has an empty part"),
        ((source, output, *to, "--key", "s3cret\n"), "the key has a character that HTTP cannot send"),
        ((source, output, *to, "--ctx", "64"), "--ctx has no effect with --to"),
        ((source, output, *to, "--strict"), "--strict has no effect with --to"),
        ((source, output, *to, "--device", "cpu"), "--device has no effect with --to"),
        ((source, output, VERSE, "--key", "a"), "--key has no effect without --to"),
        ((source, output, "--to", "http://a/v1,http://a/"), "expected one server or more, each once"),
        ((source, output, *to, "--key", "a,b"), "--key has 2 keys for 1 servers"),
        ((source, output, *to, "--parallel", "0"), "--parallel is 0"),
        ((tmp_path / "nowhere", output, *to), "nowhere does not exist"),
        ((tmp_path, output, *to), "is not a regular file"),
        ((source, source, *to), "is the input itself"),
        ((source, tmp_path / "none" / "out", *to), f"there is no folder {tmp_path / 'none'}"),
        ((source, tmp_path, *to), "is not a regular file; expected a name for the answers"),
        ((source, other, *to), "line 1 is not an answer of a batch"),
    ):
        done = batch(*arguments)
        assert done.returncode == 2, done.stderr
        assert words in done.stderr
        assert "Traceback" not in done.stderr
    assert batch(source, output, *MODEL).returncode == 0
    done = batch(other, output, *MODEL)
    assert done.returncode == 2
    assert "other.jsonl has another request there" in done.stderr
    done = batch(write(tmp_path / "short.jsonl", texts(1)), output, *MODEL)
    assert "has no such line" in done.stderr
    assert len(answers(output)) == 3
