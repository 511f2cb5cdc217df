"""RPC servers that are stopped, slow, or used by strangers, and clients that are interrupted."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hotshoe
from hotshoe.runner.text import TextModel
from hotshoe_core import ops
from hotshoe_core.contract.backend import WeightData
from hotshoe_core.errors import DeviceLostError, DeviceNotFoundError, HotshoeError
from hotshoe_core.tensors.dtypes import DType
from hotshoe_loader import load_all
from tests.support.rpc_server import Server, free_port

pytest.importorskip("hotshoe_ggml_rpc", reason="needs hotshoe-ggml-rpc: pip install ./plugins/ggml-rpc")

from hotshoe_ggml.native import NativeLibraryError, load_backend
from hotshoe_ggml.native import server as native_server
from hotshoe_ggml_rpc import serve
from hotshoe_ggml_rpc.provider import LIBRARY_DIR

SHIPPED = Path(__file__).parents[2] / "examples" / "models" / "kjv-3m-q8_0.gguf"
PROMPT = "In the beginning"
PATIENCE = 60  # seconds after which a test that hangs has failed
HELLO = bytes([14])


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """A server that HOTSHOE_RPC names. A second of silence is enough for the client to ask whether it is alive."""
    started = Server()
    monkeypatch.setenv("HOTSHOE_RPC", started.endpoint)
    monkeypatch.setenv("HOTSHOE_RPC_TIMEOUT", "1")
    load_all(refresh=True)
    yield started
    started.kill()
    monkeypatch.setenv("HOTSHOE_RPC", "")
    load_all(refresh=True)


def open_model() -> TextModel:
    model = hotshoe.load_model(SHIPPED, "rpc:0")
    assert isinstance(model, TextModel)
    return model


def test_a_stopped_server_is_lost(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    model = open_model()
    stream = model.stream(PROMPT, max_tokens=200, temperature=0)
    next(stream)
    server.stop()
    with pytest.raises(DeviceLostError, match=r"rpc:0 .*was lost: .*no answer"):
        list(stream)
    monkeypatch.setenv("HOTSHOE_RPC_TIMEOUT", "1000")  # it is not asked again, not once for each buffer
    closing = threading.Thread(target=model.close, daemon=True)
    closing.start()
    closing.join(PATIENCE)
    assert not closing.is_alive()


def test_a_server_that_is_lost_while_a_graph_is_planned(server: Server) -> None:
    """ggml asks the server for the size of a product of experts, and silu is computed in its memory."""
    with load_all().open("rpc:0") as backend:
        array = np.ones((4, 64, 64), np.float32)
        data = WeightData("w", array.shape, DType.F32, array.reshape(-1).view(np.uint8), uses=("linear_experts",))
        weight = backend.load([data])["w"]
        server.kill()
        with backend.new_context() as ctx:
            x, experts = ctx.input("x", (50, 1, 64)), ctx.input("experts", (50, 2), DType.I32)
            ctx.forward(ops.silu(ops.linear_experts(x, weight, experts)))
            with pytest.raises(DeviceLostError):
                ctx.reserve()


def test_two_models_on_one_server_in_two_threads(server: Server) -> None:
    """They share its connection. A request and its answer must not be mixed with others."""
    with open_model() as one, open_model() as other:
        expected = one.generate(PROMPT, max_tokens=20, temperature=0).text
        texts: list[str] = []

        def work(model: TextModel) -> None:
            for _ in range(3):
                texts.append(model.generate(PROMPT, max_tokens=20, temperature=0).text)

        threads = [threading.Thread(target=work, args=(model,), daemon=True) for model in (one, other)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE)
        assert texts == [expected] * 6


def test_a_server_that_computes_is_not_lost(server: Server) -> None:
    """It is silent for longer than the limit, but answers a second connection."""
    with load_all().open("rpc:0") as backend:
        ctx = backend.new_context()
        x = ctx.input("x", (1024, 1024))
        y = x
        for _ in range(150):  # 320 GFLOP on one core
            y = ops.linear(y, x) * (1 / 1024)
        ctx.forward(y).compute({x: np.ones((1024, 1024), np.float32)})
        assert (y.read() == 1).all()


@pytest.mark.usefixtures("ctrl_c_raises")
def test_an_interrupt_while_a_server_is_silent(server: Server) -> None:
    model = open_model()
    server.stop()
    timer = threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        model.generate(PROMPT, max_tokens=2)
    timer.join()
    model.close()


def test_a_server_that_is_stopped_before_it_is_used(server: Server) -> None:
    server.stop()
    with pytest.raises(DeviceNotFoundError, match=f"{server.endpoint}: no answer for 1 seconds"):
        load_all(refresh=True).open("rpc:0")


def test_servers_that_are_down_do_not_hide_the_one_that_is_up(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some accept connections and are silent, one refuses them. They are asked at the same time."""
    monkeypatch.delenv("HOTSHOE_RPC_TIMEOUT")
    with contextlib.ExitStack() as stack:
        silent = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(4)]
        down = [*("{}:{}".format(*each.getsockname()) for each in silent), f"127.0.0.1:{free_port()}"]
        monkeypatch.setenv("HOTSHOE_RPC", ",".join([*down, server.endpoint]))
        registry = load_all(refresh=True)
        assert [device.name for device in registry.devices if device.provider == "ggml-rpc"] == ["rpc:5"]
        verdict = next(each for each in registry.verdicts if each.candidate == "ggml-rpc")
        assert all(f"no server answers at {endpoint}" in verdict.reason for endpoint in down)
        assert verdict.hint == "start hotshoe-rpc-serve there, or remove the server from HOTSHOE_RPC"
        registry.open("rpc:5").close()


