"""ggml libraries without a plugin, driven by the ggml engine: an unknown one, a BLAS, one without a device."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("hotshoe_ggml", reason="hotshoe-ggml-cpu is not installed")

import hotshoe
from hotshoe.runner.text import TextModel
from hotshoe_core.contract.backend import Backend, WeightData
from hotshoe_core.contract.device import BackendParams
from hotshoe_core.tensors.dtypes import DType
from hotshoe_core.testing import GRAPH_CASES, OP_CASES, BackendConformance
from hotshoe_core.testing.run import AnyCase
from hotshoe_ggml import unit
from hotshoe_ggml.memory import transfer
from hotshoe_loader import Outcome, Registry, Verdict, load_all
from tests.support.ggml_libraries import acme, blas_libraries, compile_acme, says_which_ggml

__all__ = ["acme"]

SHIPPED = Path(__file__).parents[2] / "examples" / "models" / "kjv-3m-q8_0.gguf"


@pytest.fixture(autouse=True)
def no_kept_probes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOTSHOE_CACHE_DIR", "off")
    monkeypatch.delenv("HOTSHOE_RPC", raising=False)


def library_verdict(registry: Registry, name: str) -> Verdict:
    (found,) = [v for v in registry.verdicts if v.kind == "library" and v.candidate == f"ggml-{name}"]
    return found


def test_an_unknown_library_computes(acme: Callable[..., Path]) -> None:
    registry = load_all(paths=acme(DEVICES=2))
    assert [d.name for d in registry.devices if d.provider == "ggml-acme"] == ["acme:0", "acme:1"]
    assert registry.devices[0].type.value != "accel", "nothing is known of its speed: it is never the default"
    device = registry.select("acme:1")[0]
    assert (device.description, device.memory_total, device.properties["index"]) == (r"Acme\x1b adder", 1 << 30, 1)
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(2, 5, 33)).astype(np.float32)
    with registry.open("acme:1") as backend, backend.new_context() as ctx:
        a, b = ctx.input("a", x.shape), ctx.input("b", y.shape)
        product = ((a + b) * a) @ b.permute(1, 0)
        ctx.forward(product).compute({a: x, b: y})
        np.testing.assert_allclose(product.read(), ((x + y) * x) @ y.T, rtol=1e-5, atol=1e-5)
        placed = {each.op: each.device for each in ctx.placements()}
    assert placed == {"add": "acme:1", "mul": "acme:1", "permute": "acme:1", "matmul": "cpu"}  # a view runs nowhere


def test_weights_are_copied_by_several_threads(acme: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(unit._N_COPYING, "ACME", 4)  # as CUDA
    arrays = {str(i): np.full((7, 33), i, np.float32) for i in range(40)}
    threads = set()
    copy = transfer._copy

    def watched(*args: Any, **options: Any) -> None:
        threads.add(threading.get_ident())
        time.sleep(0.01)
        copy(*args, **options)

    monkeypatch.setattr(transfer, "_copy", watched)
    data = [WeightData(k, a.shape, DType.F32, a.reshape(-1).view(np.uint8), uses=("mul",)) for k, a in arrays.items()]
    with load_all(paths=acme()).open("acme:0", BackendParams(n_threads=3)) as backend, backend.new_context() as ctx:
        weights = backend.load(data)
        doubled = [weights[key] + weights[key] for key in arrays]
        ctx.forward(*doubled).compute()
        assert all((y.read() == 2 * arrays[key]).all() for key, y in zip(arrays, doubled))
    assert len(threads) == 3  # n_threads


def test_one_that_was_built_to_be_linked(tmp_path: Path) -> None:
    compile_acme(tmp_path, linked=["-Dggml_backend_init=ggml_backend_acme_reg"])  # as without GGML_BACKEND_DL
    says_which_ggml(tmp_path)
    registry = load_all(paths=tmp_path)
    assert library_verdict(registry, "acme").outcome is Outcome.AVAILABLE
    with registry.open("acme:0") as backend, backend.new_context() as ctx:
        x = ctx.input("x", (3,))
        ctx.forward(y := x + x).compute({x: [1, 2, 3]})
        assert y.read().tolist() == [2, 4, 6]
        assert [each.device for each in ctx.placements()] == ["acme:0"]


@pytest.mark.parametrize(
    ("macros", "outcome", "words"),
    [
        ({"FAULT": 1}, Outcome.NO_DEVICE, "finds no device"),
        ({"DEVICES": 0}, Outcome.NO_DEVICE, "finds no device"),
        ({"FAULT": 2}, Outcome.CRASHED, "SIGABRT"),
        ({"FAULT": 3}, Outcome.WRONG_RESULT, "add gives"),
    ],
)
def test_one_that_does_not_work(
    acme: Callable[..., Path], macros: dict[str, int], outcome: Outcome, words: str
) -> None:
    registry = load_all(paths=acme(**macros))
    verdict = library_verdict(registry, "acme")
    assert (verdict.outcome, words in verdict.reason) == (outcome, True), verdict
    assert "acme:0" not in [d.name for d in registry.devices]
    with registry.open("cpu") as backend:
        assert backend.devices[0].name == "cpu"


def test_one_of_another_ggml_is_not_opened(tmp_path: Path) -> None:
    compile_acme(tmp_path, FAULT=2)
    assert library_verdict(load_all(paths=tmp_path), "acme").outcome is Outcome.UNTRUSTED
    says_which_ggml(tmp_path, abi="00000000000000ff")
    verdict = library_verdict(load_all(paths=tmp_path, refresh=True), "acme")
    assert verdict.outcome is Outcome.ABI_MISMATCH
    assert "(00000000)" in verdict.reason


def test_ggmls_rpc_library_without_a_server(tmp_path: Path) -> None:
    """A real ggml library without a device: no server is named."""
    rpc = pytest.importorskip("hotshoe_ggml_rpc.provider", reason="needs hotshoe-ggml-rpc")
    library = next(rpc.LIBRARY_DIR.glob("*ggml-rpc.*"))
    (tmp_path / library.name).write_bytes(library.read_bytes())
    says_which_ggml(tmp_path)
    assert library_verdict(load_all(paths=tmp_path), "rpc").outcome is Outcome.NO_DEVICE


# -- a BLAS ---------------------------------------------------------------------------------------------------


@pytest.fixture
def blas() -> Registry:
    return load_all(paths=blas_libraries())


def test_a_blas_is_listed_and_never_the_default(blas: Registry) -> None:
    (device,) = blas.select("blas")
    assert (device.name, device.type.value, device.provider) == ("blas:0", "accel", "ggml-blas")
    assert device.description == "OpenBLAS"
    assert blas.select(None)[0].name != "blas:0"


@pytest.mark.parametrize("device", ["blas:0", ["blas:0", "cpu"]], ids=str)
def test_a_model_on_a_blas_computes_what_it_computes_on_the_cpu(
    monkeypatch: pytest.MonkeyPatch, device: str | list[str]
) -> None:
    monkeypatch.setenv("HOTSHOE_PATH", str(blas_libraries()))
    with hotshoe.load_model(SHIPPED, "cpu") as model:
        assert isinstance(model, TextModel)
        ids = (model.tokenizer.encode("In the beginning God created the heaven and the earth.") * 6)[:64]
        expected = model.logits(ids)
    with hotshoe.load_model(SHIPPED, device) as model:
        assert isinstance(model, TextModel)
        got = model.logits(ids)
        # with 8-bit weights the CPU rounds activations to 8 bits, the BLAS does not
        assert np.abs(got - expected).max() <= 3e-2 * np.abs(expected).max()
        assert [got[i].argmax() == expected[i].argmax() for i in range(-3, 0)] == [True] * 3
        with model.sequence() as sequence:  # token by token: too small for a BLAS, so all runs on the CPU
            steps = np.stack([sequence.append(token) for token in ids[:4]])
        assert np.abs(steps - expected[:4]).max() <= 3e-2 * np.abs(expected).max()


def test_a_blas_runs_large_products_and_the_cpu_the_rest(blas: Registry, caplog: pytest.LogCaptureFixture) -> None:
    rng = np.random.default_rng(0)
    x, w = rng.normal(size=(64, 96)).astype(np.float32), rng.normal(size=(48, 96)).astype(np.float32)
    with blas.open("blas:0", BackendParams(n_threads=2)) as backend, backend.new_context() as ctx:
        a, b = ctx.input("a", x.shape), ctx.input("b", w.shape)
        large, small = a @ b.permute(1, 0), (a[:3] @ b.permute(1, 0)).silu()
        ctx.forward(large, small).compute({a: x, b: w})
        np.testing.assert_allclose(large.read(), x @ w.T, rtol=1e-4, atol=1e-4)
        z = x[:3] @ w.T
        np.testing.assert_allclose(small.read(), z / (1 + np.exp(-z)), rtol=1e-4, atol=1e-4)
        placed = [(each.op, each.device) for each in ctx.placements() if each.op in ("matmul", "silu")]
    assert sorted(placed) == [("matmul", "blas:0"), ("matmul", "cpu"), ("silu", "cpu")]
    assert "n_threads" not in caplog.text


class TestBlas(BackendConformance):
    """The kit's products, graphs and lifecycle: other ops run on the CPU, which has its own run of the kit."""

    def test_placements_name_every_node_and_a_device(self) -> None:
        pytest.skip("the kit's product is too small for a BLAS; test_a_blas_takes_large_products… looks at placements")

    @classmethod
    def open(cls, params: BackendParams) -> Backend:
        return load_all(paths=blas_libraries()).open("blas:0", params)

    @classmethod
    def cases(cls) -> Sequence[AnyCase]:
        return [*(c for c in OP_CASES if c.op in ("linear", "matmul")), *GRAPH_CASES]
