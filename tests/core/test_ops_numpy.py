"""Comparison, integers, axes, arranging, RoPE sections, ALiBi, bounds: compared with NumPy, torch, transformers."""

from __future__ import annotations

import math
import types
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from hotshoe_core import ops
from hotshoe_core.contract.backend import Backend
from hotshoe_core.eager.reference import open_reference
from hotshoe_core.errors import DTypeError, ShapeError
from hotshoe_core.ops import RoPE
from hotshoe_core.ops.bounds import are_distinct, are_within, upper_bound
from hotshoe_core.tensors.dtypes import DType
from hotshoe_core.tensors.tensor import TABLE, Tensor, constant

Array = np.ndarray[Any, Any]
I32 = DType.I32


@pytest.fixture(name="backend")
def _backend() -> Iterator[Backend]:
    with open_reference() as backend:
        yield backend


def run(backend: Backend, function: Callable[..., Tensor], *arrays: Array, **attrs: Any) -> Array:
    """The result of the backend; for a composite, the reference backend runs its decomposition."""
    with backend.new_context() as ctx, np.errstate(all="ignore"):
        tensors = [ctx.input(f"x{i}", a.shape, DType.of(a)) for i, a in enumerate(arrays)]
        y = function(*tensors, **attrs)
        return ctx.forward(y).compute(dict(zip(tensors, arrays))).read(y)


def normal(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng((seed, *shape)).standard_normal(shape, np.float32)


def close(got: Array, want: Any, tolerance: float = 1e-5) -> None:
    want = np.asarray(want)
    assert got.shape == want.shape
    np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance)


SPECIAL = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.5, 2.5, 3.5, -0.5, 0.49999997, 8388609.0], np.float32)
PAIRS = np.array([(a, b) for a in SPECIAL for b in SPECIAL], np.float32).T


@pytest.mark.parametrize(
    "name",
    [
        "equal", "not_equal", "less", "less_equal", "greater", "greater_equal", "minimum", "maximum", "mod",
        "floor_divide", "add", "sub", "mul",
    ],
)  # fmt: skip
def test_binary_ops_are_numpys(backend: Backend, name: str) -> None:
    oracle = getattr(np, {"sub": "subtract", "mul": "multiply", "add": "add"}.get(name, name))
    a, b = PAIRS
    with np.errstate(all="ignore"):
        want = oracle(a, b)
    np.testing.assert_array_equal(run(backend, TABLE[name], a, b), want.astype(np.float32))
    whole = np.array([(a, b) for a in (-7, -1, 0, 2, 2**31 - 1, -(2**31)) for b in (-3, -1, 1, 2, 5)], np.int32).T
    with np.errstate(all="ignore"):
        want = oracle(*whole)
    got = run(backend, TABLE[name], *whole)
    assert got.dtype == (np.float32 if want.dtype == bool else np.int32)
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize(
    ("name", "oracle"),
    [("floor", np.floor), ("ceil", np.ceil), ("round", np.round), ("sign", np.sign), ("abs", np.abs)],
)
def test_rounding_is_numpys(backend: Backend, name: str, oracle: Callable[[Array], Array]) -> None:
    np.testing.assert_array_equal(run(backend, TABLE[name], SPECIAL), oracle(SPECIAL))


def test_where_ignores_the_operand_that_is_not_selected(backend: Backend) -> None:
    condition = np.array([[1.0], [0.0], [np.nan], [-0.0]], np.float32)
    a, b = SPECIAL[:7], normal(4, 1)
    np.testing.assert_array_equal(run(backend, ops.where, condition, a, b), np.where(condition, a, b))


