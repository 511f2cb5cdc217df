"""``hotshoe plan MODEL``: how much memory a model would take on each device. Allocates nothing."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import TYPE_CHECKING

from hotshoe.cli.generating import add_media_options
from hotshoe.cli.options import add_backend_options, add_runner_options, load_options
from hotshoe.cli.parsing import CommandParser, Subparsers
from hotshoe.cli.tables import bar, show, show_json, table, wrap
from hotshoe_core.contract.device import Device, DeviceType
from hotshoe_core.errors import PlacementError
from hotshoe_core.errors.text import format_bytes

if TYPE_CHECKING:
    from hotshoe.placement.plan import LayerShare, Plan

__all__ = ["add_parser", "run", "simulated"]

_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(?:i?b)?", re.IGNORECASE)


def add_parser(commands: Subparsers[CommandParser]) -> None:
    """Add the command ``plan``."""
    parser = commands.add_parser(
        "plan",
        usage="%(prog)s [options] MODEL",
        help="show which device would hold what, and whether it fits",
        description="Show how much memory a model would take on each device, and whether it fits. Nothing is "
        "allocated. Exit code: 0 it fits, 1 it does not.",
    )
    parser.add_argument("model", metavar="MODEL", help="a GGUF file")
    parser.add_argument(
        "--simulate",
        metavar="NAME=SIZE,…",
        help="plan for these devices and their free memory: gpu0=8GiB,gpu1=24GiB,cpu=32GiB",
    )
    parser.add_argument("--json", action="store_true", help="print JSON: every layer, and sizes in bytes")
    add_runner_options(parser)
    add_backend_options(parser)
    add_media_options(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the plan. Returns 1 if it does not fit."""
    from hotshoe.loading import plan_model

    devices = None if args.simulate is None else simulated(args.simulate)
    if devices is not None and args.device is not None:
        raise PlacementError("both --device and --simulate name devices; expected one of them", hint="leave one out")
    plan = plan_model(
        args.model, args.device, n_ctx=args.ctx, projector=args.mmproj, **load_options(args), simulate=devices
    )
    if args.json:
        show_json(plan.to_json())
    else:
        show(_report(plan))
    return 0 if plan.fits else 1


def simulated(text: str) -> list[Device]:
    """Devices for a text such as ``gpu0=8GiB,cpu=16GiB``: names with the free memory of each.

    A name that begins with "cpu" is a CPU, with "igpu" an integrated GPU; all others are GPUs. Raises PlacementError
    for an entry without a size, and for a name that is given twice.
    """
    found: list[Device] = []
    for entry in text.split(","):
        name, _, size = (part.strip() for part in entry.partition("="))
        amount = _SIZE.fullmatch(size)
        if name in [d.name for d in found]:
            raise PlacementError(f"--simulate {text!r}: {name!r} is named twice", hint="give each device another name")
        if not name or amount is None:
            raise PlacementError(
                f"--simulate {text!r}: {entry!r} is not a name with a size of memory; expected NAME=SIZE",
                hint="for example --simulate gpu0=8GiB,gpu1=24GiB,cpu=32GiB",
            )
        if name in ("gpu", "igpu", "accel"):
            raise PlacementError(
                f"--simulate {text!r}: {name!r} is a type of device, not a name", hint=f"for example {name}0=8GiB"
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
    yield from table(("LAYERS", "DEVICE", "WEIGHTS", "CACHE"), _layer_rows(plan.parts), "<<>>")
    yield ""
    rows = []
    for device in plan.devices:
        memory, free = plan.memory.on(device.name), plan.free.get(device.name, 0)
        sums = [sum(m.size for m in amounts.values()) for amounts in (memory.weights, memory.cache)]
        sizes = map(_size, (*sums, memory.graph.size, memory.total, free))
        rows.append((device.name, *sizes, bar(memory.total, free) if free else ""))
    yield from table(("DEVICE", "WEIGHTS", "CACHE", "GRAPH", "TOTAL", "FREE", "USED OF FREE"), rows, "<>>>>><")
    yield ""
    known = [(name, plan.memory.on(name).total - free) for name, free in plan.free.items() if free]
    lacks = ", ".join(f"{name} lacks {format_bytes(missing)}" for name, missing in known if missing > 0)
    yield "It fits." if plan.fits else f"It does not fit: {lacks}." if lacks else "It does not fit."
    for why, nbytes in plan.unused.items():
        yield f"Not loaded, {format_bytes(nbytes)}: {why}."
    for moved in plan.moved:
        yield from wrap(moved)


def _layer_rows(parts: Iterable[LayerShare]) -> Iterator[tuple[str, str, str, str]]:
    """One row for consecutive layers on the same devices, with the sums of their sizes; one for each such device."""
    layers = [(layer, list(group)) for layer, group in groupby(parts, key=lambda p: p.layer)]
    for (_, devices), run in groupby(layers, key=lambda row: (row[0].isdecimal(), [p.device for p in row[1]])):
        rows = list(run)
        label = rows[0][0] if len(rows) == 1 else f"{rows[0][0]}-{rows[-1][0]}"
        for i, device in enumerate(devices):
            held = [row[1][i] for row in rows]
            yield label, device, _size(sum(p.weights for p in held)), _size(sum(p.cache for p in held))


def _size(n: int) -> str:
    return format_bytes(n) if n else "-"
