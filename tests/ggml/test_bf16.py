"""F16 weights with only numbers of BF16, as in the file of a model published in BF16: computed like its BF16 file."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import gguf
import numpy as np
import pytest

from hotshoe_core import Backend, BackendParams, DType, WeightData, ops
from hotshoe_core.gguf import GGUFFile
from tests.support.bf16_numbers import M, activations, numbers, product, stored
from tests.support.gguf_files import write_gguf

pytest.importorskip("hotshoe_ggml", reason="hotshoe-ggml-cpu is not installed")

from hotshoe_ggml.cpu import bf16, packed, unit
from hotshoe_ggml.cpu.bf16 import multiplies_bf16
from hotshoe_ggml.cpu.packing import Packing
from hotshoe_loader import load_all

FOUND = "cpu: weights of f16"
LIKE_BF16 = "1 of 1 have only numbers of bf16 and are multiplied as bf16"
EXACT = "0 of 1 have only numbers of bf16 and are multiplied as bf16"

pytestmark = pytest.mark.skipif(not multiplies_bf16(), reason="this CPU has no product of BF16")


@pytest.fixture(name="backend")
def _backend() -> Iterator[Backend]:
    with load_all().open("cpu", BackendParams(n_threads=2)) as backend:
        yield backend


def test_an_f16_file_of_a_bf16_model_has_the_bits_of_its_bf16_file(backend: Backend) -> None:
    with load_all().open("cpu", BackendParams(n_threads=2)) as other:
        expected = product(other, stored(numbers(), DType.BF16))
        assert FOUND not in other.tuning()
    np.testing.assert_array_equal(product(backend, stored(numbers())), expected)
    assert backend.tuning()[FOUND] == LIKE_BF16


def test_one_other_number_keeps_a_weight_exact(backend: Backend) -> None:
    values = numbers()
    values[M - 1, 63] = 1 + 2**-8
    np.testing.assert_allclose(product(backend, stored(values)), activations(64) @ values.T, rtol=0, atol=1e-4)
    assert backend.tuning()[FOUND] == EXACT


def test_an_odd_row_stays_exact(backend: Backend) -> None:
    """BF16 would need one number more in each row, and the size of a layout must not depend on the numbers."""
    values = numbers(63)
    np.testing.assert_allclose(product(backend, stored(values)), activations(63) @ values.T, rtol=0, atol=1e-4)
    assert FOUND not in backend.tuning()


def test_a_cpu_without_a_product_of_bf16_is_exact(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed, "multiplies_bf16", lambda: False)
    np.testing.assert_allclose(product(backend, stored(numbers())), activations(64) @ numbers().T, rtol=0, atol=1e-4)
    assert FOUND not in backend.tuning()


def test_the_first_step_reads_f16_as_the_bf16_that_is_packed_later(
    backend: Backend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unit, "_MIN_LATER", 0)
    monkeypatch.setattr(Packing, "start", lambda _: None)  # no thread is as fast as the test
    path = write_gguf(tmp_path / "m.gguf", {}, {"w": (numbers().astype(np.float16), gguf.GGMLQuantizationType.F16)})
    with GGUFFile(path) as file:
        w = backend.load([WeightData("w", (M, 64), DType.F16, file.data("w"), ("linear",))])["w"]
        assert w.handle.reads_file()
        with backend.new_context() as ctx:
            x = ctx.input("x", (20, 64))
            ctx.forward(y := ops.linear(x, w))
            first, second = (ctx.compute({x: activations(64)}).read(y) for _ in range(2))
        assert not w.handle.reads_file()
        np.testing.assert_array_equal(first, second)


@pytest.mark.parametrize("is_bf16", [True, False])
def test_a_weight_on_the_disk_is_checked_and_packed_by_itself(
    is_bf16: bool, backend: Backend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So the file is read once, and what is packed is progress."""
    monkeypatch.setattr(packed, "is_in_memory", lambda _: False)
    values = numbers()
    values[0, 0] = 1 if is_bf16 else 1 + 2**-8
    rows, kind = values.astype(np.float16), gguf.GGMLQuantizationType.F16
    path = write_gguf(tmp_path / "m.gguf", {}, dict.fromkeys(("a", "b", "c"), (rows, kind)))
    reported: list[float] = []
    monkeypatch.setattr(unit, "run_all", lambda jobs, _: [job() for job in jobs])
    with GGUFFile(path) as file:
        weights = [WeightData(name, (M, 64), DType.F16, file.data(name), ("linear",)) for name in ("a", "b", "c")]
        loaded = backend.load(weights, progress=reported.append)
    assert reported == pytest.approx([1 / 3, 2 / 3, 1])
    for w in loaded.values():
        with backend.new_context() as ctx:
            x = ctx.input("x", (20, 64))
            got = ctx.forward(y := ops.linear(x, w)).compute({x: activations(64)}).read(y)
        error = np.abs(got - activations(64) @ values.T).max()
        assert 1e-3 < error < 0.1 if is_bf16 else error < 1e-4


def test_threads_that_check_one_weight_do_not_hide_its_other_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first part, which has only numbers of BF16, is checked until the second, which has others, is done."""
    values, found = numbers().astype(np.float16), threading.Event()

    def holds(part: object, n: int) -> int:
        if part == "second":
            found.set()
            return 0
        assert found.wait(60)
        time.sleep(0.1)  # until the other thread has noted it
        return 1

    parts = iter(("first", "second"))
    monkeypatch.setattr(bf16, "_PART", values.nbytes // 2)
    monkeypatch.setattr(bf16, "ffi", SimpleNamespace(from_buffer=lambda _: next(parts)))
    monkeypatch.setattr(bf16, "kernels", lambda: SimpleNamespace(hotshoe_holds_bf16=holds))
    assert bf16.which_hold_bf16([values.reshape(-1).view(np.uint8)], 2) == [False]
