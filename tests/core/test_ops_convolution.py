"""Convolution, pooling and interpolation, compared with torch."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hotshoe_core import ops
from hotshoe_core.eager.reference import open_reference
from hotshoe_core.errors import DTypeError, ShapeError
from hotshoe_core.tensors.dtypes import DType
from hotshoe_core.tensors.tensor import TABLE, Tensor
from tests.support.ops import Array, error, normal, run

torch = pytest.importorskip("torch", reason="the oracle")
F = torch.nn.functional

SIZES = (11, 9, 7)
BATCHES = ((), (2,))


def by_torch(function: Callable[..., Any], *arrays: Array | None, **options: Any) -> Array:
    result: Array = function(*(None if a is None else torch.from_numpy(a) for a in arrays), **options).numpy()
    return result


CONVOLUTIONS: list[dict[str, Any]] = [
    {"kernel": 3},
    {"kernel": 3, "stride": 2, "padding": 1, "groups": 2},
    {"kernel": 2, "stride": 3, "padding": 2, "dilation": 2, "groups": 4},
    {"kernel": 12, "padding": 6},  # wider than the input
    {"kernel": 1},
    {"kernel": 1, "stride": 3},
    {"kernel": 3, "stride": 3, "padding": 1},  # windows side by side
]


@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("options", CONVOLUTIONS, ids=str)
@pytest.mark.parametrize("dims", [1, 2, 3])
def test_convolution(dims: int, options: dict[str, Any], batch: tuple[int, ...]) -> None:
    kernel, rest = options["kernel"], {k: v for k, v in options.items() if k != "kernel"}
    groups = rest.get("groups", 1)
    x, weight, bias = normal(*batch, 4, *SIZES[:dims]), normal(8, 4 // groups, *(kernel,) * dims), normal(8)
    for b in (bias, None):
        got = run(TABLE[f"conv{dims}d"], x, weight, b, **rest)
        assert error(got, [by_torch(getattr(F, f"conv{dims}d"), x, weight, b, **rest)]) < 1e-5


def test_convolution_with_other_options_along_each_axis() -> None:
    options: dict[str, Any] = {"stride": (2, 3), "padding": (0, 4), "dilation": (3, 1)}
    x, weight = normal(2, 3, 13, 8), normal(5, 3, 2, 4)
    assert error(run(ops.conv2d, x, weight, **options), [by_torch(F.conv2d, x, weight, **options)]) < 1e-5
    options["output_padding"] = (2, 1)
    weight = normal(3, 5, 2, 4)
    options["padding"] = (0, 2)
    got = run(ops.conv_transpose2d, x, weight, **options)
    assert error(got, [by_torch(F.conv_transpose2d, x, weight, **options)]) < 1e-5


def test_depthwise_convolution_with_several_outputs_for_each_channel() -> None:
    x, weight = normal(2, 3, 7, 7), normal(6, 1, 3, 3)
    got = run(ops.conv2d, x, weight, groups=3, padding=1)
    assert error(got, [by_torch(F.conv2d, x, weight, groups=3, padding=1)]) < 1e-5


def test_the_weight_of_conv3d_may_have_its_first_two_axes_in_one() -> None:
    x = normal(4, 5, 6, 7)
    for groups in (1, 2):
        w = normal(6, 4 // groups, 2, 3, 3)
        want = [by_torch(F.conv3d, x, w, groups=groups, padding=1)]
        folded = w.reshape(-1, 2, 3, 3)
        assert error(run(ops.conv3d, x, folded, groups=groups, padding=1), want) < 1e-5


@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("dims", [1, 2])
def test_im2col_is_unfold_with_the_columns_last(dims: int, batch: tuple[int, ...]) -> None:
    x, options = normal(*batch, 3, *SIZES[:dims]), {"stride": 2, "padding": 1, "dilation": 2}
    image = x if dims == 2 else x[..., None, :]  # unfold knows images only
    one = (1,) * (2 - dims)
    torch_options = {
        "stride": (*one, *(2,) * dims), "padding": (*(0,) * (2 - dims), *(1,) * dims), "dilation": (*one, *(2,) * dims),
    }  # fmt: skip
    want = by_torch(F.unfold, image, kernel_size=(*one, *(3, 2)[:dims]), **torch_options)
    (got,) = run(ops.im2col, x, kernel_size=(3, 2)[:dims], **options)
    np.testing.assert_array_equal(got.reshape(*batch, -1, got.shape[-1]), np.swapaxes(want, -1, -2))


TRANSPOSED: list[dict[str, Any]] = [
    {"kernel": 3},
    {"kernel": 2, "stride": 2},  # no two windows meet
    {"kernel": 3, "stride": 2, "padding": 1, "output_padding": 1, "groups": 2},
    {"kernel": 4, "stride": 3, "padding": 2, "dilation": 2, "output_padding": 2, "groups": 4},
    {"kernel": 2, "stride": 5},  # some outputs are reached by none
    {"kernel": 12, "padding": 6},
]


@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("options", TRANSPOSED, ids=str)
@pytest.mark.parametrize("dims", [1, 2])
def test_transposed_convolution(dims: int, options: dict[str, Any], batch: tuple[int, ...]) -> None:
    kernel, rest = options["kernel"], {k: v for k, v in options.items() if k != "kernel"}
    groups = rest.get("groups", 1)
    x, weight = normal(*batch, 4, *SIZES[:dims]), normal(4, 3, *(kernel,) * dims)
    for b in (normal(3 * groups), None):
        got = run(TABLE[f"conv_transpose{dims}d"], x, weight, b, **rest)
        assert error(got, [by_torch(getattr(F, f"conv_transpose{dims}d"), x, weight, b, **rest)]) < 1e-5


@st.composite
def geometries(draw: st.DrawFn) -> tuple[int, dict[str, Any], tuple[int, ...], tuple[int, ...]]:
    """A convolution of an image: groups, options, the sizes of image and kernel."""
    each = {"stride": st.integers(1, 4), "padding": st.integers(0, 3), "dilation": st.integers(1, 3)}
    options = {name: draw(st.tuples(values, values)) for name, values in each.items()}
    kernel = draw(st.tuples(st.integers(1, 4), st.integers(1, 4)))
    spans = [d * (k - 1) + 1 - 2 * p for d, k, p in zip(options["dilation"], kernel, options["padding"])]
    sizes = tuple(max(1, span) + draw(st.integers(0, 5)) for span in spans)
    return draw(st.sampled_from([1, 2, 4])), options, sizes, kernel


@settings(max_examples=60, deadline=None)
@given(geometries())
def test_any_geometry(geometry: tuple[int, dict[str, Any], tuple[int, ...], tuple[int, ...]]) -> None:
    groups, options, sizes, kernel = geometry
    x, weight = normal(2, 4, *sizes), normal(4, 4 // groups, *kernel)
    want = by_torch(F.conv2d, x, weight, groups=groups, **options)
    assert error(run(ops.conv2d, x, weight, groups=groups, **options), [want]) < 1e-5
    try:
        want = by_torch(F.conv_transpose2d, x, weight, groups=groups, **options)
    except RuntimeError:  # sizes below zero
        want = np.empty(0)
    if not want.size:
        with pytest.raises(ShapeError, match="padding is too large"):
            run(ops.conv_transpose2d, x, weight, groups=groups, **options)
    else:
        assert error(run(ops.conv_transpose2d, x, weight, groups=groups, **options), [want]) < 1e-5


# Pooling

POOLS: list[dict[str, Any]] = [
    {"kernel_size": 3},
    {"kernel_size": 3, "stride": 2, "padding": 1},
    {"kernel_size": 3, "stride": 2, "padding": 1, "ceil_mode": True},
    {"kernel_size": 2, "stride": 3, "padding": 1, "ceil_mode": True},
    {"kernel_size": 5, "stride": 3, "padding": 2, "ceil_mode": True},
    {"kernel_size": 9, "stride": 1, "padding": 4},
]


@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("options", POOLS, ids=str)
@pytest.mark.parametrize("dims", [1, 2])
def test_pooling(dims: int, options: dict[str, Any], batch: tuple[int, ...]) -> None:
    x = normal(*batch, 3, *SIZES[:dims]) - 3  # mostly below zero: a padding of zeros would be the largest
    for dilation in (1, 2):
        got = run(TABLE[f"max_pool{dims}d"], x, dilation=dilation, **options)
        want = by_torch(getattr(F, f"max_pool{dims}d"), x, dilation=dilation, **options)
        np.testing.assert_array_equal(got[0], want)
    for counted in (True, False):
        got = run(TABLE[f"avg_pool{dims}d"], x, count_include_pad=counted, **options)
        want = by_torch(getattr(F, f"avg_pool{dims}d"), x, count_include_pad=counted, **options)
        assert error(got, [want]) < 1e-6


def test_the_largest_of_nothing_finite() -> None:
    x = np.array([[[-np.inf, -np.inf, 1, np.nan, np.inf, 0]]], np.float32)
    np.testing.assert_array_equal(run(ops.max_pool1d, x, kernel_size=2)[0], by_torch(F.max_pool1d, x, kernel_size=2))


# Interpolation

NEW_SIZES = [(13, 17), (26, 34), (7, 9), (5, 40), (1, 1), (64, 3)]


@pytest.mark.parametrize("size", NEW_SIZES, ids=str)
@pytest.mark.parametrize("mode", ["nearest", "nearest-exact", "bilinear", "bicubic"])
def test_interpolate(mode: str, size: tuple[int, int]) -> None:
    x = normal(2, 3, 13, 17)
    smooth = mode.startswith("b")
    for corners, antialias in itertools.product((False, True) if smooth else (False,), repeat=2):
        got = run(ops.interpolate, x, size=size, mode=mode, align_corners=corners, antialias=antialias)
        options = {"align_corners": corners} if smooth else {}
        want = by_torch(F.interpolate, x, size=size, mode=mode, antialias=antialias, **options)
        assert error(got, [want]) < 1e-5


@pytest.mark.parametrize("mode", ["nearest", "nearest-exact"])
def test_the_nearest_is_torchs_for_many_sizes(mode: str) -> None:
    """If a position is a tie, rounding decides."""
    from hotshoe_core.ops.resampling import _nearest

    for old, new in itertools.product(range(1, 70), repeat=2):
        row = torch.arange(old).float().reshape(1, 1, old, 1)
        want = F.interpolate(row, size=(new, 1), mode=mode)[0, 0, :, 0].numpy()
        np.testing.assert_array_equal(_nearest(old, new, mode), want)


# What is refused


def leaf(*shape: int, dtype: DType = DType.F32) -> Tensor:
    tensor = open_reference().new_context().input("x", shape, dtype)
    tensor.context = None  # so that leaves of several contexts meet
    return tensor


@pytest.mark.parametrize(
    ("message", "build"),
    [
        ("3 axes, .* or 2 without", lambda: ops.conv1d(leaf(2), leaf(3, 2, 3))),
        ("4 channels do not divide into 3 groups", lambda: ops.conv1d(leaf(4, 9), leaf(3, 1, 3), groups=3)),
        ("weight of \\(out, 2, \\*kernel\\)", lambda: ops.conv2d(leaf(4, 9, 9), leaf(8, 4, 3, 3), groups=2)),
        ("multiple of 2", lambda: ops.conv1d(leaf(4, 9), leaf(7, 2, 3), groups=2)),
        ("4 axes", lambda: ops.conv2d(leaf(4, 9, 9), leaf(8, 4, 3))),
        ("bias must be \\(8,\\)", lambda: ops.conv1d(leaf(4, 9), leaf(8, 4, 3), leaf(4))),
        ("spans 5 elements, more than the 4", lambda: ops.conv1d(leaf(4, 2), leaf(8, 4, 3), padding=1, dilation=2)),
        ("stride is 0", lambda: ops.conv1d(leaf(4, 9), leaf(8, 4, 3), stride=0)),
        ("fit into 32 bits", lambda: ops.conv1d(leaf(4, 9), leaf(8, 4, 3), stride=2**31)),
        ("padding is -1", lambda: ops.conv1d(leaf(4, 9), leaf(8, 4, 3), padding=-1)),
        ("one integer, or 2", lambda: ops.im2col(leaf(4, 9, 9), kernel_size=(3, 3), stride=(1, 1, 1))),
        ("padding is 'same'", lambda: ops.conv1d(leaf(4, 9), leaf(8, 4, 3), padding="same")),
        ("groups is 0", lambda: ops.conv1d(leaf(4, 9), leaf(8, 4, 3), groups=0)),
        ("expected 1 to 3 integers", lambda: ops.im2col(leaf(4, 9, 9), kernel_size=(1, 1, 1, 1))),
        ("output_padding is \\(2,\\)", lambda: ops.conv_transpose1d(leaf(4, 9), leaf(4, 2, 3), output_padding=2)),
        ("weight must be \\(4, out / groups", lambda: ops.conv_transpose1d(leaf(4, 9), leaf(2, 4, 3))),
        ("padding is too large", lambda: ops.conv_transpose1d(leaf(4, 2), leaf(4, 2, 1), padding=1)),
        ("at most half", lambda: ops.max_pool1d(leaf(4, 9), kernel_size=3, padding=2)),
        ("kernel_size is \\(2, 2\\)", lambda: ops.max_pool1d(leaf(4, 9), kernel_size=(2, 2))),
        ("mode is 'cubic'", lambda: ops.interpolate(leaf(4, 4), size=2, mode="cubic")),
        ("mode is array", lambda: ops.interpolate(leaf(4, 4), size=2, mode=np.ones(2))),
        ("antialias cannot be used with mode", lambda: ops.interpolate(leaf(4, 4), size=2, antialias=True)),
        ("size is 0", lambda: ops.interpolate(leaf(4, 4), size=0, mode="bilinear")),
        ("\\(..., h, w\\)", lambda: ops.interpolate(leaf(4), size=2)),
    ],
)  # fmt: skip
def test_shapes_that_are_refused(message: str, build: Callable[[], Tensor]) -> None:
    with pytest.raises(ShapeError, match=message):
        build()


def test_types_that_are_refused() -> None:
    with pytest.raises(DTypeError, match="float"):
        ops.conv1d(leaf(4, 9, dtype=DType.I32), leaf(8, 4, 3))
    with pytest.raises(DTypeError, match="float"):
        ops.max_pool2d(leaf(4, 9, 9, dtype=DType.I32), kernel_size=2)
