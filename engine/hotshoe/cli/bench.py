"""``hotshoe bench MODEL``: measure how fast it reads prompts and writes tokens, or embeds texts."""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, cast

from hotshoe.cli.options import add_backend_options, add_runner_options, load_options, read_by
from hotshoe.cli.parsing import CommandParser, Subparsers
from hotshoe.cli.progress import bar

if TYPE_CHECKING:
    from hotshoe.runner.base import LoadedModel
    from hotshoe.runner.embedder import EmbeddingModel
    from hotshoe.runner.text import TextModel

__all__ = ["Measured", "add_parser", "run", "scatter_remark"]

_DESCRIPTION = """\
Measure the speed of a model in tokens per second, as llama-bench does:

  pp512          read a prompt of 512 tokens
  tg128          write 128 tokens, one by one
  tg128 x8       write 128 tokens in each of 8 sequences at once; speed of all
  tg128 @ d512   write 128 tokens after 512 tokens of context
  embed 32x128   embed 32 texts of 128 tokens

Tokens are random, and the same at every call. Each number is the mean of the
repetitions, with their standard deviation. The first run of each test is not
counted: it builds the graphs. The test of an embedding model is always
32 texts of 128 tokens.
"""


@dataclass(frozen=True, slots=True)
class Measured:
    """The result of one test."""

    test: str
    tokens: int
    """Tokens of one repetition."""

    rates: list[float]
    """Tokens per second of each repetition."""

    @property
    def mean(self) -> float:
        return statistics.fmean(self.rates)

    @property
    def deviation(self) -> float:
        """The standard deviation; 0 for one repetition."""
        return statistics.stdev(self.rates) if len(self.rates) > 1 else 0.0


_TEXT_OPTIONS = {
    "prompt": [512],
    "generate": [128],
    "depth": [0],
    "sequences": [1],
    "kv_dtype": None,
    "n_batch": None,
    "n_ubatch": None,
    "max_sequences": None,
    "max_step_seconds": 60.0,
    "checkpoint_bytes": None,
    "prefix_memory": None,
    "prefix_disk": None,
    "prefix_folder": None,
}
"""Options of text models, which an embedding model does not take, and their defaults."""

_SCATTER = 0.1  # deviation over mean from which the numbers deserve a remark


def add_parser(commands: Subparsers[CommandParser]) -> None:
    """Add the command ``bench``."""
    parser = commands.add_parser(
        "bench",
        usage="%(prog)s [options] MODEL",
        help="measure how fast a model runs",
        description=_DESCRIPTION,
    )
    parser.add_argument("model", metavar="MODEL", help="a GGUF file of a text or embedding model")
    group = parser.add_argument_group("tests of text models (several numbers, separated by commas, make several tests)")
    counts = read_by(_counts, "numbers of 0 or more, separated by commas")
    group.add_argument(
        "-p", "--prompt", type=counts, metavar="N,…", help="tokens to read; 0: skip this test; default: 512"
    )
    group.add_argument(
        "-n", "--generate", type=counts, metavar="N,…", help="tokens to write; 0: skip this test; default: 128"
    )
    group.add_argument(
        "-d", "--depth", type=counts, metavar="N,…", help="tokens in the context before the test; default: 0"
    )
    group.add_argument("-s", "--sequences", type=counts, metavar="N,…", help="texts computed at once; default: 1")
    group.add_argument(
        "-r",
        "--repetitions",
        type=read_by(_count, "1 or more"),
        default=5,
        metavar="N",
        help="runs of each; default: 5",
    )
    parser.add_argument(
        "-v",
        "--verbose",
        action="store_true",
        help="print what the backend found out while it loaded and computed, such as how weights are best prefetched",
    )
    parser.add_argument("--json", action="store_true", help="print JSON, with every repetition")
    add_runner_options(parser, context=False, sequences=False, drafts=False)
    add_backend_options(parser)
    parser.set_defaults(run=run)


def _count(text: str) -> int:
    if int(text) < 1:
        raise ValueError
    return int(text)


def _counts(text: str) -> list[int]:
    counts = [int(n) for n in text.split(",")]
    if min(counts) < 0:
        raise ValueError
    return counts


