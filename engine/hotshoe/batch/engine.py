"""Engine: models of this machine as a target. It answers with the code of the server, without HTTP."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hotshoe.batch.lines import URLS, Reply, Request
from hotshoe.serve.endpoints import ENDPOINTS, respond
from hotshoe.serve.front import Front
from hotshoe.serve.processes import JobFailedError, ModelSpec
from hotshoe.serve.room import Room
from hotshoe.serve.server import load_first
from hotshoe_core.errors import HotshoeError

__all__ = ["Engine"]

_MAX_CHOICES = 16  # the texts that one request may ask for
_BY_URL = {endpoint.path: endpoint for endpoint in ENDPOINTS if endpoint.path in URLS}


class Engine:
    """Models of this machine. Each is a process of its own, as in the server."""

    name = "this machine"

    def __init__(
        self, specs: Sequence[ModelSpec], memory: int | None, parallel: int, strict: bool, say: Callable[[str], None]
    ) -> None:
        """memory: the most bytes of the computer's memory for all models. parallel: requests at a time. strict: refuse
        fields that would be ignored. say: is told which device each model uses, and why."""
        self.front = Front(specs, room=Room(memory), max_jobs=parallel * _MAX_CHOICES, strict=strict)
        self._say = say

    async def start(self) -> None:
        """Load the models. Raises HotshoeError if one cannot be loaded."""
        try:
            await load_first(self.front, self._say)
        except JobFailedError as error:
            raise HotshoeError(error.failed.message, hint=error.failed.hint) from None

    async def answer(self, request: Request) -> Reply:
        """The answer of the server's code."""
        endpoint = _BY_URL[request.url]
        response = await respond(endpoint, endpoint.handler(self.front, request.body))
        return Reply(response.status_code, bytes(response.body))

    async def stop(self) -> None:
        """End the processes of the models."""
        await self.front.stop()
