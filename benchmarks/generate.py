"""Compare text generation with llama.cpp and ik_llama.cpp on the same file, interleaved in one run.

    python benchmarks/generate.py [--shape 0.5b|1b|3b|8b|moe|moe64] [--dtypes q4_0,q4_k_m] [--file FILE]
                                  [--folder DIR]
                                  [--prompts 32,512] [--depths 512] [--sequences 8] [--steps 32] [--rounds 5]
                                  [--kv-dtype f16] [--threads N] [--device cpu] [--fresh 8192]
                                  [--llama-python PYTHON] [--llama-library FILE] [--ik-bench PATH] [--json]

Without --file, the program makes files of random weights (benchmarks/synthetic.py), and keeps them in --folder if it
is given. --llama-python names an interpreter that has llama-cpp-python, built natively (CMAKE_ARGS=-DGGML_NATIVE=ON).
--ik-bench names ik_llama.cpp's llama-bench, with llama-batched-bench next to it for several sequences. Without these
two, only hotshoe is measured. --device is hotshoe's; llama.cpp opens the same one with --llama-library, which is the
plugin's file, such as libggml-cuda.so, if nothing else is said. Each engine in each setting has a process
of its own. They take turns, so that a slow moment of the machine affects all of them, after one or two turns to warm
up. Decoding after a long prompt needs none: its first turn counts.

A peer is measured in several settings (benchmarks/peers.py); for each line the setting with the best median counts. A
setting that is a quarter slower while warming up is left out of the line. Prints medians and ranges. Ratios are taken
round by round: above 1.0, hotshoe is better. --json has every value of every setting.

prompt N     tokens/s of a prompt of N tokens
fresh N      the same for the first long prompt of a process: with the time to build its graphs
decode @N    tokens/s of --steps given tokens after N tokens, one by one, with the logits of each; the weights and the
             cache read in a second and, on the CPU, their share of what benchmarks/bandwidth.py reads right afterwards
write @N     tokens/s of a text of --steps tokens after N tokens: each is the best token after the one before
x8 @N        as decode, for 8 sequences together, after --each tokens of each; write x8 @N: as write
first        seconds from the start of the imports to the first token of a text, in a new process
load         seconds of that until the model is loaded
peak         the largest resident size of that process, which then also reads a prompt and decodes
generate     the speed of generate() (sampling with the default filters, text, stop texts), relative to the plain loop
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from bandwidth import bandwidth
from peers import (
    LONG,
    NEW_PROCESS,
    Answer,
    Contender,
    Job,
    Measure,
    MeasureError,
    Setting,
    is_long,
    settings,
    spread,
    warms_itself_up,
)
from synthetic import DTYPES, SHAPES, make

LESS_IS_BETTER = ("first", "load", "peak", "look", "encode")
BEHIND = 0.75
"""A setting that is slower than this share of the best one while warming up is not measured again."""
FAR_BEHIND = 0.5
"""A setting that is slower than this share in its first turn is not warmed up again either."""


@dataclass
class Line:
    """All values of one measure, by engine and setting, in the order of the rounds."""

    name: str
    kind: str
    values: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    left_out: dict[str, dict[str, float | str]] = field(default_factory=dict)
    """Settings that were measured once, with the value, or not at all, with the reason."""

    bytes_a_token: int = 0
    """The weights and the cache that decoding one token reads."""

    bandwidth: float | None = None
    """Bytes per second that the threads read right after a measurement of decoding."""

    def note(self, setting: Setting, value: float) -> None:
        self.values.setdefault(setting.engine, {}).setdefault(setting.name, []).append(value)

    def leave_out(self, setting: Setting, why: float | str) -> None:
        self.left_out.setdefault(setting.engine, {})[setting.name] = why

    def better(self, a: float, b: float) -> float:
        """The ratio of two values: above 1 if ``a`` is better."""
        return b / a if self.kind in LESS_IS_BETTER else a / b

    def best(self, engine: str) -> str:
        """The engine's setting with the best median."""
        medians = {name: statistics.median(values) for name, values in self.values[engine].items()}
        return (min if self.kind in LESS_IS_BETTER else max)(medians, key=lambda name: medians[name])

    def summary(self) -> dict[str, Any]:
        """For each engine: its best setting, median and range, and the same for hotshoe's ratio to it."""
        ours = self.values["hotshoe"][""]
        out: dict[str, Any] = {}
        for engine in self.values:
            setting = self.best(engine)
            theirs = self.values[engine][setting]
            out[engine] = {"setting": setting} | spread(theirs)
            if engine != "hotshoe":
                out[engine]["ratio"] = spread([self.better(a, b) for a, b in zip(ours, theirs, strict=True)])
        return out


