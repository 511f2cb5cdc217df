"""Weights on MLX have the values of the file, to the last bit (oracle: the gguf package). Their products are exact."""

from __future__ import annotations

import numpy as np
import pytest
from gguf import GGMLQuantizationType, quants

from hotshoe_core.contract.backend import WeightData
from hotshoe_core.errors import DTypeError
from hotshoe_core.ops import linear, linear_experts
from hotshoe_core.tensors.dtypes import DType
from hotshoe_core.tensors.tensor import Tensor

pytest.importorskip("hotshoe_mlx", reason="hotshoe-mlx is not installed")
pytest.importorskip("mlx.core", reason="mlx is not installed, or has no engine for this machine")

import mlx.core as mx

from hotshoe_core.eager.adapter import EagerBackend
from hotshoe_loader import load_all
from hotshoe_mlx._packed import Packed
from hotshoe_mlx._weights import PACKED

GROUPED = [*PACKED, DType.MXFP4]
SHAPE = (6, 512)
# Where the float16 scales lie in a block; MXFP4 has an exponent instead. All other bytes may be anything.
SCALES = {
    DType.Q4_1: (0, 2),
    DType.Q5_1: (0, 2),
    DType.Q4_K: (0, 2),
    DType.Q5_K: (0, 2),
    DType.Q6_K: (208,),
    DType.Q3_K: (108,),
}


