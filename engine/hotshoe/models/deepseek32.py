"""DeepSeek-V3.2 (arXiv:2512.02556) and GLM-5 (arXiv:2602.15763): DeepSeek-V3 with sparse attention.

In each layer an indexer chooses ``top_k`` tokens that a token sees. With no more tokens than that it chooses all of
them, so the model is DeepSeek-V3 then. Longer contexts are refused.
"""

from __future__ import annotations

from dataclasses import dataclass

from hotshoe.families import Family
from hotshoe.models import deepseek2
from hotshoe.nn import derived
from hotshoe.nn.bounds import check_range

_TOP_K = "attention.indexer.top_k"
_INDEXER = ("attn_k.weight", "attn_q_b.weight", "k_norm.weight", "k_norm.bias", "proj.weight")
_WHY = "an indexer chooses tokens of longer contexts only"


@dataclass(frozen=True, slots=True, kw_only=True)
class Config(deepseek2.Config):
    n_ctx: int = derived(
        lambda metadata, *_: min(
            check_range(metadata, name, metadata.arch.require(name, int), 1, (1 << 31) - 1)
            for name in ("context_length", _TOP_K)
        )
    )


class Model(deepseek2.Model):
    config: Config
    context_limit = "hotshoe does not have the indexer that longer contexts need"

    def unused_keys(self) -> dict[str, str]:
        keys = (f"attention.indexer.{name}" for name in ("head_count", "key_length", "types"))
        return super().unused_keys() | dict.fromkeys(keys, _WHY)

    def unused_tensors(self) -> dict[str, str]:
        names = (f"blk.{i}.indexer.{name}" for i in range(self.config.n_layers) for name in _INDEXER)
        return super().unused_tensors() | dict.fromkeys(names, _WHY)


family = Family(Model)
