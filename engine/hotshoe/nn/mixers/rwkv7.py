"""RWKV7: attention of RWKV-7 without a cache of keys, and the token shift before it."""

from __future__ import annotations

import math
from typing import Any

from hotshoe.kvcache import RecurrentView
from hotshoe.nn.basic import LayerNorm, Linear
from hotshoe.nn.module import Module, submodule, tensor
from hotshoe_core import Tensor, ops

__all__ = ["RWKV7", "shifted"]

_LEAST_DECAY = -math.exp(-0.5)  # the logarithm of a decay is between this and 0
_HEAD_EPS = 64e-5


def shifted(x: Tensor, name: str, view: RecurrentView) -> Tensor:
    """The token before each one: (n, dim) to (n, dim). The last token is the state ``name``, of shape (1, dim)."""
    series = view.split(x)
    return view.merge(ops.concat(view.roll(name, series), series, axis=1)[:, : series.shape[1]])


def _vector(name: str, use: str = "mul") -> Any:
    return tensor(f"{name}.weight", use=use, shape=lambda c, i: (c.dim,))


def _matrix(name: str, rows: str = "dim", columns: str = "dim") -> Any:
    return submodule(name, shape=lambda c, i: (getattr(c, rows), getattr(c, columns)))


class ValueMix(Module):
    """How much of the first layer's values each layer takes: (n, dim) to (n, dim)."""

    bias: Tensor = _vector("time_mix_v0", use="add")
    down: Linear = _matrix("time_mix_v1", rows="value_rank")
    up: Linear = _matrix("time_mix_v2", columns="value_rank")

    def __call__(self, x: Tensor) -> Tensor:
        return (self.up(self.down(x)) + self.bias).sigmoid()


class RWKV7(Module):
    """The half of a block that mixes tokens, RWKV-7's "time mix" (Peng et al. 2025, arXiv:2503.14456).

    (n, dim) and the values of the first layer, or None in the first layer, to (n, dim) and these values. It reads
    ``config.head_dim`` and the ranks of four pairs of matrices: ``decay_rank``, ``rate_rank``, ``value_rank`` and
    ``gate_rank``. It keeps the states "time" (see ``shifted``) and "wkv", of shape (heads, head_dim, head_dim).
    """

    shift: Tensor = tensor("time_mix_lerp_fused.weight", use="mul", shape=lambda c, i: (6, 1, 1, c.dim))
    receptance: Linear = _matrix("time_mix_receptance")
    key: Linear = _matrix("time_mix_key")
    value: Linear = _matrix("time_mix_value")
    decay: Tensor = _vector("time_mix_w0", use="add")
    decay_down: Linear = _matrix("time_mix_w1", rows="decay_rank")
    decay_up: Linear = _matrix("time_mix_w2", columns="decay_rank")
    rate: Tensor = _vector("time_mix_a0", use="add")
    rate_down: Linear = _matrix("time_mix_a1", rows="rate_rank")
    rate_up: Linear = _matrix("time_mix_a2", columns="rate_rank")
    value_mix: ValueMix | None = submodule(when=lambda c, i: i > 0)
    gate_down: Linear = _matrix("time_mix_g1", rows="gate_rank")
    gate_up: Linear = _matrix("time_mix_g2", columns="gate_rank")
    removal_scale: Tensor = _vector("time_mix_k_k")
    key_scale: Tensor = _vector("time_mix_k_a")
    bonus: Tensor = _vector("time_mix_r_k")
    norm: LayerNorm = submodule("time_mix_ln", shape=lambda c, i: (c.dim,))
    out: Linear = _matrix("time_mix_output")

    def __call__(self, x: Tensor, view: RecurrentView, first: Tensor | None) -> tuple[Tensor, Tensor]:
        cfg = self.config

        def heads(y: Tensor) -> Tensor:
            return y.reshape(*y.shape[:-1], -1, cfg.head_dim)

        before = shifted(x, "time", view) - x
        r, w, k, v, a, g = (x + before * self.shift[i].reshape(-1) for i in range(6))
        gate = self.gate_up(self.gate_down(g).sigmoid())
        rate = (self.rate_up(self.rate_down(a)) + self.rate).sigmoid()
        decay = (self.decay_up(self.decay_down(w).tanh()) + self.decay).sigmoid() * _LEAST_DECAY
        r, k, mix = self.receptance(r), self.key(k), v
        v = self.value(v)
        if first is None:
            first = v
        elif self.value_mix is not None:
            v = v + (first - v) * self.value_mix(mix)
        removed = ops.l2_norm(heads(k * self.removal_scale))
        k = k * ((rate - 1) * self.key_scale + 1)
        series = (heads(r), heads(decay.exp()), heads(k), heads(v), -removed, removed * heads(rate))
        y, state = ops.rwkv_wkv7(*map(view.split, series), view.read("wkv"))
        view.write("wkv", state)
        y = ops.layer_norm(view.merge(y), eps=_HEAD_EPS).reshape(*x.shape) * self.norm.weight
        y = y if self.norm.bias is None else y + self.norm.bias
        bonus = heads(r * k * self.bonus).sum(keepdims=True) * heads(v)
        return self.out((y + bonus.reshape(*x.shape)) * gate), first
