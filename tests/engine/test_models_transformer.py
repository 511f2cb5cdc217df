"""TransformerBlock, Decoder, patterns of layers and forms of matrices: each option against NumPy."""

from __future__ import annotations

import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hotshoe import nn
from hotshoe.kvcache import LayerSpec, UncachedView
from hotshoe.nn import GatedMLP, LayerNorm, LayerPattern, Linear, Module, TextConfig, layers, pattern_key, submodule
from hotshoe.nn._choose_forms import choose_forms
from hotshoe.nn.batch import Batch
from hotshoe_core import Tensor
from hotshoe_core.eager.reference import open_reference
from hotshoe_core.errors import ModelFileError, WeightsError
from hotshoe_core.gguf import Metadata
from tests.engine.test_models_blocks import Heads, choose, compute, fill, values

CONFIG = types.SimpleNamespace(n_layers=1, dim=6, n_ctx=4, n_vocab=5, mlp_dim=(8,), norm_eps=1e-5)


class Mix(Module):
    """In the place of attention: a matrix."""

    matrix: Linear = submodule("mix", shape=lambda c, i: (c.dim, c.dim))

    def cache_spec(self) -> LayerSpec:
        return None

    def __call__(self, x: Tensor, batch: Batch, view: Any) -> Tensor:
        return self.matrix(x)


class MLP(nn.MLP):
    activation = "relu_squared"


class Block(nn.TransformerBlock):
    attention: Mix = submodule()
    mlp: MLP = submodule()


class Sandwich(nn.SandwichBlock):
    attention: Mix = submodule()
    mlp: MLP = submodule()


class PostNorm(Sandwich):
    attention_norm = mlp_norm = None


class Parallel(Block):
    parallel = True


class SharedNorm(Parallel):
    attention_norm: LayerNorm = submodule("attn_norm", shape=lambda c, i: (c.dim,))
    mlp_norm = None


class Scaled(Block):
    residual_scale = 0.5


class OnlyAttention(nn.TransformerBlock):
    attention: Mix = submodule()
    mlp: MLP | None = submodule(choose=lambda c, i: None)


class OnlyMLP(nn.TransformerBlock):
    attention: Mix | None = submodule(choose=lambda c, i: None)
    mlp: MLP = submodule()
    attention_norm = None


def rms(x: Any, w: Any, name: str) -> Any:
    return x if name not in w else x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5) * w[name]


def expected(block: type[nn.TransformerBlock], x: Any, w: Any) -> Any:
    if block is SharedNorm:
        normed = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5) * w["attn_norm"]
    else:
        normed = rms(x, w, "attn_norm")
    scale = 0.5 if block is Scaled else 1.0
    y = x
    if "mix" in w:
        y = y + scale * rms(normed @ w["mix"].T, w, "post_attention_norm")
    if "ffn_up" not in w:
        return y
    source = normed if block is SharedNorm else rms(x if block is Parallel else y, w, "ffn_norm")
    return y + scale * rms(np.maximum(source @ w["ffn_up"].T, 0) ** 2 @ w["ffn_down"].T, w, "post_ffw_norm")


@pytest.mark.parametrize(
    "block", [Block, Sandwich, PostNorm, Parallel, SharedNorm, Scaled, OnlyAttention, OnlyMLP]
)  # fmt: skip
def test_a_block(block: type[nn.TransformerBlock]) -> None:
    made = block(CONFIG, layer=0)
    w = fill(made)
    x = values(3, 6)
    ours = compute(lambda x: made(x, None, None), x=x)  # type: ignore[arg-type]
    np.testing.assert_allclose(ours, expected(block, x, w), rtol=1e-4, atol=1e-4)


class Twice(Block):
    def __call__(self, x: Tensor, batch: Batch, view: Any) -> Tensor:
        return super().__call__(x, batch, view) * 2.0


def test_super_does_not_name_a_module_again() -> None:
    made = Twice(CONFIG, ("blk.0",), "blk.0", 0)
    fill(made)
    with open_reference() as backend, backend.new_context() as ctx:
        y = made(ctx.input("x", (3, 6)), None, None)  # type: ignore[arg-type]
        ctx.forward(y)
        names = [node.name for node in ctx.graph().nodes]
    assert any("ffn_up" in name for name in names)
    assert not [name for name in names if name.count("blk.0") != 1]


