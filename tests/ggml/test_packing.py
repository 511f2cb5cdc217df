"""Weights that are packed while the program goes on, and products with weights that are not packed yet."""

from __future__ import annotations

import mmap
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

pytest.importorskip("hotshoe_ggml", reason="hotshoe-ggml-cpu is not installed")

from hotshoe_core import DType, WeightData, ops
from hotshoe_core.contract.device import BackendParams
from hotshoe_core.gguf import GGUFFile
from hotshoe_ggml.cpu import packed as packed_module
from hotshoe_ggml.cpu import unit as unit_module
from hotshoe_ggml.cpu.bf16 import multiplies_bf16
from hotshoe_ggml.cpu.packed import DenseWeight, PackedFormat, PackedWeight, QuantizedWeight
from hotshoe_ggml.cpu.packing import Packing
from hotshoe_ggml.cpu.unit import CpuUnit
from hotshoe_ggml.memory.host import is_in_memory
from hotshoe_ggml.memory.transfer import Meter
from hotshoe_ggml.native import ffi, kernels
from hotshoe_loader import load_all
from tests.support.gguf_files import write_gguf

from .test_linear_kernel import in_file, ready, run
from .test_linear_kernel import weight_data as of_an_encoder
from .test_pages import resident
from .test_quants_kernel import TYPES, activations, weight

pytestmark = pytest.mark.skipif(
    not kernels().hotshoe_quants_has(DType.Q4_0.id, 32), reason="this CPU has no products of ours for quantized weights"
)

on_linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux says whether a file is in memory")


@pytest.mark.parametrize("separate", [False, True])
@pytest.mark.parametrize("dtype", TYPES, ids=lambda d: d.name)
def test_a_weight_that_is_not_packed_gives_the_same_bits(dtype: DType, separate: bool) -> None:
    """One and two tokens, a tile, all elements staged at once and not; m is not a multiple of 16."""
    for k, n in ((512, 1), (512, 2), (512, 7), (8192, 1), (8192, 70), (2304, 200)):
        data = replace(weight(dtype, 83, k)[0], compute_bound=separate)
        x = activations(n, k)
        np.testing.assert_array_equal(run(in_file(QuantizedWeight(data)), x), run(ready(QuantizedWeight(data)), x))


@pytest.mark.parametrize("packed_first", ["none", "gate", "up"])
def test_a_gate_that_is_not_packed_gives_the_same_bits(packed_first: str) -> None:
    k = 512
    both = [weight(DType.Q4_K, m, k)[0] for m in (83, 83)]
    for n in (1, 9):
        gate, up = (in_file(QuantizedWeight(w)) for w in both)
        if packed_first != "none":
            ready(gate if packed_first == "gate" else up)
        x = activations(n, k)
        expected = run(ready(QuantizedWeight(both[1])), x, gate=ready(QuantizedWeight(both[0])), activation="silu")
        np.testing.assert_array_equal(run(up, x, gate=gate, activation="silu"), expected)


def test_experts_that_are_not_packed_give_the_same_bits() -> None:
    e, m, k, n = 5, 40, 256, 11
    flat = weight(DType.Q5_K, e * m, k)[0]
    data = WeightData("w", (e, m, k), flat.dtype, flat.data, ("linear_experts",))
    chosen = np.random.default_rng(0).integers(0, e, (n, 2), np.int32)
    x = activations(n, k)[:, None]
    others = weight(DType.Q5_K, e * m + 1, k)[0].data[: flat.data.size]
    gates = WeightData("g", (e, m, k), flat.dtype, others, ("linear_experts",))
    for gate in (None, gates):
        own = {} if gate is None else {"gate": in_file(QuantizedWeight(gate)), "activation": "silu"}
        done = {} if gate is None else {"gate": ready(QuantizedWeight(gate)), "activation": "silu"}
        got = run(in_file(QuantizedWeight(data)), x, experts=chosen, **own)
        np.testing.assert_array_equal(got, run(ready(QuantizedWeight(data)), x, experts=chosen, **done))


