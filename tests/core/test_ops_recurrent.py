"""Recurrences compared with transformers, or with the formulas of the papers in torch."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from hotshoe_core import ops
from hotshoe_core.eager.reference import open_reference
from hotshoe_core.errors import DTypeError, ShapeError
from hotshoe_core.graphs.graph import Graph, lower
from hotshoe_core.ops import Recurrence
from hotshoe_core.tensors.dtypes import DType
from hotshoe_core.tensors.tensor import TABLE, Tensor
from tests.support.ops import Array, error, normal, run

torch = pytest.importorskip("torch", reason="the oracle")

TIMES = (1, 2, 7, 64, 130)


def decomposed(function: Callable[..., Recurrence], *arrays: Array, **attrs: Any) -> list[Array]:
    """The result of the decomposition."""
    with open_reference() as backend, backend.new_context() as ctx:
        tensors = [ctx.input(f"x{i}", a.shape) for i, a in enumerate(arrays)]
        outputs = function(*tensors, **attrs)
        graph, now = lower(Graph.trace(outputs), lambda node: not TABLE[node.op].composite)
        executable = backend.compile(graph)
        for t, a in zip(tensors, arrays):
            executable.write(t, a)
        executable.run()
        got = [np.empty(t.shape, np.float32) for t in outputs]
        for t, a in zip(outputs, got):
            executable.read(now[t], a)
        return got


def check(function: Callable[..., Recurrence], arrays: Sequence[Array], want: Sequence[Any], **attrs: Any) -> None:
    want = [w.numpy() for w in want]
    assert error(run(function, *arrays, **attrs), want) < 1e-5
    assert error(decomposed(function, *arrays, **attrs), want) < 1e-5


def tensors(*arrays: Array) -> list[Any]:
    return [torch.from_numpy(a.copy()) for a in arrays]


# State space models


@pytest.mark.parametrize("t", TIMES)
@pytest.mark.parametrize("kernel", [2, 4])
def test_ssm_conv(kernel: int, t: int) -> None:
    x, state, weight, bias = normal(2, t, 6), normal(2, kernel - 1, 6), normal(6, kernel), normal(6)
    seen = torch.from_numpy(np.concatenate([state, x], 1)).transpose(1, 2)
    want = torch.nn.functional.conv1d(seen, torch.from_numpy(weight)[:, None], torch.from_numpy(bias), groups=6)
    assert error(run(ops.ssm_conv, x, state, weight, bias), [want.transpose(1, 2)]) < 1e-6
    assert error(run(ops.ssm_conv, x, state, weight), [want.transpose(1, 2) - torch.from_numpy(bias)]) < 1e-6


def scan_operands(t: int, heads: int, head_dim: int, groups: int, per_state: bool) -> list[Array]:
    n, d_state = 2, 5
    a = -np.exp(normal(*((heads, d_state) if per_state else (heads,))))
    dt = np.abs(normal(n, t, heads, seed=1))
    b, c = normal(n, t, groups, d_state, seed=2), normal(n, t, groups, d_state, seed=3)
    return [normal(n, t, heads, head_dim), dt, a, b, c, normal(n, heads, head_dim, d_state)]


@pytest.mark.parametrize("t", TIMES)
@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("softplus", [False, True])
def test_ssm_scan_of_mamba2(softplus: bool, groups: int, t: int) -> None:
    mamba2 = pytest.importorskip("transformers.models.mamba2.modeling_mamba2", reason="the oracle")
    if not hasattr(mamba2, "mamba2_chunk_scan"):
        pytest.skip("this transformers has no mamba2_chunk_scan")
    arrays = scan_operands(t, 6, 4, groups, per_state=False)
    x, dt, a, b, c, state = tensors(*arrays)
    want = inspect.unwrap(mamba2.mamba2_chunk_scan)(
        x, dt, a, b, c, 4, initial_states=state, dt_softplus=softplus, return_final_states=True
    )
    check(ops.ssm_scan, arrays, want, dt_softplus=softplus)
    arrays[2] = arrays[2][:, None]  # as a GGUF file has it
    check(ops.ssm_scan, arrays, want, dt_softplus=softplus)


@pytest.mark.parametrize("softplus", [False, True])
def test_ssm_scan_of_mamba(softplus: bool) -> None:
    """The heads are channels, and each element of the state has its own decay."""
    mamba = pytest.importorskip("transformers.models.mamba.modeling_mamba", reason="the oracle")
    if not hasattr(mamba, "mamba_selective_scan"):
        pytest.skip("this transformers has no mamba_selective_scan")
    arrays = scan_operands(7, 6, 1, 1, per_state=True)
    arrays[5] *= 0  # theirs begins with nothing
    x, dt, a, b, c, _ = tensors(*arrays)
    y, state = mamba.mamba_selective_scan(
        x[..., 0].transpose(1, 2), dt.transpose(1, 2), a, b[:, :, 0].transpose(1, 2), c[:, :, 0].transpose(1, 2),
        delta_softplus=softplus, return_last_state=True,
    )  # fmt: skip
    check(ops.ssm_scan, arrays, (y.transpose(1, 2)[..., None], state[:, :, None]), dt_softplus=softplus)


def test_ssm_scan_with_a_decay_for_each_element_of_the_state() -> None:
    """One step of Mamba with heads of several channels, which share a row of A."""
    mamba = pytest.importorskip("transformers.models.mamba.modeling_mamba", reason="the oracle")
    if not hasattr(mamba, "mamba_selective_state_update"):
        pytest.skip("this transformers has no mamba_selective_state_update")
    arrays = scan_operands(1, 3, 4, 1, per_state=True)
    x, dt, a, b, c, state = tensors(*arrays)
    state = state.reshape(2, 12, 5)
    y = mamba.mamba_selective_state_update(
        state, x.reshape(2, 12), dt[:, 0].repeat_interleave(4, 1), a.repeat_interleave(4, 0), b[:, 0, 0], c[:, 0, 0]
    )
    check(ops.ssm_scan, arrays, (y.reshape(2, 1, 3, 4), state.reshape(2, 3, 4, 5)))


# Linear attention


def attention_operands(t: int, heads: int, k_heads: int, dk: int, dv: int) -> tuple[Array, Array, Array]:
    q, k = normal(2, t, k_heads, dk), normal(2, t, k_heads, dk, seed=1)
    return q, k / np.linalg.norm(k, axis=-1, keepdims=True), normal(2, t, heads, dv, seed=2)


@pytest.mark.parametrize("t", TIMES)
@pytest.mark.parametrize("k_heads", [1, 2, 4])
@pytest.mark.parametrize("dv", [5, 3])
def test_gated_delta_rule(dv: int, k_heads: int, t: int) -> None:
    qwen = pytest.importorskip("transformers.models.qwen3_next.modeling_qwen3_next", reason="the oracle")
    q, k, v = attention_operands(t, 4, k_heads, 5, dv)
    g, beta, state = -np.abs(normal(2, t, 4)), np.abs(normal(2, t, 4, seed=1)), normal(2, 4, dv, 5)
    shared = [np.repeat(x, 4 // k_heads, 2) for x in (q, k)]
    theirs = [*tensors(*shared, v, g, beta), torch.from_numpy(state).transpose(-1, -2)]
    y, new = qwen.torch_recurrent_gated_delta_rule(*theirs, output_final_state=True)
    check(ops.gated_delta_rule, (q, k, v, g, beta, state), (y, new.transpose(-1, -2)))


@pytest.mark.parametrize("t", TIMES)
def test_gated_delta_rule_with_a_decay_for_each_element_of_a_key(t: int) -> None:
    kimi = pytest.importorskip("transformers.models.kimi_linear.modeling_kimi_linear", reason="the oracle")
    q, k, v = attention_operands(t, 4, 4, 5, 3)
    g, beta, state = -np.abs(normal(2, t, 4, 5)), np.abs(normal(2, t, 4, seed=1)), normal(2, 4, 3, 5)
    theirs = [*tensors(q, k, v, g, beta), torch.from_numpy(state).transpose(-1, -2)]
    y, new = inspect.unwrap(kimi.recurrent_kimi_delta_attention)(*theirs, True)
    check(ops.gated_delta_rule, (q, k, v, g, beta, state), (y, new.transpose(-1, -2)))


def test_scale() -> None:
    q, k, v = attention_operands(3, 2, 2, 4, 4)
    g, state = -np.abs(normal(2, 3, 2, 4)), normal(2, 2, 4, 4)
    plain = run(ops.gated_linear_attention, q, k, v, g, state)
    np.testing.assert_allclose(run(ops.gated_linear_attention, q, k, v, g, state, scale=1.0)[0], plain[0] * 2, 1e-6)
    with pytest.raises(ShapeError, match="scale is nan; expected a finite number"):
        run(ops.gated_linear_attention, q, k, v, g, state, scale=float("nan"))


@pytest.mark.parametrize("t", TIMES)
@pytest.mark.parametrize("dv", [5, 3])
def test_gated_linear_attention(dv: int, t: int) -> None:
    """The parallel form of arXiv:2312.06635: no recurrence."""
    q, k, v = attention_operands(t, 4, 4, 5, dv)
    g, state = -np.abs(normal(2, t, 4, 5)), normal(2, 4, 5, dv)
    tq, tk, tv, tg, ts = (x.double() for x in tensors(q, k, v, g, state))
    decay = tg.cumsum(1)  # from the beginning to each step, as a logarithm
    since = (decay[:, :, None] - decay[:, None]).exp()  # (n, to, from, heads, dk)
    seen = torch.ones(t, t).tril()[None, :, :, None]
    scores = torch.einsum("nihd,njhd,nijhd->nijh", tq, tk, since) * seen
    y = torch.einsum("nijh,njhe->nihe", scores, tv) + torch.einsum("nihd,nhde->nihe", tq * decay.exp(), ts)
    left = (decay[:, -1:] - decay).exp()
    new = ts * decay[:, -1].exp()[..., None] + torch.einsum("nihd,nihe->nhde", tk * left, tv)
    want = (y.float() * 5**-0.5, new.float())
    check(ops.gated_linear_attention, (q, k, v, g, state), want)


# RWKV: one sequence, one head and one step at a time, in float64, with matrices as in arXiv:2404.05892 and 2503.14456


def by_paper(step: Callable[..., tuple[Any, Any]], state: Array, *series: Array) -> tuple[Any, Any]:
    ys, states = torch.zeros(*series[2].shape), torch.zeros(*state.shape)
    for n, h in np.ndindex(state.shape[:2]):
        s = torch.from_numpy(state[n, h]).double()
        for t in range(series[0].shape[1]):
            y, s = step(s, *(torch.from_numpy(x[n, t, h]).double() for x in series), h)
            ys[n, t, h] = y
        states[n, h] = s
    return ys, states


@pytest.mark.parametrize("t", TIMES)
@pytest.mark.parametrize("dv", [5, 3])
def test_rwkv_wkv6(dv: int, t: int) -> None:
    r, k, v = attention_operands(t, 4, 4, 5, dv)
    w, u, state = np.exp(-np.exp(normal(2, t, 4, 5))), normal(4, 5), normal(2, 4, 5, dv)

    def step(s: Any, r: Any, k: Any, v: Any, w: Any, h: int) -> tuple[Any, Any]:
        present = torch.diag(torch.from_numpy(u[h]).double()) @ torch.outer(k, v)
        return r @ (present + s), torch.diag(w) @ s + torch.outer(k, v)

    check(ops.rwkv_wkv6, (r, k, v, w, u, state), by_paper(step, state, r, k, v, w))


@pytest.mark.parametrize("t", TIMES)
@pytest.mark.parametrize("dv", [5, 3])
def test_rwkv_wkv7(dv: int, t: int) -> None:
    r, k, v = attention_operands(t, 4, 4, 5, dv)
    w, a, b = np.exp(-np.exp(normal(2, t, 4, 5))), -k, k * np.abs(normal(2, t, 4, 5, seed=5))
    state = normal(2, 4, dv, 5)

    def step(s: Any, r: Any, k: Any, v: Any, w: Any, a: Any, b: Any, h: int) -> tuple[Any, Any]:
        s = s @ (torch.diag(w) + torch.outer(a, b)) + torch.outer(v, k)
        return s @ r, s

    check(ops.rwkv_wkv7, (r, w, k, v, a, b, state), by_paper(step, state, r, k, v, w, a, b))


# What all of them share


RECURRENCES: list[tuple[Callable[..., Recurrence], list[Array]]] = [
    (ops.ssm_scan, scan_operands(6, 4, 3, 2, per_state=False)),
    (ops.gated_delta_rule,
     [*attention_operands(6, 4, 2, 5, 3), -np.abs(normal(2, 6, 4)), normal(2, 6, 4), normal(2, 4, 3, 5)]),
    (ops.gated_linear_attention, [*attention_operands(6, 4, 4, 5, 3), -np.abs(normal(2, 6, 4, 5)), normal(2, 4, 5, 3)]),
    (ops.rwkv_wkv7, [normal(2, 6, 4, 5, seed=i) * 0.3 for i in range(6)] + [normal(2, 4, 5, 5)]),
    (ops.rwkv_wkv6, [normal(2, 6, 4, 5, seed=i) for i in range(4)] + [normal(4, 5), normal(2, 4, 5, 5)]),
]  # fmt: skip
NAMES = [f.__name__ for f, _ in RECURRENCES]


@pytest.mark.parametrize(("function", "arrays"), RECURRENCES, ids=NAMES)
def test_a_prompt_may_be_computed_in_chunks(function: Callable[..., Recurrence], arrays: list[Array]) -> None:
    whole = run(function, *arrays)
    *series, state = arrays
    ys = []
    for part in (slice(0, 1), slice(1, 4), slice(4, 6)):
        y, state = run(function, *(x[:, part] if x.shape[:2] == (2, 6) else x for x in series), state)
        ys.append(y)
    assert error([np.concatenate(ys, 1), state], whole) < 1e-5


@pytest.mark.parametrize(("function", "arrays"), RECURRENCES, ids=NAMES)
def test_shapes_that_do_not_fit_are_refused(function: Callable[..., Recurrence], arrays: list[Array]) -> None:
    """Each operand in turn gets one element too many along each of its axes."""
    ctx = open_reference().new_context()
    right = [ctx.input(f"x{i}", a.shape) for i, a in enumerate(arrays)]
    assert isinstance(function(*right), Recurrence)
    for i, a in enumerate(arrays):
        for axis in range(a.ndim):
            shape = [d + (j == axis) for j, d in enumerate(a.shape)]
            with pytest.raises(ShapeError, match=f"^{function.__name__}"):
                function(*right[:i], ctx.input(f"x{i}.{axis}", shape), *right[i + 1 :])
        with pytest.raises(DTypeError, match="float"):
            function(*right[:i], ctx.input(f"x{i}.int", a.shape, DType.I32), *right[i + 1 :])


def leaf(*shape: int) -> Tensor:
    tensor = open_reference().new_context().input("x", shape)
    tensor.context = None
    return tensor


@pytest.mark.parametrize(
    ("message", "shapes"),
    [
        ("x \\(n_seqs, t, channels\\)", ((6, 4), (2, 3, 4), (4, 4))),
        ("weight must be \\(4, 3\\)", ((2, 6, 4), (2, 2, 4), (5, 3))),
        ("kernel size is 1", ((2, 6, 4), (2, 1, 4), (4, 1))),
        ("state must be \\(2, 3, 4\\); got \\(2, 4, 4\\)", ((2, 6, 4), (2, 4, 4), (4, 4))),
        ("bias must be \\(4,\\)", ((2, 6, 4), (2, 3, 4), (4, 4), (3,))),
    ],
)
def test_ssm_conv_refuses(message: str, shapes: tuple[tuple[int, ...], ...]) -> None:
    with pytest.raises(ShapeError, match=message):
        ops.ssm_conv(*(leaf(*s) for s in shapes))
