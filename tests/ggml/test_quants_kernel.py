"""Our products with quantized weights, compared with float64 products of dequantized weights, and with ggml's error."""

from __future__ import annotations

import ast
import functools
import math
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("hotshoe_ggml", reason="hotshoe-ggml-cpu is not installed")

import hotshoe_ggml
from hotshoe_core import ops
from hotshoe_core.contract.backend import Backend, WeightData
from hotshoe_core.contract.device import BackendParams
from hotshoe_core.errors import OptionError
from hotshoe_core.tensors.dtypes import DType
from hotshoe_ggml import native
from hotshoe_ggml.cpu import builder as builder_module
from hotshoe_ggml.cpu.packed import PackedWeight, QuantizedWeight
from hotshoe_ggml.cpu.packing import Packing
from hotshoe_ggml.cpu.prefetching import WAYS, force_prefetching
from hotshoe_ggml.memory.layouts import PlainLayout, RearrangedLayout
from hotshoe_ggml.memory.transfer import Meter
from hotshoe_ggml.native import ffi, kernels
from hotshoe_loader import load_all

from .test_linear_kernel import AVX512, erf, ready, run
from .test_linear_kernel import weight_data as of_an_encoder

SMALL_BLOCKS = [DType.Q4_0, DType.Q4_1, DType.Q5_0, DType.Q5_1, DType.Q8_0, DType.IQ4_NL, DType.MXFP4]
SUPERBLOCKS = [DType.Q2_K, DType.Q3_K, DType.Q4_K, DType.Q5_K, DType.Q6_K, DType.IQ4_XS]
TYPES = SMALL_BLOCKS + SUPERBLOCKS

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.skipif(
    not kernels().hotshoe_quants_has(DType.Q4_0.id, 32), reason="this CPU has no products of ours for quantized weights"
)


def weight_data(values: np.ndarray, dtype: DType) -> WeightData:
    """A weight of a model that decodes."""
    return replace(of_an_encoder(values, dtype), compute_bound=False)


@functools.cache
def weight(dtype: DType, m: int, k: int) -> tuple[WeightData, np.ndarray]:
    """A weight as in a file, and its numbers as ggml reads them, in double precision."""
    data = weight_data(np.random.default_rng(m + k).standard_normal((m, k), dtype=np.float32), dtype)
    return data, numbers(data)


def numbers(data: WeightData) -> np.ndarray:
    """The numbers that ggml reads from a weight."""
    stored = np.empty(data.shape, np.float32)
    to_float = native.lib().ggml_get_type_traits(data.dtype.id).to_float
    to_float(ffi.from_buffer(data.data), ffi.from_buffer("float[]", stored), stored.size)
    return stored.astype(np.float64)


def activations(n: int, k: int) -> np.ndarray:
    return np.random.default_rng(n).standard_normal((n, k), dtype=np.float32)


@pytest.fixture(name="ggml", scope="module")
def _ggml():
    with load_all().open("cpu", BackendParams(n_threads=2, repack="engine")) as backend:
        yield backend


def ggml_product(backend: Backend, data: WeightData, x: np.ndarray) -> np.ndarray:
    w = backend.load([data])["w"]
    with backend.new_context() as ctx:
        given = ctx.input("x", x.shape, DType.F32)
        y = ops.linear(given, w)
        got = ctx.forward(y).compute({given: x}).read(y)
    backend.release([w])
    return got


def error(got: np.ndarray, exact: np.ndarray) -> float:
    return float(np.linalg.norm(got - exact) / np.linalg.norm(exact))


@pytest.mark.parametrize("dtype", TYPES, ids=lambda d: d.name)
def test_the_error_is_no_larger_than_that_of_ggml(dtype: DType, ggml: Backend) -> None:
    """Rows 1 to 70, with remainders: k is not a multiple of 256, m not of 16, more tokens than are staged at once."""
    ks = (256, 2304) if dtype in SUPERBLOCKS else (32, 288, 2016)
    ours, theirs = [], []
    for k in ks:
        for n in (1, 2, 3, 4, 5, 6, 7, 8, 13, 31, 33, 70, 200):
            for m in (1, 8, 83) if n in (1, 5) else (83,):
                data, stored = weight(dtype, m, k)
                x = activations(n, k)
                exact = x.astype(np.float64) @ stored.T
                got = run(ready(QuantizedWeight(data)), x)
                sizes = np.linalg.norm(x, axis=1)[:, None] * np.linalg.norm(stored, axis=1)
                assert (np.abs(got - exact) <= 1e-2 * sizes).all(), (n, k, m)  # each shape is right by itself
                ours.append(np.linalg.norm(got - exact))
                theirs.append(np.linalg.norm(ggml_product(ggml, data, x) - exact))
    assert math.fsum(ours) <= 1.01 * math.fsum(theirs)  # both round to 8 bits; either may be nearer by chance


