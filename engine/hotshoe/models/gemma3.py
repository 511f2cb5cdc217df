"""Gemma 3, text only (Gemma Team 2025, arXiv:2503.19786): most layers have a sliding window, some are global."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from hotshoe import nn
from hotshoe.families import Family
from hotshoe.kvcache import AttentionSpec, AttentionView
from hotshoe.nn import GatedMLP, RMSNorm, TextConfig, key, layers, rope_key, submodule
from hotshoe.nn.batch import Batch
from hotshoe_core import Tensor
from hotshoe_core.ops import RoPE

_LAYERS_27B = 62  # only the 27B scales scores by (dim / n_heads) ** -0.5; files do not say so


@dataclass(frozen=True, slots=True, kw_only=True)
class Config(TextConfig):
    head_dim: int = key("attention.key_length", default=256, minimum=1)
    rope: RoPE = rope_key(base=1e6)  # of global layers; local_base is for the others
    local_base: float = key("rope.freq_base_swa", default=10000.0)
    window: int = key("attention.sliding_window", minimum=1)
    pattern: int = key("attention.sliding_window_pattern", default=6, minimum=1)  # every n-th layer is global
    scale: float = key(
        "attention.scale",
        default=lambda c: (c.dim / c.n_heads[0] if c.n_layers == _LAYERS_27B else c.head_dim) ** -0.5,
    )
    softcap: float = key("final_logit_softcapping", default=0.0)


class Attention(nn.NormedAttention):
    config: Config

    @property
    def window(self) -> int:
        return 0 if (self.layer + 1) % self.config.pattern == 0 else self.config.window

    @property
    def rope(self) -> RoPE:
        rope = self.config.rope
        if self.window == 0:
            return rope
        return dataclasses.replace(rope, base=self.config.local_base, scale=1.0, ext_factor=0.0)

    @property
    def scale(self) -> float:
        return self.config.scale


class MLP(GatedMLP):
    activation = "gelu_tanh"


class Block(nn.Block):
    """A block with a norm before and after both attention and the MLP: (n, dim) to (n, dim)."""

    attention_norm: RMSNorm = submodule("attn_norm", shape=lambda c, i: (c.dim,))
    attention: Attention = submodule()
    post_attention_norm: RMSNorm = submodule("post_attention_norm", shape=lambda c, i: (c.dim,))
    mlp_norm: RMSNorm = submodule("ffn_norm", shape=lambda c, i: (c.dim,))
    mlp: MLP = submodule()
    post_mlp_norm: RMSNorm = submodule("post_ffw_norm", shape=lambda c, i: (c.dim,))

    def cache_spec(self) -> AttentionSpec:
        return self.attention.cache_spec()

    def __call__(self, x: Tensor, batch: Batch, view: AttentionView) -> Tensor:
        x = x + self.post_attention_norm(self.attention(self.attention_norm(x), batch, view))
        return x + self.post_mlp_norm(self.mlp(self.mlp_norm(x)))


class Model(nn.Decoder):
    config: Config
    blocks: list[Block] = layers("blk")

    def embed(self, batch: Batch) -> Tensor:
        self.token_embedding.require_rows(self.config.n_vocab, "the vocabulary has that many tokens")
        return batch.embed(lambda tokens: self.token_embedding(tokens) * self.config.dim**0.5)

    def logits(self, x: Tensor) -> Tensor:
        logits = self.output(x)
        cap = self.config.softcap
        return (logits * (1 / cap)).tanh() * cap if cap else logits


family = Family(Model)
