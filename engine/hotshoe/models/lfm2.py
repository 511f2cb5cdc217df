"""LFM2 (Liquid AI 2025, arXiv:2511.23404): most layers are short gated convolutions, the others attention."""

from __future__ import annotations

from dataclasses import dataclass

from hotshoe import nn
from hotshoe.families import Family
from hotshoe.kvcache import RecurrentSpec, RecurrentView
from hotshoe.nn import GatedMLP, Linear, Module, RMSNorm, TextConfig, key, layers, submodule, tensor
from hotshoe.nn.batch import Batch
from hotshoe_core import Tensor, ops


@dataclass(frozen=True, slots=True, kw_only=True)
class Config(TextConfig):
    kernel_size: int = key("shortconv.l_cache", minimum=2)  # tokens that a convolution sees


class ShortConvolution(Module):
    """A causal convolution between two gates: (n, dim) to (n, dim). One matrix computes both gates and the input."""

    config: Config
    projection: Linear = submodule("shortconv.in_proj", shape=lambda c, i: (3 * c.dim, c.dim))
    conv: Tensor = tensor("shortconv.conv.weight", use="ssm_conv", shape=lambda c, i: (c.dim, c.kernel_size))
    out: Linear = submodule("shortconv.out_proj", shape=lambda c, i: (c.dim, c.dim))

    def cache_spec(self) -> RecurrentSpec:
        # the last inputs of the convolution
        return RecurrentSpec({"conv": (self.config.kernel_size - 1, self.config.dim)})

    def __call__(self, x: Tensor, batch: Batch, view: RecurrentView) -> Tensor:
        before_gate, after_gate, x = view.split(self.projection(x)).chunk(3)  # each (b, t, dim)
        x = before_gate * x
        history = view.read("conv")
        view.write("conv", ops.concat(history, x, axis=1)[:, x.shape[1] :])
        return self.out(view.merge(after_gate * ops.ssm_conv(x, history, self.conv)))


class Block(nn.TransformerBlock):
    attention: nn.NormedAttention | ShortConvolution = submodule(
        choose=lambda c, i: nn.NormedAttention if c.n_kv_heads[i] else ShortConvolution
    )
    mlp: GatedMLP = submodule()


class Model(nn.Decoder):
    config: Config
    blocks: list[Block] = layers("blk")
    norm: RMSNorm = submodule("output_norm", "token_embd_norm", shape=lambda c, i: (c.dim,))


family = Family(Model)