def test_a_product_reads_what_is_packed_as_soon_as_it_is() -> None:
    """The parameters of a node that was made before: it reads the file no longer."""
    packed = in_file(QuantizedWeight(weight(DType.Q8_0, 32, 64)[0]))
    gate = in_file(QuantizedWeight(weight(DType.Q8_0, 32, 64)[0]))
    alone, gated = packed.params("none", False, False), packed.params("silu", False, False, gate)
    assert all(p != ffi.NULL for p in (alone.rows, gated.rows, gated.gate_rows))
    packed.finish()
    assert alone.rows == gated.rows == ffi.NULL
    assert gated.gate_rows != ffi.NULL
    gate.finish()
    assert gated.gate_rows == ffi.NULL
    assert packed.params("none", True, False).rows == ffi.NULL


def weights(n: int = 6) -> list[PackedWeight]:
    """Quantized and other weights, of several parts each."""
    quantized = [QuantizedWeight(weight(DType.Q4_0, 4000 + i, 2048)[0]) for i in range(n)]
    return [*quantized, *dense_weights()]


def dense_weights() -> list[PackedWeight]:
    """One of each format, and one that is rounded; none on a CPU without our products."""
    values = np.random.default_rng(0).standard_normal((1000, 1100), np.float32)
    pairs = [(DType[f.name], f) for f in PackedFormat] + [(DType.F16, PackedFormat.BF16)]
    return [DenseWeight(of_an_encoder(values, dtype), f) for dtype, f in pairs if kernels().hotshoe_linear_has()]


def bytes_of(packed: PackedWeight) -> bytes:
    return packed._memory.tobytes()


@pytest.fixture(name="expected", scope="module")
def _expected() -> list[bytes]:
    return [bytes_of(ready(packed)) for packed in weights()]


@pytest.mark.parametrize("n_threads", [1, 3])
def test_threads_pack_what_one_packs(n_threads: int, expected: list[bytes]) -> None:
    some, reported = weights(), []
    total = sum(w.nbytes for w in some)
    packing = Packing(some, n_threads, Meter(total, reported.append))
    packing.start()
    packing.finish()
    assert [bytes_of(packed) for packed in some] == expected
    assert reported == sorted(reported)
    assert all(packed._weight is None for packed in some)


def test_nobody_packs_during_a_pause(expected: list[bytes]) -> None:
    some = weights()
    packing = Packing(some, 3)
    packing.start()
    for _ in range(5):
        packing.pause()
        before = packing._state.next_part
        time.sleep(0.01)
        assert packing._state.next_part == before
        done = [packed for packed, job in zip(packing._weights, packing._jobs) if not job.n_left]
        assert all(packed._weight is None for packed in done)
        packing.resume()
    packing.finish()
    assert [bytes_of(packed) for packed in some] == expected


def test_a_pause_ends_with_the_end(expected: list[bytes]) -> None:
    some = weights()
    packing = Packing(some, 2)
    packing.start()
    packing.pause()
    packing.finish()
    assert [bytes_of(packed) for packed in some] == expected


def test_what_is_stopped_ends_its_threads() -> None:
    n_before = threading.active_count()
    packing = Packing(weights(), 3)
    packing.start()
    packing.pause()
    packing.stop()
    assert threading.active_count() == n_before


def test_nothing_to_pack_is_nothing_to_do() -> None:
    Packing([], 2).finish()


# In a backend


@pytest.fixture(name="stored", params=[DType.Q8_0, DType.F16], ids=lambda d: d.name)
def _stored(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[WeightData]:
    """A weight of 288 by 256 in a mapped file."""
    if request.param is DType.F16 and not dense_weights():
        pytest.skip("this CPU has no products of ours for weights that are not quantized")
    with mapped(tmp_path, 288, request.param) as data:
        yield data


@contextmanager
def mapped(folder: Path, m: int, dtype: DType = DType.Q8_0, k: int = 256) -> Iterator[WeightData]:
    values = np.random.default_rng(0).standard_normal((m, k), np.float32)
    rows = of_an_encoder(values, dtype).data.reshape(m, -1)
    path = write_gguf(folder / "m.gguf", {}, {"w": (rows, gguf.GGMLQuantizationType[dtype.name])})
    with GGUFFile(path) as file:
        yield WeightData("w", (m, k), dtype, file.data("w"), ("linear",))


@pytest.fixture(name="later")
def _later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unit_module, "_MIN_LATER", 0)
    monkeypatch.setattr(Packing, "start", lambda _: None)  # no thread is as fast as the test


