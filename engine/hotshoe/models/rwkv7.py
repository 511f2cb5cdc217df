"""RWKV-7 "Goose" (Peng et al. 2025, arXiv:2503.14456): no attention; each layer keeps a state and the last token.

Each layer mixes a token with the one before it ("token shift"), by weights of its own for each of six uses. The values
of all layers are mixed with those of the first one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hotshoe import nn
from hotshoe.families import Family
from hotshoe.kvcache import RecurrentSpec, RecurrentView
from hotshoe.nn import LayerNorm, Linear, Module, key, layers, submodule, tensor
from hotshoe.nn.batch import Batch
from hotshoe.nn.mixers import RWKV7, shifted
from hotshoe_core import Tensor
from hotshoe_core.errors import ModelFileError


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


class ChannelMix(Module):
    """The half of a block that computes an MLP of a token and the one before it: (n, dim) to (n, dim)."""

    shift: Tensor = tensor("channel_mix_lerp_k.weight", use="mul", shape=lambda c, i: (c.dim,))
    key: Linear = submodule("channel_mix_key", shape=lambda c, i: (c.mlp_dim[i], c.dim))
    value: Linear = submodule("channel_mix_value", shape=lambda c, i: (c.dim, c.mlp_dim[i]))

    def __call__(self, x: Tensor, view: RecurrentView) -> Tensor:
        x = x + (shifted(x, "channel", view) - x) * self.shift
        return self.value(self.key(x).relu().sqr())


class Block(Module):
    config: Config
    time_norm: LayerNorm = submodule("attn_norm", shape=lambda c, i: (c.dim,))
    time: RWKV7 = submodule()
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