def any_blocks(dtype: DType, shape: tuple[int, ...] = SHAPE, seed: int = 0) -> np.ndarray:
    """Random bytes with scales of both signs, from subnormal to large."""
    rng = np.random.default_rng(seed)
    raw = rng.integers(0, 256, (dtype.nbytes(shape) // dtype.block_bytes, dtype.block_bytes), np.uint8)
    if dtype is DType.MXFP4:
        raw[:, 0] = rng.integers(64, 190, len(raw))
        return raw.reshape(-1)
    for at in SCALES.get(dtype, (0,)):
        scales = rng.choice([-1, 1], len(raw)) * 10.0 ** rng.uniform(-7, 2, len(raw))
        raw[:, at : at + 2] = scales.astype("<f2").view(np.uint8).reshape(-1, 2)
    return raw.reshape(-1)


def values(data: np.ndarray, dtype: DType, shape: tuple[int, ...] = SHAPE) -> np.ndarray:
    rows = data.reshape(-1, dtype.nbytes(shape[-1:]))
    return quants.dequantize(rows, GGMLQuantizationType(dtype.id)).reshape(shape)


@pytest.fixture
def backend():
    with load_all().open("mlx:cpu") as opened:
        assert isinstance(opened, EagerBackend)
        yield opened


def load(backend, dtype: DType, data: np.ndarray, shape: tuple[int, ...] = SHAPE, uses=("linear",)) -> Tensor:
    return backend.load([WeightData("w", shape, dtype, data, uses)])["w"]


@pytest.mark.parametrize("dtype", GROUPED, ids=lambda d: d.name)
def test_groups_hold_the_block_s_values_to_the_last_bit(dtype: DType, backend: EagerBackend) -> None:
    data = any_blocks(dtype)
    weight = load(backend, dtype, data)
    assert isinstance(weight.handle, Packed)
    ctx = backend.new_context()
    whole, rows = weight.cast(DType.F32), weight.take(ctx.input("at", (3,), DType.I32))
    ctx.forward(whole, rows).compute({ctx.inputs["at"]: [5, 0, 5]})
    expected = values(data, dtype)
    np.testing.assert_array_equal(ctx.read(whole), expected)
    np.testing.assert_array_equal(ctx.read(rows), expected[[5, 0, 5]])


@pytest.mark.parametrize("dtype", GROUPED, ids=lambda d: d.name)
def test_products_use_these_values(dtype: DType, backend: EagerBackend) -> None:
    """No activation is rounded: only the order of F32 sums differs."""
    data = any_blocks(dtype, (3, *SHAPE))
    experts = load(backend, dtype, data, (3, *SHAPE), ("linear_experts",))
    weight = load(backend, dtype, data[: data.size // 3])
    assert isinstance(experts.handle, Packed)
    ctx = backend.new_context()
    x, chosen = ctx.input("x", (4, 512)), ctx.input("chosen", (4, 2), DType.I32)
    y, each = linear(x, weight), linear_experts(x.reshape(4, 1, 512), experts, chosen)
    a = np.random.default_rng(1).standard_normal((4, 512), np.float32)
    picked = np.array([[0, 2], [1, 1], [2, 0], [0, 1]])
    ctx.forward(y, each).compute({x: a, chosen: picked})
    stored = values(data, dtype, (3, *SHAPE)).astype(np.float64)
    for got, expected, size in (
        (ctx.read(y), a @ stored[0].T, np.abs(a) @ np.abs(stored[0]).T),
        (
            ctx.read(each),
            np.einsum("ni,nkoi->nko", a, stored[picked]),
            np.einsum("ni,nkoi->nko", np.abs(a), np.abs(stored[picked])),
        ),
    ):
        # a sum of code * x and one of bias * x: up to some 256 times what cancels, in parts of 2**-24
        assert (np.abs(got - expected) <= 2e-5 * size).all()


@pytest.mark.parametrize("dtype", [DType.Q6_K, DType.Q3_K, DType.F16, DType.BF16], ids=lambda d: d.name)
def test_a_format_that_does_not_fit_a_group_is_exact_in_f32_and_reported(dtype: DType, backend: EagerBackend) -> None:
    if dtype.is_quantized:
        data = any_blocks(dtype)
    else:
        numbers = np.random.default_rng(2).standard_normal(SHAPE, np.float32)
        data = quants.quantize(numbers, GGMLQuantizationType(dtype.id)).reshape(-1).view(np.uint8)
    weight = load(backend, dtype, data)
    assert weight.handle.dtype == mx.float32
    ctx = backend.new_context()
    whole = weight.cast(DType.F32)
    np.testing.assert_array_equal(ctx.forward(whole).compute().read(whole), values(data, dtype))
    (device,) = backend.memory().devices
    assert device.larger == {dtype.name: (dtype.nbytes(SHAPE), 4 * 6 * 512)}
    assert f"{dtype.name} weights take 12.0 KiB" in str(backend.memory())


@pytest.mark.parametrize("dtype", DType, ids=lambda d: d.name)
@pytest.mark.parametrize("uses", [("linear",), ("mul",), ()], ids=str)
def test_the_report_is_the_memory_of_the_arrays(dtype: DType, uses: tuple[str, ...], backend: EagerBackend) -> None:
    try:
        weight = load(backend, dtype, np.zeros(dtype.nbytes(SHAPE), np.uint8), uses=uses)
    except DTypeError as e:
        pytest.skip(e.message)
    arrays = weight.handle.arrays if isinstance(weight.handle, Packed) else (weight.handle,)
    assert backend.memory().total == sum(a.nbytes for a in arrays)


def test_a_large_weight_is_unpacked_in_parts(backend: EagerBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hotshoe_mlx._weights._AT_ONCE", 1024)
    for dtype in (DType.Q5_0, DType.Q4_K):
        data = any_blocks(dtype)
        ctx = backend.new_context()
        whole = load(backend, dtype, data).cast(DType.F32)
        np.testing.assert_array_equal(ctx.forward(whole).compute().read(whole), values(data, dtype))


@pytest.mark.parametrize("dtype", [DType.Q4_K, DType.Q6_K, DType.F16, DType.F32], ids=lambda d: d.name)
def test_loading_takes_at_most_the_model_and_one_more_weight(dtype: DType, backend: EagerBackend) -> None:
    shape = (64, 1024)
    data = np.zeros(dtype.nbytes(shape), np.uint8)
    before, fractions = mx.get_active_memory(), []
    mx.reset_peak_memory()
    weights = [WeightData(f"w{i}", shape, dtype, data, ("linear",), layer=i) for i in range(8)]
    backend.load(weights, progress=fractions.append)
    total = backend.memory().total
    assert mx.get_peak_memory() - before <= total * 9 // 8 + 2**14
    assert mx.get_active_memory() - before <= total + 2**14
    assert fractions == [(i + 1) / 8 for i in range(8)]
