"""What the server does now: its models with their memory and queues, and the devices of this machine."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from typing import Any

import hotshoe
from hotshoe.serve.front import Front
from hotshoe.serve.ollama import capabilities
from hotshoe.serve.processes import ModelProcess
from hotshoe.serve.requests import RequestError

__all__ = ["Devices", "status"]

_SECONDS_BETWEEN = 20.0  # after which the devices are listed again; that takes a process about a second
_DEVICES = "import json, sys; sys.path[:] = json.loads(sys.argv.pop(1)); from hotshoe.cli import main; sys.exit(main())"


def status(front: Front) -> dict[str, Any]:
    """The answer of ``/api/status``."""
    return {
        "version": hotshoe.__version__,
        "seconds": round(time.time() - front.started),
        "max_requests": front.max_jobs,
        "models": [_model(process) for process in front.processes.values()],
    }


def _model(process: ModelProcess) -> dict[str, Any]:
    ready = process.ready
    found: dict[str, Any] = {
        "name": process.spec.name,
        "state": "loaded" if ready is not None else "loading" if process.is_loading else "not loaded",
        "requests": process.n_jobs,
        "waiting": process.n_unread,
        "written": process.n_pieces,
        "recent": list(process.recent),
    }
    if ready is None:
        return found
    return found | {
        "task": ready.task,
        "architecture": ready.architecture,
        "capabilities": capabilities(ready),
        "context_length": ready.n_ctx,
        "size": ready.nbytes,
        "device": ready.device,
        "why": ready.why,
        "warning": ready.warning,
        "memory": ready.memory,
    }


class Devices:
    """The devices of this machine, as `hotshoe devices --json` lists them.

    A process of its own lists them: the front process opens no native library, so none can end it.
    """

    def __init__(self) -> None:
        self._found: dict[str, Any] | None = None
        self._at = 0.0
        self._listing = asyncio.Lock()

    async def get(self) -> dict[str, Any]:
        """The answer of ``/api/devices``. Raises RequestError if the process ends without one."""
        async with self._listing:
            if self._found is None or time.monotonic() - self._at > _SECONDS_BETWEEN:
                process = await asyncio.create_subprocess_exec(
                    *(sys.executable, "-I", "-c", _DEVICES, json.dumps(sys.path), "devices", "--json"),
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=asyncio.subprocess.PIPE,
                )
                output, _ = await process.communicate()
                try:
                    self._found = json.loads(output)
                except ValueError:
                    raise RequestError(503, "the process that lists the devices ended; the log has more") from None
                self._at = time.monotonic()
            return self._found