class Positions(nn.Decoder):
    config: Any
    blocks: list[Block] = layers("blk")
    positions: nn.LearnedPositions = submodule("position_embd", shape=lambda c, i: (None, c.dim))
    embedding_norm: LayerNorm = submodule("token_embd_norm", shape=lambda c, i: (c.dim,))
    embedding_scale = 3.0
    logit_scale = 0.25
    final_softcap = 2.0


def decoder(n_positions: int) -> tuple[Positions, dict[str, Any]]:
    model = Positions(CONFIG)
    return model, fill(model, token_embd=values(5, 6), position_embd=values(n_positions, 6), output=values(5, 6))


def test_scales_and_caps_of_a_decoder() -> None:
    model, w = decoder(4)
    tokens, positions = np.array([2, 0, 4], np.int32), np.array([1, 2, 3], np.int32)
    ours = compute(lambda t, p: model(Batch(t, p), [None]), t=tokens, p=positions)
    x = w["token_embd"][tokens] * 3 + w["position_embd"][positions]
    x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5) * w["token_embd_norm"]
    inner = {name.removeprefix("blk.0."): value for name, value in w.items() if name.startswith("blk.0.")}
    logits = 0.25 * (rms(expected(Block, x, inner), w, "output_norm") @ w["output"].T)
    np.testing.assert_allclose(ours, 2 * np.tanh(logits / 2), rtol=1e-4, atol=1e-4)


def test_learned_positions_that_are_too_few() -> None:
    model, _ = decoder(3)
    with pytest.raises(WeightsError, match=r"has 3 rows; expected 4, one for each token"):
        compute(lambda t, p: model(Batch(t, p), [None]), t=np.zeros(2, np.int32), p=np.zeros(2, np.int32))


# Attention


class Gated(nn.Attention):
    rope = None
    clamp = 0.75
    gate: Linear = submodule("attn_gate", shape=lambda c, i: (c.n_heads[i], c.dim))
    gate_activation = "softplus"
    v_norm: nn.UnweightedRMSNorm = submodule()
    q_norm: nn.WideRMSNorm = submodule("attn_q_norm", shape=lambda c, i: (12,))
    k_norm: nn.LayerNormByHead = submodule("attn_k_norm", shape=lambda c, i: (2, 3))
    temperature = nn.Temperature(0.5, 2)


