"""One ggml in each process: forks, foreign sets, threads and memory. Each test runs in a new process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from hotshoe_loader.ggml.library_abi import version_in
from tests.support.other_ggml import other_ggml

__all__ = ["other_ggml"]

pytest.importorskip("hotshoe_ggml", reason="hotshoe-ggml-cpu is not installed")

DOUBLE = """
import os, signal, sys
import numpy as np
import hotshoe
from hotshoe_core import DType

def graph(backend):
    context = backend.new_context()
    x = context.input("x", (4,), DType.F32)
    return context.forward(x + x), x

def double(graph):
    context, x = graph
    context.compute({x: np.ones(4, np.float32)})
    return float(context.read(next(iter(context._outputs))).sum())
"""


def run(code: str, **environ: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", DOUBLE + code],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, **environ},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_gets_an_error_or_a_backend_and_never_hangs():
    lines = run("""
backend = hotshoe.load_all().open("cpu")
made = graph(backend)
double(made)
child = os.fork()
if not child:
    signal.alarm(60)
    try:
        double(made)
    except Exception as error:
        print(type(error).__name__, flush=True)
    made[0].close()
    backend.close()
    with hotshoe.load_all().open("cpu") as fresh:
        print(double(graph(fresh)), flush=True)
    sys.exit(0)
assert os.waitpid(child, 0)[1] == 0
print(double(made))
""")
    assert lines == ["ForkedProcessError", "8.0", "8.0"]


@pytest.fixture
def foreign(other_ggml: Path) -> str:
    """A folder with another ggml that can be adopted."""
    version = version_in(other_ggml / "libggml-base.so") or "0.0"
    if tuple(map(int, version.split(".")[:2])) < (0, 20):
        pytest.skip(f"ggml {version} is too old to be adopted; tests/support/other_ggml.py says how to get a newer one")
    return str(other_ggml)


def test_a_foreign_set_computes(foreign):
    code = """
registry = hotshoe.load_all(require="cpu")
with registry.open("cpu") as backend:
    print(double(graph(backend)))
    print(backend.devices[0].library.parent)
    print(*{line.split()[-1] for line in open("/proc/self/maps") if "ggml-base" in line})
"""
    lines = run(code, HOTSHOE_GGML=foreign)
    assert lines[:2] == ["8.0", str(Path(foreign))]
    assert lines[2].startswith(str(Path(foreign))), "its libggml-base, and no other"


def test_a_foreign_set_after_ours_is_an_error(foreign):
    lines = run(f"""
hotshoe.load_all().open("cpu").close()
registry = hotshoe.load_all(ggml={foreign!r})
verdict = next(v for v in registry.verdicts if (v.kind, v.candidate) == ("plugin", "ggml-cpu"))
print(verdict.outcome.value, "cpu" in [d.name for d in registry.devices])
print(verdict.hint)
""")
    assert lines[0] == "abi-mismatch False"
    assert "before any other ggml is opened" in lines[1]


def test_threads_without_work_sleep():
    """CPU time from the last graph until the process sleeps: 0.05 s. With ggml's settings a thread polls for 3 s."""
    lines = run("""
import time
from hotshoe_core import BackendParams
backend = hotshoe.load_all().open("cpu", BackendParams(n_threads=2))
made = graph(backend)
double(made)
before = used = time.process_time()
while True:
    time.sleep(0.3)
    if time.process_time() - used < 0.01:
        break
    used = time.process_time()
print(used - before)
""")
    assert float(lines[0]) < 1  # of CPU time, so that other programs do not matter


LIMITED = """
import resource
from hotshoe_core import BackendParams
from hotshoe_core.errors import HotshoeError
from hotshoe_core.contract.backend import WeightData

spare = []  # released to make room for the error's message

def limit(more):
    "Limit the address space to this number of bytes more than are in use."
    maximum = resource.getrlimit(resource.RLIMIT_AS)[1]
    resource.setrlimit(resource.RLIMIT_AS, (maximum, maximum))  # reading needs memory, too
    spare[:] = [bytearray(4 << 20)]
    used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + more, maximum))

def attempt(action):
    try:
        return action()
    except (HotshoeError, MemoryError) as error:  # MemoryError if Python itself gets no memory
        spare.clear()
        return f"{type(error).__name__}: {error}".partition("\\n")[0]
"""
linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the limit is Linux's, and so is /proc")
unsanitized = pytest.mark.skipif(
    "libasan" in os.environ.get("LD_PRELOAD", ""), reason="AddressSanitizer ends the process if it gets no memory"
)


