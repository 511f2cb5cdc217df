"""Rows to blocks and back by ggml's functions, compared with the gguf package if it has the type; invalid arguments."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import gguf
import numpy as np
import pytest

pytest.importorskip("hotshoe_ggml", reason="hotshoe-ggml-cpu is not installed")

import hotshoe
from hotshoe_core import Backend, DType
from hotshoe_core.eager.reference import open_reference
from hotshoe_core.errors import ClosedError, DTypeError, ShapeError
from tests.support.quantized import numbers

ROWS = numbers(6 * 512, 1).reshape(6, 512)
NEED_IMPORTANCE = (DType.IQ1_S, DType.IQ2_XS, DType.IQ2_XXS)
# the tables of the smallest types take seconds: tests/engine/test_quantize_llamacpp.py has those types
TABLES = ("IQ1_", "IQ2_", "IQ3_")


@pytest.fixture(scope="module")
def backend() -> Iterator[Backend]:
    with hotshoe.load_all().open("cpu") as backend:
        yield backend


def written(backend: Backend) -> list[DType]:
    return [d for d in DType if backend.quantizes(d)]


def test_every_type_that_a_file_can_hold_is_written(backend: Backend) -> None:
    never = {DType.Q8_1, DType.Q8_K, DType.I8, DType.I16, DType.I32, DType.I64, DType.F64}
    assert set(written(backend)) == set(DType) - never


def test_the_bytes_are_those_of_the_gguf_package(backend: Backend) -> None:
    """ggml writes the same bytes as the reference backend, which uses the gguf package."""
    with open_reference() as reference:
        both = [d for d in written(backend) if reference.quantizes(d)]
        assert {DType.F16, DType.BF16, DType.Q4_0, DType.Q5_1, DType.Q8_0, DType.TQ2_0, DType.MXFP4} <= set(both)
        for dtype in both:
            expected = reference.quantize_rows(ROWS, dtype)
            np.testing.assert_array_equal(backend.quantize_rows(ROWS, dtype), expected, err_msg=dtype.name)
            np.testing.assert_array_equal(
                backend.dequantize_rows(expected, dtype, 512), reference.dequantize_rows(expected, dtype, 512)
            )


def test_the_numbers_survive(backend: Backend) -> None:
    """Another reader reads them, as exactly as the type's bits allow."""
    for dtype in written(backend):
        if dtype.name.startswith(TABLES):
            continue
        blocks = backend.quantize_rows(ROWS, dtype)
        assert (blocks.dtype, blocks.shape) == (np.uint8, (6, dtype.nbytes((512,))))
        values = backend.dequantize_rows(blocks, dtype, 512)
        bits = 8 * dtype.block_bytes / dtype.block_size
        error = np.sqrt(((values - ROWS) ** 2).mean()) / ROWS.std()
        assert error < 4 * 2**-bits + 2**-9, dtype
        with contextlib.suppress(ValueError, NotImplementedError):  # newer than the package
            theirs = gguf.quants.dequantize(_typed(blocks, dtype), gguf.GGMLQuantizationType(dtype.id))
            np.testing.assert_allclose(values, theirs, rtol=1e-6, atol=1e-6, err_msg=dtype.name)


def _typed(blocks: np.ndarray[Any, Any], dtype: DType) -> np.ndarray[Any, Any]:
    return blocks if dtype.numpy is None else blocks.view(dtype.numpy)


def test_importance_has_an_effect_for_the_types_that_claim_it(backend: Backend) -> None:
    importance = np.where(np.arange(512) % 8 == 0, 100, 0.01).astype(np.float32)
    for dtype in written(backend):
        if not dtype.name.startswith(TABLES):
            plain, weighed = backend.quantize_rows(ROWS, dtype), backend.quantize_rows(ROWS, dtype, importance)
            assert (not np.array_equal(plain, weighed)) == backend.quantizes(dtype, importance=True), dtype


def test_rows_are_independent(backend: Backend) -> None:
    for dtype in (DType.Q4_K, DType.Q6_K, DType.Q4_0):
        whole = backend.quantize_rows(ROWS, dtype)
        with ThreadPoolExecutor(3) as pool:
            apart = list(pool.map(lambda row, dtype=dtype: backend.quantize_rows(row[None], dtype), ROWS))
        np.testing.assert_array_equal(np.concatenate(apart), whole)


def test_a_mapped_file_may_have_any_address(backend: Backend) -> None:
    raw = np.zeros(ROWS.nbytes + 1, np.uint8)
    raw[1:] = ROWS.reshape(-1).view(np.uint8)
    data = raw[1:].reshape(6, -1)
    rows = backend.dequantize_rows(data, DType.F32, 512)
    np.testing.assert_array_equal(backend.quantize_rows(rows, DType.Q4_K), backend.quantize_rows(ROWS, DType.Q4_K))


def test_arguments_for_which_ggml_would_abort_are_errors(backend: Backend) -> None:
    with pytest.raises(DTypeError, match="does not write Q8_K"):
        backend.quantize_rows(ROWS, DType.Q8_K)
    for dtype in NEED_IMPORTANCE:
        with pytest.raises(DTypeError, match=f"{dtype.name} only with the importance"):
            backend.quantize_rows(ROWS, dtype)
    with pytest.raises(ShapeError, match="multiple of 256"):
        backend.quantize_rows(ROWS[:, :96].copy(), DType.Q4_K)
    for bad in (ROWS[:, ::2], ROWS[0], ROWS.astype(np.float64)):
        with pytest.raises(ShapeError, match="expected contiguous float32"):
            backend.quantize_rows(bad, DType.Q4_0)
    for weights in (np.ones(256, np.float32), np.ones(512)):
        with pytest.raises(ShapeError, match=r"expected float32 \(512,\)"):
            backend.quantize_rows(ROWS, DType.Q4_0, weights)
    with pytest.raises(ShapeError, match=r"expected contiguous uint8 \(n, 288\)"):
        backend.dequantize_rows(np.zeros((2, 144), np.uint8), DType.Q4_K, 512)
    with pytest.raises(DTypeError, match="I32"):
        backend.dequantize_rows(np.zeros((2, 8), np.uint8), DType.I32, 2)
    assert backend.quantize_rows(ROWS[:0], DType.Q4_K).shape == (0, 288)


def test_a_closed_backend_raises() -> None:
    backend = hotshoe.load_all().open("cpu")
    backend.close()
    with pytest.raises(ClosedError):
        backend.quantize_rows(ROWS, DType.Q4_0)


def test_a_backend_without_its_own_functions_uses_numpy() -> None:
    with open_reference() as reference:
        assert not reference.quantizes(DType.Q4_K)
        assert not reference.quantizes(DType.I32)
        assert reference.quantizes(DType.Q4_0)
        assert not reference.quantizes(DType.Q4_0, importance=True)
        with pytest.raises(DTypeError, match="reference backend cannot write Q4_K"):
            reference.quantize_rows(ROWS, DType.Q4_K)
