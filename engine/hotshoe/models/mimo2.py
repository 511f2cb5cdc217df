"""MiMo-V2 (Xiaomi 2026, arXiv:2601.02780): a window and attention sinks in most layers, keys wider than values."""

from __future__ import annotations

from dataclasses import dataclass

from hotshoe import nn
from hotshoe.families import Family
from hotshoe.nn import LayerPattern, SigmoidExpertsConfig, key, layers, pattern_key, submodule, tensor
from hotshoe_core import Tensor


@dataclass(frozen=True, kw_only=True)
class Config(SigmoidExpertsConfig):
    window: int = key("attention.sliding_window", minimum=1)
    pattern: LayerPattern = pattern_key(6)
    normalize_experts: bool = key("expert_weights_norm", default=True)
    n_dense: int = key("leading_dense_block_count", default=1)  # files do not say; it is the same in all models
    value_scale: float = key("attention.value_scale", default=1.0)


class Attention(nn.Attention):
    sinks: Tensor | None = tensor(
        "attn_sinks.weight",
        use="attention",
        when=lambda c, i: c.pattern.windowed[i],
        shape=lambda c, i: (c.n_heads[i],),
    )

    def finish(self, y: Tensor, x: Tensor) -> Tensor:
        scale = self.config.value_scale
        return y if scale in (0.0, 1.0) else y * scale


class Block(nn.ExpertBlock):
    attention: Attention = submodule()


class Model(nn.Decoder):
    config: Config
    blocks: list[Block] = layers("blk")


family = Family(Model)
