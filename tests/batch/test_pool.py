"""The parts of a batch: files of lines, the pool with targets that fail as the test says, and connections."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hotshoe.batch import pool as pool_module
from hotshoe.batch.cluster import connect
from hotshoe.batch.lines import BadLine, Input, Output, Reply, Request
from hotshoe.batch.pool import NoTargetError, Pool, TargetGoneError, TargetLostError
from hotshoe.batch.remote import RemoteServer
from hotshoe.serve.processes import ModelSpec
from hotshoe_core.errors import OptionError
from tests.batch.conftest import line, texts, write


class FakeTarget:
    """Answers as a function says, which gets the request and how many it has had."""

    def __init__(self, name: str, answer: Callable[[Request, int], Reply], starts: Any = None) -> None:
        self.name, self._answer, self._starts = name, answer, starts
        self.n_starts = self.n_requests = self.n_now = self.n_most = 0

    async def start(self) -> None:
        self.n_starts += 1
        if self._starts is not None:
            self._starts(self.n_starts)

    async def answer(self, request: Request) -> Reply:
        self.n_requests += 1
        self.n_now += 1
        self.n_most = max(self.n_most, self.n_now)
        try:
            await asyncio.sleep(0)
            return self._answer(request, self.n_requests)
        finally:
            self.n_now -= 1

    async def stop(self) -> None:
        pass


OK = Reply(200, b"{}")


def run(targets: list[Any], lines: Iterator[Request | BadLine], parallel: int = 4) -> tuple[list[Any], list[str]]:
    """The lines with their replies, in the order of writing, and what was said."""
    written: list[Any] = []
    said: list[str] = []

    async def whole() -> None:
        pool = Pool(targets, parallel, said.append)
        try:
            await pool.start()
            await pool.run(lines, lambda line, reply: written.append((line.number, reply)))
        finally:
            await pool.stop()

    asyncio.run(asyncio.wait_for(whole(), 60))
    return written, said


def requests(n: int) -> Iterator[Request]:
    return (Request(i, str(i), "/v1/completions", b"{}") for i in range(1, n + 1))


@pytest.fixture(autouse=True)
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_module, "_SECONDS_BUSY", 0.001)
    monkeypatch.setattr(pool_module, "_DELAYS", (0.001, 0.01))
    monkeypatch.setattr(pool_module, "_SECONDS_TO_GIVE_UP", 0.2)


def test_an_input_without_end_needs_no_memory() -> None:
    """No line is read before a target is free for it."""
    n_read = n_written = most = 0

    def counted() -> Iterator[Request]:
        nonlocal n_read
        for request in requests(5000):
            n_read += 1
            yield request

    async def whole() -> None:
        nonlocal n_written, most

        def note(line: Request | BadLine, reply: Reply) -> None:
            nonlocal n_written, most
            most = max(most, n_read - n_written)
            n_written += 1

        pool = Pool([FakeTarget("a", lambda r, n: OK), FakeTarget("b", lambda r, n: OK)], 4, print)
        await pool.run(counted(), note)

    asyncio.run(whole())
    assert (n_read, n_written) == (5000, 5000)
    assert most <= 8


def test_every_line_is_written_once_whatever_fails() -> None:
    def shaky(request: Request, n: int) -> Reply:
        if n % 7 == 0:
            raise TargetLostError("cut", started=bool(n % 2))
        return Reply(429, retry_after=0.0) if n % 5 == 0 else Reply(503, b"{}") if n % 11 == 0 else OK

    targets = [FakeTarget("a", shaky), FakeTarget("b", shaky), FakeTarget("c", lambda r, n: OK)]
    written, said = run(targets, requests(500))
    assert sorted(number for number, _ in written) == list(range(1, 501))
    assert all(reply is OK for _, reply in written)
    assert all(1 <= target.n_most <= 4 for target in targets)
    assert said.count("a is busy (status 429): its requests wait, or go elsewhere") == 1
    assert any(text.startswith("a was lost: cut") for text in said)
    assert "a is back" in said


def test_a_request_that_ends_every_server_is_answered_with_an_error() -> None:
    def poisoned(request: Request, n: int) -> Reply:
        if request.number == 3:
            raise TargetLostError("the connection was closed", started=True)
        return OK

    written, _ = run([FakeTarget("a", poisoned), FakeTarget("b", poisoned)], requests(40))
    assert len(written) == 40
    [(number, reply)] = [(number, reply) for number, reply in written if reply is not OK]
    assert (number, reply.status, reply.code) == (3, 0, "server_lost")
    assert "was lost while it worked on this: the connection was closed" in reply.error


class FragileTarget:
    """A server that request 3 ends, and with it everything that it works on."""

    name = "fragile"

    async def start(self) -> None:
        self._end = asyncio.Event()

    async def answer(self, request: Request) -> Reply:
        end = self._end
        if request.number == 3:
            end.set()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(end.wait(), 0.002)
            raise TargetLostError("it ended", started=True)
        return OK

    async def stop(self) -> None:
        pass


@pytest.mark.parametrize("n_targets", [1, 2])
def test_a_request_that_ends_every_server_costs_no_other_request(n_targets: int) -> None:
    written, _ = run([FragileTarget() for _ in range(n_targets)], requests(40))
    assert sorted(number for number, _ in written) == list(range(1, 41))
    assert [(number, reply.code) for number, reply in written if reply is not OK] == [(3, "server_lost")]


def test_503_goes_elsewhere_and_stays_if_all_say_it() -> None:
    gone = Reply(503, b'{"error": 1}')
    tried: list[tuple[str, int]] = []

    def note(name: str, reply: Reply) -> Callable[[Request, int], Reply]:
        def answer(request: Request, n: int) -> Reply:
            tried.append((name, request.number))
            return reply

        return answer

    written, _ = run([FakeTarget("a", note("a", gone)), FakeTarget("b", note("b", OK))], requests(20))
    assert all(reply is OK for _, reply in written)
    assert len([name for name, _ in tried if name == "a"]) == len({number for name, number in tried if name == "a"})
    written, _ = run([FakeTarget("a", note("a", gone))], requests(5))
    assert [reply for _, reply in written] == [gone] * 5


def test_without_a_target_it_ends_and_says_why() -> None:
    def lost(request: Request, n: int) -> Reply:
        raise TargetLostError("refused", started=False)

    def dead(n: int) -> None:
        if n > 1:
            raise TargetLostError("refused again", started=False)

    def gone(n: int) -> None:
        if n > 1:
            raise TargetGoneError("the node has left")

    for starts, words in ((dead, "a: refused again"), (gone, "a: the node has left")):
        with pytest.raises(NoTargetError, match=words):
            run([FakeTarget("a", lost, starts)], requests(5))

    def wrong(n: int) -> None:
        if n > 1:
            raise OptionError("the key was changed")

    with pytest.raises(OptionError, match="the key was changed"):
        run([FakeTarget("a", lost, wrong), FakeTarget("b", lambda r, n: Reply(429), None)], requests(5))


def test_an_error_in_the_code_that_starts_a_target_again_ends_the_run() -> None:
    def lost(request: Request, n: int) -> Reply:
        raise TargetLostError("cut", started=False)

    def broken(n: int) -> None:
        if n > 1:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run([FakeTarget("a", lost, broken)], requests(5))


def test_a_short_absence_of_the_last_target_does_not_count_as_long_as_that_of_another() -> None:
    """Targets are given up when all have been away for a minute, not when one has."""

    def never(n: int) -> None:
        raise TargetLostError("off", started=False)

    def back_soon(n: int) -> None:
        if 1 < n < 8:  # away for about 0.05 of the 0.2 seconds
            raise TargetLostError("starting", started=False)

    def cut_once(request: Request, n: int) -> Reply:
        if n == 1:
            time.sleep(0.3)  # so that the other target is away for longer than the limit
            raise TargetLostError("cut", started=False)
        return OK

    written, said = run([FakeTarget("a", lambda r, n: OK, never), FakeTarget("b", cut_once, back_soon)], requests(5), 1)
    assert [reply for _, reply in written] == [OK] * 5
    assert "b is back" in said


def test_an_output_of_something_else_is_not_cut(tmp_path: Path) -> None:
    """Only the beginning of an answer is removed from the end, not a file that has no line end."""
    source, output = write(tmp_path / "in", texts(2)), tmp_path / "out"
    for precious in (b'{"precious": 1}', b"GGUF", b'{"id":"batch_1'):
        output.write_bytes(precious)
        with Output(output, source) as opened, pytest.raises(OptionError, match="line 1 is not an answer of a batch"):
            opened.resume(_scanned(source))
        assert output.read_bytes() == precious
    for half in (b"", b"{", b'{"id":"batch_req_1', b'{"id":"batch_req_1","custom_id":"te'):
        output.write_bytes(half)
        with Output(output, source) as opened:
            opened.resume(_scanned(source))
        assert output.read_bytes() == b""


def test_an_answer_that_is_not_utf8_stops_nothing(tmp_path: Path) -> None:
    source = write(tmp_path / "in", texts(1))
    [request] = _scanned(source)
    with Output(tmp_path / "out", source) as output:
        output.write(request, Reply(200, b'{"a": "\xff"}'))
    assert json.loads((tmp_path / "out").read_bytes())["error"]["code"] == "invalid_response"


def _scanned(path: Path) -> Input:
    found = Input(path)
    found.scan()
    return found


def test_a_target_that_is_away_at_the_start_comes_later() -> None:
    def late(n: int) -> None:
        if n < 4:
            raise TargetLostError("not yet", started=False)

    slow, fast = FakeTarget("late", lambda r, n: OK, late), FakeTarget("a", lambda r, n: Reply(429, retry_after=0.05))
    written, said = run([slow, fast], requests(20))
    assert len(written) == 20
    assert said[0] == "late cannot be used: not yet; trying again"
    assert "late is back" in said


def test_an_error_in_the_code_is_not_hidden(tmp_path: Path) -> None:
    def broken(request: Request, n: int) -> Reply:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run([FakeTarget("a", broken)], requests(5))


@given(
    st.lists(
        st.one_of(
            st.binary(max_size=40),
            st.recursive(
                st.none() | st.floats() | st.text(max_size=5),
                lambda inner: (
                    st.lists(inner, max_size=3)
                    | st.dictionaries(st.sampled_from(["custom_id", "method", "url", "body", "stream"]), inner)
                ),
            ).map(lambda value: json.dumps(value).encode()),
            st.sampled_from([each.strip().encode() for each in texts(3)]),
        ),
        max_size=8,
    )
)
def test_every_line_of_any_file_is_a_request_or_bad(lines: list[bytes]) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder, "in"), Path(folder, "out")
        source.write_bytes(b"\n".join(lines))
        for n_left in (None, 0):
            found = Input(source)
            found.scan()
            with Output(target, source) as output:
                output.resume(found)
                left = list(found)
                assert n_left is None or len(left) == n_left
                assert len(left) + found.n_done == found.n_lines
                for each in left:
                    output.write(each, OK)
        with_ids = [each.custom_id for each in left if isinstance(each, Request)]
        assert len(set(with_ids)) == len(with_ids)


def test_two_runs_do_not_write_the_same_file(tmp_path: Path) -> None:
    source = write(tmp_path / "in", texts(1))
    with Output(tmp_path / "out", source):
        with pytest.raises(OptionError, match="another run writes"):
            Output(tmp_path / "out", source)


def test_long_lines_and_a_byte_order_mark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hotshoe.batch.lines._MAX_LINE", 200)
    long = line("long", {"prompt": "x" * 1000})
    (tmp_path / "in").write_text("\ufeff" + texts(1)[0] + long + line("b", {}) + long.strip(), encoding="utf-8")
    found = Input(tmp_path / "in")
    found.scan()
    lines = list(found)
    assert [each.number for each in lines] == [1, 2, 3, 4]
    assert [isinstance(each, Request) for each in lines] == [True, False, True, False]
    assert all(isinstance(each, BadLine) and "longer than" in each.why for each in (lines[1], lines[3]))


def test_a_body_is_sent_as_it_stands(tmp_path: Path) -> None:
    body = '{"model":  "é\\u00e9", "x": 1.0e0, "n": 123456789012345678901234567890}'
    (tmp_path / "in").write_text(f'{{"body": {body}, "url": "/v1/completions", "custom_id": "a"}}', encoding="utf-8")
    found = Input(tmp_path / "in")
    found.scan()
    [request] = list(found)
    assert isinstance(request, Request)
    assert request.body.decode() == body


SERVED: list[tuple[bytes, Any]] = [
    (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}", Reply(200, b"{}")),
    (b"HTTP/1.1 200 OK\r\n\r\n{}", Reply(200, b"{}")),  # until the connection ends
    (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n{\r\n1\r\n}\r\n0\r\n\r\n", Reply(200, b"{}")),
    (b"HTTP/1.1 429 Slow down\r\nRetry-After: 7\r\nContent-Length: 0\r\n\r\n", Reply(429, retry_after=7.0)),
    (b"HTTP/1.1 503 No\r\nRetry-After: Wed, 21 Oct 2026 07:28:00 GMT\r\nContent-Length: 0\r\n\r\n", Reply(503)),
    (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}", Reply(200, b"{}")),
    (b"HTTP/1.1 200 OK\r\nContent-Length: 20\r\n\r\n{", "without sending complete message body"),
    (b"", "closed before there was an answer"),
    (b"SSH-2.0-OpenSSH\r\n\r\n", "illegal status line"),
]


@pytest.mark.parametrize(("answer", "expected"), SERVED)
def test_what_servers_send(answer: bytes, expected: Any) -> None:
    seen: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append(await reader.readuntil(b"{}"))
        writer.write(answer)
        await writer.drain()
        writer.close()

    async def ask() -> Reply:
        async with await asyncio.start_server(serve, "127.0.0.1", 0) as listening:
            port = listening.sockets[0].getsockname()[1]
            server = RemoteServer(f"http://127.0.0.1:{port}/v1", "s3cret")
            return await server.answer(Request(1, "a", "/v1/completions", b"{}"))

    if isinstance(expected, Reply):
        assert asyncio.run(ask()) == expected
        assert seen[0].startswith(b"POST /v1/completions HTTP/1.1\r\n")
        assert b"authorization: Bearer s3cret\r\n" in seen[0]
    else:
        with pytest.raises(TargetLostError, match=expected) as raised:
            asyncio.run(ask())
        assert raised.value.started


def test_nodes_of_a_cluster_get_absolute_paths(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A process of Ray runs in a folder of its own. The package is replaced: what it is given is looked at."""
    given: list[Any] = []
    actor = SimpleNamespace(remote=lambda *arguments: given.append(arguments))
    node = {"NodeID": "0123456789", "NodeManagerAddress": "10.0.0.1", "Alive": True, "Resources": {"GPU": 2.0}}
    ray = ModuleType("ray")
    ray.__dict__.update(
        init=lambda **_: None,
        nodes=lambda: [node, node | {"Alive": False}],
        remote=lambda _: SimpleNamespace(options=lambda **_: actor),
    )
    strategies = ModuleType("ray.util.scheduling_strategies")
    strategies.__dict__["NodeAffinitySchedulingStrategy"] = lambda node_id, soft: None
    for module in (ray, ModuleType("ray.util"), strategies):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.chdir(tmp_path)
    spec = ModelSpec("a", "models/a.gguf", None, options={"prefix_folder": "prefixes", "n_threads": 2})
    engines = connect("auto", [spec], None, 4, False, print)
    assert [engine.name for engine in engines] == ["10.0.0.1 (01234567, engine 0)", "10.0.0.1 (01234567, engine 1)"]
    for engine in engines:
        engine._make()
    for [sent], *_ in given:
        assert sent.path == str(tmp_path / "models" / "a.gguf")
        assert sent.options == {"prefix_folder": str(tmp_path / "prefixes"), "n_threads": 2}
    assert len(given) == 2


def test_a_server_that_is_not_there() -> None:
    with pytest.raises(TargetLostError) as raised:
        asyncio.run(RemoteServer("http://127.0.0.1:9", "").answer(Request(1, "a", "/v1/completions", b"{}")))
    assert not raised.value.started
