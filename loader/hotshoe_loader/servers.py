"""Servers named in ``device=``: "rpc://host:port" means the devices of that server.

Plugins read the servers from HOTSHOE_RPC, in this process and in the child processes of their probes. A server named in
``device=`` is added to that variable, so it is found as if the user had set it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

from hotshoe_core.contract.device import Device
from hotshoe_core.errors import OptionError
from hotshoe_core.errors.text import printable
from hotshoe_loader.verdict import Outcome, Rejected

__all__ = ["add_server", "devices_of", "endpoint_of", "remove_server", "silent_servers"]

_SCHEME = "rpc://"
_VARIABLE = "HOTSHOE_RPC"


def endpoint_of(token: str) -> str | None:
    """Return "host:port" of "rpc://host:port", or None for another name. Raise OptionError for an invalid address."""
    name = token.strip()
    if not name.lower().startswith(_SCHEME):
        return None
    endpoint = name[len(_SCHEME) :].rstrip("/")
    host, _, port = endpoint.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 1 << 16:
        raise OptionError(
            f"device={printable(token, 100)!r} is not a valid server address; expected rpc://host:port",
            hint="for example device='rpc://10.0.0.2:50052'",
        )
    return endpoint


def devices_of(endpoint: str, devices: Iterable[Device]) -> list[Device]:
    """The devices of one server."""
    return [device for device in devices if device.properties.get("endpoint") == endpoint]


def add_server(endpoint: str) -> None:
    """Add a server at the end of HOTSHOE_RPC."""
    os.environ[_VARIABLE] = ",".join([*_servers(), endpoint])


def remove_server(endpoint: str) -> None:
    """Remove a server from HOTSHOE_RPC, because a server that does not answer would hide the others."""
    os.environ[_VARIABLE] = ",".join(name for name in _servers() if name != endpoint)
    if not os.environ[_VARIABLE]:
        del os.environ[_VARIABLE]


def silent_servers(devices: Iterable[Device]) -> list[Rejected]:
    """For each server in HOTSHOE_RPC that has none of ``devices``, what to do about it."""
    answering = {device.properties.get("endpoint") for device in devices}
    hint = f"start hotshoe-rpc-serve there, or remove the server from {_VARIABLE}"
    return [
        Rejected(Outcome.NO_DEVICE, f"no server answers at {endpoint}", hint)
        for endpoint in _servers()
        if endpoint not in answering
    ]


def _servers() -> list[str]:
    return [name for entry in os.environ.get(_VARIABLE, "").split(",") if (name := entry.strip())]
