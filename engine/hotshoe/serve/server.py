"""Start the server: load the models, then listen until a signal."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import socket
from collections.abc import Callable, Sequence
from pathlib import Path

import uvicorn

from hotshoe.serve.app import make_app
from hotshoe.serve.front import Front
from hotshoe.serve.processes import JobFailedError
from hotshoe_core.errors import HotshoeError, OptionError

__all__ = ["load_first", "serve"]

_SIZE_IN_MEMORY = 1.25  # of the size of a file: its cache and graphs
_SECONDS_TO_FINISH = 30  # for texts that are being written when the server is stopped


def serve(front: Front, host: str, port: int, say: Callable[[str], None], notes: Sequence[str]) -> int:
    """Listen at an address until SIGINT or SIGTERM; finish the texts that are being written. Returns 0.

    port: 0 for a free one. say: is told each line about the start, and ``notes`` when the models are loaded.
    Raises OptionError if the address cannot be used, HotshoeError if a model cannot be loaded.
    """
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listening = socket.create_server(address[:2], family=family)
    except (OSError, OverflowError, UnicodeError) as error:
        raise OptionError(f"cannot listen at {host}:{port}: {error}", hint="choose another --host or --port") from error
    with listening, contextlib.suppress(KeyboardInterrupt):  # uvicorn raises it again when all is finished
        asyncio.run(_serve(front, listening, say, notes))
    return 0


async def _serve(front: Front, listening: socket.socket, say: Callable[[str], None], notes: Sequence[str]) -> None:
    try:
        await load_first(front, say)
    except JobFailedError as error:
        await front.stop()
        raise HotshoeError(error.failed.message, hint=error.failed.hint) from None
    except BaseException:
        await front.stop()
        raise
    for note in notes:
        say(note)
    n_others = len(front.listed()) - len(front.first)
    if n_others:
        say(f"{n_others} models more are loaded when a request names them: hotshoe list, /v1/models")
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


async def load_first(front: Front, say: Callable[[str], None]) -> None:
    """Load the models that the command named. One that does not fit next to the others is loaded when it is needed.

    Raises JobFailedError if one cannot be loaded at all.
    """
    front.room.may_unload = False
    for i, process in enumerate(front.first):
        sizes = [Path(other.spec.path).stat().st_size for other in front.first[i + 1 :]]
        front.room.reserve = round(sum(sizes) * _SIZE_IN_MEMORY)
        try:
            ready = await process.start()
        except JobFailedError as error:
            if error.failed.kind != "InsufficientMemoryError" or not any(other.is_loaded for other in front.first):
                raise
            say(f"{process.name} is loaded when a request names it, in the place of another: {error.failed.message}")
            continue
        say(f"{process.name}: {ready.why}; context of {ready.n_ctx} tokens")
        if ready.warning:
            say(f"{process.name}: {ready.warning}")
    front.room.may_unload, front.room.reserve = True, 0
