"""The shared blocks by themselves, against NumPy and torch: what no tiny model of ours exercises."""

from __future__ import annotations

import types
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from hotshoe import nn
from hotshoe.kvcache import UncachedView
from hotshoe.nn import Linear, Module, layers, submodule, tensor
from hotshoe.nn._choose_forms import choose_forms
from hotshoe.nn.batch import Batch
from hotshoe_core import DType, Tensor, constant
from hotshoe_core.eager.reference import open_reference

DRAW = np.random.default_rng(0).standard_normal


def values(*shape: int) -> np.ndarray[Any, Any]:
    return DRAW(shape).astype(np.float32)


def fill(module: Module, **given: Any) -> dict[str, np.ndarray[Any, Any]]:
    """Random weights for every parameter that has a shape, by its last name; ``given`` ones as they are."""
    made = {}
    for p in module.parameters():
        name = p.names[0].removesuffix(".weight")
        if name in given or (p.shape is not None and not p.optional):
            made[name] = np.asarray(given[name] if name in given else values(*p.shape), np.float32)
            setattr(p.module, p.attribute, constant(made[name]))
    return made


def compute(build: Any, **arrays: Any) -> Any:
    """What ``build`` makes of inputs of these names, on the reference backend."""
    with open_reference() as backend, backend.new_context() as ctx:
        kinds = {name: DType.I32 if a.dtype.kind == "i" else DType.F32 for name, a in arrays.items()}
        inputs = {name: ctx.input(name, a.shape, kinds[name]) for name, a in arrays.items()}
        built = build(**inputs)
        built = built if isinstance(built, tuple) else (built,)
        ctx.forward(*built).compute({inputs[name]: a for name, a in arrays.items()})
        read = [y.read() for y in built]
        return read if len(read) > 1 else read[0]


# Attention


@dataclass
class Heads:
    n_layers: int = 1
    dim: int = 12
    n_heads: tuple[int, ...] = (4,)
    n_kv_heads: tuple[int, ...] = (2,)
    head_dims: tuple[int, ...] = (3,)
    v_dims: tuple[int, ...] = (3,)

    def window_for(self, layer: int) -> int:
        return 0


class Plain(nn.Attention):
    rope = None
    softcap = 5.0
    slopes: Tensor | None = tensor("slopes", use="mul", optional=True)
    sinks: Tensor | None = tensor("sinks", use="attention", optional=True)


@pytest.mark.parametrize("extra", ["nothing", "slopes", "sinks"])
def test_attention_with_soft_cap_and(extra: str) -> None:
    attention, n = Plain(Heads(), layer=0), 5
    choose(attention, "attn_q", "attn_k", "attn_v")
    given = {} if extra == "nothing" else {extra: np.abs(values(4))}  # slopes are above 0
    w = fill(attention, **given)
    x, positions = values(n, 12), np.arange(n, dtype=np.int32)
    mask = np.triu(np.full((n, n), -np.inf, np.float32), 1)

    def build(x: Tensor, positions: Tensor, mask: Tensor) -> Tensor:
        return attention(x, Batch(positions, positions), UncachedView(mask, positions))

    ours = compute(build, x=x, positions=positions, mask=mask)
    q = (x @ w["attn_q"].T).reshape(n, 4, 3)
    k, v = ((x @ w[name].T).reshape(n, 2, 3).repeat(2, axis=1) for name in ("attn_k", "attn_v"))
    scores = np.einsum("nhd,mhd->hnm", q, k) * 3**-0.5
    scores = 5 * np.tanh(scores / 5) + mask
    if extra == "slopes":
        scores = scores + w["slopes"][:, None, None] * (positions - positions[:, None])
    exps = np.exp(scores)
    total = exps.sum(-1, keepdims=True)
    if extra == "sinks":
        total = total + np.exp(w["sinks"])[:, None, None]
    expected = np.einsum("hnm,mhd->nhd", exps / total, v).reshape(n, 12) @ w["attn_output"].T
    np.testing.assert_allclose(ours, expected, rtol=1e-4, atol=1e-4)


class WithoutRope(nn.Attention):
    rope = None


def choose(module: Module, *names: str) -> None:
    """Choose the forms of a file with these tensors."""
    choose_forms(module, {f"{name}.weight": () for name in names})


