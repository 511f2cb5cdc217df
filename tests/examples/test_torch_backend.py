"""examples/backends/torch: the kit on its source, and its wheel installed with hotshoe."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hotshoe
from hotshoe_core.contract.backend import Backend
from hotshoe_core.contract.device import BackendParams
from hotshoe_core.eager.adapter import EagerBackend
from hotshoe_core.tensors.dtypes import DType
from hotshoe_core.testing import OP_CASES, BackendConformance, MultiDeviceConformance
from hotshoe_core.testing.graphs import GRAPH_CASES
from hotshoe_core.testing.run import AnyCase
from tests.support.wheels import build_wheel
from tests.zoo.visits import Zoo

pytest.importorskip("torch", reason="PyTorch is not installed")
pytest.importorskip("hotshoe_ggml", reason="hotshoe-ggml-cpu is not installed")

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "examples" / "backends" / "torch"


@pytest.fixture(scope="module")
def source() -> Any:
    """The package from the examples folder, importable while these tests run."""
    import torch

    sys.path.insert(0, str(PACKAGE / "src"))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # so small are the cases that a second one would only wait
    try:
        import hotshoe_torch

        yield hotshoe_torch
    finally:
        torch.set_num_threads(threads)
        sys.path.remove(str(PACKAGE / "src"))


def open_cpu(params: BackendParams) -> Backend:
    from hotshoe_torch import TorchProvider  # found by ``source``

    provider = TorchProvider()
    return provider.open([d for d in provider.devices() if d.name == "torch:cpu"], params)


@pytest.mark.usefixtures("source")
class TestTorch(BackendConformance):
    """Some of the cases. ``hotshoe conform torch:cpu`` runs all of them in about 30 s if the package is installed."""

    @classmethod
    def open(cls, params: BackendParams) -> Backend:
        return open_cpu(params)

    @classmethod
    def cases(cls) -> Sequence[AnyCase]:
        one_each = {case.op: case for case in reversed(OP_CASES)}
        return [*one_each.values(), *GRAPH_CASES[::3]]


@pytest.mark.usefixtures("source")
class TestTwoDevices(MultiDeviceConformance):
    """The CPU as two devices: the device of each node, and copies between them."""

    @classmethod
    def open(cls, params: BackendParams) -> Backend:
        from hotshoe_torch import TorchProvider
        from hotshoe_torch.library import torch_library

        cpu = TorchProvider().devices()[-1]
        devices = [replace(cpu, name=f"torch:cpu-{i}") for i in range(2)]
        library = replace(torch_library(cpu), where=None)  # torch sees one CPU
        return EagerBackend("torch", devices, params, [library] * 2)


def test_it_is_short() -> None:
    lines = [len(path.read_text(encoding="utf-8").splitlines()) for path in (PACKAGE / "src").rglob("*.py")]
    assert sum(lines) <= 300


def test_it_declares_what_it_computes_itself(source: Any) -> None:
    from hotshoe_torch.accepts import ACCEPTS, COMPOSITES
    from hotshoe_torch.functions import FUNCTIONS, IN_PLACE

    from hotshoe_core.tensors.tensor import TABLE

    assert {name for name in FUNCTIONS if TABLE[name].composite} == COMPOSITES
    assert ACCEPTS.keys() <= COMPOSITES
    assert {name for name, op in TABLE.items() if not op.composite} <= FUNCTIONS.keys() | IN_PLACE.keys()


def test_a_token_does_not_copy_the_cache(source: Any) -> None:
    with open_cpu(BackendParams()) as backend:
        state = backend.state((64, 8), DType.BF16, "cache")
        ctx = backend.new_context()
        at, rows = ctx.input("at", (1,), DType.I32), ctx.input("rows", (1, 8))
        ctx.update(state, new := state.set_rows(at, rows))
        ctx.forward(total := new.sum(axis=None))
        before = state.handle.data_ptr()
        for i in range(3):
            ctx.compute({at: [i], rows: np.ones((1, 8))})
        assert state.handle.data_ptr() == before
        assert ctx.read(total) == 24
        assert backend.memory().devices[0].cache[-1].size == 64 * 8 * 2


def test_an_allocation_that_torch_refuses_is_insufficient_memory_error(source: Any) -> None:
    with open_cpu(BackendParams()) as backend:
        ctx = backend.new_context()
        x = ctx.input("x", (1, 1 << 20))
        ctx.forward((x.expand(1 << 26, 1 << 20) + 1.0).sum(axis=None))
        with pytest.raises(hotshoe.errors.InsufficientMemoryError, match="for the graph"):
            ctx.compute({x: np.zeros((1, 1 << 20))})


@pytest.fixture(scope="module")
def environment(new_environment: Callable[..., Zoo], tmp_path_factory: pytest.TempPathFactory) -> Zoo:
    folder = tmp_path_factory.mktemp("torch-example")
    shutil.copytree(PACKAGE, folder / "package", ignore=shutil.ignore_patterns("__pycache__"))
    return new_environment("torch", [build_wheel(folder / "package", folder / "dist")])


def run(environment: Zoo, folder: Path, *arguments: str | Path) -> str:
    """The output of a program in the environment; it must exit with status 0."""
    one_thread = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}  # the models are small
    command = [environment.python, *arguments]
    done = subprocess.run(command, cwd=folder, env=os.environ | one_thread, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


VISIT = """
import json, sys, hotshoe

