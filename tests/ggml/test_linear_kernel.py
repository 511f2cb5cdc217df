"""Our product of weights that are packed or not yet, compared with NumPy in float64: formats, odd shapes, epilogues."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
import pytest

pytest.importorskip("hotshoe_ggml", reason="hotshoe-ggml-cpu is not installed")

from hotshoe_core.contract.backend import WeightData
from hotshoe_core.tensors.dtypes import DType
from hotshoe_ggml import native
from hotshoe_ggml.cpu.bf16 import multiplies_bf16
from hotshoe_ggml.cpu.builder import CpuBuilder
from hotshoe_ggml.cpu.packed import DenseWeight, PackedFormat, PackedWeight, pack_format
from hotshoe_ggml.cpu.packing import Packing
from hotshoe_ggml.memory.host import zeros
from hotshoe_ggml.native import ffi

# (n, k, m): one of all; odd ones; more than one block of tokens, of features, of panels; remainders of tiles and panels
SHAPES = [
    (1, 1, 1), (2, 3, 5), (5, 7, 33), (6, 384, 64), (15, 1537, 97), (29, 770, 96), (131, 385, 65), (230, 64, 40),
    (280, 802, 500), (3, 16, 48), (2, 48, 32), (100, 3000, 40), (3, 40_000, 33),
]  # fmt: skip

AVX512, AVX512_BF16 = 2, 4  # instruction sets of native/isa.h
WITHOUT = pytest.mark.parametrize("without", [0, AVX512_BF16, AVX512 | AVX512_BF16], ids=["nothing", "bf16", "avx512"])

TOLERANCE = {shape: 1e-5 * max(1, shape[1] / 4000) for shape in SHAPES}  # sums of F32

pytestmark = pytest.mark.skipif(not native.kernels().hotshoe_linear_has(), reason="this CPU has no such kernels")

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


def run(weight: PackedWeight, x: np.ndarray, *, threads: int = 2, **kwargs: Any) -> np.ndarray:
    """The result of one node on a new ggml CPU backend. kwargs: bias, residual, experts (arrays), activation, gate."""
    lib, cpu = native.lib(), native.load_cpu()
    backend = lib.ggml_backend_dev_init(cpu.devices()[0].pointer, ffi.NULL)
    set_threads = cpu.function("ggml_backend_set_n_threads", "ggml_backend_set_n_threads_t")
    assert set_threads is not None
    set_threads(backend, threads)
    size = lib.ggml_tensor_overhead() * 32 + lib.ggml_graph_overhead_custom(32, False)
    context = lib.ggml_init({"mem_size": size, "mem_buffer": ffi.NULL, "no_alloc": True})
    memory = zeros(threads * native.kernels().HOTSHOE_SCRATCH)
    memory[:] = 0xFF  # nobody clears it: these are NaN
    scratch = ffi.from_buffer(memory)
    builder = CpuBuilder(context, [], flash="off", n_threads=1, scratch=scratch)
    arrays = {"x": x} | {name: kwargs.pop(name) for name in ("bias", "residual", "experts") if name in kwargs}
    leaves = {
        name: builder.new(array.shape, DType.I32 if name == "experts" else DType.F32) for name, array in arrays.items()
    }
    if "experts" in arrays:
        node = builder.experts_product(leaves["x"], weight, leaves["experts"], **kwargs)
    else:
        node = builder.product(**leaves, weight=weight, **kwargs)
    graph = lib.ggml_new_graph_custom(context, 32, False)
    lib.ggml_build_forward_expand(graph, node)
    buffer = lib.ggml_backend_alloc_ctx_tensors(context, backend)
    try:
        for name, array in arrays.items():
            lib.ggml_backend_tensor_set(leaves[name], ffi.from_buffer(array), 0, array.nbytes)
        assert lib.ggml_backend_graph_compute(backend, graph) == lib.GGML_STATUS_SUCCESS
        out = np.empty((*(arrays["experts"].shape if "experts" in arrays else x.shape[:-1]), weight.m), np.float32)
        lib.ggml_backend_tensor_get(node, ffi.from_buffer(out), 0, out.nbytes)
        return out
    finally:
        lib.ggml_backend_buffer_free(buffer)
        lib.ggml_free(context)
        lib.ggml_backend_free(backend)


def example(
    n: int, k: int, m: int, format: PackedFormat, *, rounds: bool = True
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """x, W as stored, and x @ W.T in double precision from what the kernel multiplies.

    rounds: the kernel may round x to BF16, too.
    """
    rng = np.random.default_rng(n * k + m)
    x = rng.standard_normal((n, k), dtype=np.float32)
    w = rounded((rng.standard_normal((m, k)) / math.sqrt(k)).astype(np.float32), format)
    used = rounded(x, format) if format is PackedFormat.BF16 and rounds and multiplies_bf16() else x
    return x, w, used.astype(np.float64) @ w.astype(np.float64).T


def restricted(weight: DenseWeight, without: int) -> DenseWeight:
    """The weight, multiplied without these instruction sets."""
    for use in [("none", False, False), ("none", True, False), ("none", True, True), ("gelu", True, True)]:
        weight.params(*use).without = without
    weight.params("none", False, True).without = without
    return weight


def in_file(weight: Packed) -> Packed:
    """The weight, with a place where it is to be packed."""
    Packing([weight], 1)
    return weight


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@WITHOUT
@pytest.mark.parametrize("format", PackedFormat, ids=str)
def test_the_product_with_its_epilogue(format: PackedFormat, shape: tuple[int, int, int], without: int) -> None:
    n, _, m = shape
    x, w, product = example(*shape, format, rounds=not without)
    rng = np.random.default_rng(1)
    bias, residual = rng.standard_normal(m, dtype=np.float32), rng.standard_normal((n, m), dtype=np.float32)
    packed = restricted(ready(DenseWeight(weight_data(w, DType[format.name]), format)), without)
    biased = product + bias
    close = {"rtol": 0, "atol": TOLERANCE[shape]}
    np.testing.assert_allclose(run(packed, x), product, **close)
    np.testing.assert_allclose(run(packed, x, residual=residual), product + residual, **close)
    np.testing.assert_allclose(run(packed, x, bias=bias, residual=residual), biased + residual, **close)
    gelu = 0.5 * biased * (1 + erf(biased / math.sqrt(2)))
    np.testing.assert_allclose(
        run(packed, x, bias=bias, residual=residual, activation="gelu"), gelu + residual, **close
    )


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@WITHOUT
@pytest.mark.parametrize("dtype", [DType.F32, DType.F16, DType.BF16], ids=lambda d: d.name)
def test_a_token_has_the_same_bits_alone_and_before_the_weight_is_packed(
    dtype: DType, shape: tuple[int, int, int], without: int
) -> None:
    format = PackedFormat[dtype.name]
    n, k, m = shape
    x, w, _ = example(*shape, format)
    bias = np.random.default_rng(1).standard_normal(m, dtype=np.float32)
    packed = restricted(ready(DenseWeight(weight_data(w, dtype), format)), without)
    together = run(packed, x, bias=bias, threads=3)
    for some in (slice(0, 1), slice(n // 2, n // 2 + 7), slice(n // 3, n)):
        np.testing.assert_array_equal(run(packed, x[some], bias=bias), together[some])
    if format is not PackedFormat.BF16 or k % 2 == 0:
        stored = restricted(in_file(DenseWeight(weight_data(w, dtype), format)), without)
        assert stored.params("none", True, False).rows != ffi.NULL
        for some in (slice(0, n), slice(0, 1), slice(n // 2, n // 2 + 7)):
            np.testing.assert_array_equal(run(stored, x[some], bias=bias, threads=3), together[some])


@pytest.mark.skipif(not native.kernels().hotshoe_linear_pairs(), reason="this CPU may have AVX2 only")
def test_the_instruction_set_does_not_change_bits() -> None:
    for format, first in ((PackedFormat.F32, 0), (PackedFormat.F16, 0), (PackedFormat.BF16, AVX512_BF16)):
        x, w, _ = example(20, 1100, 90, format)
        weight = weight_data(w, DType[format.name])
        both = [run(restricted(ready(DenseWeight(weight, format)), sets), x) for sets in (first, AVX512 | AVX512_BF16)]
        np.testing.assert_array_equal(*both)


@pytest.mark.parametrize("dtype", [DType.F32, DType.F16], ids=lambda d: d.name)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_weights_that_are_rounded_to_bf16(shape: tuple[int, int, int], dtype: DType) -> None:
    x, w, _ = example(*shape, PackedFormat[dtype.name])
    product = (rounded(x, PackedFormat.BF16) if multiplies_bf16() else x).astype(np.float64)
    product = product @ rounded(w, PackedFormat.BF16).astype(np.float64).T
    weight = weight_data(w, dtype)
    packed = run(ready(DenseWeight(weight, PackedFormat.BF16)), x, threads=3)
    np.testing.assert_allclose(packed, product, rtol=0, atol=TOLERANCE[shape])
    if dtype is DType.F16 and multiplies_bf16() and shape[1] % 2 == 0:
        np.testing.assert_array_equal(run(in_file(DenseWeight(weight, PackedFormat.BF16)), x, threads=3), packed)


@pytest.mark.parametrize("dtype", [DType.F32, DType.F16], ids=lambda d: d.name)
def test_what_is_packed_as_bf16_is_rounded_to_even(dtype: DType) -> None:
    """The packed bytes themselves: ties, zeros of both signs, the smallest numbers, and those that are not finite."""
    values = np.float32([1 + 2**-8, 1 + 3 * 2**-8, -1 - 2**-8, 0.0, -0.0, 65504, np.inf, -np.inf, 2**-24, 3 * 2**-24])
    values = np.tile(values, (33, 5))[:, :49]  # a whole panel and one row, with pairs and an odd number
    packed = ready(DenseWeight(weight_data(values, dtype), PackedFormat.BF16))._memory.view(np.uint16)
    got = packed.reshape(2, 25, 32, 2).transpose(0, 2, 1, 3).reshape(64, 50)
    expected = np.zeros((64, 50), np.uint16)
    with np.errstate(over="ignore"):
        expected[:33, :49] = rounded(values, PackedFormat.BF16).view(np.uint32) >> 16
    np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("dtype", [DType.F32, DType.F16], ids=lambda d: d.name)
def test_nan_stays_nan_when_it_is_rounded(dtype: DType) -> None:
    floats = np.zeros((32, 64), np.float32)
    floats[:, ::2] = np.array([0x7FFFFFFF, 0xFFFFFFFF], np.uint32).view(np.float32).repeat(16)[:, None]
    bits = floats if dtype is DType.F32 else floats.astype(np.float16)
    data = WeightData("w", floats.shape, dtype, bits.reshape(-1).view(np.uint8), ("linear",))
    packed = ready(DenseWeight(data, PackedFormat.BF16))._memory.view(np.uint16).astype(np.uint32) << 16
    assert np.isnan(packed.view(np.float32)).sum() == 32 * 32


F16_ONLY = {  # numbers that BF16 does not have
    "a number": 1 + 2**-8,
    "a small number": 2**-14 + 2**-24,
    "a subnormal number": 2**-15 + 2**-24,
}


@pytest.mark.parametrize("at", [0, 999, 1023, 1024, 63 * 50 - 1])
@pytest.mark.parametrize("number", F16_ONLY.values(), ids=F16_ONLY)
def test_which_f16_weights_hold_only_numbers_of_bf16(number: float, at: int) -> None:
    rng = np.random.default_rng(0)
    values = rounded(rng.standard_normal((63, 50), np.float32), PackedFormat.BF16).astype(np.float16)
    values[5, :8] = [0, -0.0, np.inf, -np.inf, 2**-24, 255 * 2**-24, 65280, 2**-15 + 2**-22]
    kernels = native.kernels()
    assert kernels.hotshoe_holds_bf16(ffi.from_buffer(values), values.size)
    values.reshape(-1)[at] = number
    assert not kernels.hotshoe_holds_bf16(ffi.from_buffer(values), values.size)
    assert kernels.hotshoe_holds_bf16(ffi.from_buffer(values), at)


@pytest.mark.parametrize("threads", [1, 3, 8])
@pytest.mark.parametrize("shape", [(1, 40, 70), (3, 64, 384), (100, 33, 96)], ids=str)
def test_any_number_of_threads(threads: int, shape: tuple[int, int, int]) -> None:
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
    assert packed.nbytes == DenseWeight(data, format).nbytes == 96 * 96 * (4 if dtype is DType.F32 else 2)
    got = run(packed, np.eye(96, dtype=np.float32))  # W.T itself
    np.testing.assert_array_equal(got, rounded(stored, format).T)


def test_weights_that_are_not_packed() -> None:
    values = np.zeros((32, 64), np.float32)
    for data in (
        weight_data(values, uses=()),
        weight_data(values, uses=("take", "linear")),
        WeightData("w", (2, 32, 64), DType.F32, np.zeros(2 * 32 * 64 * 4, np.uint8), ("linear",), compute_bound=True),
    ):
        assert pack_format(data) is None


@pytest.mark.parametrize("compute_bound", [False, True])
@pytest.mark.parametrize("dtype", [DType.F32, DType.F16, DType.BF16], ids=lambda d: d.name)
def test_the_format_of_a_weight(dtype: DType, compute_bound: bool) -> None:
    weight = replace(weight_data(np.zeros((64, 256), np.float32), dtype), compute_bound=compute_bound)
    assert pack_format(weight) is PackedFormat[dtype.name]
    is_exact = dtype is DType.F32 and not compute_bound  # such as a router
    rounded_to = PackedFormat.BF16 if multiplies_bf16() and not is_exact else PackedFormat[dtype.name]
    assert pack_format(weight, bf16=True) is rounded_to


def test_nan_stays_in_its_row() -> None:
    x, w, product = example(20, 50, 40, PackedFormat.F32)
    x[3, 7], x[5, 1] = np.nan, np.inf
    got = run(ready(DenseWeight(weight_data(w), PackedFormat.F32)), x)
    assert np.isnan(got[3]).all()
    assert np.isinf(got[5]).all()
    rest = np.delete(np.arange(20), [3, 5])
    np.testing.assert_allclose(got[rest], product[rest], rtol=0, atol=1e-5)