def run(args: argparse.Namespace) -> int:
    """Print the result of each test when it is done."""
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
                scatter = f" ± {measured.deviation:<5.1f}" if len(measured.rates) > 1 else ""
                print(f"{name:<22} {measured.mean:>10.1f}{scatter}", flush=True)
        tuning = model.backend.tuning()
    if args.verbose:
        for subject, found in tuning.items():
            print(f"{subject}: {found}", file=sys.stderr)
    remark = scatter_remark(done)
    if remark is not None:
        print(remark, file=sys.stderr)
    if args.json:
        rows = [asdict(m) | {"mean": m.mean, "deviation": m.deviation} for m in done]
        json.dump(about | {"tuning": dict(tuning), "tests": rows}, sys.stdout, indent=2)
        print()
    return 0


def scatter_remark(done: Sequence[Measured]) -> str | None:
    """What to do if the repetitions of a test differ by more than 10 %; None if they agree."""
    worst = max(done, key=lambda m: m.deviation / m.mean, default=None)
    if worst is None or worst.deviation <= _SCATTER * worst.mean:
        return None
    return (
        f"The repetitions of {worst.test} differ by {worst.deviation / worst.mean:.0%} (standard deviation): probably "
        "another\nprocess uses the same cores, so the means are too low. Stop it, or leave it some cores with "
        "--threads N;\nthen measure again. -r 20 makes the means steadier."
    )


def _load(args: argparse.Namespace, progress: Callable[[float], None]) -> LoadedModel:
    import hotshoe
    from hotshoe.loading import task_of
    from hotshoe_core.errors import OptionError

    task = task_of(args.model)
    if task is hotshoe.Task.RERANK:
        raise hotshoe.HotshoeError(f"{args.model} is {task.description}; bench measures text and embedding models")
    of_text = task is hotshoe.Task.TEXT
    for name, default in _TEXT_OPTIONS.items():
        if not of_text and getattr(args, name) is not None:
            raise hotshoe.HotshoeError(
                f"--{name.replace('_', '-')} is for text models; {args.model} is an embedding model",
                hint="leave it out",
            )
        if of_text and getattr(args, name) is None:
            setattr(args, name, default)
    if of_text and not any((*args.prompt, *args.generate)):
        raise OptionError(
            "--prompt and --generate are 0, so there is nothing to measure", hint="for example -p 512 -n 128"
        )
    options = load_options(args)
    if of_text:
        options["n_sequences"] = max(args.sequences)
    n_ctx = _context(args) if of_text else None
    return hotshoe.load_model(args.model, args.device, n_ctx=n_ctx, progress=progress, **options)


def _context(args: argparse.Namespace) -> int:
    """The tokens of the longest test. Raises OptionError if the model was trained for fewer."""
    from hotshoe.load_request import open_file
    from hotshoe_core.errors import OptionError

    depth: int = max(args.depth)
    n: int = max(*args.prompt, *args.generate, 1)
    with open_file(args.model) as file:
        trained = file.metadata.arch.get("context_length", depth + n)
    if depth + n > trained:
        option = "--prompt" if n in args.prompt else "--generate"
        given = f"--depth {depth} and {option} {n} need" if depth else f"{option} {n} needs"
        raise OptionError(
            f"{given} {depth + n} tokens; the model was trained for at most {trained}",
            hint=f"give a smaller {'--depth' if n <= trained and depth else option}",
        )
    return depth + n


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
    """When called, computes ``n`` tokens of each sequence in steps, and returns the seconds that took."""

    def __init__(self, model: TextModel, depth: int, n_sequences: int, n: int, step: int) -> None:
        import numpy as np

        self.model = model
        draw = np.random.default_rng(0).integers
        # each sequence has other tokens: a common beginning would be computed once
        self.before = [draw(0, model.tokenizer.vocab_size, depth).tolist() for _ in range(n_sequences)]
        self.tokens = [draw(0, model.tokenizer.vocab_size, n).tolist() for _ in range(n_sequences)]
        self.n, self.step = n, step

    def __call__(self) -> float:
        sequences = [self.model.sequence() for _ in self.tokens]
        self.model.forget()
        if self.before[0]:
            self.model.extend(zip(sequences, self.before, strict=True))
        start = time.perf_counter()
        for i in range(0, self.n, self.step):
            self.model.extend((s, t[i : i + self.step]) for s, t in zip(sequences, self.tokens, strict=True))
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
