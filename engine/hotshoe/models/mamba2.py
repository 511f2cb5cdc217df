"""Mamba-2 (Dao & Gu 2024, arXiv:2405.21060): no attention; the cache holds one state of fixed size for each layer."""

from __future__ import annotations

from dataclasses import dataclass

from hotshoe import nn
from hotshoe.families import Family
from hotshoe.kvcache import RecurrentSpec, RecurrentView
from hotshoe.nn import Linear, Module, RMSNorm, key, layers, submodule, tensor
from hotshoe.nn.batch import Batch
from hotshoe_core import Tensor, ops


@dataclass(frozen=True, slots=True, kw_only=True)
class Config(nn.Config):
    norm_eps: float = key("attention.layer_norm_rms_epsilon", minimum=0)
    kernel_size: int = key("ssm.conv_kernel", minimum=2)
    inner: int = key("ssm.inner_size", minimum=1)
    state: int = key("ssm.state_size", minimum=1)
    n_heads: int = key("ssm.time_step_rank", minimum=1)
    n_groups: int = key("ssm.group_count", minimum=1)

    @property
    def channels(self) -> int:
        """Channels of the convolution: those of x, B and C."""
        return self.inner + 2 * self.n_groups * self.state


class Mixer(Module):
    """The state-space layer: (n, dim) to (n, dim). ``keys`` and ``queries`` are B and C of the paper."""

    config: Config
    projection: Linear = submodule("ssm_in", shape=lambda c, i: (c.inner + c.channels + c.n_heads, c.dim))
    conv: Tensor = tensor("ssm_conv1d.weight", use="ssm_conv", shape=lambda c, i: (c.channels, c.kernel_size))
    conv_bias: Tensor | None = tensor(
        "ssm_conv1d.bias", use="ssm_conv", optional=True, shape=lambda c, i: (c.channels,)
    )
    dt_bias: Tensor = tensor("ssm_dt.bias", use="add", shape=lambda c, i: (c.n_heads,))
    decay: Tensor = tensor("ssm_a", use="ssm_scan", shape=lambda c, i: (c.n_heads, 1))
    skip: Tensor = tensor("ssm_d", use="mul", shape=lambda c, i: (c.n_heads, 1))
    norm: Tensor = tensor("ssm_norm.weight", use="mul", shape=lambda c, i: (c.n_groups, c.inner // c.n_groups))
    out: Linear = submodule("ssm_out", shape=lambda c, i: (c.dim, c.inner))

    def cache_spec(self) -> RecurrentSpec:
        cfg = self.config
        return RecurrentSpec(
            {
                "conv": (cfg.kernel_size - 1, cfg.channels),  # the last inputs of the convolution
                "scan": (cfg.n_heads, cfg.inner // cfg.n_heads, cfg.state),
            }
        )

    def __call__(self, x: Tensor, batch: Batch, view: RecurrentView) -> Tensor:
        cfg = self.config
        projected = view.split(self.projection(x))  # (b, t, ...)
        b, t, _ = projected.shape
        gate = projected[..., : cfg.inner]
        mixed = projected[..., cfg.inner : cfg.inner + cfg.channels]
        dt = projected[..., cfg.inner + cfg.channels :] + self.dt_bias  # (b, t, heads)

        history = view.read("conv")
        view.write("conv", ops.concat(history, mixed, axis=1)[:, t:])
        mixed = ops.ssm_conv(mixed, history, self.conv, self.conv_bias).silu()

        values = mixed[..., : cfg.inner].reshape(b, t, cfg.n_heads, -1)
        keys, queries = (x.reshape(b, t, cfg.n_groups, cfg.state) for x in mixed[..., cfg.inner :].chunk(2))
        y, state = ops.ssm_scan(values, dt, self.decay, keys, queries, view.read("scan"), dt_softplus=True)
        view.write("scan", state)
        y = (y + values * self.skip).reshape(b, t, cfg.inner)
        return self.out(view.merge(self._normalised(y * gate.silu())))

    def _normalised(self, x: Tensor) -> Tensor:
        """RMS norm over each group of channels: (..., inner) to (..., inner)."""
        groups = x.reshape(*x.shape[:-1], *self.norm.shape)
        return (ops.rms_norm(groups, eps=self.config.norm_eps) * self.norm).reshape(*x.shape)


class Block(nn.Block):
    norm: RMSNorm = submodule("attn_norm", shape=lambda c, i: (c.dim,))
    mixer: Mixer = submodule()

    def cache_spec(self) -> RecurrentSpec:
        return self.mixer.cache_spec()

    def __call__(self, x: Tensor, batch: Batch, view: RecurrentView) -> Tensor:
        return x + self.mixer(self.norm(x), batch, view)


class Model(nn.Decoder):
    config: Config
    blocks: list[Block] = layers("blk")


family = Family(Model)
