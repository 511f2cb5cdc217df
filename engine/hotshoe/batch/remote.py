"""RemoteServer: a server of OpenAI's dialect, here or elsewhere, as a target. One connection for each request."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import socket
from urllib.parse import urlsplit

import h11

from hotshoe.batch.lines import Reply, Request
from hotshoe.batch.pool import TargetLostError
from hotshoe_core.errors import OptionError

__all__ = ["RemoteServer"]

_SECONDS_TO_CONNECT = 10.0
_MAX_ANSWER = 256 << 20
_READ = 1 << 16
_KEEP_ALIVE = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3}
"""How a machine that is switched off is noticed while an answer is awaited, however long it takes: after a minute."""


class RemoteServer:
    """A server, by its address."""

    def __init__(self, url: str, key: str) -> None:
        """key: the key to send; "" for none. Raises OptionError if ``url`` is not an address, or for a key that HTTP
        cannot send."""
        if not url.isascii() or re.fullmatch(r"https?://[^\s/?#@]+(/v1)?/?", url) is None:
            raise OptionError(f"--to {url!r}: expected http://HOST:PORT, and commas between several")
        self.name = url.rstrip("/").removesuffix("/v1")
        try:
            parts = urlsplit(self.name)
            port = parts.port
        except ValueError:
            raise OptionError(f"--to {url!r}: the port is not a number from 0 to 65535, or [ has no ]") from None
        try:
            (parts.hostname or "").encode("idna")  # as a connection does
        except UnicodeError:
            raise OptionError(f"--to {url!r}: the host has an empty part, or one of more than 63 characters") from None
        if re.fullmatch(r"[!-~]*", key) is None:
            raise OptionError("the key has a character that HTTP cannot send; expected visible ASCII characters",
                              hint="--key KEY, or HOTSHOE_API_KEY")  # fmt: skip
        self._is_secure = parts.scheme == "https"
        self._address = (parts.hostname or "", (443 if self._is_secure else 80) if port is None else port)
        self._headers = [("host", parts.netloc), ("accept", "application/json"), ("connection", "close")]
        if key:
            self._headers.append(("authorization", f"Bearer {key}"))

    async def start(self) -> None:
        """Look whether it answers. Raises TargetLostError, or OptionError if it refuses the key."""
        reply = await self._ask("GET", "/v1/models", b"")
        if reply.status in (401, 403):
            raise OptionError(f"{self.name} refuses the key (status {reply.status}): {_message(reply)}",
                              hint="--key KEY, or HOTSHOE_API_KEY")  # fmt: skip
        if reply.status != 200:
            raise TargetLostError(f"/v1/models has status {reply.status}: {_message(reply)}", started=False)

    async def answer(self, request: Request) -> Reply:
        """Send a request. Raises TargetLostError."""
        return await self._ask("POST", request.url, request.body)

    async def stop(self) -> None:
        """Do nothing: each request closes its connection."""

    async def _ask(self, method: str, path: str, body: bytes) -> Reply:
        try:
            reader, writer = await asyncio.wait_for(
                asyncio.open_connection(*self._address, ssl=self._is_secure or None), _SECONDS_TO_CONNECT
            )
        except (OSError, TimeoutError) as error:
            raise TargetLostError(_said(error) or "no connection", started=False) from None
        try:
            _keep_alive(writer.get_extra_info("socket"))
            return await self._exchange(reader, writer, method, path, body)
        except (OSError, h11.RemoteProtocolError) as error:
            raise TargetLostError(_said(error), started=True) from None
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    async def _exchange(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, method: str, path: str, body: bytes
    ) -> Reply:
        connection = h11.Connection(h11.CLIENT)
        headers = [*self._headers, ("content-type", "application/json"), ("content-length", str(len(body)))]
        sent = (
            h11.Request(method=method, target=path, headers=headers), h11.Data(data=body), h11.EndOfMessage()
        )  # fmt: skip
        for part in sent:
            writer.write(connection.send(part) or b"")
        with contextlib.suppress(ConnectionError):  # a server may answer, and close, before it has read all
            await writer.drain()
        status, wait, found = 0, None, bytearray()
        while True:
            event = connection.next_event()
            if event is h11.NEED_DATA:
                data = await reader.read(_READ)
                if not data and not status:
                    raise ConnectionError("the connection was closed before there was an answer")
                connection.receive_data(data)
            elif isinstance(event, h11.Response):
                status, wait = event.status_code, _seconds(dict(event.headers).get(b"retry-after", b""))
            elif isinstance(event, h11.Data):
                found += event.data
                if len(found) > _MAX_ANSWER:
                    return Reply(0, code="answer_too_long", error=f"the answer is longer than {_MAX_ANSWER >> 20} MiB")
            elif isinstance(event, (h11.EndOfMessage, h11.ConnectionClosed)):
                return Reply(status, bytes(found), retry_after=wait)


def _keep_alive(connection: socket.socket) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEP_ALIVE.items():
        if hasattr(socket, name):  # not on every system
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _seconds(header: bytes) -> float | None:
    """The seconds of Retry-After; None for a date, or if the header is missing."""
    return float(header) if header.isdigit() and len(header) < 6 else None


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def _message(reply: Reply) -> str:
    """What the error of an answer says."""
    with contextlib.suppress(ValueError, RecursionError, KeyError, TypeError):
        return str(json.loads(reply.body)["error"]["message"])[:300]
    return reply.body[:200].decode(errors="replace")
