"""RpcProvider: the devices of the servers that HOTSHOE_RPC names."""

from __future__ import annotations

import logging
import os
import re
import socket
import struct
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from hotshoe_core.contract.device import Device, DeviceType
from hotshoe_core.errors import DeviceNotFoundError, OptionError
from hotshoe_core.errors.text import printable
from hotshoe_ggml.native import NativeLibraryError, is_connected, load_backend, server
from hotshoe_ggml.provider import GgmlProvider

__all__ = ["LIBRARY_DIR", "VARIABLE", "RpcProvider", "endpoints", "split_address"]

logger = logging.getLogger("hotshoe.ggml")

VARIABLE = "HOTSHOE_RPC"
_TIMEOUT = "HOTSHOE_RPC_TIMEOUT"
_HELLO = struct.pack("<BQ24x", 14, 24)
"""RPC_CMD_HELLO, the size of its body, and the body, which offers no other transport: see ggml-rpc.cpp."""
_MAX_WAIT = 3.0
"""Seconds that servers may take to answer when devices are listed: less than a probe may take."""

LIBRARY_DIR = Path(__file__).resolve().parent / "lib"


def split_address(address: str) -> tuple[str, int] | None:
    """Host and port of ``host:port``, or of ``[host]:port`` for IPv6; None if the address is invalid."""
    match = re.fullmatch(r"(?:\[([^][]+)]|([^][:]+)):([0-9]{1,5})", address)
    if match is None or not 0 < int(match[3]) < 1 << 16:
        return None
    return match[1] or match[2], int(match[3])


def endpoints() -> list[str]:
    """``host:port`` of each server that HOTSHOE_RPC names. Raises OptionError if one is invalid."""
    found = [name.strip() for name in os.environ.get(VARIABLE, "").split(",") if name.strip()]
    for endpoint in found:
        if split_address(endpoint) is None:
            raise OptionError(
                f"{VARIABLE} names {printable(endpoint, 100)!r}; expected host:port, or [host]:port for IPv6",
                hint=f"for example {VARIABLE}=10.0.0.2:50052,10.0.0.3:50052",
            )
    limit = os.environ.get(_TIMEOUT, "10")
    if found and not (limit.isdecimal() and 0 < int(limit) < 1 << 20):
        raise OptionError(f"{_TIMEOUT} is {printable(limit, 100)!r}; expected a whole number of seconds, 1 or more")
    return found


def _problem_with(endpoint: str) -> str | None:
    """Why a server does not answer the first message of the protocol; None if it does.

    All servers are asked at the same time, before the library connects to one after the other and waits for each.
    """
    address = split_address(endpoint)
    assert address is not None  # endpoints() has checked it
    if is_connected(endpoint):  # ggml's own server has one connection at a time
        return None
    limit = min(_MAX_WAIT, float(os.environ.get(_TIMEOUT, "10")))
    try:
        with socket.create_connection(address, limit) as connection:
            connection.sendall(_HELLO)
            return None if connection.recv(1) else "it closed the connection"
    except TimeoutError:
        return f"no answer for {limit:g} seconds"
    except OSError as error:
        return error.strerror or str(error)


class RpcProvider(GgmlProvider):
    """Devices ``rpc:0``, ``rpc:1``, … in the order of the servers. They are of type ACCEL, so never the default.

    A server that does not answer counts as one device, so that the others keep their names.
    """

    def __init__(self) -> None:
        super().__init__("ggml-rpc", "rpc", LIBRARY_DIR, "rpc")

    def native(self) -> dict[str, object] | None:
        return super().native() if endpoints() else None  # without a server, no library is opened

    def devices(self, library: Path | None) -> Sequence[Device]:
        """The devices of all servers that answer. Raises DeviceNotFoundError if none answers, or if none is named."""
        if library is None:
            raise DeviceNotFoundError(
                "no server is named",
                hint=f"start hotshoe-rpc-serve on the machine with the device, and set {VARIABLE}=HOST:PORT here",
            )
        load_backend(library)
        found: list[Device] = []
        silent: list[str] = []
        number = 0
        servers = endpoints()
        with ThreadPoolExecutor(max_workers=16) as pool:
            problems = list(pool.map(_problem_with, servers))
        for endpoint, problem in zip(servers, problems):
            try:
                if problem is not None:
                    raise NativeLibraryError(f"no server answers at {endpoint}: {problem}")
                devices = server(library, endpoint).devices()
            except NativeLibraryError as error:
                logger.warning("%s", error.message)
                silent.append(error.message)
                number += 1
                continue
            for i, facts in enumerate(devices):
                found.append(
                    Device(
                        name=f"rpc:{number}",
                        type=DeviceType.ACCEL,  # device="gpu" does not mean one behind a network
                        provider=self.name,
                        family=self.family,
                        description=f"a device of {endpoint}",
                        memory_total=facts.memory_total,
                        memory_free=facts.memory_free,
                        library=library,
                        properties={"index": i, "endpoint": endpoint},
                    )
                )
                number += 1
        if silent and not found:
            raise DeviceNotFoundError(
                "; ".join(silent), hint=f"start hotshoe-rpc-serve there, or remove the server from {VARIABLE}"
            )
        return found