@pytest.mark.parametrize("k", [2880, 2976])
def test_tokens_that_just_fit_are_staged_whole(k: int) -> None:
    """A number of features that is not a multiple of 256, and the most that fit: several runs of panels."""
    data, stored = weight(DType.Q4_0, 512, k)
    x = activations(192, k)
    assert error(run(ready(QuantizedWeight(data)), x, threads=1), x @ stored.T) < 1e-2


@pytest.mark.parametrize("activation", ["silu", "gelu_tanh"])
@pytest.mark.parametrize("dtype", TYPES, ids=lambda d: d.name)
def test_a_gated_product_is_that_of_both_products(dtype: DType, activation: str) -> None:
    """Each type, both instruction sets, and gates of extreme values."""
    for k in (2304, 4096) if dtype in SUPERBLOCKS else (2016, 2880):
        rng = np.random.default_rng(k)
        both = [weight_data(rng.standard_normal((83, k), np.float32), dtype) for _ in range(2)]
        gate, up = (ready(QuantizedWeight(w)) for w in both)
        assert up.takes_gate(gate)
        for n, threads in ((1, 2), (2, 1), (7, 3), (130, 2)):
            x = activations(n, k) / np.float32(math.sqrt(k))
            x[0] *= 30
            g, y = run(gate, x).astype(np.float64), run(up, x)
            if activation == "silu":
                expected = g / (1 + np.exp(-g)) * y
            else:
                expected = g / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (g + 0.044715 * g**3))) * y
            for sets in (0, AVX512):
                up.params(activation, False, False, gate).without = sets
                got = run(up, x, activation=activation, gate=gate, threads=threads)
                assert np.abs(got - expected).max() <= 1e-5 * np.abs(expected).max()


@pytest.mark.parametrize("dtype", TYPES, ids=lambda d: d.name)
def test_outliers_of_an_encoder(dtype: DType) -> None:
    """Staged whole and in pieces; rows without outliers equal those of a decoder, also in tiles with outliers."""
    for k, m in ((512, 83), (12288, 17)):
        data, stored = weight(dtype, m, k)
        plain, apart = ready(QuantizedWeight(data)), ready(QuantizedWeight(replace(data, compute_bound=True)))
        for n, threads in ((1, 1), (2, 2), (9, 3), (100, 2)):
            x = activations(n, k)
            x[::3, [3, 200, k - 1]] = 60
            got = run(apart, x, threads=threads)
            exact = x @ stored.T
            assert error(got[::3], exact[::3]) < 0.7 * error(run(plain, x)[::3], exact[::3]), (k, n)
            for row in range(n) if k == 512 else (0, n - 1):
                alone = run(apart if row % 3 == 0 else plain, x[row : row + 1])
                np.testing.assert_array_equal(got[row : row + 1], alone)
            forced = ready(QuantizedWeight(replace(data, compute_bound=True)))
            forced.params("none", False, False).without = AVX512
            np.testing.assert_array_equal(run(forced, x), got)


def test_a_gate_with_outliers() -> None:
    rng, k = np.random.default_rng(0), 512
    both = [of_an_encoder(rng.standard_normal((83, k), np.float32), DType.Q8_0) for _ in range(2)]
    gate, up = (ready(QuantizedWeight(w)) for w in both)
    decoding = ready(QuantizedWeight(weight(DType.Q8_0, 83, k)[0]))
    assert up.takes_gate(gate)
    assert not up.takes_gate(decoding)
    x = activations(70, k) / np.float32(math.sqrt(k))
    x[::5, 100] *= 60
    g = run(gate, x).astype(np.float64)
    expected = g / (1 + np.exp(-g)) * run(up, x)
    for sets in (0, AVX512):
        up.params("silu", False, False, gate).without = sets
        got = run(up, x, activation="silu", gate=gate)
        assert np.abs(got - expected).max() <= 1e-5 * np.abs(expected).max()


