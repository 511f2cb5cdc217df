"""What the commands that generate share: their options, and loading a text model by them."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any, cast

from hotshoe.cli.progress import bar

if TYPE_CHECKING:
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
    parser.add_argument("--device", help="where to run: a name or type that `hotshoe devices` lists")
    parser.add_argument("--threads", type=int, help="CPU threads; default: physical cores")
    parser.add_argument(
        "--flash-attention",
        choices=("auto", "on", "off"),
        default="auto",
        help="auto: the quickest; on: the engine's own, as llama.cpp computes it; off: none",
    )


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

    return BackendParams(n_threads=args.threads, flash_attention=args.flash_attention)


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
