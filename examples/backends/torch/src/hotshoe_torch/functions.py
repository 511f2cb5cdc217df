"""The op table over PyTorch: one function for each primitive, and for the composites that torch has.

Floats arrive as F32, except in ops that only move elements; integers keep their type.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812  (as everybody calls it)
from torch import Tensor

from hotshoe_core import DType

Slices = tuple[tuple[int, int, int], ...]

TYPES = {
    DType.F32: torch.float32,
    DType.F16: torch.float16,
    DType.BF16: torch.bfloat16,
    DType.F64: torch.float64,
    DType.I8: torch.int8,
    DType.I16: torch.int16,
    DType.I32: torch.int32,
    DType.I64: torch.int64,
}

# Elementwise


def gelu(x: Tensor, *, approximate: str) -> Tensor:
    if approximate == "quick":
        return x * torch.sigmoid(1.702 * x)
    return F.gelu(x, approximate=approximate)


def clamp(x: Tensor, *, min: float, max: float) -> Tensor:
    if not x.is_floating_point():  # torch would convert integers to floats and round them
        info = torch.iinfo(x.dtype)
        min, max = (int(sorted((info.min, limit, info.max))[1]) for limit in (min, max))
    return torch.clamp(x, min, max)


def comparison(function: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Tensor, Tensor], Tensor]:
    """``function`` with a result of ones and zeros instead of bools."""
    return lambda a, b: function(a, b).float()


# Products


def matmul(a: Tensor, b: Tensor, *, transpose: bool, precision: str) -> Tensor:
    return a @ (b.mT if transpose else b)  # in F32, which also satisfies precision="full"


def linear_experts(x: Tensor, weight: Tensor, experts: Tensor) -> Tensor:
    """Multiply expert by expert: gathering a matrix for each row would need memory for every row."""
    x = x.expand(*experts.shape, -1)  # (n, k, in)
    y = x.new_empty(*experts.shape, weight.shape[1])  # (n, k, out)
    for expert in experts.unique().tolist():
        chosen = experts == expert
        y[chosen] = F.linear(x[chosen], weight[expert])
    return y


def attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, *_: None, scale: float, softcap: float) -> Tensor:
    """Attention by torch, which has the axis of heads before the axis of tokens."""
    q, k, v = (x.transpose(-2, -3) for x in (q, k, v))  # (..., heads, n, dim)
    mask = mask if mask is None else torch.atleast_2d(mask)
    y = F.scaled_dot_product_attention(q, k, v, mask, scale=scale, enable_gqa=q.shape[-3] != k.shape[-3])
    return y.transpose(-2, -3)


# Reductions, norms and order


def reduction(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """``function`` over the given axes. An empty tuple reduces no axis; torch would reduce all of them."""
    return lambda x, *, axis, keepdims: function(x, axis, keepdims) if axis else x.clone()


def softmax(x: Tensor, mask: Tensor | None, *, scale: float) -> Tensor:
    return torch.softmax(x * scale if mask is None else x * scale + mask, -1)


def rms_norm(x: Tensor, weight: Tensor | None, *, eps: float) -> Tensor:
    return F.rms_norm(x, x.shape[-1:], weight, eps)


def layer_norm(x: Tensor, weight: Tensor | None, bias: Tensor | None, *, eps: float) -> Tensor:
    return F.layer_norm(x, x.shape[-1:], weight, bias, eps)


def argsort(x: Tensor, *, descending: bool) -> Tensor:
    return torch.argsort(-x if descending else x).int()  # torch sorts NaN last, in both directions


# Parts


def pad(x: Tensor, *, widths: tuple[tuple[int, int], ...]) -> Tensor:
    return F.pad(x, [n for pair in reversed(widths) for n in pair])  # torch starts with the last axis


def part(slices: Slices) -> tuple[slice, ...]:
    return tuple(slice(*s) for s in slices)


def set_rows(x: Tensor, indices: Tensor, rows: Tensor, *, dtype: DType) -> Tensor:
    x[indices] = rows.to(x.dtype)
    return x


def set_slice(x: Tensor, values: Tensor, *, slices: Slices, dtype: DType) -> Tensor:
    x[part(slices)] = values
    return x


IN_PLACE = {"set_rows": set_rows, "set_slice": set_slice}

SAME = "abs add ceil cos div exp floor floor_divide log maximum minimum mul neg relu round sigmoid sin sqrt sub tanh"

FUNCTIONS: dict[str, Callable[..., Any]] = {
    **{name: getattr(torch, name) for name in SAME.split()},
    "mod": torch.remainder,
    "equal": comparison(torch.eq),
    "less": comparison(torch.lt),
    "less_equal": comparison(torch.le),
    "where": lambda condition, a, b: torch.where(condition != 0, a, b),
    "affine": lambda x, *, scale, bias: x * scale + bias,
    "sqr": torch.square,
    "softplus": F.softplus,
    "silu": F.silu,
    "gelu": gelu,
    "clamp": clamp,
    "cast": lambda x, *, dtype: x.to(TYPES[dtype]),
    "matmul": matmul,
    "linear": F.linear,
    "linear_experts": linear_experts,
    "solve_lower": lambda a, b: torch.linalg.solve_triangular(a, b, upper=False),
    "attention": attention,
    "sum": reduction(torch.sum),
    "mean": reduction(torch.mean),
    "max": reduction(torch.amax),
    "cumsum": lambda x: torch.cumsum(x, -1),
    "softmax": softmax,
    "rms_norm": rms_norm,
    "layer_norm": layer_norm,
    "argmax": lambda x: torch.argmax(x, -1).int(),
    "argsort": argsort,
    "top_k": lambda x, *, k: argsort(x, descending=True)[..., :k],
    "reshape": lambda x, *, shape: x.reshape(shape),
    "permute": lambda x, *, axes: x.permute(axes),
    "expand": lambda x, *, shape: x.expand(shape),
    "slice": lambda x, *, slices: x[part(slices)],
    "concat": lambda *xs, axis: torch.cat(xs, axis),
    "pad": pad,
    "take": lambda x, indices: x[indices],
    "take_along": lambda x, indices: torch.take_along_dim(x, indices.long(), -1),
}
