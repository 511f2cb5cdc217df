"""Options that several commands have: device, placement, cache and threads; and the objects made of them."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar, cast

if TYPE_CHECKING:
    from hotshoe.load_options import LoadOptions

__all__ = ["SIZE", "add_backend_options", "add_runner_options", "load_options", "read_by", "read_text", "texts_of"]

T = TypeVar("T")
_MAX_LAYERS = 10_000
_MAX_TEXT = 1 << 28  # bytes of a text file


def read_by(read: Callable[[str], T], expected: str) -> Callable[[str], T]:
    """A ``type`` for argparse: ``read``, whose ValueError becomes "expected …"."""

    def convert(text: str) -> T:
        try:
            return read(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r}; expected {expected}") from None

    return convert


def _size(text: str) -> int:
    """A number of bytes: 512, 64MiB, 4GiB."""
    found = re.fullmatch(r"(\d{1,18})(?:([KMGT])iB)?", text)
    if found is None:
        raise ValueError
    return int(found[1]) << (10 * " KMGT".index(found[2] or " "))


SIZE = read_by(_size, "a size, such as 64MiB or 4GiB")
"""A ``type`` for argparse: a number of bytes."""


def read_text(path: Path) -> str:
    """The UTF-8 text of a file or a pipe. Raises OptionError for more than 256 MiB: a device may never end."""
    from hotshoe_core.errors import OptionError

    with open(path, "rb") as file:
        raw = file.read(_MAX_TEXT + 1)
    if len(raw) > _MAX_TEXT:
        raise OptionError(f"{path} has more than {_MAX_TEXT >> 20} MiB; expected a text file", hint="use a part of it")
    return raw.decode("utf-8").replace("\r\n", "\n")


def texts_of(args: argparse.Namespace, what: str) -> list[str]:
    """The texts that a command was given, or else the lines of standard input. Raises InputEmptyError for none."""
    from hotshoe_core.errors import InputEmptyError

    texts = args.text or [line.rstrip("\n") for line in sys.stdin]
    if not texts:
        raise InputEmptyError(
            f"no {what} was given, and standard input is empty; expected one {what} or more",
            hint=f"write each {what} after the other arguments in quotes, or one on each line of standard input",
        )
    return list(texts)


def add_backend_options(parser: argparse.ArgumentParser) -> None:
    """Add the options for devices, threads and the placement of layers."""
    group = parser.add_argument_group("device")
    group.add_argument(
        "--device",
        metavar="NAME,…",
        help="names or types that `hotshoe devices` lists; default: the best device, and the CPU for what does not fit",
    )
    group.add_argument("--threads", type=int, metavar="N", help="CPU threads; default: the number of physical cores")
    group.add_argument(
        "--flash-attention",
        choices=("auto", "on", "off"),
        default="auto",
        help="how to compute attention. auto: the fastest way; on: as llama.cpp does; off: step by step. Default: auto",
    )
    group.add_argument(
        "--matmul-precision",
        choices=("stored", "bf16", "f32"),
        default="stored",
        help="stored: round no weights; activations may be rounded (default); bf16: round F16 weights (in encoders "
        "also F32) to BF16 where the CPU is faster with it; f32: round neither in products with F16 and BF16 matrices; "
        "a warning counts the other weights",
    )
    _add_placement_options(parser)


def _add_placement_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("placement of layers, with a GPU")
    group.add_argument(
        "-ngl",
        "--gpu-layers",
        type=read_by(_gpu_layers, "a number, all or auto"),
        metavar="N",
        help="how many layers are on the GPUs: a number, all, or auto: as many as fit (default)",
    )
    group.add_argument(
        "--tensor-split",
        type=read_by(_shares, "numbers, such as 3,1"),
        metavar="N,…",
        help="how the GPUs share these layers: 3,1 gives the first GPU three quarters",
    )
    group.add_argument("--main-gpu", type=int, metavar="N", help="the GPU to fill first, counted from 0")
    experts = group.add_mutually_exclusive_group()
    experts.add_argument(
        "--cpu-moe", action="store_const", const=True, help="keep the experts of all layers on the CPU"
    )
    experts.add_argument("--n-cpu-moe", type=int, metavar="N", help="keep the experts of the first N layers on the CPU")
    group.add_argument(
        "--no-kv-offload",
        dest="kv_offload",
        action="store_const",
        const=False,
        help="keep the key/value cache on the CPU",
    )
    group.add_argument(
        "--layer-devices",
        type=read_by(_layers, "DEVICE=FIRST-LAST,…"),
        metavar="DEVICE=FIRST-LAST,…",
        help="the device of every layer: cpu=0-7,cuda:0=8-31",
    )
    group.add_argument(
        "--no-fallback",
        dest="fallback",
        action="store_const",
        const=False,
        help="fail if a device cannot compute an op of one of its layers",
    )


def _gpu_layers(text: str) -> int | str:
    return text if text in ("auto", "all") else int(text)


def _shares(text: str) -> tuple[float, ...]:
    return tuple(float(share) for share in text.split(","))


def _layers(text: str) -> tuple[str, ...]:
    """``cpu=0-7,cuda:0=8-31``: a device for each layer from 0 on, each layer once."""
    devices: dict[int, str] = {}
    for entry in text.split(","):
        name, _, span = entry.rpartition("=")
        first, _, last = span.partition("-")
        layers = range(int(first), int(last or first) + 1)
        if not name or not 0 < len(layers) <= _MAX_LAYERS:
            raise argparse.ArgumentTypeError(
                f"{entry!r} does not name a device and its layers; expected DEVICE=FIRST-LAST"
            )
        twice = sorted(devices.keys() & set(layers))
        if twice:
            raise argparse.ArgumentTypeError(
                f"layer {twice[0]} has two devices; expected DEVICE=FIRST-LAST, each layer once"
            )
        devices |= dict.fromkeys(layers, name.strip())
    missing = sorted(set(range(max(devices) + 1)) - devices.keys())
    if missing:
        raise argparse.ArgumentTypeError(f"layer {missing[0]} has no device")
    return tuple(devices[i] for i in range(len(devices)))


def add_runner_options(
    parser: argparse.ArgumentParser, *, context: bool = True, sequences: bool = True, drafts: bool = True
) -> None:
    """Add the options for context and cache.

    context, sequences: whether to add --ctx and --sequences, for commands that set them in another way. drafts: whether
    to add --max-draft, for commands by which the model writes.
    """
    group = parser.add_argument_group("context and cache")
    if context:
        group.add_argument(
            "--ctx",
            type=int,
            metavar="N",
            help="size of the context in tokens; default: what the model was trained for, at most 4096",
        )
    group.add_argument(
        "--kv-dtype", metavar="TYPE", help="element type of the cache, such as f32, q8_0 or q4_0; default: f16"
    )
    group.add_argument("--n-batch", type=int, metavar="N", help="tokens read at once; default: 512")
    group.add_argument(
        "--n-ubatch",
        type=int,
        metavar="N",
        help="tokens in one graph; fewer need less memory; default: the same as --n-batch",
    )
    group.add_argument(
        "--max-sequences", type=int, metavar="N", help="at most so many texts share the cache; default: 256"
    )
    group.add_argument(
        "--max-step-seconds",
        type=float,
        metavar="S",
        help="how long one text may wait while a part of another prompt is read; default: 0.15",
    )
    group.add_argument(
        "--checkpoint-bytes",
        type=SIZE,
        metavar="SIZE",
        help="memory for earlier states of recurrent models, from which other texts can go on; default: 64MiB",
    )
    group.add_argument(
        "--prefix-memory",
        type=SIZE,
        metavar="SIZE",
        help="memory for the beginnings of texts that the cache has no more room for; default: none, and 1GiB in serve",
    )
    group.add_argument(
        "--prefix-disk",
        type=SIZE,
        metavar="SIZE",
        help="room on the disk for them; they outlive the process. Default: none, and 4GiB in serve",
    )
    group.add_argument(
        "--prefix-folder",
        metavar="FOLDER",
        help="where: files that hold the tokens of prompts. Default in serve: prefixes in hotshoe's cache folder",
    )
    if drafts:
        group.add_argument(
            "--max-draft",
            type=int,
            metavar="N",
            help="at most so many guessed tokens are computed with the next one, where a text repeats itself or the "
            "model has a drafting layer; "
            "default: 15 for most models on a CPU, 0 (none) where guesses could change a text",
        )
    if sequences:
        group.add_argument(
            "--sequences",
            type=int,
            metavar="N",
            help=f"size of the cache, in texts of --ctx tokens; default: {'1' if context else '4, or as many as fit'}",
        )


def load_options(args: argparse.Namespace) -> LoadOptions:
    """The options of ``load_model`` that were given."""
    from hotshoe.load_options import LoadOptions

    given = {
        name: value
        for name in LoadOptions.__annotations__
        if (value := getattr(args, _DESTINATIONS.get(name, name), None)) is not None
    }
    if getattr(args, "n_cpu_moe", None) is not None:
        given["cpu_moe"] = args.n_cpu_moe
    return cast("LoadOptions", given)


_DESTINATIONS = {"n_threads": "threads", "n_gpu_layers": "gpu_layers", "n_sequences": "sequences"}
"""Options of ``load_model`` that the command line calls by another name."""
