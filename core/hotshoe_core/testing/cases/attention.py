"""Cases of attention and rotary position embedding."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from hotshoe_core.ops import RoPE
from hotshoe_core.tensors.dtypes import DType
from hotshoe_core.tensors.tensor import Shape
from hotshoe_core.testing.cases._shared import BF16, F16, I64, LAYOUTS, Q8_0
from hotshoe_core.testing.operands import Arg, Case, Cycle, indices, mask, normal, positive, weight
from hotshoe_core.testing.run import F32, I32, Kind, Layout

__all__ = ["cases"]


def rope() -> Iterator[Case]:
    yarn: dict[str, Any] = {"scale": 0.25, "ext_factor": 1.0, "original_context": 64, "base": 10000.0}
    variants: tuple[dict[str, Any], ...] = ({}, {"base": 500.0, "scale": 0.5}, yarn)
    configs = [RoPE(8, interleaved=i, **v) for i in (False, True) for v in variants]
    configs += [RoPE(8, attn_factor=1.25), RoPE(8, beta_fast=16.0, beta_slow=2.0, attn_factor=0.9, **yarn)]
    configs += [RoPE(8, truncate=False, **yarn), RoPE(8, truncate=False, interleaved=True, **yarn)]
    configs += [RoPE(4), RoPE(4, interleaved=True), RoPE(4, interleaved=True, **yarn)]
    for config in configs:
        c = {"config": config}
        yield Case("rope", (Arg((3, 2, 8)), indices((3,), 300)), c)
        if config.dim == 8:
            f = Arg((4,), kind="weight", values=positive)
            yield Case("rope", (Arg((3, 2, 8)), indices((3,), 300), f), c)
    c = {"config": RoPE(8)}
    for dtype in (F16, BF16):
        yield Case("rope", (Arg((3, 2, 8), dtype), indices((3,), 300)), c)
    for layout in LAYOUTS:
        yield Case("rope", (Arg((3, 2, 8), layout=layout), indices((3,), 300)), c)
        yield Case("rope", (Arg((2, 3, 2, 8), layout=layout), indices((2, 3), 300)), c)
    for interleaved in (False, True):
        b = {"config": RoPE(6, interleaved=interleaved)}
        yield Case("rope", (Arg((2, 3, 2, 8)), indices((3,), 300)), b)
        yield Case("rope", (Arg((2, 3, 2, 8)), indices((2, 3), 300)), b)
    yield Case("rope", (Arg((3, 2, 8)), indices((3,), 300, layout="stepped")), c)
    for interleaved in (False, True):  # odd positions that F16 cannot hold
        far = Arg((3,), I32, values=Cycle((2049, 4001, 3)), note="far")
        yield Case("rope", (Arg((3, 2, 8)), far), {"config": RoPE(8, interleaved=interleaved)})
    yield Case("rope", (Arg((3, 2, 8)), indices((3,), 300, dtype=I64)), c, optional=True)


def attention() -> Iterator[Case]:
    def case(
        q: Shape = (5, 4, 16),
        kv: Shape = (7, 2, 16),
        *,
        mask: Arg | None = None,
        sinks: Arg | None = None,
        kv_dtype: DType = F32,
        layout: Layout = "plain",
        **attrs: float,
    ) -> Case:
        operands = (Arg(q, layout=layout), *(Arg(kv, kv_dtype, layout=layout),) * 2, mask, sinks)
        return Case("attention", operands, {"scale": 0.25, **attrs})

    def batched(mask: Arg | None = None, sinks: Arg | None = None, layout: Layout = "plain") -> Case:
        return case((2, 5, 4, 16), (2, 7, 2, 16), mask=mask, sinks=sinks, layout=layout)

    def masked(*shape: int, dtype: DType = F32) -> Arg:
        return Arg(shape, dtype, values=mask)

    sinks = weight((4,))
    yield from (case(), case(kv=(7, 4, 16)), case(kv=(7, 1, 16)), case(q=(1, 4, 16)))
    yield case(q=(33, 4, 64), kv=(70, 2, 64))
    yield from (case(softcap=2.0), case(softcap=2.0, mask=masked(5, 7)), case(sinks=sinks))
    yield from (case(sinks=sinks, mask=masked(5, 7)), case(sinks=Arg((4,), F16), mask=masked(4, 5, 7), softcap=1.5))
    shape: Shape
    masks: tuple[Shape, ...]
    masks = ((7,), (5, 7), (1, 7), (5, 1), (1, 5, 7), (4, 5, 7), (4, 1, 7))
    for shape in masks:
        yield case(mask=masked(*shape) if shape[-1] > 1 else Arg(shape))
    yield case(mask=masked(5, 7, dtype=F16))
    yield case(mask=Arg((5, 7), layout="permuted", values=normal))
    yield batched()
    masks = ((7,), (5, 7), (1, 5, 7), (4, 5, 7), (2, 1, 5, 7), (2, 1, 1, 7), (2, 4, 5, 7))
    for shape in masks:
        yield batched(masked(*shape))
    yield batched(masked(2, 1, 5, 7), sinks)
    for dtype in (F16, BF16):
        yield case(kv_dtype=dtype, mask=masked(5, 7))
    yield case(kv_dtype=F16, q=(1, 4, 64), kv=(32, 2, 64), mask=masked(1, 32))
    for layout in LAYOUTS:
        yield case(layout=layout, mask=masked(5, 7))
        yield batched(layout=layout)
    yield Case("attention", (Arg((5, 4, 16)), Arg((7, 2, 16)), Arg((7, 2, 8)), masked(5, 7)), {"scale": 0.25})
    yield Case("attention", (Arg((5, 4, 16), F16), Arg((7, 2, 16), F16), Arg((7, 2, 16))), {"scale": 0.25})
    for dtype in (F16, Q8_0):  # a cache
        kv = Arg((32, 2, 32), dtype, "state")
        yield Case("attention", (Arg((5, 4, 32)), kv, kv, masked(5, 32)), {"scale": 0.25})
        yield Case("attention", (Arg((1, 4, 32)), kv, kv, masked(32)), {"scale": 0.25})


def sections() -> Iterator[Case]:
    """Tokens with several positions."""
    configs = [
        RoPE(8, sections=(1, 1, 2)), RoPE(8, sections=(2, 2)), RoPE(12, sections=(2, 1, 2, 1)), RoPE(8, sections=(4,)),
        RoPE(16, sections=(4, 2, 2), section_layout="interleaved"), RoPE(8, sections=(2, 0, 2)),
        RoPE(16, sections=(2, 3, 3), section_layout="contiguous", base=500.0, scale=0.5),
        RoPE(16, sections=(3, 3, 2), scale=0.25, ext_factor=1.0, original_context=64),
        RoPE(8, sections=(2, 2), section_layout="restarting"), RoPE(8, sections=(1, 3), section_layout="restarting"),
        RoPE(8, sections=(1, 1, 2), interleaved=True), RoPE(10, sections=(1, 1, 1, 1, 1)),
        RoPE(16, sections=(5, 1, 2), section_layout="interleaved", interleaved=True),
    ]  # fmt: skip
    for config in configs:
        k, c = len(config.sections), {"config": config}
        yield Case("rope", (Arg((3, 2, config.dim)), indices((k, 3), 300)), c)
        yield Case("rope", (Arg((3, 2, config.dim + 4)), indices((k, 3), 300)), c)
        yield Case("rope", (Arg((2, 3, 2, config.dim)), indices((k, 3), 300)), c)
        yield Case("rope", (Arg((2, 3, 2, config.dim)), indices((k, 2, 3), 300)), c)
        factors = Arg((config.dim // 2,), kind="weight", values=positive)
        yield Case("rope", (Arg((3, 2, config.dim)), indices((k, 3), 300), factors), c)
    c = {"config": configs[0]}
    for layout in LAYOUTS:
        yield Case("rope", (Arg((3, 2, 8), layout=layout), indices((3, 3), 300, layout=layout)), c)


def odd_heads_and_strides() -> Iterator[Case]:
    for config in (RoPE(8), RoPE(4), RoPE(8, interleaved=True), RoPE(8, sections=(1, 1, 2))):
        shape = (len(config.sections), 3) if config.sections else (3,)
        yield Case("rope", (Arg((3, 2, 9)), indices(shape, 300)), {"config": config})
    for layout in ("sliced", "stepped"):
        factors = Arg((4,), layout=layout, values=positive)
        yield Case("rope", (Arg((3, 2, 8)), indices((3,), 300), factors), {"config": RoPE(8)})
        strided = Arg((4,), layout=layout)
        q, kv, hidden = Arg((5, 4, 16)), Arg((7, 2, 16)), Arg((5, 7), values=mask)
        yield Case("attention", (q, kv, kv, hidden, strided), {"scale": 0.25})
        positive_ones = Arg((4,), layout=layout, values=positive)
        yield Case("attention", (q, kv, kv, hidden, None, positive_ones), {"scale": 0.25})


def distances(rng: np.random.Generator, shape: Shape) -> np.ndarray[Any, Any]:
    """The mask of ALiBi: minus the distance of a key before its query, and -inf for later keys."""
    wide = (1, 1, *shape)
    n, m = wide[-2:]
    ahead = np.arange(m) - np.arange(m - n, m)[:, None]
    return np.broadcast_to(np.where(ahead > 0, -np.inf, ahead), wide).astype(np.float32).reshape(shape)


def slopes() -> Iterator[Case]:
    each = Arg((4,), values=positive)
    for q, kv, shape in (
        ((5, 4, 16), (7, 2, 16), (5, 7)),
        ((5, 4, 16), (7, 2, 16), (1, 5, 7)),
        ((1, 4, 16), (7, 4, 16), (1, 7)),
        ((2, 5, 4, 16), (2, 7, 2, 16), (5, 7)),
        ((2, 5, 4, 16), (2, 7, 2, 16), (2, 1, 5, 7)),
    ):
        for dtype in (F32, F16):
            keys, hidden = Arg(kv, dtype), Arg(shape, values=distances)
            yield Case("attention", (Arg(q), keys, keys, hidden, None, each), {"scale": 0.25})
    operands = (
        Arg((5, 4, 16)),
        Arg((7, 2, 16)),
        Arg((7, 2, 16)),
        Arg((5, 7), F16, values=distances),
        weight((4,)),
        each,
    )
    yield Case("attention", operands, {"scale": 0.25, "softcap": 2.0})


def large_heads() -> Iterator[Case]:
    """Head sizes of DeepSeek's latent attention (576 with 512 values; 192 and 128), 256, and larger."""
    for dim, v_dim in ((576, 512), (192, 128), (256, 256), (608, 608)):
        for n in (1, 5):
            for dtype in (F32, F16):
                hidden = Arg((n, 7), values=mask)
                operands = (Arg((n, 4, dim)), Arg((7, 1, dim), dtype), Arg((7, 1, v_dim), dtype), hidden)
                yield Case("attention", operands, {"scale": dim**-0.5})


