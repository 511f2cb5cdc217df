"""The ops that ggml computes, the ops that core decomposes, and nodes that must never reach ggml."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from hotshoe_core import Backend, BackendParams, Context, DType, Tensor, WeightData, constant, ops
from hotshoe_core.errors import UnsupportedOpError
from hotshoe_core.testing import OP_CASES, Arg, Case
from hotshoe_core.testing.run import compute, error

pytest.importorskip("hotshoe_ggml", reason="hotshoe-ggml-cpu is not installed")

from hotshoe_core.eager.reference import open_reference
from hotshoe_loader import load_all


@pytest.fixture(name="backend")
def _backend() -> Iterator[Backend]:
    with load_all().open("cpu", BackendParams(n_threads=3)) as opened:
        yield opened


Inputs = Callable[..., Tensor]

NATIVE: dict[str, Callable[[Inputs], Tensor | Sequence[Tensor]]] = {
    "conv1d": lambda x: ops.conv1d(x(2, 4, 9), x(6, 4, 3), x(6), padding=1),
    "conv1d depthwise": lambda x: ops.conv1d(x(2, 4, 9), x(4, 1, 3), groups=4),
    "conv2d": lambda x: ops.conv2d(x(2, 4, 9, 9), x(6, 4, 3, 3), x(6), stride=2),
    "conv2d depthwise": lambda x: ops.conv2d(x(2, 4, 9, 9), x(4, 1, 3, 3), groups=4),
    "conv3d": lambda x: ops.conv3d(x(4, 5, 9, 9), x(24, 2, 3, 3)),
    "im2col": lambda x: ops.im2col(x(2, 4, 9, 9), kernel_size=(3, 3)),
    "max_pool2d": lambda x: ops.max_pool2d(x(2, 4, 9, 9), kernel_size=3),
    "avg_pool2d": lambda x: ops.avg_pool2d(x(2, 4, 9, 9), kernel_size=3, padding=1),
    "avg_pool1d": lambda x: ops.avg_pool1d(x(2, 4, 9), kernel_size=3, count_include_pad=False),
    "interpolate": lambda x: ops.interpolate(x(2, 4, 9, 9), size=14, mode="bicubic", align_corners=True),
    "ssm_conv": lambda x: ops.ssm_conv(x(2, 5, 6), x(2, 3, 6), x(6, 4)),
    "mamba": lambda x: ops.ssm_scan(
        x(2, 5, 6, 1), x(2, 5, 6), x(6, 16), x(2, 5, 1, 16), x(2, 5, 1, 16), x(2, 6, 1, 16), dt_softplus=True
    ),
    "mamba2": lambda x: ops.ssm_scan(
        x(2, 5, 6, 8), x(2, 5, 6), x(6), x(2, 5, 2, 16), x(2, 5, 2, 16), x(2, 6, 8, 16), dt_softplus=True
    ),
    "gated_delta_rule": lambda x: ops.gated_delta_rule(
        x(2, 5, 2, 8), x(2, 5, 2, 8), x(2, 5, 4, 8), x(2, 5, 4), x(2, 5, 4), x(2, 4, 8, 8)
    ),
    "keys and values of two sizes": lambda x: ops.gated_delta_rule(
        x(2, 5, 4, 8), x(2, 5, 4, 8), x(2, 5, 4, 6), x(2, 5, 4), x(2, 5, 4), x(2, 4, 6, 8)
    ),
    "tiled heads": lambda x: ops.gated_delta_rule(
        x(2, 5, 2, 8), x(2, 5, 2, 8), x(2, 5, 4, 8), x(2, 5, 4), x(2, 5, 4), x(2, 4, 8, 8), tiled=True
    ),
    "kimi": lambda x: ops.gated_delta_rule(*(x(2, 5, 4, 8) for _ in range(4)), x(2, 5, 4), x(2, 4, 8, 8)),
    "gated_linear_attention": lambda x: ops.gated_linear_attention(*(x(2, 5, 4, 8) for _ in range(4)), x(2, 4, 8, 8)),
    "rwkv_wkv6": lambda x: ops.rwkv_wkv6(*(x(2, 5, 4, 8) for _ in range(4)), x(4, 8), x(2, 4, 8, 8)),
    "rwkv_wkv7": lambda x: ops.rwkv_wkv7(*(x(2, 5, 4, 64) for _ in range(6)), x(2, 4, 64, 64)),
}

TAKEN_APART: dict[str, Callable[[Inputs], Tensor | Sequence[Tensor]]] = {
    "groups": lambda x: ops.conv2d(x(2, 4, 9, 9), x(6, 2, 3, 3), groups=2),
    "a transposed convolution": lambda x: ops.conv_transpose2d(x(2, 4, 9, 9), x(4, 3, 3, 3), stride=2),
    "a window that ceil_mode adds": lambda x: ops.max_pool2d(x(2, 4, 9, 9), kernel_size=2, ceil_mode=True),
    "padding that does not count": lambda x: ops.avg_pool1d(
        x(2, 4, 9), kernel_size=3, padding=1, count_include_pad=False
    ),
    "the nearest": lambda x: ops.interpolate(x(2, 4, 9, 9), size=14),
    "antialiasing": lambda x: ops.interpolate(x(2, 4, 9, 9), size=5, mode="bilinear", antialias=True),
    "a larger kernel than ggml has room for": lambda x: ops.conv1d(x(70_000, 60), x(1, 70_000, 60)),
    "no softplus": lambda x: ops.ssm_scan(
        x(2, 5, 6, 8), x(2, 5, 6), x(6), x(2, 5, 2, 16), x(2, 5, 2, 16), x(2, 6, 8, 16)
    ),
    "a state that is not a whole vector of SVE": lambda x: ops.ssm_scan(
        x(2, 5, 6, 1), x(2, 5, 6), x(6, 5), x(2, 5, 1, 5), x(2, 5, 1, 5), x(2, 6, 1, 5), dt_softplus=True
    ),
    "wkv7 of small heads, where ggml writes past the end": lambda x: ops.rwkv_wkv7(
        *(x(2, 5, 4, 32) for _ in range(6)), x(2, 4, 32, 32)
    ),
}


def places(backend: Backend, build: Callable[[Inputs], Tensor | Sequence[Tensor]]) -> set[str]:
    with backend.new_context() as ctx:
        count = iter(range(100))
        made = build(lambda *shape: ctx.input(f"x{next(count)}", shape))
        ctx.forward(*([made] if isinstance(made, Tensor) else made)).reserve()
        return {place.how for place in ctx.placements()}


@pytest.mark.parametrize("build", NATIVE.values(), ids=NATIVE)
def test_ops_that_ggml_computes(backend: Backend, build: Callable[[Inputs], Tensor]) -> None:
    assert places(backend, build) == {"native"}


@pytest.mark.parametrize("build", TAKEN_APART.values(), ids=TAKEN_APART)
def test_nodes_that_ggml_computes_wrong_are_decomposed(backend: Backend, build: Callable[[Inputs], Tensor]) -> None:
    assert "decomposed" in places(backend, build)


def test_a_row_of_columns_larger_than_ggmls_workspace(backend: Backend) -> None:
    """ggml would end the process by a division by zero."""
    channels = 4_300_000
    x, w = (np.random.default_rng(i).standard_normal((1, channels, 1), np.float32) for i in (0, 1))
    with backend.new_context() as ctx:
        a, b = ctx.input("x", x.shape), ctx.input("w", w.shape)
        y = ops.conv1d(a, b)
        got = ctx.forward(y).compute({a: x, b: w}).read(y)
    want = float(np.vdot(x.astype(np.float64), w.astype(np.float64)))
    assert abs(float(got[0, 0, 0]) - want) < 1e-5 * math.sqrt(channels) * 10


FIVE = (2, 1, 2, 1, 2)


FIVE_AXES: dict[str, Callable[[Backend, Context], Any]] = {
    "weight": lambda b, ctx: b.load([WeightData("w", FIVE, DType.F32, np.zeros(32, np.uint8))]),
    "state": lambda b, ctx: b.state(FIVE, DType.F32, "s"),
    "input": lambda b, ctx: ctx.forward(ctx.input("x", FIVE)).reserve(),
    "constant": lambda b, ctx: ctx.forward(constant(np.zeros(FIVE, np.float32))).reserve(),
}


@pytest.mark.parametrize("make", FIVE_AXES.values(), ids=FIVE_AXES)
def test_five_axes_are_an_error(backend: Backend, make: Callable[[Backend, Context], Any]) -> None:
    """ggml aborts the process on them, or ignores one axis."""
    with (
        backend.new_context() as ctx,
        pytest.raises(UnsupportedOpError, match=r"at most 4 axes; got .* \(2, 1, 2, 1, 2\)"),
    ):
        make(backend, ctx)


THREADED = [
    case
    for op in ("conv2d", "ssm_scan", "gated_delta_rule", "gated_linear_attention", "rwkv_wkv6", "rwkv_wkv7")
    for case in [c for c in OP_CASES if c.op == op and c.dtypes == {DType.F32}][:12:2]
]


@pytest.mark.parametrize("case", THREADED, ids=lambda case: case.id)
def test_with_more_threads_than_work(backend: Backend, case: Case) -> None:
    with open_reference() as reference:
        want = compute(reference, case)
    for g, w in zip(compute(backend, case), want):
        assert all(error(a, b) < 1e-5 for a, b in zip(g, w))


@pytest.mark.parametrize(
    "build",
    [lambda x: x.max(0), lambda x: x.T, lambda x: x.mean((0, 1)), lambda x: x.pad((0, 0), (0, 2**31)), lambda x: x * 2],
)
def test_an_axis_that_ggml_cannot_count_along_is_refused(backend: Backend, build: Callable[[Tensor], Tensor]) -> None:
    """ggml_permute keeps sizes in 32 bits and aborts. The test allocates nothing of this size."""
    with backend.new_context() as ctx:
        ctx.forward(build(ctx.input("x", (2, 2**31))))
        with pytest.raises(UnsupportedOpError):
            ctx.reserve()


@pytest.mark.parametrize("layout", ["permuted", "sliced", "stepped"])
@pytest.mark.parametrize("dtype", [DType.F16, DType.F32])
def test_repeat_of_any_layout(backend: Backend, dtype: DType, layout: Any) -> None:
    """ggml's repeat ends the process for F16 whose elements are not contiguous."""
    case = Case("softmax", (Arg((2, 3, 4, 5)), Arg((4, 1), dtype, layout=layout)))
    for got, expected in zip(compute(backend, case), compute(open_reference(), case)):
        np.testing.assert_allclose(got[0], expected[0], rtol=1e-4, atol=1e-5)
