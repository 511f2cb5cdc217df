"""Multi-head attention, with the options that models differ in."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from hotshoe.kvcache import AttentionSpec, AttentionView
from hotshoe.nn.basic import Linear, RMSNorm, UnweightedRMSNorm, WideRMSNorm
from hotshoe.nn.module import Module, submodule
from hotshoe.nn.positions import alibi_slopes
from hotshoe_core import Tensor, ops
from hotshoe_core.ops import RoPE

if TYPE_CHECKING:
    from hotshoe.nn.basic import Norm
    from hotshoe.nn.batch import Batch
    from hotshoe.nn.positions import Temperature

__all__ = [
    "AlibiAttention",
    "Attention",
    "NormedAttention",
    "ReadingAttention",
    "UnrotatedAttention",
    "WideNormedAttention",
]


class Attention(Module):
    """Attention, with biases if the file has them. A file may hold the matrices of queries, keys and values as one.

    A subclass declares further tensors that its files hold, with ``submodule`` or ``tensor``. It overrides the
    properties that its config expresses differently or that depend on the layer (``self.layer``).
    """

    q: Linear = submodule("attn_q", shape=lambda c, i: (c.n_heads[i] * c.head_dims[i], c.dim))
    k: Linear = submodule("attn_k", shape=lambda c, i: (c.n_kv_heads[i] * c.head_dims[i], c.dim))
    v: Linear = submodule("attn_v", shape=lambda c, i: (c.n_kv_heads[i] * c.v_dims[i], c.dim))
    qkv: Linear | None = submodule(
        "attn_qkv", instead_of=("q", "k", "v"),
        shape=lambda c, i: ((c.n_heads[i] + c.n_kv_heads[i]) * c.head_dims[i] + c.n_kv_heads[i] * c.v_dims[i], c.dim),
    )  # fmt: skip
    out: Linear = submodule("attn_output", shape=lambda c, i: (c.dim, c.n_heads[i] * c.v_dims[i]))
    q_norm: Norm | None = None
    """A norm of queries, (..., n, heads, head_dim): over each head, or over all heads together (WideRMSNorm)."""
    k_norm: Norm | None = None
    v_norm: Norm | None = None
    norm_after_rope: ClassVar[bool] = False
    """True if queries and keys are normalised after RoPE instead of before it."""
    gate: Linear | None = None
    """A gate of the result, computed from the input: one number for each head, or for each element of a head."""
    gate_activation: ClassVar[Literal["sigmoid", "softplus"]] = "sigmoid"
    sinks: Tensor | None = None
    """Attention sinks, (heads,): a logit of each head that takes a share of the softmax and has no value."""
    slopes: Tensor | None = None
    """ALiBi slopes, (heads,)."""
    both_sides: bool = False
    """In an encoder: ``window // 2`` positions before a token and as many after it are its window."""

    @property
    def n_heads(self) -> int:
        heads: int = self.config.n_heads[self.layer]
        return heads

    @property
    def n_kv_heads(self) -> int:
        heads: int = self.config.n_kv_heads[self.layer]
        return heads

    @property
    def head_dim(self) -> int:
        """Elements of a head's query and key."""
        dim: int = self.config.head_dims[self.layer]
        return dim

    @property
    def v_dim(self) -> int:
        """Elements of a head's value."""
        dim: int = self.config.v_dims[self.layer]
        return dim

    @property
    def rope(self) -> RoPE | None:
        """The rotary position embedding of queries and keys; None if the layer has none."""
        rope: RoPE | None = self.config.rope_for(self.layer)
        return rope

    @property
    def rope_factors(self) -> Tensor | None:
        """Divisors of RoPE's frequencies, (rope.dim / 2,), or None."""
        return None

    @property
    def window(self) -> int:
        """How many positions a token sees, itself included; 0 for all."""
        window: int = self.config.window_for(self.layer)
        return window

    @property
    def scale(self) -> float:
        """The factor of the scores ``q @ k.T``."""
        scale: float = self.head_dim**-0.5
        return scale

    @property
    def softcap(self) -> float:
        """Scores become ``softcap * tanh(scores / softcap)``; 0 for no cap."""
        return 0.0

    @property
    def clamp(self) -> float:
        """Queries, keys and values are limited to this absolute value; 0 for no limit."""
        return 0.0

    @property
    def temperature(self) -> Temperature | None:
        """How queries are scaled by their positions; None if they are not."""
        return None

    def cache_spec(self) -> AttentionSpec:
        """What the cache stores for this layer."""
        return AttentionSpec(
            self.n_kv_heads,
            self.head_dim,
            self.v_dim,
            window=self.window,
            both_sides=self.both_sides and self.window > 0,
            rope=self.rope,
            rope_factors=self.rope_factors,
            # the weights of a norm after RoPE do not turn with the keys
            shiftable=not self.norm_after_rope or isinstance(self.k_norm, UnweightedRMSNorm | None),
        )

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries (..., n, heads, head_dim), keys (..., n, kv_heads, head_dim) and values (..., n, kv_heads, v_dim)."""
        n, kv, dim = self.n_heads, self.n_kv_heads, self.head_dim

        def heads(y: Tensor, n: int) -> Tensor:
            return y.reshape(*x.shape[:-1], n, -1)

        if self.qkv is None:
            return heads(self.q(x), n), heads(self.k(x), kv), heads(self.v(x), kv)
        whole = self.qkv(x)
        if self.v_dim == dim:
            whole = heads(whole, n + 2 * kv)
            return whole[..., :n, :], whole[..., n : n + kv, :], whole[..., n + kv :, :]
        ends = n * dim, (n + kv) * dim
        return (
            heads(whole[..., : ends[0]], n),
            heads(whole[..., ends[0] : ends[1]], kv),
            heads(whole[..., ends[1] :], kv),
        )

    def __call__(self, x: Tensor, batch: Batch, view: AttentionView) -> Tensor:
        """(..., n, dim) to (..., n, dim)."""
        y = self.attend(*self.project(x), batch, view)
        return self.out(self.finish(y, x).reshape(*x.shape[:-1], -1))

    def attend(self, q: Tensor, k: Tensor, v: Tensor, batch: Batch, view: AttentionView) -> Tensor:
        """The result of attention, (..., n, heads, v_dim), from what ``project`` returns."""
        if self.clamp:
            q, k, v = (y.clamp(-self.clamp, self.clamp) for y in (q, k, v))
        if not self.norm_after_rope:
            q, k = self._normalised(q, k)
        if self.rope is not None:
            q, k = self.rotated(q, batch, self.rope), self.rotated(k, batch, self.rope)
        if self.norm_after_rope:
            q, k = self._normalised(q, k)
        if self.v_norm is not None:
            v = self.v_norm(v)
        if self.temperature is not None:
            q = q * self.temperature.factors(batch.positions)
        return self.average(q, *view.update(k, v), batch, view)

    def rotated(self, x: Tensor, batch: Batch, rope: RoPE) -> Tensor:
        """Rotate queries or keys, (..., n, heads, head_dim), by their positions."""
        return ops.rope(x, batch.positions, self.rope_factors, config=rope)

    def average(self, q: Tensor, k: Tensor, v: Tensor, batch: Batch, view: AttentionView) -> Tensor:
        """The averages of values, (..., n, heads, v_dim), for queries and all keys and values that the layer reads."""
        return view.attend(
            q, k, v, self.sinks, scale=self.scale, softcap=self.softcap, slopes=self.slopes, positions=batch.positions
        )

    def finish(self, y: Tensor, x: Tensor) -> Tensor:
        """Change the result of attention, (..., n, heads, v_dim), before the output matrix. ``x``: the input."""
        if self.gate is None:
            return y
        gate = self.gate(x).reshape(*y.shape[:-1], -1)
        return y * (gate.sigmoid() if self.gate_activation == "sigmoid" else gate.softplus())

    def _normalised(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        return self.q_norm(q) if self.q_norm is not None else q, self.k_norm(k) if self.k_norm is not None else k


class NormedAttention(Attention):
    """Attention with an RMS norm over each query head and each key head, after Henry et al. 2020, arXiv:2010.04245."""

    q_norm: RMSNorm = submodule("attn_q_norm", shape=lambda c, i: (c.head_dims[i],))
    k_norm: RMSNorm = submodule("attn_k_norm", shape=lambda c, i: (c.head_dims[i],))


class WideNormedAttention(Attention):
    """Attention with an RMS norm over all query heads together, and one over all key heads."""

    q_norm: WideRMSNorm = submodule("attn_q_norm", shape=lambda c, i: (c.n_heads[i] * c.head_dims[i],))
    k_norm: WideRMSNorm = submodule("attn_k_norm", shape=lambda c, i: (c.n_kv_heads[i] * c.head_dims[i],))


class UnrotatedAttention(Attention):
    """Attention without RoPE: positions are learned vectors, or the model has none."""

    rope = None


class AlibiAttention(UnrotatedAttention):
    """Attention whose scores fall with the distance (ALiBi, Press et al. 2021, arXiv:2108.12409)."""

    @property
    def max_bias(self) -> float:
        """How steep the slopes of the heads are: see ``alibi_slopes``."""
        return 8.0

    @property
    def slopes(self) -> Tensor | None:  # type: ignore[override]
        return alibi_slopes(self.n_heads, self.max_bias) if self.max_bias else None


class ReadingAttention(Attention):
    """Attention with the keys and values of an earlier layer, ``config.source_of(layer)``: it computes queries only.

    That layer should have the same window, as it decides what a token sees.
    """

    k = v = qkv = k_norm = v_norm = None  # type: ignore[assignment]

    def cache_spec(self) -> AttentionSpec:
        return AttentionSpec(like=self.config.source_of(self.layer))

    def __call__(self, x: Tensor, batch: Batch, view: AttentionView) -> Tensor:
        q = self.q(x).reshape(*x.shape[:-1], self.n_heads, self.head_dim)
        if self.q_norm is not None:
            q = self.q_norm(q)
        if self.rope is not None:
            q = self.rotated(q, batch, self.rope)
        y = self.average(q, *view.read(), batch, view)
        return self.out(self.finish(y, x).reshape(*x.shape[:-1], -1))
