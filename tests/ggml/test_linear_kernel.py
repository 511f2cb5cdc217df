"""Our product of packed and stored weights, compared with NumPy in float64: formats, odd shapes, epilogues."""

from __future__ import annotations

import math
from typing import Any, TypeVar

import numpy as np
import pytest

pytest.importorskip("hotshoe_ggml", reason="hotshoe-ggml-cpu is not installed")

from hotshoe_core.contract.backend import WeightData
from hotshoe_core.tensors.dtypes import DType
from hotshoe_ggml import native
from hotshoe_ggml.cpu.builder import CpuBuilder
from hotshoe_ggml.cpu.packed import DenseWeight, PackedFormat, PackedWeight, pack_format
from hotshoe_ggml.cpu.packing import Packing
from hotshoe_ggml.memory.host import zeros
from hotshoe_ggml.native import ffi

# (n, k, m): one of all; odd ones; more than one block of tokens, of features, of panels; remainders of tiles and panels
SHAPES = [
    (1, 1, 1), (2, 3, 5), (5, 7, 33), (6, 384, 64), (15, 1537, 97), (29, 770, 96), (131, 385, 65), (230, 64, 40),
    (280, 802, 500),
]  # fmt: skip

Packed = TypeVar("Packed", bound=PackedWeight)

erf = np.vectorize(math.erf)


def weight_data(values: np.ndarray, dtype: DType = DType.F32, uses: tuple[str, ...] = ("linear",)) -> WeightData:
    values = np.ascontiguousarray(values, np.float32)
    data = np.empty(dtype.nbytes(values.shape), np.uint8)
    if dtype is DType.F32:
        data[:] = values.reshape(-1).view(np.uint8)
    else:
        rows, k = values.shape
        source, target = ffi.from_buffer("float[]", values), ffi.from_buffer(data)
        native.lib().ggml_quantize_chunk(dtype.id, source, target, 0, rows, k, ffi.NULL)
    return WeightData("w", values.shape, dtype, data, uses, compute_bound=True)


def rounded(values: np.ndarray, format: PackedFormat) -> np.ndarray:
    if format is PackedFormat.F16:
        return values.astype(np.float16).astype(np.float32)
    if format is PackedFormat.BF16:
        bits = values.astype(np.float32).view(np.uint32)
        return ((bits + 0x7FFF + (bits >> 16 & 1)) & np.uint32(0xFFFF0000)).view(np.float32)
    return values


def ready(weight: Packed) -> Packed:
    """The weight, after it was packed."""
    Packing([weight], 1).finish()
    return weight


def need(format: PackedFormat) -> None:
    if not native.kernels().hotshoe_linear_formats() >> format & 1:
        pytest.skip(f"this CPU has no fast kernel for {format.name}")


def run(
    weight: PackedWeight | WeightData,
    x: np.ndarray,
    *,
    threads: int = 2,
    avx2_only: bool = False,
    bf16: bool = False,
    **kwargs: Any,
) -> np.ndarray:
    """The result of one node on a new ggml CPU backend. kwargs: bias, residual, experts (arrays), activation, gate.

    weight: WeightData is multiplied as stored. avx2_only, bf16: of such a one; packed ones have them themselves.
    """
    lib, cpu = native.lib(), native.load_cpu()
    backend = lib.ggml_backend_dev_init(cpu.devices()[0].pointer, ffi.NULL)
    set_threads = cpu.function("ggml_backend_set_n_threads", "ggml_backend_set_n_threads_t")
    assert set_threads is not None
    set_threads(backend, threads)
    size = lib.ggml_tensor_overhead() * 32 + lib.ggml_graph_overhead_custom(32, False)
    context = lib.ggml_init({"mem_size": size, "mem_buffer": ffi.NULL, "no_alloc": True})
    scratch = ffi.from_buffer(zeros(threads * native.kernels().HOTSHOE_SCRATCH))
    builder = CpuBuilder(context, [], flash="off", n_threads=1, scratch=scratch, bf16=bf16, multiplies_stored=True)
    arrays = {"x": x} | {name: kwargs.pop(name) for name in ("bias", "residual", "experts") if name in kwargs}
    leaves = {
        name: builder.new(array.shape, DType.I32 if name == "experts" else DType.F32) for name, array in arrays.items()
    }
    m = weight.shape[0] if isinstance(weight, WeightData) else weight.m
    operand: Any = weight
    if isinstance(weight, WeightData):
        operand = builder.new(weight.shape, weight.dtype)
        leaves, arrays = leaves | {"weight": operand}, arrays | {"weight": weight.data}
    if "experts" in arrays:
        node = builder.experts_product(leaves["x"], operand, leaves["experts"], **kwargs)
    else:
        node = builder.product(**leaves | {"weight": operand}, **kwargs)
    for params in builder.keep_alive if isinstance(weight, WeightData) else ():
        params.avx2_only = avx2_only
    graph = lib.ggml_new_graph_custom(context, 32, False)
    lib.ggml_build_forward_expand(graph, node)
    buffer = lib.ggml_backend_alloc_ctx_tensors(context, backend)
    try:
        for name, array in arrays.items():
            lib.ggml_backend_tensor_set(leaves[name], ffi.from_buffer(array), 0, array.nbytes)
        assert lib.ggml_backend_graph_compute(backend, graph) == lib.GGML_STATUS_SUCCESS
        out = np.empty((*(arrays["experts"].shape if "experts" in arrays else x.shape[:-1]), m), np.float32)
        lib.ggml_backend_tensor_get(node, ffi.from_buffer(out), 0, out.nbytes)
        return out
    finally:
        lib.ggml_backend_buffer_free(buffer)
        lib.ggml_free(context)
        lib.ggml_backend_free(backend)