def test_weights_that_take_no_gate() -> None:
    gate, up, long = (ready(QuantizedWeight(weight(DType.Q4_0, 16, k)[0])) for k in (64, 96, 32 << 10))
    assert not up.takes_gate(gate)
    assert not long.takes_gate(long), "its tokens are staged in pieces"
    assert not up.takes_gate(ready(QuantizedWeight(weight(DType.Q5_0, 16, 96)[0])))
    data = weight(DType.Q4_0, 16, 96)[0].data
    experts = ready(QuantizedWeight(WeightData("w", (2, 8, 96), DType.Q4_0, data, ("linear_experts",))))
    alone = ready(QuantizedWeight(WeightData("w", (8, 96), DType.Q4_0, data[: data.nbytes // 2], ("linear",))))
    assert not alone.takes_gate(experts), "it is of several experts"


@pytest.mark.parametrize("dtype", TYPES, ids=lambda d: d.name)
@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 100])
def test_neither_threads_nor_other_rows_change_a_bit(dtype: DType, n: int) -> None:
    data, _ = weight(dtype, 83, 2304)
    packed, x = ready(QuantizedWeight(data)), activations(n, 2304)
    alone = run(packed, x, threads=1)
    for threads in (2, 3, 4):
        np.testing.assert_array_equal(run(packed, x, threads=threads), alone)
    for row in {0, n // 2, n - 1}:
        np.testing.assert_array_equal(run(packed, x[row : row + 1]), alone[row : row + 1])


@pytest.fixture(name="unforced")
def _unforced():
    yield
    kernels().hotshoe_quants_force_prefetch(0)


@pytest.mark.usefixtures("unforced")
@pytest.mark.parametrize("dtype", TYPES, ids=lambda d: d.name)
def test_every_way_of_prefetching_gives_the_same_bits(dtype: DType) -> None:
    """One row to four, one thread and two, both instruction sets."""
    k = 2304
    packed, avx2 = (ready(QuantizedWeight(weight(dtype, 83, k)[0])) for _ in range(2))
    avx2.params("none", False, False).without = AVX512
    for n in (1, 2, 3, 4):
        results = []
        for way in range(1, len(WAYS) + 1):
            kernels().hotshoe_quants_force_prefetch(way)
            assert kernels().hotshoe_quants_prefetch(dtype.id, ffi.new("float[]", len(WAYS))) == way
            results += [run(p, activations(n, k), threads=threads) for p in (packed, avx2) for threads in (1, 2)]
        for result in results[1:]:
            np.testing.assert_array_equal(result, results[0])


def test_the_way_of_prefetching_is_measured_while_computing() -> None:
    """In a process of its own: in this one other tests have computed."""
    program = """if True:
        import numpy as np
        from hotshoe_ggml.cpu.prefetching import prefetching
        from tests.ggml.test_quants_kernel import DType, QuantizedWeight, activations, ready, run, weight
        assert prefetching() == {}
        short = ready(QuantizedWeight(weight(DType.Q4_K, 16, 1024)[0]))
        long = ready(QuantizedWeight(weight(DType.Q4_K, 256, 2048)[0]))
        for _ in range(100):
            run(short, activations(1, 1024), threads=1)  # 9 KiB: shorter than the clock is exact
            run(long, activations(2, 2048))  # the second row finds the weights in the cache
        assert prefetching() == {}
        for _ in range(100):
            run(long, activations(1, 2048), threads=1)
        print(prefetching())
    """
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, check=True)
    found = ast.literal_eval(done.stdout)
    assert list(found) == ["q4_k"]
    assert any(found["q4_k"].startswith(way) for way in WAYS.values())
    assert re.search(r"page [\d.]+, near [\d.]+, far [\d.]+", found["q4_k"])


@pytest.mark.usefixtures("unforced")
def test_a_variable_names_the_way_of_prefetching(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOTSHOE_GGML_PREFETCH", "far")
    with load_all().open("cpu", BackendParams(n_threads=1)):
        assert way_of_unmeasured() == list(WAYS).index("far") + 1
    monkeypatch.setenv("HOTSHOE_GGML_PREFETCH", "line")
    with pytest.raises(OptionError, match="HOTSHOE_GGML_PREFETCH is 'line'; expected page or near or far"):
        force_prefetching()
    monkeypatch.delenv("HOTSHOE_GGML_PREFETCH")
    force_prefetching()
    assert way_of_unmeasured() == 0


def way_of_unmeasured() -> int:
    """The way for a type that has no products, so that none is measured: 0 if no way is forced."""
    return int(kernels().hotshoe_quants_prefetch(DType.F32.id, ffi.new("float[]", len(WAYS))))


@pytest.mark.parametrize("dtype", TYPES, ids=lambda d: d.name)
def test_every_instruction_set_gives_the_same_bits(dtype: DType) -> None:
    """AVX2 compared with what this CPU would use: the integers are the same, and floats are added in the same order."""
    data, _ = weight(dtype, 83, 2304)
    best, forced = ready(QuantizedWeight(data)), ready(QuantizedWeight(data))
    forced.params("none", False, False).without = AVX512
    for n in (1, 2, 7, 8, 9, 100):
        x = activations(n, 2304)
        np.testing.assert_array_equal(run(best, x), run(forced, x))
        x[-1, 17] = np.nan
        np.testing.assert_array_equal(run(best, x), run(forced, x))


@pytest.fixture(name="avx_vnni", scope="module", params=["cc", "clang"])
def _avx_vnni(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory):
    """The kernels of AVX-VNNI, compiled to the AVX-512 forms of their instructions: few CPUs have both forms."""
    compiler = shutil.which(request.param)
    if compiler is None:
        pytest.skip(f"there is no {request.param}, a C compiler")
    try:
        flags = Path("/proc/cpuinfo").read_text()
    except OSError:
        flags = ""
    if not {"avx512_vnni", "avx512vl"} <= set(flags.split()):
        pytest.skip("this CPU has no AVX-512 VNNI")
    native, library = ROOT / "plugins/ggml-cpu/native", tmp_path_factory.mktemp("vnni") / "libkernels.so"
    include = Path(hotshoe_ggml.__file__).parent / "include"
    defined = ["-DQUANTS_EVEX", "-DQUANTS_FORCED=hotshoe_quants_avx_vnni"]
    names = ("hotshoe_isa.c", "prefetch_choice.c")
    sources = [*(str(native / name) for name in names), *map(str, native.glob("hotshoe_quants*.c"))]
    flags = ["-O2", "-fPIC", "-shared", "-fno-math-errno", "-ffp-contract=fast", f"-I{include}"]
    subprocess.run([compiler, *flags, *defined, "-o", str(library), *sources, "-lm"], check=True)
    return ffi.dlopen(str(library))


@pytest.mark.parametrize("dtype", TYPES, ids=lambda d: d.name)
def test_avx_vnni_gives_the_same_bits(dtype: DType, avx_vnni: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    data, _ = weight(dtype, 83, 2304)
    packed = ready(QuantizedWeight(data))
    for n in (1, 2, 3, 4, 9, 100):
        x = activations(n, 2304)
        expected = run(packed, x)
        with monkeypatch.context() as patched:
            patched.setattr(builder_module, "kernels", lambda: avx_vnni)
            np.testing.assert_array_equal(run(packed, x), expected)


@pytest.mark.parametrize("dtype", TYPES, ids=lambda d: d.name)
def test_rows_of_nan_infinity_large_and_small_numbers(dtype: DType) -> None:
    """Infinity and NaN stay in their row and give one of the two; outliers, zeros and tiny numbers are right."""
    data, stored = weight(dtype, 48, 512)
    x = activations(12, 512)
    packed = ready(QuantizedWeight(data))
    before = run(packed, x)
    x[1, 7], x[4, 100], x[5, 511], x[6] = np.nan, np.inf, -np.inf, np.nan
    x[8], x[9], x[10, 300], x[11] = 0, x[9] * 1e-38, 1e4, x[11] * 1e30
    got = run(packed, x)
    for row in (1, 4, 5, 6):
        assert not np.isfinite(got[row]).any()
    np.testing.assert_array_equal(got[[0, 2, 3, 7]], before[[0, 2, 3, 7]])
    np.testing.assert_array_equal(got[8], 0)
    assert np.abs(got[9]).max() < 1e-33
    for row in (10, 11):
        exact = stored @ x[row].astype(np.float64)
        assert error(got[row], exact) < 2e-2


def test_the_bounds_of_every_sum_in_16_bits() -> None:
    """The largest codes and activations of one sign: a sum that exceeded 16 bits would be negative."""
    for dtype in TYPES:
        k = 512
        values = np.concatenate([np.full((16, k), v, np.float32) for v in (-1, 1)])
        values[:, ::2] *= np.linspace(0.99, 1, 16, dtype=np.float32).repeat(2)[:, None]  # so that minimums differ
        data = weight_data(values, dtype)
        x = np.concatenate([np.ones((1, k)), -np.ones((1, k))]).astype(np.float32)
        exact = x.astype(np.float64) @ numbers(data).T
        np.testing.assert_allclose(run(ready(QuantizedWeight(data)), x), exact, rtol=1e-4)


@pytest.mark.parametrize("dtype", TYPES, ids=lambda d: d.name)
def test_every_code_at_every_index(dtype: DType) -> None:
    """Random bytes cover all codes and scales; the unit matrix reads each number back."""
    rng, k = np.random.default_rng(0), 512
    raw = rng.integers(0, 256, dtype.nbytes((40, k)), np.uint8)
    if dtype is DType.MXFP4:
        raw[:: dtype.nbytes((32,))] %= 240  # exponents small enough for the sum of products
    data = WeightData("w", (40, k), dtype, raw, ("linear",))
    stored = numbers(data)
    got = run(ready(QuantizedWeight(data)), np.eye(k, dtype=np.float32)).T
    blocks, read = (a.reshape(40, -1, 32) for a in (stored, got))
    finite = np.isfinite(stored).reshape(40, -1, 256).all((1, 2))  # rows whose scale is not finite are left out
    largest = np.abs(blocks).max(-1, keepdims=True) * np.ones_like(blocks)
    assert finite.sum() >= 5
    assert not np.isfinite(got[~finite]).all(-1).any()
    assert (np.abs(read - blocks)[finite] <= 1e-5 * largest[finite] + 1e-30).all()


@pytest.mark.parametrize("dtype", [DType.Q4_0, DType.Q8_0, DType.Q6_K], ids=lambda d: d.name)
def test_the_epilogue(dtype: DType) -> None:
    data, stored = weight(dtype, 83, 512)
    rng, x = np.random.default_rng(1), activations(21, 512)
    bias, residual = rng.standard_normal(83, dtype=np.float32), rng.standard_normal((21, 83), dtype=np.float32)
    packed = ready(QuantizedWeight(data))
    product = run(packed, x).astype(np.float64)
    assert error(product, x @ stored.T) < 1e-2
    biased = product + bias
    gelu = 0.5 * biased * (1 + erf(biased / math.sqrt(2)))
    close = {"rtol": 1e-5, "atol": 1e-5}
    np.testing.assert_allclose(run(packed, x, residual=residual), product + residual, **close)
    np.testing.assert_allclose(run(packed, x, bias=bias, residual=residual), biased + residual, **close)
    np.testing.assert_allclose(
        run(packed, x, bias=bias, residual=residual, activation="gelu"), gelu + residual, **close
    )


def choices(n: int, used: int, n_experts: int) -> np.ndarray:
    """Experts for each of n rows: with few rows some experts have none, with many one expert has more than others."""
    rng = np.random.default_rng(n)
    return np.minimum(rng.integers(0, n_experts, (n, used)), rng.integers(0, n_experts, (n, used))).astype(np.int32)


@pytest.mark.parametrize("dtype", TYPES, ids=lambda d: d.name)
@pytest.mark.parametrize(("n", "used", "rows"), [(1, 3, 1), (1, 2, 2), (9, 2, 1), (40, 4, 4), (300, 2, 1)])
def test_experts_give_what_their_own_products_give(dtype: DType, n: int, used: int, rows: int) -> None:
    """To the last bit: 1 to 4 threads, experts that no row names, experts named twice, and 83 columns in each."""
    e, m, k = 5, 83, 512
    both, _ = weight(dtype, e * m, k)
    size = both.data.nbytes // e
    packed = ready(QuantizedWeight(WeightData("w", (e, m, k), dtype, both.data, ("linear_experts",))))
    chosen, x = choices(n, used, e), activations(n * rows, k).reshape(n, rows, k)
    expected = np.empty((n, used, m), np.float32)
    for i in range(e):
        own = ready(QuantizedWeight(WeightData("w", (m, k), dtype, both.data[i * size : (i + 1) * size], ("linear",))))
        at = chosen == i
        if at.any():
            expected[at] = run(own, np.ascontiguousarray(np.broadcast_to(x, (n, used, k))[at]))
    for threads in (1, 2, 3, 4):
        np.testing.assert_array_equal(run(packed, x, experts=chosen, threads=threads), expected)


@pytest.mark.parametrize("dtype", TYPES, ids=lambda d: d.name)
@pytest.mark.parametrize(("n", "used", "rows"), [(1, 3, 1), (9, 2, 1), (40, 4, 4), (300, 2, 1)])
def test_gated_experts_give_what_their_own_products_give(dtype: DType, n: int, used: int, rows: int) -> None:
    """To the last bit, with more tokens for one expert than are staged at once."""
    e, m, k = 3, 83, 5632 if n == 300 else 512
    rng = np.random.default_rng(k)
    both = [weight_data(rng.standard_normal((e * m, k), np.float32), dtype) for _ in range(2)]
    gates, ups = (ready(QuantizedWeight(WeightData("w", (e, m, k), dtype, w.data, ("linear_experts",)))) for w in both)
    assert ups.takes_gate(gates)
    chosen, x = choices(n, used, e), activations(n * rows, k).reshape(n, rows, k)
    expected = np.empty((n, used, m), np.float32)
    size = both[0].data.nbytes // e
    for i in range(e):
        gate, up = (
            ready(QuantizedWeight(WeightData("w", (m, k), dtype, w.data[i * size : (i + 1) * size], ("linear",))))
            for w in both
        )
        at = chosen == i
        if at.any():
            own = np.ascontiguousarray(np.broadcast_to(x, (n, used, k))[at])
            expected[at] = run(up, own, activation="silu", gate=gate)
    for threads in (1, 2, 3):
        got = run(ups, x, experts=chosen, threads=threads, activation="silu", gate=gates)
        np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("dtype", [DType.Q4_K, DType.Q8_0, DType.MXFP4], ids=lambda d: d.name)
def test_experts_of_a_backend(dtype: DType, ggml: Backend) -> None:
    """Loaded as in a model, and chosen by a graph: as near to the exact product as ggml's."""
    e, m, k, n, used = 6, 48, 512, 37, 3
    data, _ = weight(dtype, e * m, k)
    data = WeightData("w", (e, m, k), dtype, data.data, ("linear_experts",))
    exact_weight = numbers(data)
    logits, x = activations(n, e), activations(n, k)
    got = {}
    with load_all().open("cpu", BackendParams(n_threads=2)) as own:
        for backend in (own, ggml):
            w = backend.load([data])["w"]
            assert isinstance(w.handle, QuantizedWeight) == (backend is own)
            with backend.new_context() as ctx:
                given, scores = ctx.input("x", x.shape), ctx.input("logits", logits.shape)
                chosen = scores.top_k(used)
                y = ops.linear_experts(given[:, None], w, chosen)
                ctx.forward(y, chosen).compute({given: x, scores: logits})
                got[backend] = ctx.read(y)
                at = ctx.read(chosen)
            backend.release([w])
        exact = np.einsum("nk,nemk->nem", x.astype(np.float64), exact_weight[at])
        assert error(got[own], exact) <= 1.05 * error(got[ggml], exact)


@pytest.mark.parametrize("dtype", TYPES, ids=lambda d: d.name)
def test_a_packed_weight_takes_what_the_file_takes(dtype: DType) -> None:
    data, _ = weight(dtype, 48, 512)
    packed, meter = QuantizedWeight(data), Meter(1, None)
    Packing([packed], 1, meter).finish()
    assert packed.nbytes == data.data.nbytes == meter.done
    shifted = np.empty(data.data.size + 1, np.uint8)[1:]  # a file's bytes may have any address
    shifted[:] = data.data
    elsewhere = ready(QuantizedWeight(WeightData("w", data.shape, dtype, shifted, data.uses)))
    x = activations(2, 512)
    np.testing.assert_array_equal(run(elsewhere, x), run(packed, x))


def test_repack_chooses_the_product(ggml: Backend) -> None:
    """True: our layouts; "engine": ggml's only; False: the file's. An embedding that is also the output has two."""
    data = WeightData("w", (64, 256), DType.Q4_0, weight(DType.Q4_0, 64, 256)[0].data, ("take", "linear"))
    with load_all().open("cpu") as own, load_all().open("cpu", BackendParams(repack=False)) as plain:
        layout = own.load([data])["w"].handle
        assert isinstance(layout.linear, QuantizedWeight)
        assert not isinstance(layout.other, PackedWeight)
        assert isinstance(ggml.load([data])["w"].handle.linear, (RearrangedLayout, PlainLayout))
        assert isinstance(plain.load([data])["w"].handle, PlainLayout)
