"""Threads with small stacks: kernels take their memory from the pool. musl gives a thread 128 KiB."""

from __future__ import annotations

import resource
import subprocess
import sys

import pytest

pytest.importorskip("hotshoe_ggml", reason="hotshoe-ggml-cpu is not installed")

STACK = 128 << 10  # bytes, of the thread that computes a graph and of the pool's
PROGRAM = """
import sys, threading
import numpy as np
from hotshoe_core import BackendParams, DType, ops
from hotshoe_core.contract.backend import WeightData
from hotshoe_loader import load_all

kernel, stack = sys.argv[1], int(sys.argv[2])
rng = np.random.default_rng(0)
backend = load_all().open("cpu", BackendParams(n_threads=2))
ctx = backend.new_context()
if kernel == "attention":
    q, k, v = (ctx.input(name, (300, heads, 64)) for name, heads in (("q", 8), ("k", 2), ("v", 2)))
    y = ops.attention(q, k, v, scale=0.1)
else:
    experts, _, name = kernel.rpartition(" ")
    dtype, use = DType[name], "linear_experts" if experts else "linear"
    shape = (4, 256, 2048) if experts else (256, 2048)
    data = rng.integers(0, 56, dtype.nbytes(shape), np.uint8)
    packs = name != "BF16"  # BF16: as the file has it
    w = backend.load([WeightData("w", shape, dtype, data, (use,), compute_bound=packs)])["w"]
    x = ctx.input("x", (300, 1, 2048) if experts else (300, 2048))
    chosen = (ops.arange(600) % 4).reshape(300, 2)
    y = ops.linear_experts(x, w, chosen) if experts else ops.linear(x, w)
ctx.forward(y).reserve()
feeds = {tensor: rng.standard_normal(tensor.shape, np.float32) for tensor in ctx.inputs.values()}
threading.stack_size(stack)
thread = threading.Thread(target=lambda: ctx.compute(feeds))
thread.start()
thread.join()
assert np.isfinite(y.read()).all()
"""


@pytest.mark.parametrize("kernel", ["F32", "F16", "BF16", "Q4_K", "Q8_0", "experts Q4_K", "attention"])
def test_a_kernel_in_threads_with_small_stacks(kernel: str) -> None:
    """The first thread is Python's; the second is the pool's, whose stack the limit of the process gives."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_STACK, (STACK, resource.getrlimit(resource.RLIMIT_STACK)[1]))

    command = [sys.executable, "-c", PROGRAM, kernel, str(STACK)]
    done = subprocess.run(command, capture_output=True, text=True, preexec_fn=limit)
    assert (done.returncode, done.stderr) == (0, "")