def test_a_silent_server_does_not_stop_others(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """One is asked for its first answer, for seconds, while the other computes."""
    library = next(LIBRARY_DIR.glob("*ggml-rpc.*"))
    with load_all().open("rpc:0") as backend, socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("HOTSHOE_RPC_TIMEOUT", "5")
        ctx = backend.new_context()
        x = ctx.input("x", (4,))
        ctx.forward(x * 2.0).compute({x: np.ones(4, np.float32)})

        def use() -> None:
            with contextlib.suppress(NativeLibraryError):
                native_server(library, "{}:{}".format(*silent.getsockname()))

        asking = threading.Thread(target=use, daemon=True)
        asking.start()
        connection, _ = silent.accept()
        with connection:
            assert connection.recv(1) == HELLO  # now it waits for the answer
            for _ in range(100):
                ctx.compute({x: np.ones(4, np.float32)})
            assert asking.is_alive()
        asking.join(PATIENCE)
        assert not asking.is_alive()


def test_a_server_that_does_not_accept_is_not_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """As behind a firewall that drops packets: here the queue of connections is full."""
    monkeypatch.setenv("HOTSHOE_RPC_TIMEOUT", "2")
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        endpoint = "{}:{}".format(*listener.getsockname())
        for _ in range(8):  # more than the queue holds
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(listener.getsockname())
        library = next(LIBRARY_DIR.glob("*ggml-rpc.*"))
        load_backend(library)
        with pytest.raises(NativeLibraryError, match=f"{endpoint}: no answer for 2 seconds"):
            native_server(library, endpoint)
        with pytest.raises(NativeLibraryError, match=r"no answer \d+ seconds ago; try again in \d+ seconds"):
            native_server(library, endpoint)


def test_strangers_do_not_disturb_others(server: Server) -> None:
    """A connection that says nothing, one that is closed, nonsense, and a message of 2^64 - 1 bytes."""
    stranger_at(server).close()
    with stranger_at(server) as nonsense:
        nonsense.sendall(b"GET / HTTP/1.1\r\n\r\n" * 100)
        assert has_ended(nonsense)
    for length in (2**64 - 1, 2**62, 2**40):
        with stranger_at(server) as stranger:
            stranger.sendall(hello())
            (size,) = struct.unpack("<Q", stranger.recv(8, socket.MSG_WAITALL))
            stranger.recv(size, socket.MSG_WAITALL)
            stranger.sendall(struct.pack("<BQ", 6, length))  # set_tensor
            assert has_ended(stranger)
    with stranger_at(server), open_model() as model:
        assert len(model.generate(PROMPT, max_tokens=2).tokens) == 2


def stranger_at(server: Server) -> socket.socket:
    return socket.create_connection(server.address, timeout=PATIENCE)


def has_ended(connection: socket.socket) -> bool:
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True


def hello() -> bytes:
    """The first message of the protocol: the command, the size, and the client's abilities: none."""
    return struct.pack("<BQ", HELLO[0], 24) + bytes(24)


def test_silent_strangers_do_not_lock_others_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server closes connections without a first message, also those with a part of it."""
    monkeypatch.setenv("HOTSHOE_RPC_TIMEOUT", "1")
    server = Server()
    try:
        strangers = [stranger_at(server) for _ in range(64)]
        strangers[0].sendall(hello()[:-1])
        for stranger in strangers:
            with stranger:
                assert has_ended(stranger)
        with stranger_at(server) as client:
            client.sendall(hello())
            client.settimeout(3)  # longer than the server's limit, which is over with the first message
            (size,) = struct.unpack("<Q", client.recv(8, socket.MSG_WAITALL))
            client.recv(size, socket.MSG_WAITALL)
            with pytest.raises(TimeoutError):
                client.recv(1)
    finally:
        server.kill()


class Listener:
    """A listening socket whose `accept` returns the given results, or raises them."""

    def __init__(self, results: list[Any]) -> None:
        self.results = iter(results)

    def __enter__(self) -> Listener:
        return self

    def __exit__(self, *args: object) -> None:
        pass

    def accept(self) -> tuple[socket.socket, None]:
        result = next(self.results)
        if isinstance(result, BaseException):
            raise result
        return result, None


def test_the_server_goes_on_when_the_system_refuses_a_client(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has no thread, or no file, for one client. The next one is served, also if only one may be."""
    pairs = [socket.socketpair() for _ in range(2)]
    results = [OSError(errno.EMFILE, "too many files"), *(ours for ours, _ in pairs), KeyboardInterrupt()]
    start = threading.Thread.start
    refusals = iter([RuntimeError("can't start new thread")])

    def start_or_fail(thread: threading.Thread) -> None:
        for refusal in refusals:
            raise refusal
        start(thread)

    monkeypatch.setattr(serve, "_MAX_CLIENTS", 1)
    monkeypatch.setattr(serve, "_listen", lambda *_: Listener(results))
    monkeypatch.setattr(threading.Thread, "start", start_or_fail)
    with pytest.raises(KeyboardInterrupt):
        serve.serve("127.0.0.1", 50052, 1)
    refused, served = (theirs for _, theirs in pairs)
    with refused, served:
        for client in (refused, served):
            client.settimeout(PATIENCE)
        assert has_ended(refused)
        served.sendall(hello())
        assert len(served.recv(8, socket.MSG_WAITALL)) == 8


def test_an_address_of_one_network_interface(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interface's number is the last part of the address."""
    made: list[Any] = []

    def create_server(address: Any, **_: Any) -> socket.socket:
        made.append(address)
        return socket.socket()

    monkeypatch.setattr(socket, "create_server", create_server)
    try:
        serve._listen("fe80::1%1", 50052).close()
    except HotshoeError as error:
        pytest.skip(f"this machine has no IPv6: {error}")
    assert made[0][3] == 1


def test_an_address_of_ipv6(monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        with socket.socket(socket.AF_INET6) as s:
            s.bind(("::1", 0))
    except OSError as error:
        pytest.skip(f"this machine has no IPv6: {error}")
    server = Server(host="::1")
    monkeypatch.setenv("HOTSHOE_RPC", "")
    with hotshoe.load_model(SHIPPED, f"rpc://{server.endpoint}") as model:
        assert isinstance(model, TextModel)
        assert len(model.generate(PROMPT, max_tokens=2).tokens) == 2
    server.kill()
    monkeypatch.setenv("HOTSHOE_RPC", "")
    load_all(refresh=True)


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--threads", "-1", "--threads -1: expected 0 to 512"),
        ("--threads", "100000", "--threads 100000: expected 0 to 512"),
        ("--listen", "::1:50052", "expected HOST:PORT, or [HOST]:PORT for IPv6"),
        ("--listen", "127.0.0.1:70000", "expected HOST:PORT"),
        ("--listen", "..:50052", "cannot listen to port 50052 of ..:"),
        ("--listen", "no-such-host.invalid:50052", "cannot listen to port 50052 of no-such-host.invalid"),
    ],
)
def test_invalid_options_of_the_server(option: str, value: str, message: str) -> None:
    command = [sys.executable, "-m", "hotshoe_ggml_rpc.serve", f"{option}={value}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        ("HOTSHOE_RPC", "::1:50052", r"expected host:port, or \[host\]:port for IPv6"),
        ("HOTSHOE_RPC_TIMEOUT", "soon", "HOTSHOE_RPC_TIMEOUT is 'soon'; expected a whole number of seconds"),
    ],
)
def test_invalid_variables(monkeypatch: pytest.MonkeyPatch, variable: str, value: str, message: str) -> None:
    monkeypatch.setenv("HOTSHOE_RPC", "127.0.0.1:1")
    monkeypatch.setenv(variable, value)
    with pytest.raises(DeviceNotFoundError, match=message):
        load_all(refresh=True).open("rpc:0")
