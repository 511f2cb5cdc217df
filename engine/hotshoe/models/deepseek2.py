"""DeepSeek-V2 and V3 (arXiv:2405.04434, arXiv:2412.19437), Kimi K2, GLM-4.7-Flash, Mistral Large 3 and Small 4.

They have latent attention, and after a few dense layers a mixture of experts. YaRN scales the scores.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from hotshoe import nn
from hotshoe.families import Family
from hotshoe.nn import Temperature, derived, key, layers, rope_key, submodule
from hotshoe.nn.experts import Gating, read_gating
from hotshoe.nn.latent import LatentAttention, LatentConfig
from hotshoe_core.gguf import GGUFArray, Metadata
from hotshoe_core.ops import RoPE

_LOG_MULTIPLIER = "rope.scaling.yarn_log_multiplier"  # a tenth of the checkpoint's mscale_all_dim
_GLM_FLASH = (47, 154_880)  # layers and tokens of GLM-4.7-Flash


def _magnitude(arch: Metadata, factor: float) -> float:
    """YaRN's magnitude of the rotated elements. Checkpoints scale the scores instead, by their mscale_all_dim.

    They divide the magnitude of mscale by that of mscale_all_dim. Files have no mscale: readers take it to be as large
    as mscale_all_dim for this architecture, and 1 for others with this attention.
    """
    mscale = arch.get(_LOG_MULTIPLIER, 0.0) / 0.1
    if mscale and arch.architecture == "deepseek2":
        return 1.0
    return nn.yarn_magnitude(factor) / nn.yarn_magnitude(factor, mscale)


def _gating(metadata: Metadata, found: SimpleNamespace, _: Any) -> Gating:
    """Files of GLM-5, and the first ones of GLM-4.7-Flash, do not say that their scores are sigmoids."""
    tokens = metadata.get("tokenizer.ggml.tokens")
    n_tokens = metadata.arch.get("vocab_size", len(tokens) if isinstance(tokens, GGUFArray) else 0)
    is_glm = metadata.architecture == "glm-dsa" or (found.n_layers, n_tokens) == _GLM_FLASH
    return read_gating(metadata, "sigmoid" if is_glm else "softmax")


@dataclass(frozen=True, slots=True, kw_only=True)
class Config(LatentConfig):
    rope: RoPE = rope_key(interleaved=True, magnitude=_magnitude)
    yarn_log_multiplier: float = key(_LOG_MULTIPLIER, default=0.0)
    gating: Gating = derived(_gating)
    normalize_experts: bool = key("expert_weights_norm", default=False)
    temperature_scale: float = key("attention.temperature_scale", default=0.0)
    temperature_length: int = key("attention.temperature_length", default=lambda c: c.rope.original_context, minimum=1)


class Attention(LatentAttention):
    config: Config

    @property
    def scale(self) -> float:
        """The factor of the scores. It includes YaRN's temperature; other models apply that to the rotated elements."""
        temperature = 1.0 + self.config.yarn_log_multiplier * math.log(max(1.0, 1.0 / self.config.rope.scale))
        return temperature * temperature / math.sqrt(self.config.head_dim)

    @property
    def temperature(self) -> Temperature | None:
        cfg = self.config
        return Temperature(cfg.temperature_scale, cfg.temperature_length) if cfg.temperature_scale else None


class Block(nn.ExpertBlock):
    attention: Attention = submodule()


class Model(nn.Decoder):
    config: Config
    blocks: list[Block] = layers("blk")

    def unused_keys(self) -> dict[str, str]:
        return dict.fromkeys(("attention.key_length", "attention.value_length"), "they follow from kv_rank")


family = Family(Model)
