"""Ling 2 and Ring 2 (Ant Group 2025, arXiv:2510.22115), Sarvam (2026): norms on queries and keys, sigmoid experts."""

from __future__ import annotations

from dataclasses import dataclass

from hotshoe import nn
from hotshoe.families import Family
from hotshoe.models import dots1
from hotshoe.nn import SigmoidExpertsConfig, derived, layers
from hotshoe.nn.bounds import check_range

_SHARED = "expert_shared_feed_forward_length"  # of one shared expert, unlike in other families


@dataclass(frozen=True, kw_only=True)
class Config(SigmoidExpertsConfig):
    shared_dim: int = derived(
        lambda metadata, found, _: (
            found.n_shared_experts * check_range(metadata, _SHARED, metadata.arch.get(_SHARED, found.expert_dim))
        )
    )


class Model(nn.Decoder):
    config: Config
    blocks: list[dots1.Block] = layers("blk")


family = Family(Model)
