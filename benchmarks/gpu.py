"""Learn all about a GPU in one offline run of at most --minutes, with a table at the end.

    python benchmarks/gpu.py [--device cuda:0] [--minutes 9] [--out build/gpu] [--steps facts,families,…] [--rehearse]
                             [--llama-python PYTHON] [--llama-library FILE]

Each step is a process with a time limit of its own. Its result goes to OUT/results.json at once, and what it printed
to OUT/STEP.log, so a step that hangs or dies costs only itself. All files are made here, with random weights.

facts      the machine, its drivers, what load_all() and `hotshoe doctor` say
families   each file of --families on the device, in a process of its own: the largest difference of its logits to the
           CPU's, and what falls back
kit        `hotshoe conform --isolate`
1b, 8b, moe    benchmarks/generate.py: prompts (read again, and fresh), decoding, several sequences, first token
profile    busy time of the device while decoding, the gaps between kernels, and the longest kernels (needs PyTorch)

llama.cpp is measured in the same run, with the same library of the device: --llama-python names an interpreter with
llama-cpp-python whose ggml fits (PEER below), and --llama-library the library; its default is the plugin's file.
--rehearse takes small shapes and short texts, for a machine without a GPU: --device rpc:0 or vulkan:0.

PREDICTED below was written before any GPU was at hand, from a reading of ggml's source. docs/performance.md has what
was found then.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

PEER = "llama-cpp-python==0.3.35"
"""Its ggml is 0.20.0: the headers of a device's library equal those of the plugins' 0.20.2."""
PREDICTED = {
    "1b decode @512": 0.97,
    "8b decode @512": 1.00,
    "moe decode @512": 0.95,
    "8b prompt 512": 1.0,
    "8b fresh 8192": 0.95,
    "8b x16 @512": 0.95,
    "8b x32 @512": 0.95,
}
"""The predicted ratio to llama.cpp by measure, on an H200 with q4_k_m."""
GAP = 20e-6  # seconds: a longer pause between two kernels means that the device waits for the host


@dataclass(frozen=True)
class Step:
    """A part of the run: the command of its process, the seconds that it may take, and how its output is read."""

    name: str
    command: list[str]
    seconds: float
    read: Callable[[str], Any]


def main() -> int:
    args = arguments()
    if args.child:
        print(json.dumps(CHILDREN[args.child](args), indent=1))
        return 0
    args.out.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + 60 * args.minutes
    results: dict[str, Any] = {"device": args.device, "steps": {}}
    for step in steps(args):
        left = deadline - time.monotonic()
        results["steps"][step.name] = result = run(step, min(step.seconds, left), args.out)
        unfinished = args.out / "results.json.part"
        unfinished.write_text(json.dumps(results, indent=1))
        unfinished.replace(args.out / "results.json")
        print(f"{step.name:10}{result['status']} after {result['seconds']:.0f} s", flush=True)
    print("\n" + "\n".join(table(results)))
    return 0 if all(r["status"] == "finished" for r in results["steps"].values()) else 1


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--minutes", type=float, default=9.0)
    parser.add_argument("--out", type=Path, default=Path("build/gpu"))
    parser.add_argument("--steps", help="the steps to run, such as facts,kit (default: all)")
    parser.add_argument("--families", type=Path, default=HERE.parent / "tests" / "data" / "llamacpp", metavar="FOLDER")
    parser.add_argument("--rehearse", action="store_true")
    parser.add_argument("--llama-python", metavar="PYTHON")
    parser.add_argument("--llama-library", metavar="FILE")
    parser.add_argument("--child", choices=("facts", "families", "family", "profile"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    unknown = set((args.steps or "").split(",")) - {"", *(step.name for step in all_steps(args))}
    if unknown:
        parser.error(f"--steps: unknown step {', '.join(sorted(unknown))}")
    return args


def steps(args: argparse.Namespace) -> list[Step]:
    """The steps that the command line asks for."""
    wanted = args.steps.split(",") if args.steps else None
    return [step for step in all_steps(args) if wanted is None or step.name in wanted]


def all_steps(args: argparse.Namespace) -> list[Step]:
    """All steps, the most important first: the time may end before the last."""
    this = [sys.executable, str(Path(__file__)), "--device", args.device, "--families", str(args.families)]
    this += ["--out", str(args.out), *(["--rehearse"] if args.rehearse else [])]
    conform = [sys.executable, "-m", "hotshoe", "conform", args.device, "--isolate", "30", "--json"]
    if args.rehearse:
        conform += ["-k", "linear"]
    return [
        Step("facts", [*this, "--child", "facts"], 60, json.loads),
        Step("families", [*this, "--child", "families"], 90, json.loads),
        Step("1b", speed(args, "1b", decode=[512], fresh=[8192], sequences=[16]), 100, json.loads),
        Step("8b", speed(args, "8b", decode=[512, 4096], fresh=[8192], sequences=[16, 32]), 200, json.loads),
        Step("moe", speed(args, "moe", decode=[512], fresh=[], sequences=[], layers=48), 150, json.loads),
        Step("profile", [*this, "--child", "profile"], 60, json.loads),
        Step("kit", conform, 240, json.loads),
    ]


def speed(
    args: argparse.Namespace, shape: str, *, decode: list[int], fresh: list[int], sequences: list[int], layers: int = 0
) -> list[str]:
    """The command of benchmarks/generate.py for a shape."""
    prompts, steps, rounds = [512], 128, 3
    if args.rehearse:
        # a device that is really a CPU takes a second for a few tokens of a mixture
        shape, layers, n, steps, rounds = ("moe64", 1, 8, 2, 1) if shape == "moe" else ("0.5b", 2, 32, 4, 1)
        prompts, decode, fresh, sequences = [n], [n], [2 * n for _ in fresh], [4 for _ in sequences[:1]]
    options: dict[str, Any] = {
        "--shape": shape,
        "--dtypes": "q4_k_m",
        "--folder": args.out / "files",
        "--device": args.device,
        "--prompts": ",".join(map(str, prompts)),
        "--depths": ",".join(map(str, decode)),
        "--fresh": ",".join(map(str, fresh)),
        "--sequences": ",".join(map(str, sequences)),
        "--each": min(512, *decode),
        "--steps": steps,
        "--rounds": rounds,
        "--long-rounds": min(rounds, 2),
    }
    if layers:
        options["--layers"] = layers
    if args.llama_python:
        options["--llama-python"] = args.llama_python
    if args.llama_library:
        options["--llama-library"] = args.llama_library
    words = [str(word) for pair in options.items() for word in pair]
    return [sys.executable, str(HERE / "generate.py"), "--json", *words]


def run(step: Step, seconds: float, out: Path) -> dict[str, Any]:
    """Run a step's process and all that it starts, for at most ``seconds``."""
    started = time.monotonic()
    log = out / f"{step.name}.log"
    text, status = "", "had no time left"
    if seconds > 1:
        with log.open("w") as errors:
            process = subprocess.Popen(
                step.command, stdout=subprocess.PIPE, stderr=errors, text=True, start_new_session=True
            )
            try:
                text, _ = process.communicate(timeout=seconds)
                status = "finished" if process.returncode in (0, 1) else f"ended with code {process.returncode}"
            except subprocess.TimeoutExpired:
                status = "took too long"
                _kill(process)
                text, _ = process.communicate()
            except BaseException:  # Ctrl-C: nothing of it may stay on the device
                _kill(process)
                raise
    result: dict[str, Any] = {"status": status, "seconds": time.monotonic() - started, "command": step.command}
    try:
        result["result"] = step.read(text)
    except ValueError:  # it ended before it printed everything
        result["output"] = text
        if status == "finished":
            result["status"] = f"printed no result: see {log}"
    return result


