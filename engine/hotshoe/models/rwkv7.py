"""RWKV-7 "Goose" (Peng et al. 2025, arXiv:2503.14456): no attention; each layer keeps a state and the last token.

Each layer mixes a token with the one before it ("token shift"), by weights of its own for each of six uses. The values
of all layers are mixed with those of the first one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from hotshoe import nn
from hotshoe.families import Family
from hotshoe.kvcache import RecurrentSpec, RecurrentView
from hotshoe.nn import LayerNorm, Linear, Module, key, layers, submodule, tensor
from hotshoe.nn.batch import Batch
from hotshoe_core import Tensor, ops
from hotshoe_core.errors import ModelFileError

_LEAST_DECAY = -math.exp(-0.5)  # the logarithm of a decay is between this and 0
_HEAD_EPS = 64e-5


@dataclass(frozen=True, slots=True, kw_only=True)
class Config(nn.Config):
    norm_eps: float = key("attention.layer_norm_epsilon", minimum=0)
    head_dim: int = key("wkv.head_size", minimum=1)
    decay_rank: int = key("attention.decay_lora_rank", minimum=1)
    rate_rank: int = key("attention.iclr_lora_rank", minimum=1)  # of the in-context learning rate
    value_rank: int = key("attention.value_residual_mix_lora_rank", minimum=1)
    gate_rank: int = key("attention.gate_lora_rank", minimum=1)

    def __post_init__(self) -> None:
        if self.dim % self.head_dim:
            raise ModelFileError(f"embedding_length {self.dim} does not divide into heads of {self.head_dim} elements")


def _vector(name: str, use: str = "mul") -> Any:
    return tensor(f"{name}.weight", use=use, shape=lambda c, i: (c.dim,))


def _matrix(name: str, rows: str = "dim", columns: str = "dim") -> Any:
    return submodule(name, shape=lambda c, i: (getattr(c, rows), getattr(c, columns)))


class ValueMix(Module):
    """How much of the first layer's values each layer takes: (n, dim) to (n, dim)."""

    bias: Tensor = _vector("time_mix_v0", use="add")
    down: Linear = _matrix("time_mix_v1", rows="value_rank")
    up: Linear = _matrix("time_mix_v2", columns="value_rank")

    def __call__(self, x: Tensor) -> Tensor:
        return (self.up(self.down(x)) + self.bias).sigmoid()


class TimeMix(Module):
    """The half of a block that mixes tokens: (n, dim) to (n, dim), and the values of the first layer."""

    config: Config
    shift: Tensor = tensor("time_mix_lerp_fused.weight", use="mul", shape=lambda c, i: (6, 1, 1, c.dim))
    receptance: Linear = _matrix("time_mix_receptance")
    key: Linear = _matrix("time_mix_key")
    value: Linear = _matrix("time_mix_value")
    decay: Tensor = _vector("time_mix_w0", use="add")
    decay_down: Linear = _matrix("time_mix_w1", rows="decay_rank")
    decay_up: Linear = _matrix("time_mix_w2", columns="decay_rank")
    rate: Tensor = _vector("time_mix_a0", use="add")
    rate_down: Linear = _matrix("time_mix_a1", rows="rate_rank")
    rate_up: Linear = _matrix("time_mix_a2", columns="rate_rank")
    value_mix: ValueMix | None = submodule(when=lambda c, i: i > 0)
    gate_down: Linear = _matrix("time_mix_g1", rows="gate_rank")
    gate_up: Linear = _matrix("time_mix_g2", columns="gate_rank")
    removal_scale: Tensor = _vector("time_mix_k_k")
    key_scale: Tensor = _vector("time_mix_k_a")
    bonus: Tensor = _vector("time_mix_r_k")
    norm: LayerNorm = submodule("time_mix_ln", shape=lambda c, i: (c.dim,))
    out: Linear = _matrix("time_mix_output")

    def __call__(self, x: Tensor, view: RecurrentView, first: Tensor | None) -> tuple[Tensor, Tensor]:
        cfg = self.config

        def heads(y: Tensor) -> Tensor:
            return y.reshape(*y.shape[:-1], -1, cfg.head_dim)

        before = _before(x, "time", view) - x
        r, w, k, v, a, g = (x + before * self.shift[i].reshape(-1) for i in range(6))
        gate = self.gate_up(self.gate_down(g).sigmoid())
        rate = (self.rate_up(self.rate_down(a)) + self.rate).sigmoid()
        decay = (self.decay_up(self.decay_down(w).tanh()) + self.decay).sigmoid() * _LEAST_DECAY
        r, k, mix = self.receptance(r), self.key(k), v
        v = self.value(v)
        if first is None:
            first = v
        elif self.value_mix is not None:
            v = v + (first - v) * self.value_mix(mix)
        removed = ops.l2_norm(heads(k * self.removal_scale))
        k = k * ((rate - 1) * self.key_scale + 1)
        series = (heads(r), heads(decay.exp()), heads(k), heads(v), -removed, removed * heads(rate))
        y, state = ops.rwkv_wkv7(*map(view.split, series), view.read("wkv"))
        view.write("wkv", state)
        y = ops.layer_norm(view.merge(y), eps=_HEAD_EPS).reshape(*x.shape) * self.norm.weight
        y = y if self.norm.bias is None else y + self.norm.bias
        bonus = heads(r * k * self.bonus).sum(keepdims=True) * heads(v)
        return self.out((y + bonus.reshape(*x.shape)) * gate), first