_LISTS = (
    *(0, 0, 1), *(0, 0, 2), *(0, 1, 5),  # a text; the last one has a window
    *(5, 6, 7), *(5, 6, 12),
)  # fmt: skip


def cached_attention() -> Iterator[Case]:
    """Two texts whose lists of cells follow each other, with cells in any order, some of them in both lists."""

    def case(
        q: Shape = (5, 4, 16),
        kv: Shape = (9, 2, 16),
        *,
        cells: Arg | None = None,
        ranges: Arg | None = None,
        sinks: Arg | None = None,
        slopes: Arg | None = None,
        kv_dtype: DType = F32,
        kind: Kind = "input",
        layout: Layout = "plain",
        optional: bool = False,
        **attrs: float,
    ) -> Case:
        keys = Arg(kv, kv_dtype, kind, layout=layout)
        lists = cells or indices((12,), kv[0]), ranges or lists_of(_LISTS)
        operands = (Arg(q, layout=layout), keys, keys, *lists, sinks, slopes)
        return Case("cached_attention", operands, {"scale": 0.25, **attrs}, optional)

    def lists_of(numbers: tuple[int, ...], dtype: DType = I32) -> Arg:
        return Arg((len(numbers) // 3, 3), dtype, values=Cycle(numbers), note="lists")

    sinks, slopes = weight((4,)), Arg((4,), values=positive)
    yield from (case(), case(kv=(9, 4, 16)), case(kv=(9, 1, 16)), case(sinks=sinks), case(slopes=slopes))
    yield from (case(softcap=2.0), case(softcap=2.0, sinks=sinks, slopes=slopes))
    yield case(q=(1, 4, 16), ranges=lists_of((0, 0, 12)))
    yield case(q=(1, 4, 16), ranges=lists_of((3, 5, 11)), sinks=Arg((4,), F16), slopes=Arg((4,), F16, values=positive))
    for dtype in (F16, BF16):
        yield case(kv_dtype=dtype)
    for layout in LAYOUTS:
        yield case(layout=layout)
    for dtype in (F16, Q8_0):  # a cache
        yield case(q=(5, 4, 32), kv=(9, 2, 32), kv_dtype=dtype, kind="state")
    yield case(cells=indices((12,), 9, dtype=I64), ranges=lists_of(_LISTS, I64), optional=True)
    operands = (Arg((5, 4, 24)), Arg((9, 2, 24)), Arg((9, 2, 8)), indices((12,), 9), lists_of(_LISTS))
    yield Case("cached_attention", operands, {"scale": 0.25})
    one_text = tuple(x for i in range(40) for x in (0, 0, i + 9))
    yield case(q=(40, 4, 16), kv=(60, 2, 16), cells=indices((48,), 60), ranges=lists_of(one_text))
    for dim, v_dim in ((576, 512), (608, 608)):
        operands = (Arg((5, 4, dim)), Arg((9, 1, dim)), Arg((9, 1, v_dim)), indices((12,), 9), lists_of(_LISTS))
        yield Case("cached_attention", operands, {"scale": dim**-0.5})


def cases() -> Iterator[Case]:
    yield from rope()
    yield from attention()
    yield from sections()
    yield from odd_heads_and_strides()
    yield from slopes()
    yield from large_heads()
    yield from cached_attention()