def test_fused_attention_is_attention() -> None:
    fused, apart = WithoutRope(Heads(), layer=0), WithoutRope(Heads(), layer=0)
    choose(fused, "attn_qkv", "attn_output")
    choose(apart, "attn_q", "attn_k", "attn_v", "attn_output")
    w = fill(apart)
    fill(fused, attn_qkv=np.concatenate([w["attn_q"], w["attn_k"], w["attn_v"]]), attn_output=w["attn_output"])
    x, positions = values(2, 5, 12), np.arange(5, dtype=np.int32)
    mask = np.zeros((2, 1, 1, 5), np.float32)

    def build(x: Tensor, positions: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        batch, view = Batch(positions, positions), UncachedView(mask, positions)
        return fused(x, batch, view), apart(x, batch, view)

    one, other = compute(build, x=x, positions=positions, mask=mask)
    np.testing.assert_allclose(one, other, rtol=0, atol=1e-5 * np.abs(other).max())


# Convolutions


def test_convolutions_are_torch_s() -> None:
    torch = pytest.importorskip("torch")

    class Patches(nn.Conv2D):
        stride, padding = 2, (1, 0)

    class Tubes(nn.Conv3D):
        stride = (2, 1, 1)

    flat, deep = Patches(None), Tubes(None)
    w, b, w3 = values(4, 3, 3, 2), values(4), values(5, 3, 2, 3, 3)
    flat.weight, flat.bias, deep.weight = constant(w), constant(b), constant(w3)
    x, video = values(2, 3, 8, 7), values(1, 3, 4, 5, 6)
    t = torch.from_numpy
    expected = torch.nn.functional.conv2d(t(x), t(w), t(b), stride=2, padding=(1, 0)).numpy()
    np.testing.assert_allclose(compute(flat, x=x), expected, rtol=1e-4, atol=1e-4)
    expected = torch.nn.functional.conv3d(t(video), t(w3), stride=(2, 1, 1)).numpy()
    np.testing.assert_allclose(compute(deep, x=video), expected, rtol=1e-4, atol=1e-4)


# Modules and batches


class Even(Module):
    up: Linear = submodule("up")

    def __call__(self, x: Tensor) -> Tensor:
        return self.up(x)


class Odd(Module):
    down: Linear = submodule("down", "lower")

    def __call__(self, x: Tensor) -> Tensor:
        return self.down(x)


class Mixed(Module):
    before: Linear = submodule("before")
    blocks: list[Even | Odd] = layers("blk", choose=lambda config, i: Odd if i % 2 else Even)
    after: Linear = submodule("after")
    shared: Tensor | None = tensor("shared.weight", use="mul", of_model=True, optional=True)

    def __call__(self, x: Tensor) -> Tensor:
        x = self.before(x)
        for block in self.blocks:
            x = block(x)
        return self.after(x)


def test_layers_of_different_kinds_and_where_they_are() -> None:
    model = Mixed(types.SimpleNamespace(n_layers=3))
    found = {p.names: p.layer for p in model.parameters() if p.attribute == "weight"}
    assert found == {
        ("before.weight",): -1,
        ("blk.0.up.weight",): 0,
        ("blk.1.down.weight", "blk.1.lower.weight"): 1,
        ("blk.2.up.weight",): 2,
        ("after.weight",): 3,
    }
    for p in model.parameters():
        if p.attribute == "weight":
            p.module.weight = constant(values(4, 4))  # type: ignore[attr-defined]
    y = model(constant(values(2, 4)))
    made = []
    while y.sources:
        made.append((y.name, y.layer))
        y = y.sources[0]  # type: ignore[assignment]
    assert made[::-1] == [
        ("before.linear", -1),
        ("blk.0.up.linear", 0),
        ("blk.1.down.linear", 1),
        ("blk.2.up.linear", 2),
        ("after.linear", 3),
    ]


def test_embeddings_go_over_the_rows_of_tokens() -> None:
    table, tokens = values(9, 4), np.array([1, 7, 7, 3], np.int32)
    spans, rows = values(2, 4), np.array([2, 0], np.int32)

    def build(table: Tensor, tokens: Tensor, spans: Tensor, rows: Tensor) -> Tensor:
        return Batch(tokens, tokens, embeddings=spans, embedding_rows=rows).embed(table.take)

    ours = compute(build, table=table, tokens=tokens, spans=spans, rows=rows)
    np.testing.assert_array_equal(ours, np.stack([spans[1], table[7], spans[0], table[3]]))
