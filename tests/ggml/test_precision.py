"""matmul_precision="f32": neither weights nor activations are rounded, and a warning names where that is not so."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import gguf
import numpy as np
import pytest

from hotshoe_core import Backend, BackendParams, DType, WeightData, ops
from hotshoe_core.gguf import GGUFFile
from tests.support.bf16_numbers import M, activations, numbers, product, stored
from tests.support.gguf_files import write_gguf

pytest.importorskip("hotshoe_ggml", reason="hotshoe-ggml-cpu is not installed")

from hotshoe_core.tensors.quants import quantize
from hotshoe_ggml.cpu import unit
from hotshoe_ggml.cpu.packing import Packing
from hotshoe_ggml.native import kernels
from hotshoe_ggml.precision import warn_of_precision
from hotshoe_ggml.unit import Unit
from hotshoe_loader import load_all

K = 64
KINDS = {DType.F16: gguf.GGMLQuantizationType.F16, DType.BF16: gguf.GGMLQuantizationType.BF16}
RULE = (
    "which are computed as with 'stored'. It is for matrices of F16 and BF16, on an x86 CPU with AVX2 and with "
    "repack=True; not for quantized weights, experts and convolutions"
)

pytestmark = pytest.mark.skipif(not kernels().hotshoe_linear_has(), reason="this CPU has no kernels of ours")
sixteen_bits = pytest.mark.parametrize("dtype", list(KINDS), ids=lambda d: d.name)


def weight(dtype: DType, shape: tuple[int, ...] = (M, K), use: str | None = None, name: str = "w") -> WeightData:
    values, uses = np.resize(numbers(), shape), (use or "linear",)
    if dtype in KINDS:
        return replace(stored(values, dtype), name=name, uses=uses)
    return WeightData(name, shape, dtype, quantize(values, dtype).reshape(-1).view(np.uint8), uses)


def opened(**options: Any) -> Backend:
    return load_all().open("cpu", BackendParams(**{"n_threads": 2, "matmul_precision": "f32", **options}))


def test_16_bit_weights_are_multiplied_in_f32() -> None:
    exact = activations().astype(np.float64) @ numbers().astype(np.float64).T
    products = []
    for dtype in KINDS:
        with opened() as backend:
            products.append(product(backend, weight(dtype)))
            assert "cpu: weights of f16" not in backend.tuning()
    np.testing.assert_allclose(products[0], exact, rtol=0, atol=1e-5)
    np.testing.assert_array_equal(*products)


@pytest.mark.skipif(not kernels().hotshoe_linear_pairs(), reason="this CPU has no product of BF16")
@sixteen_bits
def test_activations_are_rounded_without_it(dtype: DType) -> None:
    with opened() as backend, opened(matmul_precision="stored") as other:
        assert np.abs(product(backend, weight(dtype)) - product(other, weight(dtype))).max() > 1e-3


def test_the_output_that_is_also_the_embedding() -> None:
    """Two layouts of one weight: the rows of the first are taken, the second is multiplied."""
    data = replace(weight(DType.BF16), uses=("take", "linear"))
    with opened() as backend:
        np.testing.assert_allclose(product(backend, data), activations() @ numbers().T, rtol=0, atol=1e-5)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux says whether a file is in memory")
@sixteen_bits
def test_the_first_step_has_the_bits_of_later_ones(
    dtype: DType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unit, "_MIN_LATER", 0)
    monkeypatch.setattr(Packing, "start", lambda _: None)  # no thread is as fast as the test
    rows = stored(numbers(), dtype).data.view(np.float16 if dtype is DType.F16 else np.uint16).reshape(M, K)
    path = write_gguf(tmp_path / "m.gguf", {}, {"w": (rows, KINDS[dtype])})
    with opened() as backend, GGUFFile(path) as file:
        w = backend.load([WeightData("w", (M, K), dtype, file.data("w"), ("linear",))])["w"]
        assert w.handle.reads_file()
        with backend.new_context() as ctx:
            x = ctx.input("x", (len(activations()), K))
            ctx.forward(y := ops.linear(x, w))
            first, second = (ctx.compute({x: activations()}).read(y) for _ in range(2))
        assert not w.handle.reads_file()
        np.testing.assert_array_equal(first, second)
        np.testing.assert_allclose(first, activations() @ numbers().T, rtol=0, atol=1e-5)


def test_weights_that_it_is_not_for_are_named(caplog: pytest.LogCaptureFixture) -> None:
    plain = [weight(dtype, name=dtype.name) for dtype in (DType.F32, DType.F16, DType.BF16)]
    taken = weight(DType.Q8_0, use="take", name="embeddings")
    for weights, repack, said in (
        ([*plain, taken], True, None),
        ([weight(DType.BF16, (4, 3, 16), "conv1d"), *plain], True, None),
        ([weight(DType.F16, (4, 3, 16), "conv1d"), *plain], True, "1 of 4 weights (F16 convolutions)"),
        ([*plain, weight(DType.Q8_0)], True, "1 of 4 weights (Q8_0 matrices)"),
        ([weight(DType.F16, (4, M, K), "linear_experts"), plain[2]], True, "1 of 2 weights (F16 experts)"),
        (plain, False, "2 of 3 weights (BF16 matrices, F16 matrices)"),
        (plain, "engine", "2 of 3 weights (BF16 matrices, F16 matrices)"),
    ):
        caplog.clear()
        with opened(repack=repack) as backend:
            backend.load(weights)
        messages = [record.getMessage() for record in caplog.records if "matmul_precision" in record.getMessage()]
        assert messages == ([f"matmul_precision='f32' has no effect on {said}, {RULE}"] if said else [])


class Gpu(Unit):
    """A unit without kernels of ours."""

    def __init__(self) -> None:
        pass


@pytest.mark.parametrize("precision", ["bf16", "f32"])
def test_a_model_on_another_device_is_named(precision: str, caplog: pytest.LogCaptureFixture) -> None:
    """Also if the backend has the CPU, too, which would honour it."""
    weights = [(cast("Unit", Gpu()), weight(DType.F32)), (cast("Unit", Gpu()), weight(DType.F16))]
    warn_of_precision(weights, BackendParams(matmul_precision=cast("Any", precision)))
    [record] = caplog.records
    expected = "no effect on 2 of 2 weights" if precision == "f32" else "no effect: this model has no weights"
    assert expected in record.getMessage()