def _kill(process: subprocess.Popen[str]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def table(results: dict[str, Any]) -> Iterator[str]:
    """What was found, a line each: speeds with the ratio to llama.cpp and the ratio that was predicted."""
    for name, step in results["steps"].items():
        found = step.get("result")
        if found is None:
            yield f"{name:10}{step['status']}"
        elif name == "facts":
            yield f"{name:10}{found['device']}"
        elif name == "families":
            for file, row in found.items():
                if "error" in row:
                    yield f"{name:10}{file:44}{row['error']}"
                else:
                    fallbacks = f"  falls back: {', '.join(row['fallbacks'])}" if row["fallbacks"] else ""
                    yield f"{name:10}{file:44}{row['largest']:8.1e}{fallbacks}"
        elif name == "kit":
            yield f"{name:10}{found['passed']} passed, {len(found['failed'])} failed ({len(found['aborted'])} aborted)"
        elif name == "profile":
            yield f"{name:10}" + (found.get("skipped") or ", ".join(f"{k} {v}" for k, v in found["summary"].items()))
        else:
            yield from speeds(name, found)


def speeds(name: str, found: dict[str, Any]) -> Iterator[str]:
    """The lines of a step of benchmarks/generate.py."""
    for file in found["files"].values():
        for line in file["lines"]:
            ours, theirs = line["summary"]["hotshoe"], line["summary"].get("llama.cpp")
            text = f"{name:10}{line['name']:16}{ours['median']:12.4g}"
            if theirs:
                predicted = PREDICTED.get(f"{name} {line['name']}")
                text += f"{theirs['median']:12.4g}{theirs['ratio']['median']:8.2f}"
                text += f"  predicted {predicted:.2f}" if predicted else ""
            yield text
            for settings in line["left_out"].values():
                yield from (
                    f"{name:10}  {key}: {why.splitlines()[-1]}" for key, why in settings.items() if str(why) == why
                )


# The children


def facts(args: argparse.Namespace) -> dict[str, Any]:
    """The machine, and what the loader found."""
    import platform

    import hotshoe

    def output(*command: str) -> str:
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            return f"{command[0]}: {error}"
        return done.stdout + done.stderr

    command = [sys.executable, "-m", "hotshoe"]
    try:
        [found] = hotshoe.load_all(device=args.device).select(args.device)
        device = f"{found.name}: {found.description}"
    except hotshoe.HotshoeError as error:  # this is when the rest is needed most
        device = str(error)
    return {
        "device": device,
        "machine": [platform.platform(), platform.python_version(), os.cpu_count()],
        "nvidia-smi": output("nvidia-smi"),
        "devices": output(*command, "devices", "-v"),
        "doctor": output(*command, "doctor"),
    }


def families(args: argparse.Namespace) -> dict[str, Any]:
    """By file: what ``family`` finds, each in a process of its own, as a kernel may end it."""
    command = [sys.executable, __file__, "--device", args.device, "--child", "family", "--families"]

    def found(path: Path) -> Any:
        try:
            done = subprocess.run([*command, str(path)], capture_output=True, text=True, timeout=30, check=False)
        except subprocess.TimeoutExpired:
            return {"error": "took longer than 30 s"}
        print(path.name, done.stderr, sep="\n", file=sys.stderr, flush=True)
        if done.returncode:
            last = next((line for line in done.stderr.splitlines() if "CUDA error" in line or "abort" in line), "")
            return {"error": f"its process ended with code {done.returncode}: {last or done.stderr.strip()[-200:]}"}
        return json.loads(done.stdout)

    paths = sorted(args.families.glob("*.gguf"))
    with ThreadPoolExecutor(4) as pool:
        return dict(zip((path.name for path in paths), pool.map(found, paths)))


def family(args: argparse.Namespace) -> dict[str, Any]:
    """The largest difference to the CPU's results, relative to the largest, and the nodes that fell back.

    The cache is in F32, so that the difference is the arithmetic's: values rounded to F16 differ by 1e-3.
    """
    import numpy as np

    import hotshoe
    from hotshoe.runner.text import TextModel

    path, ids = args.families, np.random.default_rng(2).integers(0, 250, 40).tolist()
    try:
        with hotshoe.load_model(path, "cpu", n_ctx=64) as model:
            options = {"kv_dtype": "f32"} if isinstance(model, TextModel) else {}
        with hotshoe.load_model(path, "cpu", n_ctx=64, **options) as model:
            expected = compute(model, ids)
        with hotshoe.load_model(path, args.device, n_ctx=64, **options) as model:
            error = np.abs(compute(model, ids) - expected).max() / np.abs(expected).max()
            return {"largest": float(error), "fallbacks": [node.node for node in model.placements().fallbacks]}
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}


