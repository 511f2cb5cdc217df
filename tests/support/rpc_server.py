"""`hotshoe-rpc-serve` in a process of its own, for tests of several devices."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from hotshoe_core.contract.backend import Backend
from hotshoe_loader import load_all

__all__ = ["Server", "backend_of_a_server", "free_port"]


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port: int = s.getsockname()[1]
        return port


class Server:
    """`hotshoe-rpc-serve` on a free port of this machine."""

    def __init__(self, port: int | None = None, host: str = "127.0.0.1") -> None:
        self.address = host, port or free_port()
        self.endpoint = f"[{host}]:{self.address[1]}" if ":" in host else f"{host}:{self.address[1]}"
        command = [sys.executable, "-m", "hotshoe_ggml_rpc.serve", "--listen", self.endpoint, "--threads", "1"]
        environment = {k: v for k, v in os.environ.items() if k != "HOTSHOE_RPC"}
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, env=environment)
        for _ in range(600):
            if self.process.poll() is not None:
                raise AssertionError("the server ended; what it said is above")
            with contextlib.suppress(ConnectionError), socket.create_connection(self.address):
                return
            time.sleep(0.1)
        raise AssertionError("the server does not answer")

    def stop(self) -> None:
        """Stop the process without ending it: the system keeps its connections."""
        self.process.send_signal(signal.SIGSTOP)

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()


@contextlib.contextmanager
def backend_of_a_server() -> Iterator[Backend]:
    """A backend on ``rpc:0``, the device of a server that runs until the end."""
    with pytest.MonkeyPatch.context() as patch:
        server = Server()
        patch.setenv("HOTSHOE_RPC", server.endpoint)
        try:
            with load_all(refresh=True).open("rpc:0") as opened:
                yield opened
        finally:
            server.kill()
    load_all(refresh=True)