@pytest.mark.parametrize(
    ("expression", "oracle"),
    [
        (lambda i: i + 2, lambda i: i + 2),
        (lambda i: 3 - i, lambda i: 3 - i),
        (lambda i: i * -4, lambda i: i * -4),
        (lambda i: -i, lambda i: -i),
        (lambda i: i // 3, lambda i: i // 3),
        (lambda i: i % -3, lambda i: i % -3),
        (abs, np.abs),
        (lambda i: i.clamp(-2, 3), lambda i: np.clip(i, -2, 3)),
        (lambda i: i.clamp(min=0), lambda i: np.maximum(i, 0)),
        (lambda i: i.minimum(2), lambda i: np.minimum(i, 2)),
        (lambda i: i < 2, lambda i: (i < 2).astype("f4")),
        (lambda i: i >= 2, lambda i: (i >= 2).astype("f4")),
        (lambda i: i.equal(-3), lambda i: (i == -3).astype("f4")),
    ],
)
@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_integer_methods(
    backend: Backend, dtype: Any, expression: Callable[[Tensor], Tensor], oracle: Callable[[Array], Array]
) -> None:
    i = np.array([[-7, -3, 0], [2, 3, 40]], dtype)
    got, want = run(backend, expression, i), oracle(i)
    assert got.dtype == want.dtype
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("name", ["sum", "mean", "max", "min", "variance"])
@pytest.mark.parametrize("axis", [None, (), 0, -2, (0, 2), (1, -1)])
@pytest.mark.parametrize("keepdims", [False, True])
def test_reductions_are_numpys(backend: Backend, name: str, axis: Any, keepdims: bool) -> None:
    x = normal(2, 3, 4)
    want = getattr(np, {"variance": "var"}.get(name, name))(x, axis=axis, keepdims=keepdims)
    close(run(backend, TABLE[name], x, axis=axis, keepdims=keepdims), want)


def test_ties_and_nan(backend: Backend) -> None:
    x = np.array([[1, 3, 3, 0], [2, 2, 2, 2], [np.nan, 5, np.nan, 9]], np.float32)
    np.testing.assert_array_equal(run(backend, ops.argmax, x), np.argmax(x, -1))
    np.testing.assert_array_equal(run(backend, ops.argmin, x), np.argmin(x, -1))


@pytest.mark.parametrize(
    ("expression", "oracle"),
    [
        (lambda x: x.tile(2), lambda x: np.tile(x, 2)),
        (lambda x: x.tile(2, 1, 3, 1), lambda x: np.tile(x, (2, 1, 3, 1))),
        (lambda x: x.repeat(3, 1), lambda x: np.repeat(x, 3, 1)),
        (lambda x: x.repeat(2), lambda x: np.repeat(x, 2, -1)),
        (lambda x: x.roll(5), lambda x: np.roll(x, 5, -1)),
        (lambda x: x.roll(-1, 0), lambda x: np.roll(x, -1, 0)),
        (lambda x: x.roll(0, 1), lambda x: np.roll(x, 0, 1)),
        (lambda x: x.flip(), np.flip),
        (lambda x: x.flip((0, -1)), lambda x: np.flip(x, (0, -1))),
        (lambda x: x.tril(), np.tril),
        (lambda x: x.tril(-2), lambda x: np.tril(x, -2)),
        (lambda x: x.triu(1), lambda x: np.triu(x, 1)),
        (lambda x: x[0, 0].diag(), lambda x: np.diag(x[0, 0])),
        (lambda x: ops.stack(x, x, axis=1), lambda x: np.stack([x, x], 1)),
        (lambda x: ops.stack(x, x, x, axis=-1), lambda x: np.stack([x, x, x], -1)),
    ],
)
@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.int32])
def test_arranging_is_numpys(
    backend: Backend, dtype: Any, expression: Callable[[Tensor], Tensor], oracle: Callable[[Array], Array]
) -> None:
    x = (normal(2, 3, 4) * 9).astype(dtype)
    got, want = run(backend, expression, x), oracle(x)
    np.testing.assert_array_equal(got, want)
    assert expression(backend.new_context().input("x", x.shape, DType.of(x))).shape == want.shape


def test_diagonals_and_triangles_of_values_that_are_not_finite(backend: Backend) -> None:
    x = np.full((3, 3), np.inf, np.float32)
    np.testing.assert_array_equal(run(backend, ops.tril, x), np.tril(x))
    np.testing.assert_array_equal(run(backend, ops.diag, x[0]), np.diag(x[0]))


