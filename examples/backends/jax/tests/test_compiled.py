"""What XLA makes of a graph: one function, which writes into donated memory."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from hotshoe_jax import JaxProvider, memory_of
from hotshoe_jax.library import Compiled

from hotshoe_core import BackendParams, DType, EagerBackend
from hotshoe_core.errors import BackendError, DTypeError, InsufficientMemoryError


@pytest.fixture
def backend() -> Iterator[EagerBackend]:
    provider = JaxProvider()
    with provider.open(provider.devices()[:1], BackendParams()) as backend:
        yield backend


def test_a_token_copies_no_cache_and_traces_nothing(backend: EagerBackend) -> None:
    state = backend.state((64, 8), DType.BF16, "cache")
    ctx = backend.new_context()
    at, rows = ctx.input("at", (1,), DType.I32), ctx.input("rows", (1, 8))
    ctx.update(state, state.set_rows(at, rows))
    for i in range(3):
        before = state.handle.unsafe_buffer_pointer()
        ctx.compute({at: [i], rows: np.ones((1, 8))})
    assert state.handle.unsafe_buffer_pointer() == before
    assert state.handle.astype(float).sum() == 24
    assert backend.counters.traced == 1


def test_a_run_that_fails_after_donation_loses_the_cache_and_says_so(backend: EagerBackend) -> None:
    cache, running = backend.state((4, 2), DType.F32, "cache"), backend.state((2,), DType.F32, "running")
    ctx, other = backend.new_context(), backend.new_context()
    x, at = ctx.input("x", (1, 1 << 20)), ctx.input("at", (1,), DType.I32)
    ctx.update(cache, cache.set_rows(at, x[:, :2]))
    ctx.update(running, running + 1.0)
    ctx.forward(x.expand(1 << 22, 1 << 20).argsort().cast(DType.F32).sum(axis=None))  # 16 TiB
    other.forward(running)
    feeds = {x: np.zeros((1, 1 << 20)), at: [0]}
    with pytest.raises(InsufficientMemoryError, match="for the graph"):
        ctx.compute(feeds)
    with pytest.raises(BackendError, match=r"cache.* was lost"):
        ctx.compute(feeds)
    assert other.compute().read(running).tolist() == [0, 0]


def test_memory_is_what_xla_takes(backend: EagerBackend) -> None:
    ctx = backend.new_context()
    x = ctx.input("x", (1, 1 << 10))
    ctx.forward(total := (x.expand(1 << 20, 1 << 10) + 1.0).sum(axis=None)).reserve()
    assert backend.memory().devices[0].graph.size > 1 << 32  # before it is compiled: one op after the other
    assert ctx.compute({x: np.ones((1, 1 << 10))}).read(total) == 1 << 31
    assert backend.memory().devices[0].graph.size < 1 << 24  # XLA adds without storing the sums


@pytest.mark.parametrize(
    ("stats", "expected"),
    [
        (None, (0, 0)),
        ({"bytes_in_use": 5}, (0, 0)),
        ({"bytes_limit": 8, "bytes_in_use": 5}, (8, 3)),
        ({"bytes_limit": 8, "bytes_in_use": 9}, (8, 0)),
    ],
)
def test_memory_of_a_device_is_never_negative(stats: dict[str, int] | None, expected: tuple[int, int]) -> None:
    assert memory_of(SimpleNamespace(memory_stats=lambda: stats)) == expected


def test_a_compiler_that_cannot_tell_its_memory() -> None:
    compiled = Compiled(lambda given: given, ())
    assert compiled.nbytes is None
    compiled._compiled = SimpleNamespace(memory_analysis=lambda: None)
    assert compiled.nbytes is None


def test_integers_have_64_bits(backend: EagerBackend) -> None:
    ctx = backend.new_context()
    x = ctx.input("x", (2,), DType.I64)
    ctx.forward(y := x + x)
    assert ctx.compute({x: [2**40 + 1, -5]}).read(y).tolist() == [2**41 + 2, -10]
    assert not jax.config.jax_enable_x64  # outside, JAX is as it was


def test_a_type_that_core_cannot_write_is_refused_before_xla_runs(backend: EagerBackend) -> None:
    ctx = backend.new_context()
    x = ctx.input("x", (2, 256))
    ctx.forward(x.cast(DType.Q8_K))
    with pytest.raises(DTypeError, match="Q8_K"):
        ctx.compute({x: np.zeros((2, 256))})
