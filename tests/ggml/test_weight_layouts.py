"""Weights in the layout of their product: every other op gives right numbers or a typed error."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("hotshoe_ggml", reason="hotshoe-ggml-cpu is not installed")

from hotshoe_core import dump, ops
from hotshoe_core.contract.backend import Backend, WeightData
from hotshoe_core.contract.device import BackendParams
from hotshoe_core.eager.reference import open_reference
from hotshoe_core.errors import InsufficientMemoryError, UnsupportedOpError
from hotshoe_core.errors.text import format_bytes
from hotshoe_core.graphs.context import Context
from hotshoe_core.tensors.dtypes import DType
from hotshoe_core.tensors.quants import dequantize, quantize
from hotshoe_core.tensors.tensor import TABLE, Tensor
from hotshoe_core.testing import OP_CASES, Case
from hotshoe_ggml.cpu import packing
from hotshoe_ggml.cpu.packed import PackedWeight
from hotshoe_ggml.memory import transfer
from hotshoe_ggml.memory.layouts import DualLayout, RearrangedLayout
from hotshoe_ggml.parallel import run_all
from hotshoe_loader import load_all

E, N, K = 4, 64, 256
PRODUCTS = {2: "linear", 3: "linear_experts"}
I32 = DType.I32


@pytest.fixture(name="backend", scope="module")
def _backend() -> Iterator[Backend]:
    with load_all().open("cpu", BackendParams(n_threads=1)) as backend:
        yield backend


def weight(
    backend: Backend, shape: tuple[int, ...], dtype: DType = DType.Q4_0, *uses: str
) -> tuple[Tensor, np.ndarray]:
    """A weight that is loaded for its product only, or for ``uses``; and its numbers."""
    data = quantize(np.random.default_rng(0).standard_normal(shape, np.float32), dtype)
    loaded = backend.load([WeightData("w", shape, dtype, data, uses or (PRODUCTS[len(shape)],))])["w"]
    return loaded, dequantize(data, dtype, shape)


def answer(ctx: Context, y: Tensor, feeds: dict[Tensor, np.ndarray]) -> np.ndarray:
    y = y if y.dtype.numpy is not None else y.cast(DType.F32)
    return ctx.forward(y).compute(feeds).read(y)


def refusal(build: Callable[[], object]) -> UnsupportedOpError | None:
    try:
        build()
    except UnsupportedOpError as error:
        return error
    return None


READERS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "take": lambda w, i: w.take(i),
    "a slice": lambda w, i: w[1:3],
    "a part of each row": lambda w, i: w[..., 32:96],
    "reshape": lambda w, i: w.reshape(-1, 32),
    "permute": lambda w, i: w.permute(*range(w.ndim - 1)[::-1], w.ndim - 1),
    "cast": lambda w, i: w.cast(DType.F32),
    "expand": lambda w, i: w.reshape(1, *w.shape).expand(1, *w.shape),
    "concat": lambda w, i: ops.concat(w, w),
    "a product with a part": lambda w, i: ops.linear(w.take(i).reshape(-1, K), w.reshape(-1, K)[8:24]),
    "matmul": lambda w, i: w.take(i).reshape(-1, K).matmul(w, transpose=True),
    "experts of a part": lambda w, i: ops.linear_experts(
        w.take(i).reshape(-1, 1, K)[:2], w.reshape(-1, 8, K)[2:6], i[:, None]
    ),
    "set_rows": lambda w, i: w.set_rows(i, w.take(i) * 2),
}  # fmt: skip


@pytest.mark.parametrize("shape", [(N, K), (E, N, K)], ids=str)
@pytest.mark.parametrize("reader", READERS)
def test_ops_that_read_a_weight_loaded_for_its_product(backend: Backend, reader: str, shape: tuple[int, ...]) -> None:
    """Views of ggml's rearranged layout, read as the file's, would give wrong numbers and NaN."""
    numbers = []
    with open_reference() as reference:
        for b in (reference, backend):
            w, _ = weight(b, shape)
            with b.new_context() as ctx:
                i = ctx.input("i", (2,), I32)
                y = READERS[reader](w, i)
                feeds = {i: np.array([3, 1], np.int32)}
                refused = refusal(lambda: numbers.append(answer(ctx, y, feeds)))  # noqa: B023  (called at once)
    if refused is not None:
        assert "Q4_0" in str(refused)
        assert "repack=False" in (refused.hint or "")
        return
    assert np.linalg.norm(numbers[1] - numbers[0]) <= 2e-2 * np.linalg.norm(numbers[0])


@pytest.mark.parametrize("shape", [(N, K), (E, N, K)], ids=str)
def test_both_named_uses_work(backend: Backend, shape: tuple[int, ...]) -> None:
    w, values = weight(backend, shape, DType.Q4_0, PRODUCTS[len(shape)], "take")
    with backend.new_context() as ctx:
        i = ctx.input("i", (2,), I32)
        got = answer(ctx, w.take(i), {i: np.array([3, 1], np.int32)})
        np.testing.assert_allclose(got, values[[3, 1]], rtol=1e-6)


@pytest.mark.parametrize("shape", [(N, K), (E, N, K)], ids=str)
def test_dump_reads_it_through_its_product(backend: Backend, shape: tuple[int, ...]) -> None:
    w, values = weight(backend, shape)
    text = dump(w, precision=3, threshold=10, edge_items=1)
    numbers = [float(n) for n in re.findall(r"-?\d+\.\d+", text.partition("\n")[2])]
    np.testing.assert_allclose(numbers, values[np.ix_(*([0, -1] for _ in shape))].reshape(-1), atol=2e-3)


def _matrices(case: Case) -> list[int]:
    """The operands that can be packed: matrices of F32."""
    return [
        i for i, a in enumerate(case.args)
        if a is not None and len(a.shape) == 2 and a.dtype is DType.F32 and a.layout == "plain" and a.kind != "state"
    ]  # fmt: skip


CASES = {
    (case.op, i): case for case in OP_CASES if DType.I64 not in case.dtypes for i in _matrices(case)
}  # fmt: skip


@pytest.mark.parametrize(("op", "operand"), CASES, ids=str)
def test_any_op_on_a_matrix_packed_for_our_product(backend: Backend, op: str, operand: int) -> None:
    """``compute_bound`` packs it in our layout. Each op of the table, each operand that may be a matrix."""
    case, answers = CASES[op, operand], []
    with open_reference() as reference, np.errstate(all="ignore"):
        for b in (reference, backend):
            with b.new_context() as ctx:
                refused = refusal(lambda: answers.append(_computed(b, ctx, case, operand)))  # noqa: B023
    if refused is not None:
        assert "only use it was loaded for" in str(refused)
        return
    np.testing.assert_allclose(answers[1], answers[0], rtol=1e-3, atol=1e-3)


def _computed(b: Backend, ctx: Context, case: Case, operand: int) -> np.ndarray:
    rng = np.random.default_rng(7)
    made: list[Tensor | None] = []
    feeds = {}
    for i, arg in enumerate(case.args):
        if arg is None:
            made.append(None)
            continue
        values = arg.values(rng, arg.shape)
        if i == operand or arg.dtype.numpy is None:
            uses = ("linear",) if i == operand else ()
            data = quantize(np.asarray(values, np.float32), arg.dtype)
            loaded = b.load([WeightData(f"w{i}", arg.shape, arg.dtype, data, uses, compute_bound=True)])
            made.append(loaded[f"w{i}"])
        else:
            x = ctx.input(f"x{i}", arg.shape, arg.dtype)
            made.append(x)
            feeds[x] = np.asarray(values, arg.dtype.numpy)
    return answer(ctx, TABLE[case.op](*made, **case.attrs), feeds)


def test_the_layouts_are_used(backend: Backend) -> None:
    """If none of these were rearranged, the tests above would test nothing."""
    w, _ = weight(backend, (N, K))
    assert isinstance(w.handle, (RearrangedLayout, PackedWeight, DualLayout))
    data = np.zeros(N * K * 4, np.uint8)
    packed = backend.load([WeightData("p", (N, K), DType.F32, data, ("linear",), compute_bound=True)])["p"]
    assert isinstance(packed.handle, PackedWeight)


def test_other_operands_of_a_packed_product_may_be_packed_too(backend: Backend) -> None:
    """The fused product reads x, bias and residual, which may have other layouts than the file's."""
    data = np.random.default_rng(0).standard_normal((8, 8), np.float32)
    w = WeightData("w", (8, 8), DType.F32, quantize(data, DType.F32), ("linear",), compute_bound=True)
    shared = replace(w, name="shared", uses=("linear", "add"))
    loaded = backend.load([w, shared])
    with backend.new_context() as ctx:
        y = ops.linear(loaded["shared"], loaded["w"]) + loaded["shared"]
        np.testing.assert_allclose(ctx.forward(y).compute().read(y), data @ data.T + data, rtol=1e-4, atol=1e-4)
    with backend.new_context() as ctx, pytest.raises(UnsupportedOpError, match="linear"):
        ctx.forward(ops.linear(loaded["w"], loaded["w"])).reserve()


