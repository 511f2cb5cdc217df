"""Mamba1 and Mamba2: selective state spaces."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hotshoe.kvcache import RecurrentSpec, RecurrentView
from hotshoe.nn.basic import Linear
from hotshoe.nn.module import Module, submodule, tensor
from hotshoe_core import Tensor, ops

if TYPE_CHECKING:
    from hotshoe.nn.batch import Batch

__all__ = ["Mamba1", "Mamba2"]


class Mamba1(Module):
    """The mixer of Mamba (Gu & Dao 2023, arXiv:2312.00752): each channel has a state. (n, dim) to (n, dim).

    ``config.ssm`` is a StateSpace.
    """

    projection: Linear = submodule("ssm_in", shape=lambda c, i: (2 * c.ssm.inner, c.dim))
    conv: Tensor = tensor("ssm_conv1d.weight", use="ssm_conv", shape=lambda c, i: (c.ssm.inner, c.ssm.kernel_size))
    conv_bias: Tensor | None = tensor(
        "ssm_conv1d.bias", use="ssm_conv", optional=True, shape=lambda c, i: (c.ssm.inner,)
    )
    selection: Linear = submodule("ssm_x", shape=lambda c, i: (c.ssm.rank + 2 * c.ssm.state, c.ssm.inner))
    time_step: Linear = submodule("ssm_dt", shape=lambda c, i: (c.ssm.inner, c.ssm.rank))
    decay: Tensor = tensor("ssm_a", use="ssm_scan", shape=lambda c, i: (c.ssm.inner, c.ssm.state))
    skip: Tensor = tensor("ssm_d", use="mul", shape=lambda c, i: (c.ssm.inner,))
    out: Linear = submodule("ssm_out", shape=lambda c, i: (c.dim, c.ssm.inner))

    def cache_spec(self) -> RecurrentSpec:
        ssm = self.config.ssm
        return RecurrentSpec({"conv": (ssm.kernel_size - 1, ssm.inner), "scan": (ssm.inner, 1, ssm.state)})

    def __call__(self, x: Tensor, batch: Batch, view: RecurrentView) -> Tensor:
        values, gate = view.split(self.projection(x)).chunk(2)  # (b, t, inner)
        values = ops.ssm_conv(values, view.roll("conv", values), self.conv, self.conv_bias).silu()
        dt, keys, queries = self.select(values)
        y, state = ops.ssm_scan(
            values[..., None],
            self.time_step(dt),
            self.decay,
            keys[:, :, None],
            queries[:, :, None],
            view.read("scan"),
            dt_softplus=True,
        )
        view.write("scan", state)
        y = y.reshape(*values.shape) + values * self.skip
        return self.out(view.merge(ops.swiglu(gate, y)))

    def select(self, values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Time steps (b, t, rank), and the keys and queries, both (b, t, state), which are B and C of the paper."""
        ssm = self.config.ssm
        selected = self.selection(values)
        keys, queries = selected[..., ssm.rank :].chunk(2)
        return selected[..., : ssm.rank], keys, queries


class Mamba2(Module):
    """The mixer of Mamba-2 (Dao & Gu 2024, arXiv:2405.21060): each head has a state. (n, dim) to (n, dim).

    ``config.ssm`` is a StateSpace. ``keys`` and ``queries`` are B and C of the paper. The norm is over each group of
    channels, after the gate.
    """

    projection: Linear = submodule("ssm_in", shape=lambda c, i: (c.ssm.inner + c.ssm.channels + c.ssm.n_heads, c.dim))
    conv: Tensor = tensor("ssm_conv1d.weight", use="ssm_conv", shape=lambda c, i: (c.ssm.channels, c.ssm.kernel_size))
    conv_bias: Tensor | None = tensor(
        "ssm_conv1d.bias", use="ssm_conv", optional=True, shape=lambda c, i: (c.ssm.channels,)
    )
    dt_bias: Tensor = tensor("ssm_dt.bias", use="add", shape=lambda c, i: (c.ssm.n_heads,))
    decay: Tensor = tensor("ssm_a", use="ssm_scan", shape=lambda c, i: (c.ssm.n_heads, 1))
    skip: Tensor = tensor("ssm_d", use="mul", shape=lambda c, i: (c.ssm.n_heads, 1))
    norm: Tensor | None = tensor(
        "ssm_norm.weight", use="mul", shape=lambda c, i: (c.ssm.n_groups, c.ssm.inner // c.ssm.n_groups)
    )
    out: Linear = submodule("ssm_out", shape=lambda c, i: (c.dim, c.ssm.inner))

    def cache_spec(self) -> RecurrentSpec:
        ssm = self.config.ssm
        return RecurrentSpec(
            {"conv": (ssm.kernel_size - 1, ssm.channels), "scan": (ssm.n_heads, ssm.head_dim, ssm.state)}
        )

    def __call__(self, x: Tensor, batch: Batch, view: RecurrentView) -> Tensor:
        ssm = self.config.ssm
        projected = view.split(self.projection(x))  # (b, t, ...)
        b, t, _ = projected.shape
        gate = projected[..., : ssm.inner]
        mixed = projected[..., ssm.inner : ssm.inner + ssm.channels]
        dt = projected[..., ssm.inner + ssm.channels :] + self.dt_bias  # (b, t, heads)
        mixed = ops.ssm_conv(mixed, view.roll("conv", mixed), self.conv, self.conv_bias).silu()

        values = mixed[..., : ssm.inner].reshape(b, t, ssm.n_heads, -1)
        keys, queries = (x.reshape(b, t, ssm.n_groups, ssm.state) for x in mixed[..., ssm.inner :].chunk(2))
        y, state = ops.ssm_scan(values, dt, self.decay, keys, queries, view.read("scan"), dt_softplus=True)
        view.write("scan", state)
        y = (y + values * self.skip).reshape(b, t, ssm.inner)
        return self.out(view.merge(self.normalise(y * gate.silu())))

    def normalise(self, x: Tensor) -> Tensor:
        """RMS norm over each group of channels: (..., inner) to (..., inner)."""
        if self.norm is None:
            return x
        groups = x.reshape(*x.shape[:-1], *self.norm.shape)
        return (ops.rms_norm(groups, eps=self.config.norm_eps) * self.norm).reshape(*x.shape)
