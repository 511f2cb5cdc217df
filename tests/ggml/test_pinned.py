"""Outputs in memory that a device writes by itself. The CPU's memory stands in for it."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import hotshoe
from hotshoe.runner.jobs import stacked
from hotshoe_core.contract.backend import Backend
from tests.support.rpc_server import backend_of_a_server
from tests.support.text_models import folder, gguf  # noqa: F401  (fixtures)

pytest.importorskip("hotshoe_ggml_rpc", reason="needs hotshoe-ggml-rpc: pip install ./plugins/ggml-rpc")

from hotshoe_ggml.memory import host
from hotshoe_ggml.memory.host import PinnedPool
from hotshoe_ggml.native import ffi, lib

F32 = np.dtype(np.float32)


@pytest.fixture(scope="module")
def backend() -> Iterator[Backend]:
    with backend_of_a_server() as opened:
        yield opened


@pytest.fixture
def pool(backend: Backend) -> Iterator[PinnedPool]:
    made = PinnedPool(lib().ggml_backend_cpu_buffer_type())
    yield made
    made.close()


def array(pool: PinnedPool, *shape: int) -> np.ndarray:
    made = pool.array(shape, F32)
    assert made is not None
    return made


def test_memory_is_used_again_when_no_array_needs_it(pool: PinnedPool) -> None:
    first = array(pool, 40, 100)
    first[...] = 1
    where, part = first.ctypes.data, first[7:9]
    del first
    second = array(pool, 40, 100)
    assert second.ctypes.data != where
    second[...] = 2
    assert part.sum() == 200
    del part
    gc.collect()
    third = array(pool, 30, 100)
    assert third.ctypes.data == where
    assert third.flags.carray
    assert second.sum() == 8000


def test_there_is_an_end_to_it(pool: PinnedPool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "_MOST_PINNED", 32768)
    kept = [array(pool, 1000) for _ in range(8)]  # 4,096 bytes each
    assert pool.array((1000,), F32) is None
    kept.pop()
    gc.collect()
    assert pool.array((1000,), F32) is not None


def test_arrays_outlive_the_pool(pool: PinnedPool) -> None:
    kept = array(pool, 5)
    kept[...] = 3
    pool.close()
    assert kept.sum() == 15
    del kept
    gc.collect()


def test_an_array_of_nothing(pool: PinnedPool) -> None:
    assert array(pool, 0, 7).shape == (0, 7)


def test_results_of_earlier_steps_stay(
    backend: Backend,
    monkeypatch: pytest.MonkeyPatch,
    gguf: Callable[..., Path],  # noqa: F811
) -> None:
    path = gguf("LlamaForCausalLM")
    with hotshoe.load_model(path, "cpu", task="text", kv_dtype="f32") as model, model.sequence() as sequence:
        expected = [sequence.append(token) for token in (5, 9, 3, 7)]
    with hotshoe.load_model(path, "rpc:0", task="text", kv_dtype="f32") as model, model.sequence() as sequence:
        pool = PinnedPool(lib().ggml_backend_cpu_buffer_type())
        monkeypatch.setattr(model.backend, "pinned", pool)
        got = [sequence.append(token) for token in (5, 9, 3, 7)]
        assert pool._n_bytes > 0
    for ours, theirs in zip(got, expected, strict=True):
        assert np.abs(ours - theirs).max() < 1e-5 * np.abs(theirs).max()


def test_graphs_with_the_same_nodes_are_told_apart(backend: Backend) -> None:
    """CUDA replays a captured graph whose nodes have the same bytes, whatever the types of their sources are."""
    numbers = []
    for _ in range(3):
        with backend.new_context() as ctx:
            x = ctx.input("x", (3,))
            ctx.forward(x * 2.0).reserve()
            (executable,) = backend._executables  # type: ignore[attr-defined]
            first = lib().ggml_graph_node(executable._scheduled.cgraph, 0)
            numbers.append(bytes(ffi.buffer(first.padding)))
    assert len(set(numbers)) == 3


def test_logits_of_several_texts_are_joined_where_they_are(pool: PinnedPool) -> None:
    """Copying those of 32 texts takes as long as a third of the step that computes them, on an H200."""
    whole = array(pool, 4, 50)
    whole[...] = np.arange(200, dtype=np.float32).reshape(4, 50)
    rows = [whole[i : i + 1] for i in range(4)]
    joined = stacked(rows[1:])
    np.testing.assert_array_equal(joined, whole[1:])
    assert np.shares_memory(joined, whole)
    assert np.shares_memory(stacked(rows[:1]), whole)
    expected = whole[1:].copy()
    del whole, rows
    gc.collect()
    array(pool, 4, 50)[...] = -1
    np.testing.assert_array_equal(joined, expected)
    others = array(pool, 2, 50)
    for apart in ([others[1:], others[:1]], [others[:1], joined[:1]], [np.ones((1, 50), np.float32), others[:1]]):
        np.testing.assert_array_equal(stacked(apart), np.concatenate(apart))
        assert not np.shares_memory(stacked(apart), apart[0])