@pytest.mark.parametrize(
    "key", [np.s_[1], np.s_[1:3], np.s_[::2, 1:], np.s_[..., -1], np.s_[2, ..., 0], np.s_[:, None, 1], np.s_[...]]
)
def test_set_over_a_slice(backend: Backend, key: Any) -> None:
    x = normal(4, 3, 5)
    values = normal(*x[key].shape, seed=1)
    for given in (values, np.float32(7)):
        want = x.copy()
        want[key] = given
        np.testing.assert_array_equal(run(backend, lambda x, v: x.set(key, v), x, np.asarray(given)), want)
    whole = (x * 9).astype(np.int32)
    want = whole.copy()
    want[key] = -1
    np.testing.assert_array_equal(run(backend, lambda x: x.set(key, -1), whole), want)


def test_set_refuses_what_does_not_fit(backend: Backend) -> None:
    ctx = backend.new_context()
    x, ids = ctx.input("x", (4, 3)), ctx.input("ids", (4,), I32)
    with pytest.raises(ShapeError, match="do not broadcast"):
        x.set(np.s_[1:3], ctx.input("v", (3, 3)))
    with pytest.raises(DTypeError, match="I32"):
        ids.set(0, x[0, 0])
    with pytest.raises(ShapeError, match="out of range"):
        x.set(np.s_[7], 0.0)


def test_group_norm(backend: Backend) -> None:
    torch = pytest.importorskip("torch", reason="the oracle")
    for shape in ((2, 6), (2, 6, 5), (2, 6, 3, 4)):
        x, w, b = normal(*shape), normal(6, seed=1), normal(6, seed=2)
        tx, tw, tb = map(torch.from_numpy, (x, w, b))
        for n in (1, 2, 6) if len(shape) > 2 else (1, 2):
            want = torch.nn.functional.group_norm(tx, n, tw, tb, 1e-3)
            close(run(backend, ops.group_norm, x, w, b, n_groups=n, eps=1e-3), want)
            close(run(backend, ops.group_norm, x, n_groups=n), torch.nn.functional.group_norm(tx, n))


@pytest.mark.parametrize("upper", [False, True])
@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize("unitriangular", [False, True])
def test_solve_triangular(backend: Backend, upper: bool, left: bool, unitriangular: bool) -> None:
    torch = pytest.importorskip("torch", reason="the oracle")
    a = normal(2, 3, 4, 4) + 4 * np.eye(4, dtype=np.float32)
    b = normal(2, 3, 4, 5) if left else normal(2, 3, 5, 4)
    options = {"upper": upper, "left": left, "unitriangular": unitriangular}
    want = torch.linalg.solve_triangular(torch.from_numpy(a), torch.from_numpy(b), **options)
    close(run(backend, ops.solve_triangular, a, b, **options), want, 1e-4)


def test_clamped_swiglu_is_gpt_oss(backend: Backend) -> None:
    torch = pytest.importorskip("torch", reason="the oracle")
    modeling = pytest.importorskip("transformers.models.gpt_oss.modeling_gpt_oss", reason="the oracle")
    gate, up = 5 * normal(6, 8), 5 * normal(6, 8, seed=1)
    experts = modeling.GptOssExperts.__new__(modeling.GptOssExperts)
    torch.nn.Module.__init__(experts)
    experts.alpha, experts.limit = 1.702, 7.0
    if not hasattr(experts, "_apply_gate"):
        pytest.skip("this transformers has the activation inside the layer")
    both = torch.from_numpy(np.stack([gate, up], -1).reshape(6, 16))  # interleaved
    close(run(backend, ops.clamped_swiglu, gate, up), experts._apply_gate(both))


def test_experts_biases_and_one_hot(backend: Backend) -> None:
    x, bias = normal(5, 2, 8), normal(4, 8, seed=1)
    chosen = np.array([[0, 2], [1, 1], [2, 0], [3, 1], [0, 3]], np.int32)
    close(run(backend, ops.add_experts, x, bias, chosen), x + bias[chosen])
    np.testing.assert_array_equal(run(backend, ops.one_hot, chosen, n=4), np.eye(4, dtype=np.float32)[chosen])
    np.testing.assert_array_equal(run(backend, ops.one_hot, chosen, n=2)[0], [[1, 0], [0, 0]])


