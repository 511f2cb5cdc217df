"""Start the server: load the models, then listen until a signal."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import socket
from collections.abc import Callable

import uvicorn

from hotshoe.serve.app import make_app
from hotshoe.serve.front import Front
from hotshoe.serve.processes import JobFailedError
from hotshoe_core.errors import HotshoeError, OptionError

__all__ = ["serve"]

_SECONDS_TO_FINISH = 30  # for texts that are being written when the server is stopped


def serve(front: Front, host: str, port: int, say: Callable[[str], None]) -> int:
    """Listen at an address until SIGINT or SIGTERM; finish the texts that are being written. Returns 0.

    port: 0 for a free one. say: is told each line about the start. Raises OptionError if the address cannot be used,
    HotshoeError if a model cannot be loaded.
    """
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listening = socket.create_server(address[:2], family=family)
    except (OSError, OverflowError, UnicodeError) as error:
        raise OptionError(f"cannot listen at {host}:{port}: {error}", hint="choose another --host or --port") from error
    with listening, contextlib.suppress(KeyboardInterrupt):  # uvicorn raises it again when all is finished
        asyncio.run(_serve(front, listening, say))
    return 0


async def _serve(front: Front, listening: socket.socket, say: Callable[[str], None]) -> None:
    try:
        for process in front.processes.values():
            ready = await process.start()
            say(f"{process.spec.name}: {ready.why}; context of {ready.n_ctx} tokens")
            if ready.warning:
                say(f"{process.spec.name}: {ready.warning}")
    except JobFailedError as error:
        await front.stop()
        raise HotshoeError(error.failed.message, hint=error.failed.hint) from None
    except BaseException:
        await front.stop()
        raise
    host, port = listening.getsockname()[:2]
    say(f"listening at http://{f'[{host}]' if ':' in host else host}:{port} (OpenAI and Anthropic: /v1, Ollama: /api)")
    if not front.keys and not ipaddress.ip_address(host).is_loopback:
        say("anybody on the network can ask: --api-keys FILE allows only those with a key; "
            "--allow-host NAME lets them call this server by a name")  # fmt: skip
    config = uvicorn.Config(
        make_app(front),
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=_SECONDS_TO_FINISH,
    )
    await uvicorn.Server(config).serve(sockets=[listening])
