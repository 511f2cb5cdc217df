"""What the commands that generate share: their options, and loading a text model by them."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any, cast

from hotshoe.cli.progress import bar

if TYPE_CHECKING:
    from hotshoe.placement import PlacementParams
    from hotshoe.runner.generation import Completion
    from hotshoe.runner.params import RunnerParams
    from hotshoe.runner.text import TextModel
    from hotshoe_core import BackendParams

__all__ = [
    "add_backend_options",
    "add_options",
    "add_runner_options",
    "backend_params",
    "load",
    "options",
    "placement_params",
    "runner_params",
    "summary",
]

_SAMPLING = {
    "temperature": float,
    "top_k": int,
    "top_p": float,
    "min_p": float,
    "typical_p": float,
    "repetition_penalty": float,
    "presence_penalty": float,
    "frequency_penalty": float,
    "seed": int,
    "max_tokens": int,
    "context_shift": int,
}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Where to run, and how to choose tokens."""
    parser.add_argument("model", help="a GGUF file of a text model")
    parser.add_argument("--ctx", type=int, help="tokens of context; default: the model's, at most 4096")
    add_backend_options(parser)
    add_runner_options(parser)
    for name, kind in _SAMPLING.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=kind, metavar="N")
    parser.add_argument("--stop", action="append", metavar="TEXT", help="end at this text; may be repeated")


def add_backend_options(parser: argparse.ArgumentParser) -> None:
    """Where to run, and the fields of BackendParams."""
    parser.add_argument("--device", help="where to run: names or types that `hotshoe devices` lists, by commas")
    _add_placement_options(parser)
    parser.add_argument("--threads", type=int, help="CPU threads; default: physical cores")
    parser.add_argument(
        "--flash-attention",
        choices=("auto", "on", "off"),
        default="auto",
        help="auto: the quickest; on: the engine's own, as llama.cpp computes it; off: none",
    )
    parser.add_argument(
        "--matmul-precision",
        choices=("stored", "bf16"),
        default="stored",
        help="bf16: round F16 weights, of encoders also F32 ones, to BF16 where the CPU is faster at it",
    )


def _add_placement_options(parser: argparse.ArgumentParser) -> None:
    """The fields of PlacementParams."""
    parser.add_argument(
        "-ngl", "--gpu-layers", type=_gpu_layers, metavar="N", help="layers beside the CPU: a number, all, or auto"
    )
    parser.add_argument("--tensor-split", type=_shares, metavar="N,…", help="each device's share of those layers")
    parser.add_argument("--main-gpu", type=int, metavar="N", help="the device to fill first, counted from 0")
    experts = parser.add_mutually_exclusive_group()
    experts.add_argument("--cpu-moe", action="store_true", help="experts stay on the CPU")
    experts.add_argument("--n-cpu-moe", type=int, metavar="N", help="experts of the first N layers stay on the CPU")
    parser.add_argument("--no-kv-offload", action="store_true", help="the cache stays on the CPU")
    parser.add_argument(
        "--layer-devices", type=_layers, metavar="DEVICE=N-N,…", help="each layer's device: cpu=0-7,cuda:0=8-31"
    )
    parser.add_argument("--no-fallback", action="store_true", help="fail if an op cannot run on its layer's device")


def _gpu_layers(text: str) -> int | str:
    return text if text in ("auto", "all") else int(text)


def _shares(text: str) -> tuple[float, ...]:
    return tuple(float(share) for share in text.split(","))


_MOST_LAYERS = 10_000


def _layers(text: str) -> tuple[str, ...]:
    """``cpu=0-7,cuda:0=8-31``: a device for each layer from 0 on, each named once."""
    devices: dict[int, str] = {}
    for entry in text.split(","):
        name, _, run = entry.rpartition("=")
        first, _, last = run.partition("-")
        layers = range(int(first), int(last or first) + 1)
        if not name or not 0 < len(layers) <= _MOST_LAYERS or devices.keys() & set(layers):
            raise argparse.ArgumentTypeError(f"{entry!r} is no device with layers of its own; expected DEVICE=N-N")
        devices |= dict.fromkeys(layers, name.strip())
    missing = sorted(set(range(max(devices) + 1)) - devices.keys())
    if missing:
        raise argparse.ArgumentTypeError(f"layer {missing[0]} has no device")
    return tuple(devices[i] for i in range(len(devices)))


def add_runner_options(parser: argparse.ArgumentParser, *, sequences: bool = True) -> None:
    """The fields of RunnerParams; ``sequences``: also --sequences, for commands that do not use it otherwise."""
    parser.add_argument("--kv-dtype", help="element type of the cache: f16, f32, q8_0 or q4_0")
    parser.add_argument("--n-batch", type=int, metavar="N", help="tokens computed in a step; default: 512")
    parser.add_argument("--n-ubatch", type=int, metavar="N", help="tokens of one graph; default: as --n-batch")
    parser.add_argument("--max-sequences", type=int, metavar="N", help="texts in the cache at once; default: 63")
    if sequences:
        parser.add_argument("--sequences", type=int, metavar="N", help="texts of --ctx tokens there is room for")


def backend_params(args: argparse.Namespace) -> BackendParams:
    """What the options say of the backend."""
    from hotshoe_core import BackendParams

    return BackendParams(
        n_threads=args.threads, flash_attention=args.flash_attention, matmul_precision=args.matmul_precision
    )


def placement_params(args: argparse.Namespace) -> PlacementParams:
    """What the options say of where layers go."""
    from hotshoe.placement import PlacementParams

    given = {"tensor_split": args.tensor_split, "main_gpu": args.main_gpu, "layers": args.layer_devices}
    if args.gpu_layers is not None:
        given["gpu_layers"] = args.gpu_layers
    if args.n_cpu_moe is not None:
        given["cpu_moe"] = args.n_cpu_moe
    elif args.cpu_moe:
        given["cpu_moe"] = True
    return PlacementParams(kv_offload=not args.no_kv_offload, fallback=not args.no_fallback, **given)


def runner_params(args: argparse.Namespace, **more: Any) -> RunnerParams:
    """What the options say of the runner; ``more``: fields that the command sets itself."""
    from hotshoe.runner.params import RunnerParams

    names = ("kv_dtype", "n_batch", "n_ubatch", "max_sequences")
    given = {name: value for name in names if (value := getattr(args, name, None)) is not None}
    return RunnerParams(**given | more)


def options(args: argparse.Namespace) -> dict[str, Any]:
    """The fields of SamplingParams that were given."""
    given = {name: value for name in _SAMPLING if (value := getattr(args, name)) is not None}
    return given | {"stop": args.stop} if args.stop else given


def load(args: argparse.Namespace) -> TextModel:
    """The model. Raises ModelError for one that does not generate."""
    import hotshoe

    more = {} if args.sequences is None else {"n_sequences": args.sequences}
    runner = runner_params(args, **more)
    with bar("loading") as progress:
        model = hotshoe.load_model(
            args.model,
            args.device,
            n_ctx=args.ctx,
            params=backend_params(args),
            runner=runner,
            placement=placement_params(args),
            task="text",
            progress=progress,
        )
    return cast("TextModel", model)


def summary(done: Completion) -> str:
    """One line: how much, how fast, why it ended."""
    computed = done.n_prompt - done.n_cached
    prompt = computed / done.prompt_seconds if done.prompt_seconds else 0.0
    return (
        f"{done.n_prompt} prompt tokens ({done.n_cached} from the cache) at {prompt:.1f}/s, "
        f"{len(done.tokens)} tokens at {done.tokens_per_second:.1f}/s, ended by {done.finish_reason}, seed {done.seed}"
    )