def test_attention_with_norms_a_gate_a_clamp_and_a_temperature() -> None:
    config: Any = Heads(v_dims=(5,))
    config.norm_eps = 1e-5
    attention, n = Gated(config, layer=0), 6
    choose(attention, "attn_q", "attn_k", "attn_v")
    w = fill(attention)
    x, positions = values(n, 12), np.arange(n, dtype=np.int32)
    mask = np.triu(np.full((n, n), -np.inf, np.float32), 1)

    def build(x: Tensor, positions: Tensor, mask: Tensor) -> Tensor:
        return attention(x, Batch(positions, positions), UncachedView(mask, positions))

    ours = compute(build, x=x, positions=positions, mask=mask)
    q, k, v = (np.clip(x @ w[name].T, -0.75, 0.75) for name in ("attn_q", "attn_k", "attn_v"))
    q = rms(q, w, "attn_q_norm").reshape(n, 4, 3)
    k = k.reshape(n, 2, 3)
    k = (k - k.mean(-1, keepdims=True)) / np.sqrt(k.var(-1, keepdims=True) + 1e-5) * w["attn_k_norm"]
    v = v.reshape(n, 2, 5)
    v = v / np.sqrt((v * v).mean(-1, keepdims=True) + 1e-5)
    q = q * (1 + 0.5 * np.log1p(positions // 2))[:, None, None]
    k, v = (y.repeat(2, axis=1) for y in (k, v))
    scores = np.exp(np.einsum("nhd,mhd->hnm", q, k) * 3**-0.5 + mask)
    y = np.einsum("hnm,mhd->nhd", scores / scores.sum(-1, keepdims=True), v)
    y = y * np.log1p(np.exp(x @ w["attn_gate"].T))[..., None]
    np.testing.assert_allclose(ours, y.reshape(n, 20) @ w["attn_output"].T, rtol=1e-4, atol=1e-4)


def test_slopes_of_alibi() -> None:
    """Those of the paper for 8 heads; those of its authors' code for 6."""
    eight = compute(lambda: nn.alibi_slopes(8) + 0.0)
    np.testing.assert_allclose(eight, 0.5 ** np.arange(1, 9))
    six = compute(lambda: nn.alibi_slopes(6) + 0.0)
    np.testing.assert_allclose(six, [2**-2, 2**-4, 2**-6, 2**-8, 2**-1, 2**-3])


# Forms


def test_forms_that_a_file_has() -> None:
    def form(shapes: dict[str, tuple[int, ...]]) -> str:
        mlp = GatedMLP(CONFIG, ("blk.1",), layer=0)
        choose_forms(mlp, shapes)
        return "parts" if mlp.gate_up is None else "whole"

    part, whole = (8, 6), (16, 6)
    assert form({"blk.1.ffn_up.weight": ()}) == "parts"
    assert form({"blk.1.ffn_gate.weight": part, "blk.1.ffn_up.weight": part}) == "parts"
    assert form({"blk.1.ffn_up.weight": whole}) == "whole"
    assert form({"blk.1.ffn_up.weight": part}) == "parts"  # the gate is missing
    assert form({"blk.0.ffn_up.weight": whole}) == "whole"  # the layer is missing
    assert form({"blk.0.ffn_gate.weight": part, "blk.0.ffn_up.weight": part}) == "parts"


# Patterns


def pattern(keys: dict[str, Any], period: int = 3, **options: Any) -> LayerPattern:
    sizes = {
        "block_count": 5, "embedding_length": 16, "context_length": 64, "attention.head_count": 2,
        "attention.layer_norm_rms_epsilon": 1e-5, "attention.sliding_window": 8, "rope.freq_base": 5e5,
        "rope.scaling.type": "yarn", "rope.scaling.factor": 4.0,
    }  # fmt: skip
    metadata = Metadata({"general.architecture": "x"} | {f"x.{k}": v for k, v in (sizes | keys).items()}, {}, Path("m"))
    config = TextConfig.from_metadata(metadata)
    declared = pattern_key(period, **options).metadata["hotshoe.get"]
    found: LayerPattern = declared(metadata, config, LayerPattern)
    return found


def test_which_layers_have_a_window() -> None:
    def windows(keys: dict[str, Any], **options: Any) -> list[int]:
        made = pattern(keys, **options)
        return [made.window_for(i) for i in range(5)]

    stated = "attention.sliding_window_pattern"
    assert windows({}) == [8, 8, 0, 8, 8]
    assert windows({}, dense_first=True) == [0, 8, 8, 0, 8]
    assert windows({stated: 2}) == [8, 0, 8, 0, 8]
    assert windows({stated: 1}) == [0] * 5
    assert windows({stated: 0}) == [8] * 5
    assert windows({stated: [True, False, False, True, True]}) == [8, 0, 0, 8, 8]
    assert windows({stated: [1, 0, 0, 1, 1, 0]}) == [8, 0, 0, 8, 8]  # with a layer for drafting
    assert windows({"attention.sliding_window": 0}) == [0] * 5
    with pytest.raises(ModelFileError, match=r"an array of 2 values; expected 0 or 1 for 5"):
        windows({stated: [1, 0]})
    with pytest.raises(ModelFileError, match=r"expected 0 or 1 for 5, one for each"):
        windows({stated: [1, 0, 2, 0, 1]})
    with pytest.raises(ModelFileError, match=r"is -1; expected 0 or more"):
        windows({stated: -1})


def test_the_rope_of_layers_with_a_window() -> None:
    made = pattern({})
    assert made.rope_for(0) == made.rope_for(2)
    swa = pattern({"rope.freq_base_swa": 1e4, "rope.dimension_count_swa": 4}, unscaled=True)
    full, local = swa.rope_for(2), swa.rope_for(0)
    assert full is not None
    assert local is not None
    assert (full.base, full.dim, full.scale, full.ext_factor) == (5e5, 8, 0.25, 1.0)
    assert (local.base, local.dim, local.scale, local.ext_factor, local.attn_factor) == (1e4, 4, 1.0, 0.0, 1.0)
    named = pattern({}, base=7e3).rope_for(0)
    assert named is not None
    assert named.base == 7e3
    assert pattern({}, rope_on_full=False).rope_for(2) is None
    assert pattern({"attention.sliding_window": 0}, rope_on_full=False).rope_for(2) is not None
    with pytest.raises(ModelFileError, match=r"rope\.freq_base_swa': is 0\.0; expected 1 to"):
        pattern({"rope.freq_base_swa": 0.0})
