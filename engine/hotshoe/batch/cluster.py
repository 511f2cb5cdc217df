"""The nodes of a Ray cluster as targets: one engine for each GPU of a node, or one for a node without GPUs."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from hotshoe.batch.lines import Reply, Request
from hotshoe.batch.pool import TargetGoneError, TargetLostError
from hotshoe_core.errors import HotshoeError, OptionError

if TYPE_CHECKING:
    from hotshoe.batch.engine import Engine
    from hotshoe.serve.processes import ModelSpec

__all__ = ["NodeEngine", "RayEngine", "connect"]

_SECONDS_TO_BEGIN = 120.0  # for a process of Ray on a node


class NodeEngine:
    """An actor of Ray: the models of a node."""

    def __init__(self, specs: Sequence[ModelSpec], memory: int | None, parallel: int, strict: bool) -> None:
        self._given = specs, memory, parallel, strict
        self._engine: Engine | None = None

    async def start(self) -> tuple[list[str], HotshoeError | None]:
        """Load the models. Returns what they say of their devices, and why that failed."""
        from hotshoe.batch.engine import Engine

        said: list[str] = []
        if self._engine is None:
            engine = Engine(*self._given, said.append)
            try:
                await engine.start()
            except HotshoeError as error:
                await engine.stop()
                return said, error
            self._engine = engine
        return said, None

    async def answer(self, request: Request) -> Reply:
        """The answer of the server's code."""
        assert self._engine is not None
        return await self._engine.answer(request)

    async def where(self) -> str:
        """The name of the node's machine."""
        import socket

        return socket.gethostname()


class RayEngine:
    """An actor on a node, as a target."""

    def __init__(self, node: dict[str, Any], number: int, make: Callable[[], Any], say: Callable[[str], None]) -> None:
        """node: an entry of ``ray.nodes()``. number: of the GPU, from 0. make: starts an actor there."""
        self._id = node["NodeID"]
        self.name = f"{node['NodeManagerAddress']} ({self._id[:8]}, engine {number})"
        self._make, self._say = make, say
        self._actor: Any = None

    async def start(self) -> None:
        """Start the actor and load the models. Raises TargetLostError, TargetGoneError, HotshoeError."""
        import ray
        from ray.exceptions import RayError, RayTaskError

        await self.stop()
        nodes = await asyncio.to_thread(ray.nodes)
        if not any(node["NodeID"] == self._id and node["Alive"] for node in nodes):
            raise TargetGoneError("the node has left the cluster")
        self._actor = self._make()
        try:
            await asyncio.wait_for(self._actor.where.remote(), _SECONDS_TO_BEGIN)
            said, error = await self._actor.start.remote()
        except TimeoutError:
            raise TargetLostError(
                "Ray starts no process on the node: are its CPUs or GPUs taken?", started=False
            ) from None
        except RayTaskError:  # an error in our code
            raise
        except RayError as error:
            raise TargetLostError(_first_line(error), started=False) from None
        if error is not None:
            raise HotshoeError(f"{self.name}: {error.message}", hint=error.hint)
        for line in said:
            self._say(f"{self.name}: {line}")

    async def answer(self, request: Request) -> Reply:
        """Let the actor answer. Raises TargetLostError."""
        from ray.exceptions import RayError, RayTaskError

        try:
            reply: Reply = await self._actor.answer.remote(request)
        except RayTaskError:
            raise
        except RayError as error:
            raise TargetLostError(_first_line(error), started=True) from None
        return reply

    async def stop(self) -> None:
        """End the actor, and so the processes of its models."""
        import ray

        actor, self._actor = self._actor, None
        if actor is not None:
            with contextlib.suppress(ray.exceptions.RayError):
                ray.kill(actor)


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0] or type(error).__name__


def _with_absolute_paths(spec: ModelSpec) -> ModelSpec:
    """A model as a node finds it: its processes run in another folder than this one."""
    options = spec.options
    if options.get("prefix_folder") is not None:
        options = options | {"prefix_folder": os.path.abspath(options["prefix_folder"])}
    return dataclasses.replace(spec, path=os.path.abspath(spec.path), options=options)


def connect(
    address: str,
    specs: Sequence[ModelSpec],
    memory: int | None,
    parallel: int,
    strict: bool,
    say: Callable[[str], None],
) -> list[RayEngine]:
    """Join a cluster; return its engines. Each takes one CPU, and the GPU if the node has one, of what Ray counts.

    address: of the cluster, or "auto" for the one that runs here. specs: a relative path is that of this machine's
    folder, and nodes get it as an absolute one. Raises OptionError if the cluster does not exist.
    """
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    try:
        ray.init(address=address, logging_level="CRITICAL", log_to_driver=False)
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise OptionError(f"--ray {address}: {_first_line(error)}", hint="start a cluster: ray start --head") from None
    found = []
    sent = [_with_absolute_paths(spec) for spec in specs]
    for node in ray.nodes():
        n_gpus = int(node["Resources"].get("GPU", 0))
        place = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
        options = {"num_cpus": 1, "num_gpus": min(n_gpus, 1), "max_concurrency": parallel + 1}
        actor = ray.remote(NodeEngine).options(scheduling_strategy=place, **options)

        def make(actor: Any = actor) -> Any:
            return actor.remote(sent, memory, parallel, strict)

        if node["Alive"]:
            found += [RayEngine(node, i, make, say) for i in range(n_gpus or 1)]
    return found
