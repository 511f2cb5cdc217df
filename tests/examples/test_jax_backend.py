"""examples/backends/jax: its own tests and a model, on its wheel installed with hotshoe.

All of it runs in child processes: JAX starts threads, and warns when the process is forked afterwards.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

import hotshoe
from tests.support.wheels import build_wheel
from tests.zoo.visits import Zoo

if importlib.util.find_spec("jax") is None:
    pytest.skip("JAX is not installed", allow_module_level=True)

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "examples" / "backends" / "jax"
MODEL = ROOT / "examples" / "models" / "kjv-3m-q8_0.gguf"


@pytest.fixture(scope="module")
def environment(new_environment: Callable[..., Zoo], tmp_path_factory: pytest.TempPathFactory) -> Zoo:
    folder = tmp_path_factory.mktemp("jax-example")
    shutil.copytree(PACKAGE, folder / "package", ignore=shutil.ignore_patterns("__pycache__"))
    return new_environment("jax", [build_wheel(folder / "package", folder / "dist")])


def run(environment: Zoo, folder: Path, *arguments: str | Path) -> str:
    """The output of a program in the environment; it must exit with status 0."""
    environ = os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": str(folder)}
    done = subprocess.run(
        [environment.python, *arguments], cwd=folder, env=environ, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


def test_it_is_short() -> None:
    lines = [len(path.read_text(encoding="utf-8").splitlines()) for path in (PACKAGE / "src").rglob("*.py")]
    assert sum(lines) < 270, "its README says so"


A_PART = """
ops = set()

def wanted(item):
    if item.originalname not in ("test_answer", "test_decomposed"):
        return True
    case = item.callspec.params["case"]
    op = getattr(case, "op", item.name)  # a graph has none
    first = op not in ops and item.originalname == "test_answer" and op != "gated_delta_rule"  # a minute to compile
    ops.add(op)
    return first

def pytest_collection_modifyitems(items):
    items[:] = [item for item in items if wanted(item)]
"""


def test_its_own_tests_pass(environment: Zoo, tmp_path: Path) -> None:
    """A case of each op, all graphs, and all of the rest. ``hotshoe conform jax:cpu`` runs the whole kit in minutes."""
    (tmp_path / "a_part.py").write_text(A_PART)
    options = ("-q", "-p", "a_part", "-p", "no:cacheprovider", "-W", "error", "--import-mode=importlib")
    out = run(environment, tmp_path, "-m", "pytest", *options, PACKAGE / "tests")
    assert int(out.split(" passed")[0].split()[-1]) > 200


ON_THE_PAGE = """
import dataclasses, sys
import jax
from hotshoe_core import BackendParams, DType, EagerBackend
from hotshoe_jax import JaxProvider
from hotshoe_jax.library import jax_library

exec(open(sys.argv[1]).read())
library = dataclasses.replace(jax_library(jax.devices()[0]), compile_hook=compile_hook, graph_nbytes=None)
backend = EagerBackend("jax", JaxProvider().devices()[0], BackendParams(), library)
state, ctx = backend.state((4, 2), DType.F32, "rows"), backend.new_context()
at, rows = ctx.input("at", (1,), DType.I32), ctx.input("rows", (1, 2))
ctx.update(state, state.set_rows(at, rows))
for i in range(3):
    before = state.handle.unsafe_buffer_pointer()
    ctx.compute({at: [i], rows: [[1, 2]]})
print(state.handle.sum(), backend.counters.traced, state.handle.unsafe_buffer_pointer() == before)
"""


def test_the_hook_on_the_page(environment: Zoo, tmp_path: Path) -> None:
    page = (ROOT / "docs" / "backends.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(def compile_hook.*?)```", page, re.DOTALL)
    (tmp_path / "hook.py").write_text(code)
    assert run(environment, tmp_path, "-c", ON_THE_PAGE, "hook.py") == "9.0 1 True\n"


VISIT = """
import json, sys, hotshoe

registry = hotshoe.load_all()
report = {
    "jax": registry.why("jax"),
    "first": registry.devices[0].name,
    "imported": "jax" in sys.modules,
}
with hotshoe.load_model(sys.argv[1], device="jax", n_ctx=256) as model:
    report["ran on"] = model.device.name
    report["text"] = model.generate("And God said", max_tokens=12, temperature=0).text
    before = model.backend.counters.traced
    for n in (5, 6, 7, 8):
        model.forget()
        model.logits(list(range(100, 100 + n)))
    report["traced"] = model.backend.counters.traced - before
print(json.dumps(report))
"""


def test_the_wheel_is_found_and_runs_a_model(environment: Zoo, tmp_path: Path) -> None:
    report = json.loads(run(environment, tmp_path, "-c", VISIT, MODEL))
    assert report["jax"].startswith("jax:cpu (jax, cpu, JAX")
    assert report["first"] != "jax:cpu"
    assert not report["imported"], "the user's process pays for jax when it is opened, and not before"
    assert report["ran on"] == "jax:cpu"
    assert report["traced"] == 1, "prompts of 5 to 8 tokens are one graph"
    with hotshoe.load_model(MODEL, device="reference") as reference:
        assert report["text"] == reference.generate("And God said", max_tokens=12, temperature=0).text
