"""The front's side of a model's process, with small programs in its place, and the process itself."""

from __future__ import annotations

import asyncio
import io
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("starlette", reason="hotshoe[serve] is not installed")

from hotshoe.serve import processes, wire
from hotshoe.serve.processes import JobFailedError, ModelProcess, ModelSpec, ProcessLostError
from hotshoe.serve.room import Room
from hotshoe.serve.worker import Worker
from tests.serve.conftest import VERSE

PROGRAM = """
import json, os, sys, time
sys.path[:] = json.loads(sys.argv[1])
from hotshoe.serve import wire
def read():
    header = sys.stdin.buffer.read(4)
    return wire.decode_order(sys.stdin.buffer.read(wire.length_of(header))) if header else None
def write(event):
    sys.stdout.buffer.write(event if isinstance(event, bytes) else wire.encode(event))
    sys.stdout.buffer.flush()
path = read().path
n = os.path.getsize(path)  # how often it was started
open(path, "a").write("x")
{load}
write(wire.Ready("text", "a", "n", 1, 1, "cpu", "", False))
while (job := read()) is not None:
    {answer}
"""
ANSWER = "write(wire.Counted(job.id, 7)) if isinstance(job, wire.CountJob) else None"


@pytest.fixture
def process(tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> ModelProcess:
    """A process whose program loads and answers as the test says."""
    load, answer = request.param
    monkeypatch.setattr(processes, "_WORKER", PROGRAM.format(load=load, answer=answer))
    monkeypatch.setattr(processes, "_SECONDS_TO_END", 1000.0)
    (tmp_path / "starts").touch()
    return ModelProcess(ModelSpec("m", str(tmp_path / "starts"), None), Room(), 64)


async def count(process: ModelProcess) -> Any:
    return [event async for event in process.run(lambda number: wire.CountJob(number, []))]


def run(process: ModelProcess, work: Any) -> Any:
    async def whole() -> Any:
        try:
            return await asyncio.wait_for(work, 60)
        finally:
            await asyncio.wait_for(process.stop(), 60)

    return asyncio.run(whole())


def n_starts(process: ModelProcess) -> int:
    return Path(process.spec.path).stat().st_size


@pytest.mark.parametrize("process", [("pass", ANSWER)], indirect=True)
def test_a_model_that_is_loaded_for_later_was_used_now(process: ModelProcess) -> None:
    """Otherwise --keep-alive would unload it at once if the server is older."""

    async def work() -> None:
        process.last_used = 0.0
        await process.start()
        assert process.last_used > 0.0

    run(process, work())


FAIL = "if n == 0: time.sleep(0.5); write(wire.Failed(None, 'InsufficientMemoryError', 'no memory')); time.sleep(1000)"


@pytest.mark.parametrize("process", [(FAIL, ANSWER)], indirect=True)
def test_a_load_that_fails_fails_for_all_who_wait(process: ModelProcess) -> None:
    async def work() -> None:
        found = await asyncio.gather(*(count(process) for _ in range(3)), return_exceptions=True)
        assert [type(error) for error in found] == [JobFailedError] * 3
        assert (process.n_jobs, n_starts(process)) == (0, 1)
        assert (await count(process))[-1].n_tokens == 7, "the next request loads it again"

    run(process, work())


@pytest.mark.parametrize("process", [("time.sleep(1)", ANSWER)], indirect=True)
def test_a_client_that_leaves_while_the_model_loads(process: ModelProcess) -> None:
    async def work() -> None:
        first, second = asyncio.create_task(count(process)), asyncio.create_task(count(process))
        await asyncio.sleep(0.3)
        assert process.n_jobs == 2
        first.cancel()
        assert (await second)[-1].n_tokens == 7
        assert first.cancelled()
        assert (process.n_jobs, n_starts(process)) == (0, 1)

    run(process, work())


@pytest.mark.parametrize("process", [("time.sleep(1000)", ANSWER)], indirect=True)
def test_a_load_is_given_up_at_once(process: ModelProcess) -> None:
    async def work() -> None:
        waiting = asyncio.create_task(count(process))
        while n_starts(process) == 0:
            await asyncio.sleep(0.05)
        await process.stop()
        with pytest.raises(ProcessLostError):
            await waiting

    run(process, work())


WRONG = [
    "write((2**31).to_bytes(4, 'little') + b'x'); time.sleep(1000)",
    "write(b'\\1\\0\\0\\0x'); time.sleep(1000)",
    "os.close(1); time.sleep(1000)",
]


@pytest.mark.parametrize("process", [("pass", answer) for answer in WRONG], indirect=True)
def test_a_process_that_sends_no_messages_is_ended(process: ModelProcess) -> None:
    with pytest.raises(ProcessLostError):
        run(process, count(process))


def test_a_client_that_leaves_ends_its_text() -> None:
    """The process of the model says itself that the text was cancelled, before it was complete."""
    process = ModelProcess(ModelSpec("verse", str(VERSE), "cpu"), Room(), 64)
    seen: list[Any] = []
    read = process._read

    async def watched(source: Any) -> Any:
        seen.append(await read(source))
        return seen[-1]

    async def work() -> None:
        process._read = watched  # type: ignore[method-assign, assignment]
        job = wire.TextJob(0, "In the beginning", params={"max_tokens": 480, "temperature": 1.0})
        events = process.run(lambda number: wire.TextJob(number, job.prompt, params=job.params))
        await anext(events)
        await events.aclose()  # type: ignore[attr-defined]
        while not any(isinstance(event, wire.Finished) for event in seen):
            await asyncio.sleep(0.01)
        assert next(event for event in seen if isinstance(event, wire.Finished)).reason == "cancelled"

    run(process, work())


def test_a_result_that_is_too_long_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "MAX_BYTES", 200)
    sent = io.BytesIO()
    worker = Worker(io.BytesIO(), sent)
    monkeypatch.setattr(Worker, "count", lambda self, model, job: self._send(wire.Failed(job.id, "x", "y" * 300)))
    monkeypatch.setitem(worker_methods(), wire.CountJob, Worker.count)
    worker._answer(None, wire.CountJob(5, []))
    failed = wire.decode_event(sent.getvalue()[4:])
    assert isinstance(failed, wire.Failed)
    assert (failed.id, "a message of" in failed.message) == (5, True)


def worker_methods() -> Any:
    from hotshoe.serve import worker

    return worker._METHODS


def test_orders_to_cancel_what_has_ended_are_forgotten() -> None:
    worker = Worker(io.BytesIO(), io.BytesIO())
    worker._cancel(1)
    assert not worker._cancelled


def test_a_response_template_that_is_not_valid_is_said_and_the_known_format_used() -> None:
    class Metadata(dict[str, Any]):
        architecture = "llama"
        arch = SimpleNamespace(get=lambda name, other: other)

    model = SimpleNamespace(
        metadata=Metadata({"tokenizer.response_template": '{"version": 2, "fields": {"content": {}}}'}),
        chat_template=SimpleNamespace(source="{{ tools }} <tool_call>"),
        n_ctx=1, sees=False, hears=False, nbytes=1, why="", device=SimpleNamespace(name="cpu"),
        memory=lambda: SimpleNamespace(to_json=dict),
    )  # fmt: skip
    worker = Worker(io.BytesIO(), io.BytesIO())
    ready = worker._ready(model)
    assert (ready.chats, ready.calls, worker._response is not None) == (True, True, True)
    assert "its version is 2" in ready.warning