def main() -> int:
    args = arguments()
    table = sys.stderr if args.json else sys.stdout
    with tempfile.TemporaryDirectory() as scratch:
        report: dict[str, Any] = {}
        for name, path in files(args, Path(scratch)):
            print(f"{name}, {path.stat().st_size / 2**20:.0f} MiB, {args.threads} threads", file=table, flush=True)
            lines = []
            for line in compare(path, args):
                lines.append(asdict(line) | {"summary": line.summary()})
                print("\n".join(shown(line)), file=table, flush=True)
            report[name] = {"lines": lines}
    if args.json:
        print(json.dumps({"threads": args.threads, "files": report}, indent=2))
    return 0


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    of_file = parser.add_mutually_exclusive_group()
    of_file.add_argument("--shape", choices=SHAPES, default="0.5b")
    of_file.add_argument("--file", type=Path)
    parser.add_argument("--dtypes", type=_dtypes, default=_dtypes("q4_0,q8_0,q4_k_m,f16"))
    parser.add_argument("--layers", type=int, help="number of blocks in the files that are made (default: the shape's)")
    parser.add_argument("--folder", type=Path, help="keep the files here for the next run")
    parser.add_argument(
        "--prompts", type=_counts, default=[32, 128, 512], help="lengths of prompts; an empty text: none"
    )
    parser.add_argument("--depths", type=_counts, default=[512])
    parser.add_argument("--sequences", type=_counts, default=[8])
    parser.add_argument("--steps", type=_count, default=32)
    parser.add_argument("--each", type=_count, default=128, help="tokens in each of --sequences before decoding")
    parser.add_argument("--rounds", type=_count, default=5)
    parser.add_argument("--long-rounds", type=_count, default=3, help=f"rounds of measures with {LONG} and more tokens")
    parser.add_argument("--no-start", action="store_true", help="leave out first, peak and generate")
    parser.add_argument("--kv-dtype", default="f16", help="the type of all caches, such as q8_0")
    parser.add_argument("--threads", type=_count, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--device", default="cpu", help="hotshoe's device, such as cuda:0")
    parser.add_argument("--fresh", type=_counts, default=[], help="lengths of prompts that a new process reads first")
    parser.add_argument("--llama-python", metavar="PYTHON")
    parser.add_argument(
        "--llama-library", metavar="FILE", help="the device's library, for llama.cpp; default: the plugin's"
    )
    parser.add_argument("--ik-bench", metavar="PATH")
    parser.add_argument("--json", action="store_true", help="for machines; the table goes to stderr")
    args = parser.parse_args()
    if args.device == "cpu" and args.llama_library:
        parser.error("--llama-library is for another device than the CPU: --device")
    if args.device != "cpu" and args.ik_bench:
        parser.error("--ik-bench is for the CPU only")
    if args.device != "cpu" and args.llama_python:
        args.llama_library = args.llama_library or library(args.device)
    for path in filter(None, (args.file, args.ik_bench, args.llama_library)):
        if not Path(path).is_file():
            parser.error(f"{path}: no such file")
    return args


def library(device: str) -> str:
    """The file of the plugin that has the device."""
    import hotshoe

    return str(hotshoe.load_all(device=device).select(device)[0].library)


def _count(text: str) -> int:
    n = int(text)
    if n < 1:
        raise argparse.ArgumentTypeError(f"{n} is less than 1")
    return n


def _counts(text: str) -> list[int]:
    return [_count(n) for n in text.split(",") if n]


def _dtypes(text: str) -> list[str]:
    names = text.split(",")
    for name in names:
        if name not in DTYPES:
            raise argparse.ArgumentTypeError(f"unknown type {name!r}; expected one of {', '.join(DTYPES)}")
    return names


def files(args: argparse.Namespace, scratch: Path) -> Iterator[tuple[str, Path]]:
    """The name and path of each file to measure. A file that is made for this run is deleted after its turn."""
    if args.file:
        yield str(args.file), args.file
        return
    shape = replace(SHAPES[args.shape], layers=args.layers) if args.layers else SHAPES[args.shape]
    folder = args.folder or scratch
    folder.mkdir(parents=True, exist_ok=True)
    for dtype in args.dtypes:
        path = folder / f"{args.shape}-{shape.layers}-{dtype}.gguf"
        yield f"{args.shape} {dtype}", path if path.exists() else make(path, dtype, shape)
        if not args.folder:
            path.unlink()


def compare(path: Path, args: argparse.Namespace) -> Iterator[Line]:
    """Each line of the table, when it is finished."""
    engines = settings(args.llama_python, args.ik_bench, args.device, args.llama_library)
    weights = weights_a_token(path)

    def turns(job: Job, *wanted: tuple[str, Measure]) -> Iterator[Line]:
        with ExitStack() as open_ones:
            opened = {s: open_ones.enter_context(closing(s.open(job))) for s in engines}
            for name, measure in wanted:
                knowing = {s: contender for s, contender in opened.items() if measure[0] in s.measures}
                rounds = args.long_rounds if is_long(measure) else args.rounds
                for line in take_turns(name, measure, knowing, rounds):
                    if line.kind == "decode":
                        line.bytes_a_token = weights + cache_bytes(path, measure[1], args.kv_dtype)
                        line.bandwidth = bandwidth(args.threads) if args.device == "cpu" else None
                    yield line

    n_ctx = max([*args.prompts, *args.fresh, *(depth + args.steps for depth in args.depths)], default=0) + 2
    n_ctx = max(n_ctx, 65) if args.fresh else n_ctx  # the text of "first" also needs some tokens
    single: list[tuple[str, Measure]] = [(f"fresh {n}", ["fresh", n]) for n in args.fresh]
    single += [(f"prompt {n}", ["prompt", n]) for n in args.prompts]
    for depth in args.depths:
        single.append((f"decode @{depth}", ["decode", depth, args.steps]))
        single.append((f"write @{depth}", ["write", depth, args.steps]))
    if single:
        yield from turns(Job(path, args.threads, n_ctx, kv_dtype=args.kv_dtype), *single)
    for n in args.sequences:
        job = Job(path, args.threads, args.each + args.steps + 2, n, args.kv_dtype)
        measures = {"x": "many", "write x": "write"}
        yield from turns(
            job, *((f"{name}{n} @{args.each}", [m, args.each, args.steps]) for name, m in measures.items())
        )
    if not args.no_start:
        depth = args.depths[0] if args.depths else args.each
        n_ctx = max(depth + args.steps, 64) + 1  # the text of "first" also needs some tokens
        job = Job(path, args.threads, n_ctx, kv_dtype=args.kv_dtype)
        yield from turns(job, ("", ["start", depth, args.steps]), ("", ["generate", depth, args.steps]))


def take_turns(name: str, measure: Measure, contenders: Mapping[Setting, Contender], rounds: int) -> list[Line]:
    """Measure all of them in each round. Return a line for each number in the answers; ``name`` may be empty."""
    warm: dict[Setting, Answer] = {}
    failed: dict[Setting, str] = {}
    going_on = list(contenders)
    for _ in range(1 if measure[0] in NEW_PROCESS or is_long(measure) else 2):  # the first touches new pages
        for setting in going_on:
            try:
                warm[setting] = contenders[setting].ask(measure)
            except MeasureError as error:
                if setting.engine == "hotshoe":
                    raise
                failed[setting] = str(error)
                warm.pop(setting, None)
        going_on = [setting for setting in warm if not _is_behind(setting, warm, FAR_BEHIND)]
    lines = {kind: Line(name or kind, kind) for answer in warm.values() for kind in answer}
    for line in lines.values():
        for setting, reason in failed.items():
            line.leave_out(setting, reason)
    staying, first_counts = [], warms_itself_up(measure)
    for setting, answer in warm.items():
        if _is_behind(setting, warm, BEHIND):
            for kind, value in answer.items():
                lines[kind].leave_out(setting, value)
        else:
            staying.append(setting)
    for i in range(rounds):
        for setting in staying:
            answer = warm[setting] if i == 0 and first_counts else contenders[setting].ask(measure)
            for kind, value in answer.items():
                lines[kind].note(setting, value)
    return [line for line in lines.values() if line.values]  # a text that ends early gives no speed for "generate"


def _is_behind(setting: Setting, warm: Mapping[Setting, Answer], share: float) -> bool:
    """Whether the setting is slower than ``share`` of the best speed of its engine's settings."""
    for kind, value in warm[setting].items():
        best = max(answer[kind] for s, answer in warm.items() if s.engine == setting.engine)
        if kind not in LESS_IS_BETTER and value < share * best:
            return True
    return False


def weights_a_token(path: Path) -> int:
    """The bytes of weights that decoding one token reads: without embedding rows, and only the experts in use."""
    from hotshoe_core.gguf import GGUFFile

    with GGUFFile(path) as file:
        arch = file.metadata.arch
        used = arch.get("expert_used_count", 0) / (arch.get("expert_count", 0) or 1)
        total = 0.0
        for name, info in file.tensors.items():
            if name != "token_embd.weight" or "output.weight" not in file.tensors:
                total += info.nbytes * (used if "_exps." in name else 1)
    return round(total)


def cache_bytes(path: Path, depth: int, kv_dtype: str) -> int:
    """The bytes of keys and values of ``depth`` tokens: what they add to the cache, so states do not count."""
    import hotshoe

    def cache(n_ctx: int) -> int:
        plan = hotshoe.plan_model(path, "cpu", n_ctx=n_ctx, kv_dtype=kv_dtype, projector=False)
        return sum(device.sizes[1] for device in plan.memory.devices)

    return 2 * (cache(depth) - cache(depth // 2)) if depth > 1 else 0


def shown(line: Line) -> Iterator[str]:
    unit = 2**20 if line.kind == "peak" else 1
    for engine, row in line.summary().items():
        text = f"  {line.name if engine == 'hotshoe' else '':14}{engine:14}{_range(row, unit):24}"
        if "ratio" in row:
            text += f"{_range(row['ratio']):22}{row['setting']}"
        if line.kind == "decode":
            read = row["median"] * line.bytes_a_token
            text = f"{text:96}{read / 1e9:5.1f} GB/s"
            text += f" {read / line.bandwidth:4.0%}" if line.bandwidth else ""
        yield text.rstrip()
    for engine, settings_ in line.left_out.items():
        for setting, why in settings_.items():
            if isinstance(why, str):
                yield f"  {'':14}{engine:14}{setting}: {why}"


def _range(row: dict[str, float], unit: float = 1) -> str:
    low, median, high = (row[name] / unit for name in ("low", "median", "high"))
    digits = 2 if high < 10 else 1 if high < 100 else 0
    return f"{median:.{digits}f} ({low:.{digits}f}–{high:.{digits}f})"


if __name__ == "__main__":
    try:
        sys.exit(main())
    except MeasureError as error:
        sys.exit(str(error))