class ChannelMix(Module):
    """The half of a block that computes an MLP of a token and the one before it: (n, dim) to (n, dim)."""

    shift: Tensor = _vector("channel_mix_lerp_k")
    key: Linear = submodule("channel_mix_key", shape=lambda c, i: (c.mlp_dim[i], c.dim))
    value: Linear = submodule("channel_mix_value", shape=lambda c, i: (c.dim, c.mlp_dim[i]))

    def __call__(self, x: Tensor, view: RecurrentView) -> Tensor:
        x = x + (_before(x, "channel", view) - x) * self.shift
        return self.value(self.key(x).relu().sqr())


def _before(x: Tensor, name: str, view: RecurrentView) -> Tensor:
    """The token before each one: (n, dim) to (n, dim). The state has the last token."""
    series = view.split(x)
    return view.merge(ops.concat(view.roll(name, series), series, axis=1)[:, : series.shape[1]])


class Block(Module):
    config: Config
    time_norm: LayerNorm = submodule("attn_norm", shape=lambda c, i: (c.dim,))
    time: TimeMix = submodule()
    channel_norm: LayerNorm = submodule("attn_norm_2", shape=lambda c, i: (c.dim,))
    channel: ChannelMix = submodule()

    def cache_spec(self) -> RecurrentSpec:
        dim, size = self.config.dim, self.config.head_dim
        return RecurrentSpec({"time": (1, dim), "channel": (1, dim), "wkv": (dim // size, size, size)})

    def __call__(self, x: Tensor, view: RecurrentView, first: Tensor | None) -> tuple[Tensor, Tensor]:
        y, first = self.time(self.time_norm(x), view, first)
        x = x + y
        return x + self.channel(self.channel_norm(x), view), first


class Model(nn.Decoder):
    config: Config
    embedding_norm: LayerNorm = submodule("token_embd_norm", shape=lambda c, i: (c.dim,))
    blocks: list[Block] = layers("blk")  # type: ignore[assignment]
    norm: LayerNorm = submodule("output_norm", shape=lambda c, i: (c.dim,))

    def unused_tensors(self) -> dict[str, str]:
        names = [f"blk.0.time_mix_v{i}.weight" for i in range(3)]
        return super().unused_tensors() | dict.fromkeys(names, "the first layer has no earlier values")

    def unused_keys(self) -> dict[str, str]:
        return {"attention.head_count": "there is no attention"}

    def run(self, x: Tensor, batch: Batch, views: list[Any]) -> Tensor:
        first = None
        for block, view in zip(self.blocks, views, strict=True):
            x, first = block(x, view, first)
        return x


family = Family(Model)
