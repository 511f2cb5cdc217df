"""GatedDelta: linear attention whose state forgets, and is corrected by the delta rule."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from hotshoe.kvcache import RecurrentSpec, RecurrentView
from hotshoe.nn.basic import Linear, RMSNorm
from hotshoe.nn.module import Module, submodule, tensor
from hotshoe_core import Tensor, ops

if TYPE_CHECKING:
    from hotshoe.nn.batch import Batch

__all__ = ["GatedDelta"]

_EPS = 1e-6  # of the norm of queries and keys


class GatedDelta(Module):
    """Gated DeltaNet (Yang et al. 2024, arXiv:2412.06464), as in Qwen3-Next: (n, dim) to (n, dim).

    ``config.ssm`` is a StateSpace, whose groups are the heads of queries and keys.
    """

    tiled: ClassVar[bool] = False
    """Which key head a value head h reads: ``h % n_groups`` if true, otherwise ``h // (n_heads / n_groups)``."""
    qkv: Linear = submodule("attn_qkv", shape=lambda c, i: (c.ssm.channels, c.dim))
    gate: Linear = submodule("attn_gate", shape=lambda c, i: (c.ssm.inner, c.dim))
    beta: Linear = submodule("ssm_beta", shape=lambda c, i: (c.ssm.n_heads, c.dim))
    alpha: Linear = submodule("ssm_alpha", shape=lambda c, i: (c.ssm.n_heads, c.dim))
    conv: Tensor = tensor("ssm_conv1d.weight", use="ssm_conv", shape=lambda c, i: (c.ssm.channels, c.ssm.kernel_size))
    dt_bias: Tensor = tensor("ssm_dt.bias", use="add", shape=lambda c, i: (c.ssm.n_heads,))
    decay: Tensor = tensor("ssm_a", use="mul", shape=lambda c, i: (c.ssm.n_heads,))
    norm: RMSNorm = submodule("ssm_norm", shape=lambda c, i: (c.ssm.head_dim,))
    out: Linear = submodule("ssm_out", shape=lambda c, i: (c.dim, c.ssm.inner))

    def cache_spec(self) -> RecurrentSpec:
        ssm = self.config.ssm
        return RecurrentSpec(
            {"conv": (ssm.kernel_size - 1, ssm.channels), "delta": (ssm.n_heads, ssm.head_dim, ssm.state)}
        )

    def project(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Queries, keys and values before the convolution, (n, channels), and the output gate, (n, inner)."""
        return self.qkv(x), self.gate(x)

    def rates(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The logits of beta, which says how much is written, and of the decay, both (n, heads)."""
        return self.beta(x), self.alpha(x)

    def __call__(self, x: Tensor, batch: Batch, view: RecurrentView) -> Tensor:
        ssm = self.config.ssm
        mixed, gate = self.project(x)
        beta, alpha = (view.split(rate) for rate in self.rates(x))
        mixed = view.split(mixed)  # (b, t, channels)
        b, t, _ = mixed.shape
        mixed = ops.ssm_conv(mixed, view.roll("conv", mixed), self.conv).silu()

        n_keys = 2 * ssm.n_groups * ssm.state
        qk = mixed[..., :n_keys].reshape(b, t, 2 * ssm.n_groups, ssm.state)
        # each head's vector gets length 1: x / √(x·x + ε)
        qk = ops.rms_norm(qk, eps=_EPS / ssm.state) * ssm.state**-0.5
        q, k = qk[:, :, : ssm.n_groups], qk[:, :, ssm.n_groups :]
        v = mixed[..., n_keys:].reshape(b, t, ssm.n_heads, ssm.head_dim)
        decay = (alpha + self.dt_bias).softplus() * self.decay
        y, state = ops.gated_delta_rule(q, k, v, decay, beta.sigmoid(), view.read("delta"), tiled=self.tiled)
        view.write("delta", state)
        y = ops.swiglu(gate.reshape(-1, ssm.n_heads, ssm.head_dim), self.norm(view.merge(y)))
        return self.out(y.reshape(-1, ssm.inner))