def example(n: int, k: int, m: int, format: PackedFormat) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """x, W as stored, and x @ W.T in double precision from what the kernel multiplies."""
    rng = np.random.default_rng(n * k + m)
    x = rng.standard_normal((n, k), dtype=np.float32)
    w = rounded((rng.standard_normal((m, k)) / math.sqrt(k)).astype(np.float32), format)
    used = rounded(x, format) if format is PackedFormat.BF16 else x
    return x, w, used.astype(np.float64) @ w.astype(np.float64).T


KERNELS = [(f, False) for f in PackedFormat] + [(PackedFormat.F32, True), (PackedFormat.F16, True)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize(("format", "avx2_only"), KERNELS, ids=str)
def test_the_product_with_its_epilogue(format: PackedFormat, shape: tuple[int, int, int], avx2_only: bool) -> None:
    need(format)
    n, _, m = shape
    x, w, product = example(*shape, format)
    rng = np.random.default_rng(1)
    bias, residual = rng.standard_normal(m, dtype=np.float32), rng.standard_normal((n, m), dtype=np.float32)
    packed = ready(DenseWeight(weight_data(w), format))
    for use in [("none", False, False), ("none", True, True), ("gelu", True, True), ("none", False, True)]:
        packed.params(*use).avx2_only = avx2_only
    biased = product + bias
    close = {"rtol": 0, "atol": 1e-5}
    np.testing.assert_allclose(run(packed, x), product, **close)
    np.testing.assert_allclose(run(packed, x, residual=residual), product + residual, **close)
    np.testing.assert_allclose(run(packed, x, bias=bias, residual=residual), biased + residual, **close)
    gelu = 0.5 * biased * (1 + erf(biased / math.sqrt(2)))
    np.testing.assert_allclose(
        run(packed, x, bias=bias, residual=residual, activation="gelu"), gelu + residual, **close
    )


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("avx2_only", [False, True])
@pytest.mark.parametrize("dtype", [DType.F32, DType.F16, DType.BF16], ids=lambda d: d.name)
def test_a_weight_as_stored(dtype: DType, shape: tuple[int, int, int], avx2_only: bool) -> None:
    need(PackedFormat.F32)
    n, _, m = shape
    x, w, product = example(*shape, PackedFormat[dtype.name])
    pairs = dtype is DType.BF16 and not avx2_only and shape[1] % 2 == 0
    if not (pairs and native.kernels().hotshoe_linear_formats() >> PackedFormat.BF16 & 1):
        product = x.astype(np.float64) @ w.astype(np.float64).T  # the activations are not rounded
    rng = np.random.default_rng(1)
    bias, residual = rng.standard_normal(m, dtype=np.float32), rng.standard_normal((n, m), dtype=np.float32)
    stored = weight_data(w, dtype)
    close = {"rtol": 0, "atol": 1e-5}
    np.testing.assert_allclose(run(stored, x, avx2_only=avx2_only), product, **close)
    got = run(stored, x, bias=bias, residual=residual, activation="gelu", threads=3, avx2_only=avx2_only)
    gelu = 0.5 * (product + bias) * (1 + erf((product + bias) / math.sqrt(2)))
    np.testing.assert_allclose(got, gelu + residual, **close)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_f16_as_stored_that_is_rounded(shape: tuple[int, int, int]) -> None:
    need(PackedFormat.BF16)
    x, w, exact = example(*shape, PackedFormat.F16)
    bias = np.random.default_rng(1).standard_normal(shape[2], dtype=np.float32)
    products = [rounded(a, PackedFormat.BF16).astype(np.float64) for a in (x, w)]
    product = products[0] @ products[1].T if shape[1] % 2 == 0 else exact
    got = run(weight_data(w, DType.F16), x, bias=bias, bf16=True, threads=3)
    np.testing.assert_allclose(got, product + bias, rtol=0, atol=1e-5)
    for dtype in (DType.F32, DType.BF16):  # only F16 is rounded
        stored = weight_data(w, dtype)
        np.testing.assert_array_equal(run(stored, x, bf16=True), run(stored, x))


@pytest.mark.parametrize("threads", [1, 3, 8])
@pytest.mark.parametrize("shape", [(1, 40, 70), (3, 64, 384), (100, 33, 96)], ids=str)
def test_any_number_of_threads(threads: int, shape: tuple[int, int, int]) -> None:
    need(PackedFormat.F32)
    x, w, product = example(*shape, PackedFormat.F32)
    got = run(ready(DenseWeight(weight_data(w), PackedFormat.F32)), x, threads=threads)
    np.testing.assert_allclose(got, product, rtol=0, atol=1e-5)


@pytest.mark.parametrize("dtype", [DType.F32, DType.F16, DType.BF16], ids=lambda d: d.name)
def test_a_weight_of_a_file(dtype: DType) -> None:
    values = np.random.default_rng(0).standard_normal((75, 96), dtype=np.float32)
    data = weight_data(values, dtype)
    format = pack_format(data)
    if not isinstance(format, PackedFormat):
        pytest.skip(f"this CPU has no fast kernel for {dtype.name}")
    stored = values
    if dtype is not DType.F32:
        stored = np.empty_like(values)
        to_float = native.lib().ggml_get_type_traits(dtype.id).to_float
        to_float(ffi.from_buffer(data.data), ffi.from_buffer("float[]", stored), stored.size)
    packed = ready(DenseWeight(data, format))
    size = 4 if format is PackedFormat.F32 else 2  # BF16 is packed as F32 if the CPU has no product for it
    assert packed.nbytes == DenseWeight(data, format).nbytes == 96 * 96 * size
    got = run(packed, np.eye(96, dtype=np.float32))  # W.T itself
    np.testing.assert_array_equal(got, rounded(stored, format).T)


def test_weights_that_are_not_packed() -> None:
    values = np.zeros((32, 64), np.float32)
    for data in (
        weight_data(values, uses=()),
        weight_data(values, uses=("take", "linear")),
        WeightData("w", (4096, 2048), DType.F32, np.zeros(4096 * 2048 * 4, np.uint8), ("linear",)),
        WeightData("w", (2, 32, 64), DType.F32, np.zeros(2 * 32 * 64 * 4, np.uint8), ("linear",), compute_bound=True),
    ):
        assert pack_format(data) is None


def test_a_small_matrix_is_packed_in_every_model() -> None:
    """Its products with one row have the same bits as with many."""
    need(PackedFormat.F32)
    data = WeightData("router", (64, 256), DType.F32, np.zeros(64 * 256 * 4, np.uint8), ("linear",))
    assert pack_format(data) is PackedFormat.F32
    assert pack_format(data, bf16=True) is PackedFormat.F32  # it is never rounded
    x, w, _ = example(70, 256, 64, PackedFormat.F32)
    packed = ready(DenseWeight(weight_data(w), PackedFormat.F32))
    together = run(packed, x)
    for n in (1, 3, 17):
        assert np.array_equal(run(packed, x[:n]), together[:n])


def test_nan_stays_in_its_row() -> None:
    need(PackedFormat.F32)
    x, w, product = example(20, 50, 40, PackedFormat.F32)
    x[3, 7], x[5, 1] = np.nan, np.inf
    got = run(ready(DenseWeight(weight_data(w), PackedFormat.F32)), x)
    assert np.isnan(got[3]).all()
    assert np.isinf(got[5]).all()
    rest = np.delete(np.arange(20), [3, 5])
    np.testing.assert_allclose(got[rest], product[rest], rtol=0, atol=1e-5)
