"""Shapes and layouts that several modules of cases use."""

from __future__ import annotations

from hotshoe_core.tensors.dtypes import DType
from hotshoe_core.tensors.tensor import Shape
from hotshoe_core.testing.run import Layout

F16, BF16, F64 = DType.F16, DType.BF16, DType.F64
I64, I16, I8 = DType.I64, DType.I16, DType.I8
Q8_0, Q4_0, Q4_K, Q6_K = DType.Q8_0, DType.Q4_0, DType.Q4_K, DType.Q6_K

SHAPES: tuple[Shape, ...] = ((5,), (2, 3), (2, 3, 4, 5))
LAYOUTS: tuple[Layout, ...] = ("permuted", "swapped", "sliced", "stepped")
