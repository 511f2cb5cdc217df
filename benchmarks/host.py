"""Measure the host's share of the work with a device: the time of a thread's CPU, without what the device computes.

    python benchmarks/host.py [--device rpc:0,cpu] [--layers 32] [--steps 512] [--texts 1,8,16,32]

The device is one of a server on this machine (it needs hotshoe-ggml-rpc), which takes the same way through hotshoe as a
GPU does. Nothing is computed: graphs and copies are not sent, and all results are zeros. The model has --layers layers
in the shape of Llama, which are small, as the host does the same for large ones.

new graph, switch    the first use of a graph of another length, and going back to one that exists, in ms
1, 8, 16, 32 texts   a step that writes a token of each, in ms: the mean of --steps steps, and without new graphs;
                     and how long a device waits in it, from a graph's results to the start of the next (median)
prompt of 8,192      read for the first time and again, in ms, with the number of new graphs
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import synthetic

SERVER = "127.0.0.1:50999"
finished: list[float] = []  # when the last graph was
waits: list[float] = []  # seconds from a graph's results to the start of the next, of this thread's CPU
READ_TWICE = 8192


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="rpc:0,cpu")
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--steps", type=int, default=512)
    parser.add_argument("--texts", default="1,8,16,32", help="how many are written at the same time, with commas")
    args = parser.parse_args()
    os.environ["HOTSHOE_RPC"] = SERVER
    server = subprocess.Popen(
        [sys.executable, "-m", "hotshoe_ggml_rpc.serve", "--listen", SERVER, "--threads", "1"], stdout=subprocess.PIPE
    )
    try:
        assert server.stdout is not None
        server.stdout.readline()  # it listens now
        with tempfile.TemporaryDirectory() as folder:
            shape = synthetic.Shape("llama", 64, args.layers, 4, 2, 64, 128, 32_000, "llama-bpe", 5e5, tied=False)
            path = synthetic.make(Path(folder) / "small.gguf", "q8_0", shape)
            for name, value in measure(path, args.device, args.steps, [int(n) for n in args.texts.split(",")]):
                print(f"{name:24}{value}", flush=True)
    finally:
        server.kill()
        server.wait()
    return 0


def measure(path: Path, device: str, steps: int, texts: list[int]) -> Iterator[tuple[str, str]]:
    """Yield the name and the result of each measurement."""
    import hotshoe

    compute_nothing()
    options: dict[str, Any] = {"n_gpu_layers": "all"} if "cpu" in device else {}

    def load(n_ctx: int, n_sequences: int = 1) -> Any:
        return hotshoe.load_model(
            path, device, task="text", n_ctx=n_ctx, n_sequences=n_sequences, max_step_seconds=1e9, **options
        )

    with load(READ_TWICE) as model:
        yield "new graph, switch", "{:.1f}, {:.3f} ms".format(*graphs(model))
    for n in texts:
        with load(max(1024, 2 * steps), n) as model:
            mean, median, built, waiting = decoding(model, n, steps)
        found = f"{mean:.2f} ms a step, {median:.2f} without the {built} new graphs; a device waits {waiting:.2f}"
        yield f"{n} texts", found
    with load(READ_TWICE + 64) as model:
        model.generate([3] * 600, max_tokens=1, temperature=0)  # now it knows how many rows a step may have
        for turn in ("first", "again"):
            seconds, built = timed(model, lambda: read(model))
            yield f"prompt of {READ_TWICE:,}, {turn}", f"{1e3 * seconds:.0f} ms, {built} new graphs"


def compute_nothing() -> None:
    """Replace what reaches a device by functions that give zeros."""
    from hotshoe_ggml.native import ffi, lib
    from hotshoe_ggml.run import executable
    from hotshoe_ggml.run.scheduler import Scheduler

    class Stub:
        def __getattr__(self, name: str) -> Any:
            value = getattr(lib(), name)
            setattr(self, name, value)  # the next time it is found at once
            return value

    def get(unit: Any, tensor: Any, data: Any, offset: int, size: int) -> None:
        ffi.memmove(data, bytes(size), size)

    def compute(self: Any, graph: Any) -> int:
        if finished:
            waits.append(time.thread_time() - finished.pop())
        return 0

    def synchronize(self: Any) -> None:
        finished[:] = [time.thread_time()]

    stub = Stub()
    stub.ggml_backend_tensor_get_async = get  # type: ignore[attr-defined]
    stub.ggml_backend_tensor_set_async = lambda *args: None  # type: ignore[attr-defined]
    changes: dict[Any, Any] = {executable: {"lib": lambda: stub}}
    changes[Scheduler] = {"compute": compute, "synchronize": synchronize}
    for target, functions in changes.items():
        for name, function in functions.items():
            setattr(target, name, function)


def timed(model: Any, work: Callable[[], object]) -> tuple[float, int]:
    """Seconds of the thread, and the number of new graphs."""
    built, began = model.backend.counters.compiled, time.thread_time()
    work()
    return time.thread_time() - began, model.backend.counters.compiled - built


def graphs(model: Any) -> tuple[float, float]:
    """Milliseconds for a new graph of the next token, and for a switch: medians."""
    forward = model._forward
    built: list[Any] = []

    def build() -> None:
        sizes = (512 * (len(built) + 1),)
        built.append(forward.build(forward.signature(1)._replace(sizes=sizes)).context.reserve())

    new = [timed(model, build)[0] for _ in range(12)]
    model.reserve()  # the largest graph, so that the buffers grow no more
    turns = [context._executable for context in built * 3]
    switches = [timed(model, executable._acquire)[0] for executable in turns][len(built) :]
    return 1e3 * statistics.median(new), 1e3 * statistics.median(switches)


def decoding(model: Any, n_texts: int, steps: int) -> tuple[float, float, int, float]:
    """Milliseconds of a step, mean and median; the number of new graphs; and milliseconds in which a device waits."""
    texts = [iter(model.stream([5 + i, 7, 9], max_tokens=steps, temperature=0)) for i in range(n_texts)]

    def step() -> None:
        for text in texts:
            next(text)

    step()  # the prompts
    waits.clear()
    taken = [timed(model, step) for _ in range(steps - 2)]
    seconds = [taken_by_step for taken_by_step, _ in taken]
    built = sum(built for _, built in taken)
    return 1e3 * statistics.mean(seconds), 1e3 * statistics.median(seconds), built, 1e3 * statistics.median(waits)


def read(model: Any) -> None:
    model.forget()
    model.generate([7 * i % 30_000 for i in range(READ_TWICE)], max_tokens=1, temperature=0)


if __name__ == "__main__":
    sys.exit(main())
