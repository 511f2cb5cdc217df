"""``hotshoe plan MODEL``: what a model would take on which device, layer by layer. Allocates nothing."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from hotshoe.cli.devices import show, show_json, wrap
from hotshoe.cli.generating import (
    add_backend_options,
    add_runner_options,
    backend_params,
    placement_params,
    runner_params,
)
from hotshoe.cli.tables import table
from hotshoe_core.contract.device import Device, DeviceType
from hotshoe_core.errors import PlacementError
from hotshoe_core.errors.text import format_bytes

if TYPE_CHECKING:
    from hotshoe.placement.plan import Plan

__all__ = ["add_parser", "run", "simulated"]

_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(?:i?b)?", re.IGNORECASE)


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the command ``plan``."""
    parser = subparsers.add_parser(
        "plan",
        help="show where a model would lie, without loading it",
        description="Show what a model would take on which device, layer by layer, and whether it fits. Nothing is "
        "allocated. The exit code is 1 if it does not fit.",
    )
    parser.add_argument("model", help="a GGUF file")
    parser.add_argument("--ctx", type=int, help="tokens of context; default: the model's, at most 4096")
    add_backend_options(parser)
    add_runner_options(parser)
    parser.add_argument(
        "--simulate", metavar="NAME=SIZE,…", help="devices that need not be here: gpu0=8GiB,gpu1=24GiB,cpu=32GiB"
    )
    parser.add_argument("--json", action="store_true", help="for machines; sizes are bytes")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Prints the plan. Returns 1 if it does not fit."""
    from hotshoe.placement.plan import plan_model

    devices = None if args.simulate is None else simulated(args.simulate)
    if devices is not None and args.device is not None:
        raise PlacementError("both --device and --simulate name devices", hint="give one")
    more = {} if args.sequences is None else {"n_sequences": args.sequences}
    plan = plan_model(
        args.model,
        args.device,
        n_ctx=args.ctx,
        params=backend_params(args),
        runner=runner_params(args, **more),
        placement=placement_params(args),
        simulate=devices,
    )
    if args.json:
        show_json(plan.to_json())
    else:
        show(_report(plan))
    return 0 if plan.fits else 1


def simulated(text: str) -> list[Device]:
    """Devices as ``gpu0=8GiB,cpu=16GiB`` names them, CPU, integrated GPU or GPU by the beginning of the name.

    Raises PlacementError for what cannot be read.
    """
    found: list[Device] = []
    for entry in text.split(","):
        name, _, size = (part.strip() for part in entry.partition("="))
        amount = _SIZE.fullmatch(size)
        if not name or amount is None or name in [d.name for d in found]:
            raise PlacementError(
                f"--simulate {text!r}: {entry!r} is no device of a name of its own with its free memory",
                hint="--simulate gpu0=8GiB,gpu1=24GiB,cpu=32GiB",
            )
        free = int(float(amount[1]) * _UNITS[amount[2].lower()])
        kinds = {"cpu": DeviceType.CPU, "igpu": DeviceType.IGPU}
        kind = next((kind for word, kind in kinds.items() if name.startswith(word)), DeviceType.GPU)
        found.append(Device(name, kind, "simulated", "simulated", memory_total=free, memory_free=free))
    return found


def _report(plan: Plan) -> Iterator[str]:
    cache = f", cache {plan.kv_dtype}" if any(p.cache for p in plan.parts) else ""
    yield f"{plan.file}: {plan.architecture}, {plan.n_layers} layers, context {plan.n_ctx}{cache}"
    yield ""
    rows = [(p.layer, p.device, _size(p.weights), _size(p.cache)) for p in plan.parts]
    yield from table(("LAYER", "DEVICE", "WEIGHTS", "CACHE"), rows, "<<>>")
    yield ""
    totals = []
    for device in plan.devices:
        memory, free = plan.memory.on(device.name), plan.free.get(device.name, 0)
        sums = [sum(m.size for m in amounts.values()) for amounts in (memory.weights, memory.cache)]
        verdict = (
            "" if not free else "fits" if memory.total <= free else f"{format_bytes(memory.total - free)} too much"
        )
        totals.append(
            (device.name, *map(_size, sums), _size(memory.graph.size), _size(memory.total), _size(free), verdict)
        )
    yield from table(("DEVICE", "WEIGHTS", "CACHE", "GRAPH", "TOTAL", "FREE", ""), totals, "<>>>>><")
    yield ""
    yield "It fits." if plan.fits else "It does not fit."
    for moved in plan.moved:
        yield from wrap(moved, "")


def _size(n: int) -> str:
    return format_bytes(n) if n else "-"
