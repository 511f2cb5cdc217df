"""Servers that a request names: ``rpc://host:port`` in a device's place means the devices that server lends.

Plugins learn of servers from an environment variable, in this process and in the children they are tried in. A server
that a request names is added to it, so that everything is found and judged as if the user had set it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

from hotshoe_core.contract.device import Device
from hotshoe_core.errors import OptionError
from hotshoe_core.errors.text import printable

__all__ = ["announce", "endpoint_of", "lent_by", "withdraw"]

_SCHEME = "rpc://"
_VARIABLE = "HOTSHOE_RPC"


def endpoint_of(token: str) -> str | None:
    """``host:port`` of ``rpc://host:port``, None for other words. Raises OptionError where that is no address."""
    word = token.strip()
    if not word.lower().startswith(_SCHEME):
        return None
    endpoint = word[len(_SCHEME) :].rstrip("/")
    host, _, port = endpoint.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 1 << 16:
        raise OptionError(
            f"device={printable(token, 100)!r} is no server; expected rpc://host:port", hint="rpc://10.0.0.2:50052"
        )
    return endpoint


def lent_by(endpoint: str, devices: Iterable[Device]) -> list[Device]:
    """The devices of a server."""
    return [device for device in devices if device.properties.get("endpoint") == endpoint]


def announce(endpoint: str) -> None:
    """Makes a server known to what is searched from now on, behind those that are."""
    os.environ[_VARIABLE] = ",".join([*_named(), endpoint])


def withdraw(endpoint: str) -> None:
    """Takes it back: one server that does not answer would hide the others."""
    os.environ[_VARIABLE] = ",".join(name for name in _named() if name != endpoint)
    if not os.environ[_VARIABLE]:
        del os.environ[_VARIABLE]


def _named() -> list[str]:
    return [name for each in os.environ.get(_VARIABLE, "").split(",") if (name := each.strip())]