def compute(model: Any, ids: list[int]) -> Any:
    """Logits of a text model, whole and token by token; a vector or a score of the other kinds."""
    import numpy as np

    from hotshoe.runner.embedder import EmbeddingModel
    from hotshoe.runner.text import TextModel

    if isinstance(model, TextModel):
        with model.sequence() as sequence:
            single = [sequence.append(token) for token in ids]
        return np.concatenate([model.logits(ids), np.stack(single)])
    if isinstance(model, EmbeddingModel):
        return np.asarray(model.embed(["a first text", "another"]))
    return np.asarray(model.scores([("a question", "a first text"), ("a question", "another")]))


def profile(args: argparse.Namespace) -> dict[str, Any]:
    """What the device does while 64 tokens are decoded one by one."""
    import hotshoe

    try:
        import torch
        from torch.profiler import ProfilerActivity
    except ImportError:
        return {"skipped": "PyTorch is not installed"}
    if not torch.cuda.is_available():
        return {"skipped": "PyTorch finds no CUDA device"}
    torch.cuda.init()
    files = sorted((args.out / "files").glob("*.gguf"), key=lambda path: path.stat().st_size)
    if not files:
        return {"skipped": "no file of a speed step is left"}
    n = 64
    with hotshoe.load_model(files[0], args.device, n_ctx=1024) as model, model.sequence() as sequence:
        sequence.append(*range(1, 513))
        for token in range(16):  # CUDA captures its graph in the first of these
            sequence.append(token)
        with torch.profiler.profile(activities=[ProfilerActivity.CUDA]) as profiler:
            for token in range(n):
                sequence.append(token)
    trace = args.out / "trace.json"
    profiler.export_chrome_trace(str(trace))
    events = [e for e in json.loads(trace.read_text())["traceEvents"] if e.get("cat") in ("kernel", "gpu_memcpy")]
    return {"file": files[0].name} | activity([(e["ts"] * 1e-6, e["dur"] * 1e-6, e["name"]) for e in events], n)