def test_constants() -> None:
    np.testing.assert_array_equal(ops.arange(5).attrs["value"], np.arange(5, dtype=np.int32))
    np.testing.assert_array_equal(ops.arange(1, 2, 0.25, dtype=DType.F32).attrs["value"], np.arange(1, 2, 0.25))
    assert ops.zeros((2, 3)).shape == ops.ones((2, 3)).shape == ops.full((2, 3), 7).shape == (2, 3)
    assert ops.full((2, 3), 7, dtype=I32).dtype is I32
    with pytest.raises(ShapeError, match="step is 0"):
        ops.arange(1, 2, 0)
    with pytest.raises(DTypeError, match="Q8_0"):
        ops.zeros((2, 32), dtype=DType.Q8_0)


# Attention and RoPE


@pytest.mark.parametrize("batch", [(), (2,)])
def test_alibi(backend: Backend, batch: tuple[int, ...]) -> None:
    """The slopes and biases of BLOOM, through torch's attention."""
    torch = pytest.importorskip("torch", reason="the oracle")
    bloom = pytest.importorskip("transformers.models.bloom.modeling_bloom", reason="the oracle")
    n, heads = 6, 4
    q, k, v = (normal(*batch, n, heads, 8, seed=i) for i in range(3))
    alibi = bloom.build_alibi_tensor(torch.ones(1, n), heads, torch.float32).view(heads, 1, n)  # slope * position
    slopes = alibi[:, 0, 1].numpy()
    ahead = np.arange(n) - np.arange(n)[:, None]
    hidden = torch.from_numpy(np.where(ahead > 0, -np.inf, 0).astype(np.float32))
    tq, tk, tv = (torch.from_numpy(x).movedim(-2, -3) for x in (q, k, v))
    attend = torch.nn.functional.scaled_dot_product_attention
    want = attend(tq, tk, tv, attn_mask=alibi + hidden, scale=0.3).movedim(-2, -3)
    mask = np.where(ahead > 0, -np.inf, ahead).astype(np.float32)
    got = run(backend, lambda q, k, v, m, s: ops.attention(q, k, v, m, slopes=s, scale=0.3), q, k, v, mask, slopes)
    close(got, want)


def test_slopes_need_a_mask(backend: Backend) -> None:
    ctx = backend.new_context()
    q, slopes = ctx.input("q", (3, 2, 8)), ctx.input("slopes", (2,))
    with pytest.raises(ShapeError, match="`slopes` given without a `mask`"):
        ops.attention(q, q, q, slopes=slopes, scale=1.0)


def multimodal(x: Array, positions: Array, embedding: Any, *positions_shape: int, **rope: Any) -> Any:
    """x (n, heads, dim) rotated by transformers' rotary embedding of a Qwen-VL for these positions."""
    torch = pytest.importorskip("torch", reason="the oracle")
    llama = pytest.importorskip("transformers.models.llama.modeling_llama", reason="the oracle")
    parameters = {"rope_type": "default", "rope_theta": 10000.0, **rope}
    config = types.SimpleNamespace(rope_parameters=parameters, max_position_embeddings=256, head_dim=x.shape[-1])
    tx = torch.from_numpy(x).movedim(0, 1)[None]
    cos, sin = embedding(config)(tx, torch.from_numpy(positions).reshape(positions_shape))
    cos, sin = (t.reshape(1, len(x), -1) for t in (cos, sin))
    y, _ = llama.apply_rotary_pos_emb(tx, tx, cos, sin)
    return y[0].movedim(1, 0)


def qwen(module: str, name: str) -> Any:
    modeling = pytest.importorskip(f"transformers.models.{module}.modeling_{module}", reason="the oracle")
    if not hasattr(modeling, name):
        pytest.skip(f"this transformers has no {name}")
    return getattr(modeling, name)


POSITIONS = np.array([[0, 1, 5, 17, 63, 200], [3, 3, 3, 4, 4, 9], [0, 1, 2, 0, 1, 2]], np.int32)


def test_sections_are_qwen2_vl(backend: Backend) -> None:
    x, embedding = normal(6, 2, 16), qwen("qwen2_vl", "Qwen2VLRotaryEmbedding")
    want = multimodal(x, POSITIONS, embedding, 3, 1, 6, mrope_section=[2, 3, 3])
    close(run(backend, ops.rope, x, POSITIONS, config=RoPE(16, sections=(2, 3, 3))), want, 1e-4)