def first(**options):
    return hotshoe.load_all(**options).devices[0].name

registry = hotshoe.load_all()
report = {
    "devices": [d.name for d in registry.devices],
    "types": {d.name: d.type.value for d in registry.devices},
    "why": registry.why(),
    "torch": registry.why("torch"),
    "verdict": [v.outcome.value for v in registry.verdicts if v.candidate == "torch"],
    "imported": "torch" in sys.modules,
    "preferred": first(prefer="torch"),
    "required": {name: first(require=name) for name in ("torch", "mlx") if registry.why(name)},
}
with hotshoe.load_model(sys.argv[1], device="torch") as model:
    report["ran on"] = model.device.name
    report["vector"] = model.embed("It runs.").tolist()
print(json.dumps(report))
"""


def test_the_wheel_is_found_ranked_and_runs_minilm(
    environment: Zoo, minilm_gguf: Callable[[str], Path], tmp_path: Path
) -> None:
    """ggml's CPU ranks first, although torch and MLX list it too: installing them moves no model."""
    pytest.importorskip("hotshoe_mlx", reason="hotshoe-mlx is not installed")
    pytest.importorskip("mlx.core", reason="mlx is not installed, or has no engine for this machine")
    path = minilm_gguf("f16")
    report = json.loads(run(environment, tmp_path, "-c", VISIT, path))
    assert report["devices"][0] == "cpu"
    assert report["devices"][-1] == "reference"
    assert {name: kind for name, kind in report["types"].items() if kind == "accel"}.keys() >= {"mlx:cpu", "torch:cpu"}
    assert report["why"].startswith("cpu (ggml-cpu, ")
    assert "torch:cpu" in report["why"], "which others there are"
    assert report["torch"].startswith("torch:cpu (torch, the CPU, PyTorch ")
    assert report["verdict"] == ["available"]
    assert not report["imported"], "the user's process pays for torch when it is opened, and not before"
    assert report["preferred"] == "torch:cpu"
    assert report["required"] == {"torch": "torch:cpu", "mlx": "mlx:cpu"}
    assert report["ran on"] == "torch:cpu"
    with hotshoe.load_model(path, device="reference") as reference:
        assert report["vector"] == pytest.approx(reference.embed("It runs.").tolist(), abs=1e-5)


def test_the_readmes_comparison_runs_the_shipped_model_on_all_of_them(environment: Zoo) -> None:
    pytest.importorskip("mlx.core", reason="mlx is not installed, or has no engine for this machine")
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    install, command = re.findall(r"```sh\n(pip install \S+)\n(python examples/compare.py)\b.*\n```", readme)[0]
    assert (ROOT / install.split()[-1]).resolve() == PACKAGE
    out = run(environment, ROOT, *command.split()[1:])
    rows = {line.split()[0]: line for line in out.splitlines() if line}
    assert [name for name in rows if name in ("reference", "cpu", "mlx:cpu", "torch:cpu")][:2] == ["reference", "cpu"]
    for name in ("mlx:cpu", "torch:cpu"):
        largest, rms, same, _, of = rows[name].split()[1:6]
        assert float(largest) < 1e-3
        assert float(rms) < 1e-4
        assert (same, of) == ("64", "64")
    assert float(rows["cpu"].split()[2]) < 0.02  # ggml rounds activations to 8 bits where weights are q8_0
    assert "not here" not in out