def activity(events: list[tuple[float, float, str]], n_tokens: int) -> dict[str, Any]:
    """Summarize what a device did. events: start and duration, in seconds, and name."""
    if not events:
        return {"skipped": "the profile has no kernels"}
    by_name: dict[str, float] = {}
    busy, end, gaps = 0.0, events[0][0], []
    for start, duration, name in sorted(events):
        by_name[name] = by_name.get(name, 0.0) + duration
        if start - end > GAP:
            gaps.append(start - end)
        busy += max(0.0, start + duration - max(start, end))
        end = max(end, start + duration)
    total = end - min(start for start, _, _ in events)
    longest = sorted(by_name.items(), key=lambda item: -item[1])[:20]
    summary = {
        "busy": f"{busy / total:.0%}",
        "kernels a token": round(len(events) / n_tokens),
        "gaps a token": round(len(gaps) / n_tokens, 1),
        "microseconds of gaps a token": round(1e6 * sum(gaps) / n_tokens),
    }
    return {"summary": summary, "microseconds a token": {name: 1e6 * t / n_tokens for name, t in longest}}


CHILDREN: dict[str, Callable[[argparse.Namespace], dict[str, Any]]] = {
    "facts": facts,
    "families": families,
    "family": family,
    "profile": profile,
}

if __name__ == "__main__":
    sys.exit(main())