@linux
@unsanitized
def test_a_graph_without_memory_is_an_error():
    """For any part of a graph: ggml ends the process if its contexts or its scheduler get no memory."""
    lines = run(f"""{LIMITED}
backend = hotshoe.load_all().open("cpu", BackendParams(n_threads=1))
def chain():
    with backend.new_context() as ctx:
        x = y = ctx.input("x", (8, 64))
        for _ in range(1000):
            y = y * 0.5 + x
        ctx.forward(y.matmul(y, transpose=True)).compute({{x: np.ones((8, 64))}})
        return "computed"
for more in (0, 1, 4, 8, 13, 20, 40, 80, 110, 125, 160, 1000):
    limit(more << 20)
    print(attempt(chain))
""")
    # where the memory ends is chance: in ggml, in Python (whose error is empty) or in NumPy (whose error has a size)
    for line in lines:
        assert line.startswith(("InsufficientMemoryError: cpu", "MemoryError: ")) or line == "computed", line
    assert sum(line.startswith("InsufficientMemoryError: cpu") for line in lines) > 3
    assert lines[-1] == "computed", "there is enough memory"


@linux
@unsanitized
def test_weights_and_states_without_memory_are_an_error():
    lines = run(f"""{LIMITED}
from hotshoe_ggml.native import context

backend = hotshoe.load_all().open("cpu", BackendParams(n_threads=1))
weights = [WeightData(f"w{{i}}", (1,), DType.F32, np.zeros(4, np.uint8)) for i in range(3)]
require = context.require_memory
context.require_memory = lambda size: require(1 << 60)  # a limit would not help: malloc has kept some MiB
print(attempt(lambda: backend.load(weights)))
context.require_memory = require
limit(14 << 20)
print(attempt(lambda: backend.state((64 << 20,), DType.F32, "s")))
limit(1 << 30)
print(len(backend.load(weights)))
""")
    assert lines[0].startswith("InsufficientMemoryError: cpu cannot allocate ")
    assert lines[0].endswith("for the weights")
    assert lines[1:] == ["InsufficientMemoryError: cpu cannot allocate 256.0 MiB for the cache", "3"]


@linux
@unsanitized
def test_states_take_memory_as_they_are_used():
    lines = run("""
def used():
    return int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

backend = hotshoe.load_all().open("cpu")
before = used()
state = backend.state((1 << 28,), DType.F32, "a GiB")
print(used() - before)
context = backend.new_context()
last = state[-4:] + 0
context.forward(last).compute({})
print(context.read(last).tolist(), used() - before < 64 << 20)
""")
    assert int(lines[0]) < 64 << 20
    assert lines[1] == "[0.0, 0.0, 0.0, 0.0] True"


@linux
@unsanitized
def test_threads_that_the_system_does_not_start_are_an_error():
    lines = run(f"""{LIMITED}
registry = hotshoe.load_all()
registry.open("cpu", BackendParams(n_threads=1)).close()
limit(200 << 20)
print(attempt(lambda: registry.open("cpu", BackendParams(n_threads=500))))
print(double(graph(registry.open("cpu", BackendParams(n_threads=2)))))
""")
    assert lines[0].startswith("NativeError: cpu: n_threads is 500, but the system starts only ")
    assert lines[1] == "8.0"


TRUNCATED = """
import mmap, os, sys
from hotshoe_core import BackendParams
from hotshoe_core.contract.backend import WeightData

values = np.arange(1 << 20, dtype=np.float32).reshape(1024, 1024)
open(sys.argv[1], "wb").write(values.tobytes())
with open(sys.argv[1], "rb") as file:
    pages = np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), np.uint8)
backend = hotshoe.load_all().open("cpu", BackendParams(n_threads=1, mmap=sys.argv[2] == "mmap"))
table = backend.load([WeightData("w", values.shape, DType.F32, pages, ("take",))])["w"]
context = backend.new_context()
at = context.input("at", (2,), DType.I32)
rows = context.forward(table.take(at))
os.truncate(sys.argv[1], 0)
print("truncated", flush=True)
rows.compute({at: [3, 1000]})
print(np.array_equal(rows.read(next(iter(rows._outputs))), values[[3, 1000]]))
"""


@linux
@pytest.mark.parametrize("how", ["mmap", "copied"])
def test_a_file_that_is_truncated_while_it_is_in_use(how: str, tmp_path: Path):
    """See the README: the system ends the process for a mapped file; mmap=False has a copy, and goes on."""
    command = [sys.executable, "-c", DOUBLE + TRUNCATED, str(tmp_path / "weights"), how]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.stdout.splitlines() == (["truncated"] if how == "mmap" else ["truncated", "True"]), done.stderr
    assert done.returncode == (-signal.SIGBUS if how == "mmap" else 0)