def test_progress_ends_with_the_last_weight_in_any_thread(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    """Here a thread that may not call the callback loads all weights."""

    def in_another_thread(jobs: list[Callable[[], object]], n_threads: int) -> None:
        thread = threading.Thread(target=run_all, args=(jobs, 1))
        thread.start()
        thread.join()

    monkeypatch.setattr(packing, "_AT_ONCE", 0)
    monkeypatch.setattr(transfer, "run_all", in_another_thread)
    data = quantize(np.ones((N, K), np.float32), DType.Q4_0)
    uses = {"packed": ("linear",), "plain": ("take",), "twice": ("linear", "take")}
    seen: list[float] = []
    loaded = backend.load([WeightData(n, (N, K), DType.Q4_0, data, u) for n, u in uses.items()], progress=seen.append)
    backend.release(list(loaded.values()))
    assert seen == sorted(seen)
    assert seen.count(1.0) == 1


def test_without_room_for_packed_weights_nothing_is_loaded(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_room(nbytes: int) -> np.ndarray:
        raise MemoryError

    monkeypatch.setattr(packing, "zeros", no_room)
    before = backend.memory().total
    small = WeightData("a", (N, K), DType.Q4_0, quantize(np.ones((N, K), np.float32), DType.Q4_0), ("linear",), layer=2)
    large = replace(small, name="b", shape=(2 * N, K), data=np.concatenate([small.data] * 2), layer=5)
    size = re.escape(format_bytes(3 * small.data.nbytes))
    with pytest.raises(InsufficientMemoryError, match=rf"{size}[\s\S]*layer 5"):  # the layer of the largest
        backend.load([small, large])
    assert backend.memory().total == before
