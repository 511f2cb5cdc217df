"""``hotshoe bench MODEL``: how fast prompts are read and tokens written here, or texts embedded."""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, cast

from hotshoe.cli.generating import (
    add_backend_options,
    add_runner_options,
    backend_params,
    placement_params,
    runner_params,
)
from hotshoe.cli.progress import bar

if TYPE_CHECKING:
    from hotshoe.runner.base import LoadedModel
    from hotshoe.runner.embedder import EmbeddingModel
    from hotshoe.runner.text import TextModel

__all__ = ["add_parser", "run"]

_DESCRIPTION = """\
Measure the speed of a model on this machine, in tokens per second, as llama-bench does:

  pp512          a prompt of 512 tokens is read
  tg128          128 tokens are written, one by one
  tg128 x8       … in 8 sequences at once; the speed is that of all together
  tg128 @ d512   … after 512 tokens of context
  embed 32x128   an embedding model's 32 texts of 128 tokens

Tokens are random and always the same. Each figure is the mean of the repetitions and their standard deviation;
the first run of each is not counted, as it builds the graphs.
"""


@dataclass(frozen=True, slots=True)
class Measured:
    """One line: tokens per second of each repetition."""

    test: str
    tokens: int
    rates: list[float]

    @property
    def mean(self) -> float:
        return statistics.fmean(self.rates)

    @property
    def deviation(self) -> float:
        return statistics.stdev(self.rates) if len(self.rates) > 1 else 0.0


