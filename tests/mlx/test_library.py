"""MLX under the adapter: tracing, memory, threads, and arguments that MLX does not check."""

from __future__ import annotations

import subprocess
import sys
import threading

import numpy as np
import pytest

from hotshoe_core.ops import RoPE, attention, rms_norm, rope
from hotshoe_core.tensors.dtypes import DType
from hotshoe_core.tensors.tensor import TABLE

pytest.importorskip("hotshoe_mlx", reason="hotshoe-mlx is not installed")
pytest.importorskip("mlx.core", reason="mlx is not installed, or has no engine for this machine")

import mlx.core as mx

from hotshoe_core.eager.adapter import EagerBackend
from hotshoe_loader import load_all
from hotshoe_mlx import _functions
from hotshoe_mlx._packed import Packed
from hotshoe_mlx.accepts import COMPOSITES

N_ROWS, WIDTH = 4096, 1024  # of a state of 8 MiB in F16


@pytest.fixture
def backend():
    with load_all().open("mlx:cpu") as opened:
        assert isinstance(opened, EagerBackend)
        yield opened


def test_mlx_is_not_imported_until_it_is_probed() -> None:
    code = (
        "import sys, hotshoe_mlx.provider as p; p.hotshoe_providers(); assert 'mlx' not in sys.modules; "
        "p.hotshoe_providers()[0].devices(None); assert 'mlx.core' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_without_mlx_the_verdict_says_what_to_install() -> None:
    code = (
        "import sys; sys.modules['mlx.core'] = None; import hotshoe_mlx.provider as p\n"
        "try: p.MlxProvider().devices(None)\nexcept ImportError as e: print(e)"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, timeout=60, capture_output=True, text=True)
    assert "pip install 'mlx[cpu]'" in done.stdout


def test_its_cpu_ranks_after_ggmls() -> None:
    registry = load_all()
    names = [d.name for d in registry.devices]
    assert names.index("mlx:cpu") > names.index("cpu") if "cpu" in names else "mlx:cpu" in names
    assert next(iter(load_all(require="mlx").devices)).name == "mlx:cpu"


@pytest.mark.parametrize("n_threads", [1, 3])
def test_a_graph_is_traced_once(backend: EagerBackend, n_threads: int) -> None:
    """All threads share the trace, although MLX's own streams and compiled functions belong to a thread."""
    ctx = backend.new_context()
    x = ctx.input("x", (4, 8))
    y = rms_norm(x.silu() * 2.0, eps=1e-5)
    ctx.forward(y).reserve()
    failures: list[BaseException] = []

    def work() -> None:
        try:
            for i in range(5):
                ctx.compute({x: np.full((4, 8), i + 1.0)})
                np.testing.assert_allclose(ctx.read(y), 1, rtol=1e-4)
        except BaseException as e:
            failures.append(e)

    threads = [threading.Thread(target=work) for _ in range(n_threads)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not failures
    assert backend.counters.traced == 1


def test_a_token_does_not_copy_a_cache(backend: EagerBackend) -> None:
    state = backend.state((N_ROWS, WIDTH), DType.F16, "cache")
    ctx = backend.new_context()
    at, rows = ctx.input("at", (1,), DType.I32), ctx.input("rows", (1, WIDTH))
    new = state.set_rows(at, rows)
    ctx.update(state, new)
    seen = new[:4].sum(None)
    ctx.forward(seen)
    ctx.compute({at: [0], rows: np.ones((1, WIDTH))})
    active = mx.get_active_memory()
    mx.reset_peak_memory()
    for i in range(1, 4):
        ctx.compute({at: [i], rows: np.ones((1, WIDTH))})
        assert ctx.read(seen) == (i + 1) * WIDTH
    assert mx.get_peak_memory() - active < N_ROWS * WIDTH  # half of the state
    assert mx.get_active_memory() <= active + 2**16


def test_a_state_that_is_read_after_it_was_written_keeps_its_old_value(backend: EagerBackend) -> None:
    state = backend.state((8, 4), DType.F32, "s")
    ctx = backend.new_context()
    at, rows = ctx.input("at", (1,), DType.I32), ctx.input("rows", (1, 4))
    before = state.sum(None)
    ctx.update(state, state.set_rows(at, rows))
    ctx.forward(before)
    assert [float(ctx.compute({at: [i], rows: np.ones((1, 4))}).read(before)) for i in range(3)] == [0, 4, 8]


def test_indices_that_a_graph_computes_do_not_read_outside(backend: EagerBackend) -> None:
    """MLX would read outside the array."""
    ctx = backend.new_context()
    table, at = ctx.input("table", (3, 2)), ctx.input("at", (2,), DType.I32)
    y = table.take(at * at)
    ctx.forward(y).compute({table: [[0, 0], [1, 1], [2, 2]], at: [1, 3000]})
    assert ctx.read(y).tolist() == [[1, 1], [2, 2]]


@pytest.mark.parametrize(("a", "b"), [(7, 0), (-7, 0), (-(2**31), -1), (7, -1), (-7, 2)])
def test_integer_division_never_ends_the_process(backend: EagerBackend, a: int, b: int) -> None:
    ctx = backend.new_context()
    x, y = ctx.input("x", (1,), DType.I32), ctx.input("y", (1,), DType.I32)
    ctx.forward(x // y, x % y)
    quotient, rest = ctx.graph().outputs
    ctx.compute({x: [a], y: [b]})
    with np.errstate(all="ignore"):
        expected = np.floor_divide(np.int32(a), np.int32(b)), np.mod(np.int32(a), np.int32(b))
    assert (ctx.read(quotient)[0], ctx.read(rest)[0]) == expected


def test_fused_ops_are_used_where_they_fit_and_decomposed_elsewhere(backend: EagerBackend) -> None:
    ctx = backend.new_context()
    q, k, at = ctx.input("q", (3, 4, 8)), ctx.input("k", (5, 2, 8)), ctx.input("at", (3,), DType.I32)
    many = ctx.input("many", (3, 3), DType.I32)
    ctx.forward(
        attention(q, k, k, scale=1.0),
        attention(q, k, k, scale=1.0, softcap=5.0),
        rope(q, at, config=RoPE(8)),
        rope(q, many, config=RoPE(8, sections=(2, 1, 1))),
    ).reserve()
    ops = [(p.op, p.how) for p in ctx.placements()]
    assert ops.count(("attention", "native")) == ops.count(("rope", "native")) == 1
    assert ("softmax", "decomposed") in ops


def test_what_is_said_to_be_native_is(backend: EagerBackend) -> None:
    """docs/ops.md is made from the table in accepts.py, which does not import mlx."""
    (library,) = backend.libraries.values()
    primitives = {name for name, op in TABLE.items() if not op.composite}
    assert library.functions.keys() == primitives | COMPOSITES


def test_closing_frees_memory() -> None:
    before = mx.get_active_memory()
    backend = load_all().open("mlx:cpu")
    backend.state((1024, 1024), DType.F32, "s")
    assert mx.get_active_memory() >= before + 2**22
    backend.close()
    assert mx.get_active_memory() <= before + 2**12
    assert mx.get_cache_memory() == 0


def test_a_part_of_a_long_row_is_ordered_like_all_of_it() -> None:
    """Beyond 8 * k elements only the k largest are sorted."""
    x = np.random.default_rng(0).permutation(8000).astype(np.float32).reshape(8, 1000)
    x[0, ::3], x[1, 5], x[2, 7], x[3] = np.nan, np.inf, -np.inf, np.nan
    x[3, 9] = 1
    for k in (1, 40, 124, 125, 1000):
        expected = np.take_along_axis(x, np.argsort(-x, axis=-1, kind="stable")[:, :k], -1)
        for gpu in (False, True):
            found = np.asarray(_functions.top_k(mx.array(x), k=k, gpu=gpu))
            assert np.array_equal(np.take_along_axis(x, found, -1), expected, equal_nan=True)
            assert all(len(set(row)) == k for row in found)


@pytest.mark.parametrize("per_token", [1, 4], ids=["one row for a token", "a row for each choice"])
@pytest.mark.parametrize("quantized", [False, True])
def test_many_choices_are_sorted_by_expert(quantized: bool, per_token: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    weight = mx.array(rng.standard_normal((16, 64, 128)).astype(np.float32))
    given = Packed(*mx.quantize(weight, group_size=32, bits=4), 4, 32, "affine") if quantized else weight
    x = mx.array(rng.standard_normal((20, per_token, 128)).astype(np.float32))
    chosen = mx.array(rng.integers(0, 16, (20, 4)).astype(np.int32))
    found = []
    for limit in (0, 1000):
        monkeypatch.setattr(_functions, "_SORTED_FROM", limit)
        found.append(np.asarray(_functions.linear_experts(x, given, chosen)))
    assert found[0].shape == (20, 4, 64)
    assert np.array_equal(*found)
    one = np.asarray(weight if not quantized else given.dequantize())[np.asarray(chosen)]  # (20, 4, 64, 128)
    expected = (one @ np.broadcast_to(np.asarray(x), (20, 4, 128))[..., None])[..., 0]
    assert np.abs(found[0] - expected).max() <= 1e-4 * np.abs(expected).max()