@pytest.mark.parametrize("sections", [(4, 2, 2), (3, 3, 2)])
def test_interleaved_sections_are_qwen3_vl(backend: Backend, sections: tuple[int, ...]) -> None:
    x, embedding = normal(6, 2, 16), qwen("qwen3_vl", "Qwen3VLTextRotaryEmbedding")
    want = multimodal(x, POSITIONS, embedding, 3, 1, 6, mrope_section=list(sections))
    config = RoPE(16, sections=sections, section_layout="interleaved")
    close(run(backend, ops.rope, x, POSITIONS, config=config), want, 1e-4)


def test_restarting_sections_are_qwen2_vls_vision(backend: Backend) -> None:
    x, embedding = normal(6, 2, 16), qwen("qwen2_vl", "Qwen2VLVisionRotaryEmbedding")
    want = multimodal(x, np.ascontiguousarray(POSITIONS[:2].T), embedding, 6, 2, rope_type="axial")
    config = RoPE(16, sections=(4, 4), section_layout="restarting")
    close(run(backend, ops.rope, x, POSITIONS[:2], config=config), want, 1e-4)


def test_one_section_is_plain_rope(backend: Backend) -> None:
    x, at = normal(6, 2, 16), POSITIONS[0]
    plain = run(backend, ops.rope, x, at, config=RoPE(16))
    np.testing.assert_array_equal(run(backend, ops.rope, x, at[None], config=RoPE(16, sections=(8,))), plain)
    same = np.stack([at, at])
    np.testing.assert_allclose(run(backend, ops.rope, x, same, config=RoPE(16, sections=(3, 5))), plain, atol=1e-6)


# Bounds


def test_bounds_of_indices(backend: Backend) -> None:
    ctx = backend.new_context()
    x, ids = ctx.input("x", (3, 7)), ctx.input("ids", (3,), I32)
    known = constant(np.array([2, 5], np.int32))
    some = [x.argmax(), x.argsort(), x.top_k(3), x.argmin(), x.top_k(3)[:, 1:].reshape(-1)]
    assert [upper_bound(t) for t in some[:3]] == [7, 7, 7]
    assert all(are_within(t, 7) for t in (some[0], some[1], some[4]))
    assert not are_within(some[0], 6)
    assert upper_bound(known) == 6
    assert upper_bound(constant(np.array([-1, 5], np.int32))) is None
    assert upper_bound(ids) is None
    assert are_within(ids, 1)  # compared when it is fed
    assert are_within(ids.reshape(1, 3)[:, 1:], 1)
    assert not are_within(ids + 1, 9)
    assert upper_bound((ids + 1).clamp(min=0, max=4)) == 5
    assert upper_bound((ids + 1).clamp(max=4)) is None
    assert upper_bound(ids % 5) == 5
    assert upper_bound(ids % -5) is None
    assert upper_bound(ids % ids) is None
    assert upper_bound(ops.concat(x.argmax(), known)) == 7
    assert upper_bound(ops.where(x[:, 0], x.argmax(), ids)) is None
    assert upper_bound(x.cast(DType.F16)) is None
    assert upper_bound(known.reshape(2, 1).take(ids)) == 6
    state = backend.state((3,), I32, "s")
    assert not are_within(state, 1 << 30)


def test_distinct_indices(backend: Backend) -> None:
    x = backend.new_context().input("x", (3, 7))
    for t in (x.argsort(), x.top_k(3), x.top_k(3)[:, 1:], x.argmax().reshape(3, 1)):
        assert are_distinct(t)
    for t in (x.argsort().reshape(21), x.argmax(), x.top_k(3) % 2, ops.concat(x.top_k(1), x.top_k(1), axis=-1)):
        assert not are_distinct(t)
    assert are_distinct(constant(np.array([[0, 1], [3, 0]], np.int32)))
    assert not are_distinct(constant(np.array([[0, 1], [3, 3]], np.int32)))


def test_constants_of_arange_stay_in_range() -> None:
    assert upper_bound(ops.arange(5)) == 5
    assert math.isclose(float(ops.full((2,), 0.5).sources[0].attrs["value"]), 0.5)  # type: ignore[union-attr]
