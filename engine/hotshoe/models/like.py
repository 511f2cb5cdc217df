"""Architectures of GGUF that compute the same as another one, or nearly: one table."""

from __future__ import annotations

from dataclasses import dataclass

from hotshoe import nn
from hotshoe.families import Family
from hotshoe.models import hunyuan_dense, llama, qwen2, qwen2vl, stablelm
from hotshoe.nn import GatedMLP, LayerNormConfig, RMSNorm, TextConfig, derived, layers, submodule
from hotshoe.nn.bounds import check_range
from hotshoe_core.gguf import Metadata

_LAYERS_13B = 40  # of Baichuan

SUMMARIES = {
    "arcee": "AFM 4.5B (Arcee 2025): Llama whose MLP has a squared ReLU and no gate.",
    "baichuan": "Baichuan (Yang et al. 2023, arXiv:2309.10305): the 7B is the same as Llama, the 13B has ALiBi.",
    "ernie4_5": "ERNIE 4.5 without experts (Baidu 2025): the same as Llama.",
    "internlm2": "InternLM2 (Cai et al. 2024, arXiv:2403.17297): the same as Llama.",
    "maincoder": "Maincoder (Maincode 2025): Llama whose queries and keys are normalised after RoPE.",
    "orion": "Orion (OrionStar 2024, arXiv:2401.12246): Llama with LayerNorms.",
    "pangu-embedded": "openPangu Embedded (Huawei 2025, arXiv:2505.22375): Qwen2 with a bias of attention's result.",
    "xverse": "XVERSE (2023): the same as Llama.",
    "exaone": "EXAONE 3 and 3.5 (LG AI Research 2024, arXiv:2412.04862): Llama with RoPE's pairs in halves.",
    "seed_oss": "Seed-OSS (ByteDance 2025): Qwen2, but files call the MLP's norm post_attention_norm.",
    "paddleocr": "The text model of PaddleOCR-VL (Baidu 2025, arXiv:2510.14528): the same as Qwen2-VL, without biases.",
    "qwen": "Qwen 1 (Bai et al. 2023, arXiv:2309.16609): Qwen2 with queries, keys and values in one matrix.",
}
"""What each architecture is, for docs/families.md."""


class ReluMLP(nn.MLP):
    activation = "relu_squared"


class ArceeBlock(nn.TransformerBlock):
    attention: llama.Attention = submodule()
    mlp: ReluMLP = submodule()


class Arcee(nn.Decoder):
    config: llama.Config
    blocks: list[ArceeBlock] = layers("blk")


class BaichuanBlock(nn.TransformerBlock):
    attention: nn.AlibiAttention = submodule()
    mlp: GatedMLP = submodule()


class Baichuan13B(nn.Decoder):
    config: TextConfig
    blocks: list[BaichuanBlock] = layers("blk")

    def unused_keys(self) -> dict[str, str]:
        return dict.fromkeys(("rope.dimension_count", "rope.freq_base"), "ALiBi replaces RoPE")


def _baichuan(metadata: Metadata) -> type[nn.Module]:
    """Only the number of layers says which positions a file has."""
    return Baichuan13B if metadata.arch.get("block_count", 0) == _LAYERS_13B else llama.Model


class Maincoder(nn.Decoder):
    config: llama.Config
    blocks: list[hunyuan_dense.Block] = layers("blk")


class Orion(nn.Decoder):
    config: LayerNormConfig
    blocks: list[stablelm.Block] = layers("blk")


class Exaone(nn.Decoder):
    config: TextConfig
    blocks: list[llama.Block] = layers("blk")


class SeedBlock(qwen2.Block):
    mlp_norm: RMSNorm = submodule("post_attention_norm", shape=lambda c, i: (c.dim,))


class SeedOss(nn.Decoder):
    config: TextConfig
    blocks: list[SeedBlock] = layers("blk")


@dataclass(frozen=True, slots=True, kw_only=True)
class QwenConfig(TextConfig):
    # files give the size of gate and up together
    mlp_dim: tuple[int, ...] = derived(
        lambda metadata, found, _: tuple(
            check_range(metadata, "feed_forward_length", n) // 2
            for n in metadata.arch.per_layer("feed_forward_length", found.n_layers, int)
        )
    )


class Qwen(nn.Decoder):
    config: QwenConfig
    blocks: list[qwen2.Block] = layers("blk")


arcee = Family(Arcee)
baichuan = Family(_baichuan)
ernie4_5 = Family(llama.Model)
internlm2 = Family(llama.Model)
exaone = Family(Exaone)
maincoder = Family(Maincoder)
orion = Family(Orion)
pangu = Family(qwen2.Model)
seed_oss = Family(SeedOss)
paddleocr = Family(qwen2vl.Model)
qwen = Family(Qwen)
xverse = Family(llama.Model)