_OF_TEXT = {
    "prompt": [512],
    "generate": [128],
    "depth": [0],
    "sequences": [1],
    "kv_dtype": None,
    "n_batch": None,
    "n_ubatch": None,
    "max_sequences": None,
}
"""Options that an embedding model has no use for, and their defaults."""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the command ``bench``."""
    parser = subparsers.add_parser(
        "bench",
        help="measure how fast a model runs",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("model", help="a GGUF file")
    add_backend_options(parser)
    add_runner_options(parser, sequences=False)
    parser.add_argument("-p", "--prompt", type=_counts, metavar="N,…", help="default: 512; 0 for none")
    parser.add_argument("-n", "--generate", type=_counts, metavar="N,…", help="default: 128; 0 for none")
    parser.add_argument("-d", "--depth", type=_counts, metavar="N,…", help="tokens of context before; default: 0")
    parser.add_argument("-s", "--sequences", type=_counts, metavar="N,…", help="how many at once; default: 1")
    parser.add_argument("-r", "--repetitions", type=_count, default=5, metavar="N", help="default: 5")
    parser.add_argument("--json", action="store_true", help="for machines, each repetition included")
    parser.set_defaults(run=run)


def _count(text: str) -> int:
    n = int(text)
    if n < 1:
        raise argparse.ArgumentTypeError(f"{n} is less than 1")
    return n


def _counts(text: str) -> list[int]:
    counts = [int(n) for n in text.split(",")]
    if min(counts) < 0:
        raise argparse.ArgumentTypeError(f"{min(counts)} is less than 0")
    return counts


def run(args: argparse.Namespace) -> int:
    """Prints one line a test as it is done."""
    import hotshoe
    from hotshoe.runner.text import TextModel

    start = time.perf_counter()
    with bar("loading") as progress:
        model = _load(args, progress)
    seconds = time.perf_counter() - start
    with model:
        text = isinstance(model, TextModel)
        tests = _text_tests(model, args) if isinstance(model, TextModel) else _embedding_tests(cast("Any", model))
        about = {
            "model": args.model,
            "architecture": model.metadata.architecture,
            "bytes": model.nbytes,
            "device": model.device.name,
            "why": model.why,
            "threads": getattr(model.backend, "n_threads", None),
            "kv_dtype": (args.kv_dtype or "f16") if text else None,
            "flash_attention": args.flash_attention,
            "load_seconds": seconds,
            "hotshoe": hotshoe.__version__,
        }
        if not args.json:
            size = f"{model.nbytes / 2**20:.0f} MiB"
            print(f"{args.model}: {model.metadata.architecture}, {size}, loaded in {seconds:.2f} s")
            print(f"{model.why}\n\n{'test':<22} {'tokens/s':>10}", flush=True)  # which device: before minutes pass
        done = []
        for name, tokens, once in tests:
            measured = Measured(name, tokens, _repeat(once, tokens, args.repetitions))
            done.append(measured)
            if not args.json:
                print(f"{name:<22} {measured.mean:>10.1f} ± {measured.deviation:<5.1f}", flush=True)
    if args.json:
        rows = [asdict(m) | {"mean": m.mean, "deviation": m.deviation} for m in done]
        json.dump(about | {"tests": rows}, sys.stdout, indent=2)
        print()
    return 0


def _load(args: argparse.Namespace, progress: Callable[[float], None]) -> LoadedModel:
    import hotshoe
    from hotshoe.loading import task_of

    task = task_of(args.model)
    if task is hotshoe.Task.RERANK:
        raise hotshoe.HotshoeError(f"{args.model} is {task.words}; bench measures text and embedding models")
    of_text = task is hotshoe.Task.TEXT
    for name, default in _OF_TEXT.items():
        if not of_text and getattr(args, name) is not None:
            raise hotshoe.HotshoeError(
                f"--{name.replace('_', '-')} is for text models; {args.model} is an embedding model",
                hint="leave it out",
            )
        if getattr(args, name) is None:
            setattr(args, name, default)
    options: dict[str, Any] = {"placement": placement_params(args)}
    if of_text:
        options["n_ctx"] = max(args.depth) + max(*args.prompt, *args.generate, 1)
        options["runner"] = runner_params(args, n_sequences=max(args.sequences))
    return hotshoe.load_model(args.model, args.device, params=backend_params(args), progress=progress, **options)


def _repeat(once: Callable[[], float], tokens: int, n: int) -> list[float]:
    once()
    return [tokens / once() for _ in range(n)]


def _text_tests(model: TextModel, args: argparse.Namespace) -> Iterator[tuple[str, int, Callable[[], float]]]:
    for depth in args.depth:
        after = f" @ d{depth}" if depth else ""
        for n_sequences in args.sequences:
            times = f" x{n_sequences}" if n_sequences > 1 else ""
            for n in filter(None, args.prompt):
                yield f"pp{n}{times}{after}", n * n_sequences, _Text(model, depth, n_sequences, n, n)
            for n in filter(None, args.generate):
                yield f"tg{n}{times}{after}", n * n_sequences, _Text(model, depth, n_sequences, n, 1)


class _Text:
    """Runs ``n`` tokens of each sequence in steps; returns the seconds they took."""

    def __init__(self, model: TextModel, depth: int, n_sequences: int, n: int, step: int) -> None:
        import numpy as np

        self.model = model
        draw = np.random.default_rng(0).integers
        # each sequence has tokens of its own: what they have in common would be computed once
        self.before = [draw(0, model.tokenizer.vocab_size, depth).tolist() for _ in range(n_sequences)]
        self.tokens = [draw(0, model.tokenizer.vocab_size, n).tolist() for _ in range(n_sequences)]
        self.n, self.step = n, step

    def __call__(self) -> float:
        sequences = [self.model.sequence() for _ in self.tokens]
        self.model.forget()
        if self.before[0]:
            self.model.extend(zip(sequences, self.before, strict=True))
        start = time.perf_counter()
        for at in range(0, self.n, self.step):
            self.model.extend((s, t[at : at + self.step]) for s, t in zip(sequences, self.tokens, strict=True))
        seconds = time.perf_counter() - start
        for sequence in sequences:
            sequence.close()
        return seconds


def _embedding_tests(model: EmbeddingModel) -> Iterator[tuple[str, int, Callable[[], float]]]:
    text = "camera " * (min(128, model.n_ctx) - 2)
    n = len(model.tokenizer.encode(text))

    def once() -> float:
        start = time.perf_counter()
        model.embed([text] * 32)
        return time.perf_counter() - start

    yield f"embed 32x{n}", 32 * n, once
