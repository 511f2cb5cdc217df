"""Each op compared with an oracle that shares no code with it: torch, transformers' rotary embeddings, or NumPy."""

from __future__ import annotations

import inspect
import math
import pydoc
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from hotshoe_core import ops
from hotshoe_core.contract.backend import Backend
from hotshoe_core.eager.reference import open_reference
from hotshoe_core.errors import DTypeError, GraphError, ShapeError
from hotshoe_core.ops import RoPE
from hotshoe_core.tensors.dtypes import DType
from hotshoe_core.tensors.op import Op
from hotshoe_core.tensors.tensor import TABLE, Tensor

Array = np.ndarray[Any, Any]
I32 = DType.I32


@pytest.fixture(name="backend")
def _backend() -> Iterator[Backend]:
    with open_reference() as backend:
        yield backend


def run(backend: Backend, function: Callable[..., Tensor], *arrays: Array, **attrs: Any) -> Array:
    with backend.new_context() as ctx:
        tensors = [ctx.input(f"x{i}", a.shape, DType.of(a)) for i, a in enumerate(arrays)]
        y = function(*tensors, **attrs)
        return ctx.forward(y).compute(dict(zip(tensors, arrays))).read(y)


def normal(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng((seed, *shape)).standard_normal(shape, np.float32)


def close(got: Array, want: Any, tolerance: float = 1e-5) -> None:
    np.testing.assert_allclose(got, np.asarray(want), rtol=tolerance, atol=tolerance)


# Elementwise


POSITIVE = ("sqrt", "rsqrt", "log", "reciprocal")
UNARY = (*POSITIVE, "exp", "sin", "cos", "tanh", "sigmoid", "softplus", "relu", "silu", "neg")


@pytest.mark.parametrize("name", UNARY)
def test_unary(backend: Backend, name: str) -> None:
    torch = pytest.importorskip("torch", reason="the oracle")
    x = np.linspace(0.01, 9, 50, dtype=np.float32)
    x = x if name in POSITIVE else np.concatenate([-x, x])
    oracle = getattr(torch, name, None) or getattr(torch.nn.functional, name)
    close(run(backend, TABLE[name], x), oracle(torch.from_numpy(x)))


@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_gelu(backend: Backend, approximate: str) -> None:
    torch = pytest.importorskip("torch", reason="the oracle")
    x = np.linspace(-6, 6, 301, dtype=np.float32)
    want = torch.nn.functional.gelu(torch.from_numpy(x), approximate=approximate)
    close(run(backend, ops.gelu, x, approximate=approximate), want, 2e-6)


def test_quick_gelu_is_what_clip_calls_it(backend: Backend) -> None:
    activations = pytest.importorskip("transformers.activations", reason="the oracle")
    torch = pytest.importorskip("torch", reason="the oracle")
    x = np.linspace(-6, 6, 301, dtype=np.float32)
    close(run(backend, ops.gelu, x, approximate="quick"), activations.ACT2FN["quick_gelu"](torch.from_numpy(x)), 2e-6)


@pytest.mark.parametrize(("op", "activation"), [(ops.swiglu, "silu"), (ops.reglu, "relu"), (ops.geglu, "gelu")])
def test_gated(backend: Backend, op: Op, activation: str) -> None:
    functional = pytest.importorskip("torch", reason="the oracle").nn.functional
    torch = pytest.importorskip("torch", reason="the oracle")
    gate, up = normal(3, 8), normal(3, 8, seed=1)
    options = {"approximate": "tanh"} if activation == "gelu" else {}
    close(run(backend, op, gate, up), getattr(functional, activation)(torch.from_numpy(gate), **options).numpy() * up)


@pytest.mark.parametrize(
    ("expression", "oracle"),
    [
        (lambda x: x + 2, lambda x: x + 2),
        (lambda x: 2 + x, lambda x: 2 + x),
        (lambda x: x - 2.5, lambda x: x - 2.5),
        (lambda x: 1 - x, lambda x: 1 - x),
        (lambda x: 3 * x, lambda x: 3 * x),
        (lambda x: x / 4, lambda x: x / 4),
        (lambda x: 4 / x, lambda x: 4 / x),
        (lambda x: -x, lambda x: -x),
        (lambda x: x - x.exp(), lambda x: x - np.exp(x)),
        (lambda x: x.clamp(-0.5, 0.5), lambda x: np.clip(x, -0.5, 0.5)),
        (lambda x: x.clamp(min=0.0), lambda x: np.maximum(x, 0)),
        (lambda x: x.stddev(0), lambda x: x.std(0)),
        (lambda x: x.variance(1, keepdims=True), lambda x: x.var(1, keepdims=True)),
        (lambda x: x.cumsum(), lambda x: x.cumsum(-1)),
        (lambda x: x.pad((1, 0), (0, 2)), lambda x: np.pad(x, ((1, 0), (0, 2)))),
        (lambda x: x.argmax(), lambda x: x.argmax(-1)),
        (lambda x: x.argsort(), lambda x: x.argsort(-1)),
        (lambda x: x.argsort(descending=True), lambda x: (-x).argsort(-1)),
        (lambda x: x.top_k(2), lambda x: (-x).argsort(-1)[:, :2]),
        (lambda x: x.T, lambda x: x.T),
        (lambda x: x[:, None].expand(2, 3, 2, 4), lambda x: np.broadcast_to(x[:, None], (2, 3, 2, 4))),
    ],
)  # fmt: skip
def test_tensor_methods(
    backend: Backend, expression: Callable[[Tensor], Tensor], oracle: Callable[[Array], Array]
) -> None:
    x = normal(3, 4)
    close(run(backend, expression, x), oracle(x))


# Products


@pytest.mark.parametrize(("a", "b"), [((3, 4), (4, 5)), ((2, 3, 4), (4, 5)), ((2, 1, 3, 4), (5, 4, 6))])
def test_matmul(backend: Backend, a: tuple[int, ...], b: tuple[int, ...]) -> None:
    x, y = normal(*a), normal(*b)
    want = np.einsum("...mk,...kn->...mn", x, y)
    close(run(backend, ops.matmul, x, y), want)
    close(run(backend, ops.matmul, x, np.ascontiguousarray(np.swapaxes(y, -1, -2)), transpose=True), want)


def test_linear_and_experts(backend: Backend) -> None:
    x, w = normal(5, 2, 8), normal(6, 8)
    close(run(backend, ops.linear, x, w), np.einsum("nki,oi->nko", x, w))
    experts, weight = np.array([[0, 2], [1, 1], [2, 0], [3, 1], [0, 3]], np.int32), normal(4, 6, 8)
    close(run(backend, ops.linear_experts, x, weight, experts), np.einsum("nki,nkoi->nko", x, weight[experts]))


def test_rows(backend: Backend) -> None:
    x, at, rows = normal(6, 3), np.array([4, 0], np.int32), normal(2, 3)
    want = x.copy()
    want[at] = rows
    close(run(backend, ops.set_rows, x, at, rows), want)
    close(run(backend, ops.take, x, at), x[at])


# Norms


def test_norms(backend: Backend) -> None:
    torch = pytest.importorskip("torch", reason="the oracle")
    f = torch.nn.functional
    x, w, b = normal(2, 3, 8), normal(8, seed=1), normal(8, seed=2)
    tx, tw, tb = map(torch.from_numpy, (x, w, b))
    close(run(backend, ops.rms_norm, x, w, eps=1e-3), f.rms_norm(tx, (8,), tw, 1e-3))
    close(run(backend, ops.rms_norm, x, eps=1e-3), f.rms_norm(tx, (8,), None, 1e-3))
    close(run(backend, ops.layer_norm, x, w, b, eps=1e-3), f.layer_norm(tx, (8,), tw, tb, 1e-3))
    close(run(backend, ops.l2_norm, x), f.normalize(tx, dim=-1))
    close(run(backend, ops.softmax, x, scale=0.7), f.softmax(tx * 0.7, dim=-1))


# Attention


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("batch", [(), (2,)])
def test_attention(backend: Backend, kv_heads: int, masked: bool, batch: tuple[int, ...]) -> None:
    torch = pytest.importorskip("torch", reason="the oracle")
    q, k, v = normal(*batch, 5, 4, 8), normal(*batch, 7, kv_heads, 8, seed=1), normal(*batch, 7, kv_heads, 6, seed=2)
    hidden = np.triu(np.full((5, 7), -np.inf, np.float32), 3)
    tq, tk, tv = (torch.from_numpy(x).movedim(-2, -3) for x in (q, k, v))
    tk, tv = (x.repeat_interleave(4 // kv_heads, dim=-3) for x in (tk, tv))
    mask = torch.from_numpy(hidden) if masked else None
    want = torch.nn.functional.scaled_dot_product_attention(tq, tk, tv, attn_mask=mask, scale=0.3).movedim(-2, -3)
    close(run(backend, ops.attention, q, k, v, *((hidden,) if masked else ()), scale=0.3), want)


def plain_attention(q: Array, k: Array, v: Array, scale: float, softcap: float, sinks: Array | None) -> Array:
    """One query and one head at a time, in float64."""
    out = np.zeros((*q.shape[:-1], v.shape[-1]))
    group = q.shape[1] // k.shape[1]
    for i, h in np.ndindex(q.shape[:2]):
        scores = k[:, h // group].astype(float) @ q[i, h] * scale
        scores = softcap * np.tanh(scores / softcap) if softcap else scores
        e, rest = np.exp(scores), 0.0 if sinks is None else math.exp(sinks[h])
        out[i, h] = e @ v[:, h // group] / (e.sum() + rest)
    return out


@pytest.mark.parametrize("softcap", [0.0, 1.5])
@pytest.mark.parametrize("sinks", [None, normal(4, seed=9)], ids=["plain", "sinks"])
def test_softcap_and_sinks(backend: Backend, softcap: float, sinks: Array | None) -> None:
    q, k, v = normal(3, 4, 8), normal(5, 2, 8, seed=1), normal(5, 2, 8, seed=2)
    mask = np.zeros((3, 5), np.float32)
    extra = () if sinks is None else (mask, sinks)
    got = run(backend, ops.attention, q, k, v, *extra, scale=0.4, softcap=softcap)
    close(got, plain_attention(q, k, v, 0.4, softcap, sinks))


# Rotary embeddings


def rotated(x: Array, positions: Array, inverse_frequencies: Any, magnitude: float = 1.0) -> Array:
    """transformers' apply_rotary_pos_emb; x is (n, heads, dim)."""
    torch = pytest.importorskip("torch", reason="the oracle")
    llama = pytest.importorskip("transformers.models.llama.modeling_llama", reason="the oracle")
    angles = torch.from_numpy(positions).float()[:, None] * torch.as_tensor(inverse_frequencies).float()
    both = torch.cat([angles, angles], -1)[None]
    tx = torch.from_numpy(x).movedim(0, 1)[None]
    y, _ = llama.apply_rotary_pos_emb(tx, tx, both.cos() * magnitude, both.sin() * magnitude)
    result: Array = y[0].movedim(1, 0).numpy()
    return result


def parameters(kind: str, **rope: Any) -> tuple[Any, float]:
    """Inverse frequencies and magnitude by transformers, for heads of 16 and θ 10000."""
    transformers = pytest.importorskip("transformers", reason="the oracle")
    utils = pytest.importorskip("transformers.modeling_rope_utils", reason="the oracle")
    config = transformers.LlamaConfig(
        hidden_size=32, num_attention_heads=2, head_dim=16, max_position_embeddings=rope.pop("longest", 64),
        rope_parameters={"rope_type": kind, "rope_theta": 10000.0, **rope},
    )  # fmt: skip
    return utils.ROPE_INIT_FUNCTIONS[kind](config, "cpu")  # type: ignore[no-any-return]


X, POSITIONS = normal(6, 2, 16), np.array([0, 1, 5, 17, 63, 200], np.int32)
PLAIN = 10000.0 ** (-np.arange(0, 16, 2) / 16)


def test_rope(backend: Backend) -> None:
    close(run(backend, ops.rope, X, POSITIONS, config=RoPE(16)), rotated(X, POSITIONS, PLAIN), 1e-4)


def test_rope_interpolated(backend: Backend) -> None:
    frequencies, _ = parameters("linear", factor=4.0)
    close(run(backend, ops.rope, X, POSITIONS, config=RoPE(16, scale=0.25)), rotated(X, POSITIONS, frequencies), 1e-4)


@pytest.mark.parametrize("truncate", [True, False])
def test_rope_yarn(backend: Backend, truncate: bool) -> None:
    scaling = {"factor": 4.0, "original_max_position_embeddings": 64, "truncate": truncate}
    frequencies, magnitude = parameters("yarn", longest=256, **scaling)
    config = RoPE(16, scale=0.25, ext_factor=1.0, original_context=64, truncate=truncate)
    np.testing.assert_allclose(config.frequencies(), frequencies, rtol=1e-5)
    assert config.magnitude() == pytest.approx(magnitude)
    assert not np.allclose(frequencies, PLAIN)
    close(run(backend, ops.rope, X, POSITIONS, config=config), rotated(X, POSITIONS, frequencies, magnitude), 1e-4)


def test_rope_llama3_factors(backend: Backend) -> None:
    scaling = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}
    frequencies, _ = parameters("llama3", longest=512, **scaling)
    factors = (PLAIN / np.asarray(frequencies)).astype(np.float32)  # what a GGUF file carries as rope_freqs
    assert factors.max() > 2
    got = run(backend, ops.rope, X, POSITIONS, factors, config=RoPE(16))
    close(got, rotated(X, POSITIONS, frequencies), 1e-4)


def test_rope_interleaved_is_the_same_rotation_of_other_pairs(backend: Backend) -> None:
    """Pair i is a complex number, turned by its angle (Su et al. 2021, eq. 34)."""
    got = run(backend, ops.rope, X, POSITIONS, config=RoPE(16, interleaved=True))
    turned = X.view(np.complex64) * np.exp(1j * POSITIONS[:, None, None] * PLAIN)
    close(got, turned.astype(np.complex64).view(np.float32), 1e-4)


def test_rope_of_part_of_a_head_and_of_a_batch(backend: Backend) -> None:
    got = run(backend, ops.rope, X, POSITIONS, config=RoPE(8))
    close(got[..., 8:], X[..., 8:])
    frequencies = 10000.0 ** (-np.arange(0, 8, 2) / 8)
    close(got[..., :8], rotated(np.ascontiguousarray(X[..., :8]), POSITIONS, frequencies), 1e-4)
    batch, at = np.stack([X, X[::-1]]), np.stack([POSITIONS, POSITIONS[::-1]])
    both = run(backend, ops.rope, batch, at, config=RoPE(16))
    close(both[0], rotated(X, POSITIONS, PLAIN), 1e-4)
    close(both[1], both[0][::-1])


# What is refused


@pytest.mark.parametrize("op", ["softmax", "cumsum", "argsort", "argmax", "l2_norm", "top_k", "rms_norm", "layer_norm"])
def test_ops_over_the_last_axis_need_one(backend: Backend, op: str) -> None:
    x = backend.new_context().input("x", ())
    options: dict[str, dict[str, Any]] = {"top_k": {"k": 1}, "rms_norm": {"eps": 1e-5}, "layer_norm": {"eps": 1e-5}}
    with pytest.raises(ShapeError, match="axis"):
        TABLE[op](x, **options.get(op, {}))


def test_integers_take_part_in_integer_arithmetic_only(backend: Backend) -> None:
    ctx = backend.new_context()
    ids, longs, x = ctx.input("ids", (3,), I32), ctx.input("longs", (3,), DType.I64), ctx.input("x", (3,))
    expressions: list[Callable[[], Tensor]] = [
        lambda: ids * 2.5, lambda: ids / 2, lambda: ids + x, lambda: ids + longs, lambda: ids < x,
        lambda: ops.where(x, ids, x), ids.exp, ids.softmax, ids.sum, lambda: ids.clamp(min=0.5),
    ]  # fmt: skip
    for expression in expressions:
        with pytest.raises(DTypeError, match=r"I32\[3\]"):
            expression()
    assert (ids * 2).dtype is (1 - ids).dtype is abs(-ids).dtype is (ids // 2 % 3).dtype is I32


def test_operands_by_name(backend: Backend) -> None:
    ctx = backend.new_context()
    x, bias = ctx.input("x", (3, 4)), ctx.input("bias", (4,))
    assert ops.layer_norm(x, bias=bias, eps=1e-5).sources == (x, None, bias)
    assert ops.layer_norm(x=x, eps=1e-5).sources == (x, None, None)
    with pytest.raises(GraphError, match="takes"):
        ops.layer_norm(weight=bias, eps=1e-5)
    for number in (1, np.int64(1), 1.0):
        with pytest.raises(GraphError, match=r"softmax: got (int|int64|float), expected a Tensor") as caught:
            x.softmax(number)  # type: ignore[arg-type]
        assert str(caught.value.hint).startswith("give scale by name: softmax(x, scale=…). Softmax of ")
    with pytest.raises(GraphError, match="got int") as caught:
        ops.exp(1)  # type: ignore[arg-type]
    assert str(caught.value.hint).startswith("give tensors only: exp(x). ")
    with pytest.raises(GraphError, match="operand x twice"):
        ops.layer_norm(x, x=x, eps=1e-5)
    with pytest.raises(GraphError, match="no attribute gain"):
        ops.layer_norm(x, gain=bias, eps=1e-5)


@pytest.mark.parametrize(
    ("op", "attrs"),
    [
        ("l2_norm", {"eps": -1.0}),
        ("rms_norm", {"eps": math.nan}),
        ("layer_norm", {"eps": math.inf}),
        ("softmax", {"scale": math.nan}),
        ("clamp", {"min": math.nan}),
        ("clamp", {"min": 1.0, "max": 0.0}),
        ("affine", {"scale": math.nan, "bias": 0.0}),
        ("group_norm", {"n_groups": 3}),
        ("group_norm", {"n_groups": 2, "eps": -1e-5}),
        ("sum", {"axis": (0, 0)}),
        ("sum", {"axis": (0, -2)}),
        ("max", {"axis": 2}),
        ("tile", {"reps": (0,)}),
        ("repeat", {"repeats": 0}),
        ("roll", {"shift": 1, "axis": 2}),
    ],
)
def test_attributes_are_checked(backend: Backend, op: str, attrs: dict[str, Any]) -> None:
    x = backend.new_context().input("x", (3, 4))
    with pytest.raises(ShapeError, match=rf"{op}\(x F32\[3, 4\]"):
        TABLE[op](x, **attrs)


@pytest.mark.parametrize(
    ("op", "attrs"),
    [
        ("top_k", {"k": 2.5}),
        ("top_k", {"k": 10**30}),
        ("concat", {"axis": None}),
        ("concat", {"axis": 2**63}),
        ("sum", {"axis": "last"}),
        ("sum", {"axis": (0.5,)}),
        ("sum", {"keepdims": "no"}),
        ("softmax", {"scale": "1"}),
        ("softmax", {"scale": 1e300}),
        ("rms_norm", {"eps": None}),
        ("rms_norm", {"eps": 10**400}),
        ("reshape", {"shape": (3, 4.0)}),
        ("reshape", {"shape": 12}),
        ("permute", {"axes": ("1", "0")}),
        ("pad", {"widths": (1, 1)}),
        ("pad", {"widths": ((1, 1), (1,))}),
        ("slice", {"slices": ((0, 2), (0, 2))}),
        ("gelu", {"approximate": "tan"}),
        ("cast", {"dtype": "f16"}),
        ("expand", {"shape": (2**46, 3, 4)}),
        ("tile", {"reps": (2**25, 2**25)}),
        ("im2col", {"kernel_size": None}),
        ("rope", {"config": 8}),
        ("gelu", {"approximate": []}),
    ],
)
def test_attributes_of_another_type_or_beyond_native_code_are_refused(
    backend: Backend, op: str, attrs: dict[str, Any]
) -> None:
    ctx = backend.new_context()
    x = ctx.input("x", (3, 4))
    operands = (x.reshape(1, 3, 4), ctx.input("at", (1,), I32)) if op == "rope" else (x,)
    with pytest.raises((ShapeError, DTypeError), match=rf"{op}\(x F32.*: .*(expected|more than|got)"):
        TABLE[op](*operands, **attrs)


def test_numbers_of_numpy_are_attributes_too(backend: Backend) -> None:
    x = normal(3, 4)
    got = run(backend, lambda t: ops.softmax(t.sum(np.int64(0), keepdims=np.True_), scale=np.float32(0.5)), x)
    assert got.shape == (1, 4)
    np.testing.assert_array_equal(run(backend, lambda t: t.top_k(np.int32(2)), x), np.argsort(-x, -1)[:, :2])


def test_limits_beyond_an_integer_type(backend: Backend) -> None:
    x = np.array([-7, 0, 2**31 - 1], np.int32)
    np.testing.assert_array_equal(run(backend, lambda t: t.clamp(2**40, 2**62), x), np.full(3, 2**31 - 1))
    np.testing.assert_array_equal(run(backend, lambda t: t.clamp(-(2**62), -(2**40)), x), np.full(3, -(2**31)))


def test_take_along_needs_indices_with_the_axis(backend: Backend) -> None:
    ctx = backend.new_context()
    with pytest.raises(ShapeError, match="agree in all axes"):
        ctx.input("x", (5,)).take_along(ctx.input("at", (), I32))


def test_none_cannot_be_joined(backend: Backend) -> None:
    x = backend.new_context().input("x", (3, 4))
    with pytest.raises(GraphError, match="stack needs one tensor or more, and only tensors; got None among 2"):
        ops.stack(None, x)


def test_a_state_has_whole_blocks(backend: Backend) -> None:
    with pytest.raises(ShapeError, match="multiple of 32"):
        backend.state((3, 4), DType.Q4_0, "s")
    with pytest.raises(ShapeError, match=r"2\^48"):
        backend.state((2**40, 2**40), DType.F32, "s")


@pytest.mark.parametrize(
    "config",
    [
        RoPE(8, base=1.0, ext_factor=1.0, original_context=64),
        RoPE(8, beta_fast=0.0, ext_factor=1.0, original_context=64),
        RoPE(8, original_context=2**40),
        RoPE(8, section_layout="other"),  # type: ignore[arg-type]
        RoPE(8.0),  # type: ignore[arg-type]
        RoPE(8, base="10000"),  # type: ignore[arg-type]
        RoPE(8, base=math.nan),
        RoPE(8, scale=0.0),
        RoPE(7),
        RoPE(8, sections=(1, 1)),
        RoPE(8, sections=(5, -1)),
        RoPE(8, sections=(1, 3), section_layout="interleaved"),
        RoPE(8, sections=(2, 2), section_layout="restarting", ext_factor=1.0, original_context=64),
    ],
    ids=str,
)
def test_rope_configurations_are_checked(backend: Backend, config: RoPE) -> None:
    ctx = backend.new_context()
    x, positions = ctx.input("x", (3, 2, 8)), ctx.input("positions", (2, 3) if config.sections else (3,), I32)
    with pytest.raises(ShapeError, match="rope"):
        ops.rope(x, positions, config=config)


def test_every_row_of_the_table_says_what_it_does() -> None:
    assert len(TABLE) > 40
    for op in TABLE.values():
        assert op.__doc__
        assert len(op.__doc__) > 3, op
        assert repr(op).startswith(f"<{'composite' if op.composite else 'primitive'} op {op.name}(")


def test_the_package_exports_every_op_and_no_helper() -> None:
    assert TABLE.keys() <= {name.rstrip("_") for name in ops.__all__}
    assert not {"np", "math", "Array", "Sizes", "primitive"} & vars(ops).keys()


def test_help_shows_the_op() -> None:
    text = pydoc.plain(pydoc.render_doc(ops.rms_norm))
    assert "rms_norm(x, weight=None, *, eps)" in text
    assert "Zhang & Sennrich 2019" in text
    assert "hotshoe_core.ops.reduce" in text
    assert inspect.getdoc(ops.rms_norm) == inspect.getdoc(ops.rms_norm.body)
    signature = inspect.signature(ops.rms_norm)
    assert list(signature.parameters) == ["x", "weight", "eps"]
    assert signature.parameters["weight"].default is None
    assert signature.parameters["weight"].annotation == "Tensor | None"
    assert inspect.signature(ops.add).parameters["a"].annotation == "Tensor"  # its body is over arrays


def test_which_operands_are_indices() -> None:
    found = {op.name: op.indexed for op in TABLE.values() if op.indexed}
    assert found == {
        "take": ((0, 1, 0),),
        "take_along": ((0, 1, -1),),
        "cached_attention": ((1, 3, 0),),
        "set_rows": ((0, 1, 0),),
        "linear_experts": ((1, 2, 0),),
        "add_experts": ((1, 2, 0),),
    }
    assert {op.name for op in TABLE.values() if op.movement} == {"reshape", "permute", "expand", "slice"}
    assert {op.name for op in TABLE.values() if op.overwrites} == {"set_rows", "set_slice"}
