"""ModernBERT (Warner et al. 2024, arXiv:2412.13663): most layers see only near tokens, on both sides.

The layers with all tokens have a RoPE of another base. The first layer has no norm before attention.
"""

from __future__ import annotations

from dataclasses import dataclass

from hotshoe import nn
from hotshoe.families import Family
from hotshoe.nn import (
    GatedMLP,
    LayerNorm,
    LayerNormConfig,
    LayerPattern,
    Linear,
    Module,
    key,
    layers,
    pattern_key,
    submodule,
)
from hotshoe.tasks import Task
from hotshoe_core import Tensor
from hotshoe_core.errors import ModelFileError
from hotshoe_core.gguf import Metadata

_RANK = 4  # pooling_type of rerankers


@dataclass(frozen=True, slots=True, kw_only=True)
class Config(LayerNormConfig):
    pattern: LayerPattern = pattern_key(3, dense_first=True)
    hidden_act: str = key("hidden_activation", default="gelu")


class Attention(nn.Attention):
    both_sides = True


class GeluMLP(GatedMLP):
    activation = "gelu"


def _mlp(config: Config) -> type[GatedMLP]:
    classes = {"gelu": GeluMLP, "silu": GatedMLP}
    if config.hidden_act not in classes:
        raise ModelFileError(f"modern-bert.hidden_activation is {config.hidden_act!r}; expected gelu or silu")
    return classes[config.hidden_act]


class Block(nn.TransformerBlock):
    attention_norm: LayerNorm | None = submodule("attn_norm", when=lambda c, i: i > 0, shape=lambda c, i: (c.dim,))
    attention: Attention = submodule()
    mlp_norm: LayerNorm = submodule("ffn_norm", shape=lambda c, i: (c.dim,))
    mlp: GeluMLP | GatedMLP = submodule(choose=lambda c, i: _mlp(c))


class Model(nn.Encoder):
    config: Config
    token_types = None
    blocks: list[Block] = layers("blk")
    norm: LayerNorm = submodule("output_norm", shape=lambda c, i: (c.dim,))

    def unused_keys(self) -> dict[str, str]:
        return {"classifier.pooling_type": "of rerankers"}


@dataclass(frozen=True, slots=True, kw_only=True)
class RerankerConfig(Config):
    # the mean, or the first token; read by the runner
    pooling: int = key("classifier.pooling_type", minimum=1, maximum=2)


class Reranker(Model):
    config: RerankerConfig
    task = Task.RERANK
    pooler: Linear = submodule("cls", shape=lambda c, i: (c.dim, c.dim))
    pooler_norm: LayerNorm = submodule("cls.norm", shape=lambda c, i: (c.dim,))
    classifier: Linear = submodule("cls.output", shape=lambda c, i: (None, c.dim))

    def score(self, pooled: Tensor) -> Tensor:
        """Pooled hidden states, (b, dim), to scores, (b, labels)."""
        return self.classifier(self.pooler_norm(self.pooler(pooled).gelu()))


def _variant(metadata: Metadata) -> type[Module]:
    arch = metadata.arch
    return Reranker if arch.get("pooling_type", 0) == _RANK or "classifier.output_labels" in arch else Model


family = Family(_variant)