@contextmanager
def loaded(data: WeightData, **params: Any) -> Iterator[tuple[Callable[[int], np.ndarray], QuantizedWeight, CpuUnit]]:
    """A function that multiplies n rows by the weight, its layout, and the unit that holds it."""
    with load_all().open("cpu", BackendParams(n_threads=2, **params)) as backend:
        w = backend.load([data])["w"]

        def multiply(n: int) -> np.ndarray:
            with backend.new_context() as ctx:
                given = ctx.input("x", (n, 256), DType.F32)
                return ctx.forward(y := ops.linear(given, w)).compute({given: activations(n, 256)}).read(y)

        yield multiply, w.handle, backend.units[0]


@pytest.mark.usefixtures("later")
@on_linux
def test_the_first_step_reads_the_file_and_the_second_waits(stored: WeightData) -> None:
    with loaded(stored) as (multiply, layout, unit):
        assert layout._weight is not None
        first = multiply(3)
        assert layout._weight is not None
        assert unit._packing is not None
        second = multiply(3)
        assert layout._weight is None
        assert unit._packing is None
        np.testing.assert_array_equal(first, second)
        np.testing.assert_array_equal(first, multiply(3))


@on_linux
def test_the_file_is_released_though_a_step_reads_parts_that_are_packed(tmp_path: Path) -> None:
    with mapped(tmp_path, 16_384) as data:
        packing = Packing([QuantizedWeight(data)], 1)
        kernels().hotshoe_pack(packing._state, 1)
        data.data.sum()  # as a step reads it
        packing.finish()
        assert resident(data.data) < data.data.nbytes / 8


@on_linux
@pytest.mark.parametrize(
    ("dtype", "format", "k", "is_read"),
    [
        (DType.F32, PackedFormat.F32, 255, True),
        (DType.F16, PackedFormat.F16, 255, True),
        (DType.F16, PackedFormat.BF16, 256, multiplies_bf16()),
        (DType.F32, PackedFormat.BF16, 255, False),
        (DType.BF16, PackedFormat.BF16, 256, True),
        (DType.BF16, PackedFormat.BF16, 255, False),  # the last pair of a row is packed with a zero
    ],
)
def test_which_weights_are_read_in_their_file(
    dtype: DType, format: PackedFormat, k: int, is_read: bool, tmp_path: Path
) -> None:
    with mapped(tmp_path, 32, dtype, k) as data:
        assert DenseWeight(data, format).reads_file() == is_read


@pytest.mark.usefixtures("later")
def test_a_step_of_many_rows_waits(stored: WeightData) -> None:
    with loaded(stored) as (multiply, layout, _):
        multiply(129)
        assert layout._weight is None


@pytest.mark.usefixtures("later")
@on_linux
def test_a_backend_can_be_closed_before_its_weights_are_packed(stored: WeightData) -> None:
    with loaded(stored) as (_, layout, unit):
        assert unit._packing is not None
    assert unit._packing is None
    assert layout._weight is not None


@pytest.mark.usefixtures("later")
def test_what_is_not_in_memory_is_packed_at_once(stored: WeightData, monkeypatch: pytest.MonkeyPatch) -> None:
    """Then loading takes as long as reading the file, and reports its progress."""
    monkeypatch.setattr(packed_module, "is_in_memory", lambda _: False)
    with loaded(stored) as (_, layout, _unit):
        assert layout._weight is None


@pytest.mark.usefixtures("later")
def test_without_mmap_the_file_is_not_needed_after_loading(stored: WeightData) -> None:
    with loaded(stored, mmap=False) as (_, layout, _unit):
        assert layout._weight is None


@pytest.mark.usefixtures("later")
def test_a_weight_in_an_array_is_packed_at_once() -> None:
    with loaded(replace(weight(DType.Q8_0, 288, 256)[0], uses=("linear",))) as (_, layout, _unit):
        assert layout._weight is None


def test_a_small_weight_is_packed_at_once(stored: WeightData) -> None:
    with loaded(stored) as (_, layout, _unit):
        assert layout._weight is None


@on_linux
def test_linux_says_whether_a_part_of_a_file_is_in_memory(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(bytes(1 << 20))
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        data = np.frombuffer(mapped, np.uint8)
        data[::4096].sum()
        assert is_in_memory(data[1000:300_000])
        assert not is_in_memory(data[:0])
        del data
    assert not is_in_memory(np.zeros(1 << 20, np.uint8))
