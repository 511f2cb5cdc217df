"""Cases of attention and rotary position embedding."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hotshoe_core.dtypes import DType
from hotshoe_core.ops import RoPE
from hotshoe_core.tensor import Shape
from hotshoe_core.testing.cases._shared import BF16, F16, I64, LAYOUTS, Q8_0
from hotshoe_core.testing.operands import Arg, Case, indices, mask, normal, positive, weight
from hotshoe_core.testing.run import F32, Layout

__all__ = ["cases"]


def rope() -> Iterator[Case]:
    yarn: dict[str, Any] = {"scale": 0.25, "ext_factor": 1.0, "original_context": 64, "base": 10000.0}
    variants: tuple[dict[str, Any], ...] = ({}, {"base": 500.0, "scale": 0.5}, yarn)
    configs = [RoPE(8, interleaved=i, **v) for i in (False, True) for v in variants]
    configs += [RoPE(8, attn_factor=1.25), RoPE(8, beta_fast=16.0, beta_slow=2.0, attn_factor=0.9, **yarn)]
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


def cases() -> Iterator[Case]:
    yield from rope()
    yield from attention()
