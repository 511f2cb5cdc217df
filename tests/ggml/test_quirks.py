"""Workarounds for individual ggml libraries, tested without these libraries."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from hotshoe_core.contract.device import BackendParams, Device, DeviceType
from hotshoe_core.errors import NativeError
from hotshoe_core.tensors.dtypes import DType

pytest.importorskip("hotshoe_ggml", reason="hotshoe-ggml-cpu is not installed")

from hotshoe_ggml import open_units
from hotshoe_ggml.cpu.unit import CpuUnit
from hotshoe_ggml.native import lib
from hotshoe_ggml.native.context import NativeContext
from hotshoe_ggml.quirks import vulkan
from hotshoe_ggml.quirks.vulkan import VulkanUnit
from hotshoe_ggml.unit import Unit


@pytest.mark.parametrize(
    ("name", "type", "expected"),
    [("CPU", 0, CpuUnit), ("Vulkan", 1, VulkanUnit), ("Vulkan", 3, VulkanUnit), ("CUDA", 1, Unit), ("RPC", 1, Unit)],
)
def test_the_unit_of_a_library(name: str, type: int, expected: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The name that the library registers decides, so that an adopted library gets the same unit."""
    library = SimpleNamespace(name=name, devices=lambda: [SimpleNamespace(type=type)])
    monkeypatch.setattr(open_units, "library_of", lambda device: library)
    device = Device("x:0", DeviceType.GPU, "x", "ggml", properties={"index": 0})
    assert open_units._kind(device) is expected


@pytest.mark.parametrize(("n", "fits"), [(15, True), (16, False)])
def test_the_largest_number_of_devices(n: int, fits: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open_units, "_kind", lambda device: lambda *args: SimpleNamespace(close=lambda: None))
    devices = [Device(f"x:{i}", DeviceType.GPU, "x", "ggml") for i in range(n)]
    if fits:
        units = open_units.open_units(devices, BackendParams())
        assert len(units) == n + 1
        units[-1].close()
    else:
        with pytest.raises(NativeError, match=r"got 16 devices .* at most 15 and one CPU"):
            open_units.open_units(devices, BackendParams())


def test_nodes_that_vulkan_cannot_bind() -> None:
    """A source that begins between two aligned addresses: some shaders handle it, but not for quantized types."""
    g, context = lib(), NativeContext(32)
    unit = object.__new__(VulkanUnit)
    unit._alignment = 64
    x = g.ggml_new_tensor_2d(context.pointer, DType.F32.id, 64, 8)
    aligned, between = (g.ggml_view_1d(context.pointer, x, 64, offset) for offset in (64, 4))
    blocks = g.ggml_view_1d(context.pointer, g.ggml_new_tensor_1d(context.pointer, DType.Q8_0.id, 96), 32, 34)
    try:
        assert not unit._is_misaligned(between), "a view computes nothing"
        assert not unit._is_misaligned(g.ggml_soft_max(context.pointer, aligned))
        assert unit._is_misaligned(g.ggml_soft_max(context.pointer, between))
        ids = g.ggml_new_tensor_1d(context.pointer, DType.I32.id, 1)
        assert unit._is_misaligned(g.ggml_get_rows(context.pointer, between, ids))
        assert not unit._is_misaligned(g.ggml_add(context.pointer, between, aligned))
        rows = g.ggml_reshape_3d(context.pointer, x, 64, 1, 8)
        between_positions = g.ggml_view_1d(
            context.pointer, g.ggml_new_tensor_1d(context.pointer, DType.I32.id, 9), 8, 4
        )
        assert unit._is_misaligned(g.ggml_rope(context.pointer, rows, between_positions, 64, 0))
        between_rows = g.ggml_view_3d(context.pointer, x, 32, 1, 8, 256, 256, 4)
        positions = g.ggml_new_tensor_1d(context.pointer, DType.I32.id, 8)
        assert not unit._is_misaligned(g.ggml_rope(context.pointer, between_rows, positions, 32, 0))
        assert unit._is_misaligned(g.ggml_cast(context.pointer, blocks, DType.F32.id))
    finally:
        context.free()


def test_rows_for_which_vulkan_has_too_few_groups() -> None:
    g, context = lib(), NativeContext(16)
    rows = {n: g.ggml_new_tensor_2d(context.pointer, DType.F32.id, 3, n) for n in (65_535, 65_536)}
    try:
        assert not vulkan._has_too_many_rows(g.ggml_rms_norm(context.pointer, rows[65_535], 1e-5))
        assert vulkan._has_too_many_rows(g.ggml_rms_norm(context.pointer, rows[65_536], 1e-5))
        assert not vulkan._has_too_many_rows(g.ggml_soft_max(context.pointer, rows[65_536])), "rows share groups"
    finally:
        context.free()
