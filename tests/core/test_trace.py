"""trace(): the recorded nodes, unchanged results, and invalid files."""

from __future__ import annotations

import json
import os
import struct
import sys
import threading
import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from hotshoe_core import ops
from hotshoe_core.contract.backend import Backend, WeightData
from hotshoe_core.contract.device import BackendParams
from hotshoe_core.eager.reference import open_reference
from hotshoe_core.errors import TraceError
from hotshoe_core.graphs.context import Context
from hotshoe_core.inspect import trace as tracing
from hotshoe_core.inspect.trace import trace, watch
from hotshoe_core.inspect.tracefile import Statistics, measure, read_trace
from hotshoe_core.tensors.dtypes import DType
from hotshoe_core.tensors.scope import scope
from hotshoe_core.tensors.tensor import Tensor

RNG = np.random.default_rng(0)


@pytest.fixture(params=["reference", "cpu"])
def backend(request: pytest.FixtureRequest) -> Iterator[Backend]:
    from hotshoe_loader import load_all

    registry = load_all()
    if request.param not in [d.name for d in registry.devices]:
        pytest.skip("no device 'cpu': hotshoe-ggml-cpu is not installed")
    with registry.open(request.param, BackendParams()) as opened:
        yield opened


def small(backend: Backend) -> tuple[Context, dict[Tensor, np.ndarray], Tensor, Tensor]:
    """A norm, a product with bias and GELU, which backends fuse, and a state that takes rows."""
    numbers = RNG.normal(size=(32, 32)).astype(np.float32)
    packed = WeightData("w", (32, 32), DType.F32, numbers.view(np.uint8).reshape(-1), ("linear",), 0, True)
    weight = backend.load([packed])["w"]
    state = backend.state((4, 32), DType.F16, "cache")
    ctx = backend.new_context()
    x, at = ctx.input("x", (2, 32)), ctx.input("at", (2,), DType.I32)
    with scope("blk.0", 0):
        y = ops.rms_norm(x, eps=1e-6)
        y = (ops.linear(y, weight) + x).gelu()
        rows = state.set_rows(at, y)
        z = rows[:2].cast(DType.F32) + y
    ctx.update(state, rows).forward(z)
    return ctx, {x: RNG.normal(size=(2, 32)).astype(np.float32), at: np.array([1, 0], np.int32)}, z, state


def test_statistics_are_numpys() -> None:
    x = RNG.normal(3, 2, (7, 30_001)).astype(np.float32)  # more than one piece
    found = measure(x)
    wide = x.astype(np.float64)
    assert (found.min, found.max, found.n_nan, found.n_inf) == (x.min(), x.max(), 0, 0)
    np.testing.assert_allclose(
        [found.mean, found.std, found.rms], [wide.mean(), wide.std(), np.sqrt(np.mean(wide**2))], rtol=1e-12
    )
    assert found.first == tuple(x.ravel()[:8].tolist())
    assert measure(x.copy()) == found
    assert measure(x + np.float32(1e-6)).checksum != found.checksum


def test_statistics_are_of_the_finite_values() -> None:
    found = measure(np.array([1.0, np.nan, -np.inf, np.inf, 3.0], np.float32))
    assert (found.min, found.max, found.mean, found.n_nan, found.n_inf) == (1, 3, 2, 1, 2)
    nothing = measure(np.full(3, np.nan, np.float32))
    assert (nothing.min, nothing.max, nothing.rms, nothing.n_nan) == (None, None, 0, 3)


@pytest.mark.parametrize("n", [64, 4096, 200_000])
def test_sketches_estimate_the_difference_of_two_tensors(n: int) -> None:
    x = RNG.normal(size=n)
    for size in (1e-4, 1e-2, 1.0):
        delta = RNG.normal(size=n) * size
        estimate = np.sqrt(np.mean(np.subtract(measure(x + delta).sketch, measure(x).sketch) ** 2))
        assert 0.3 < estimate / np.sqrt(np.mean(delta**2)) < 2.5
    moved = x.copy()
    moved[[1, n - 1]] = x[[n - 1, 1]]  # same values in another order
    assert not np.allclose(measure(moved).sketch, measure(x).sketch, atol=1e-9)


def test_every_node_is_recorded_under_its_name_with_its_value(backend: Backend, tmp_path: Path) -> None:
    ctx, feeds, z, _ = small(backend)
    with trace(tmp_path / "t.npz", about={"model": "small"}):
        ctx.compute(feeds)
    with read_trace(tmp_path / "t.npz") as found:
        assert found.recorded
        assert found.header["device"] == backend.devices[0].name
        assert found.about == {"model": "small"}
        assert list(found.nodes) == ["x", "at", *(f"blk.0.{op}" for op in (
            "rms_norm", "linear", "add", "gelu", "set_rows", "slice", "cast", "add#2"))]  # fmt: skip
        assert found.nodes["blk.0.linear"].sources == ("blk.0.rms_norm", "w")
        assert found.nodes["blk.0.rms_norm"].attrs == {"eps": 1e-6}
        assert found.nodes["blk.0.add#2"].layer == 0
        assert found.nodes["x"].layer == -1
        for name in ("blk.0.set_rows", "blk.0.slice"):  # views of a state: how long it is, is the backend's choice
            assert found.nodes[name].statistics is None
            assert found.array(name) is None
        x = next(iter(feeds.values())).astype(np.float64)
        normed = x / np.sqrt(np.mean(x**2, axis=-1, keepdims=True) + 1e-6)
        array = found.array("blk.0.rms_norm")
        assert array is not None
        np.testing.assert_allclose(array, normed, rtol=1e-5)
        np.testing.assert_allclose(found.array("blk.0.add#2"), z.read(), rtol=1e-5, atol=1e-6)
        for name, node in found.nodes.items():
            if node.statistics is not None:
                array = found.array(name)
                assert array is not None
                assert array.shape == node.shape
                assert measure(array) == node.statistics


def test_results_and_states_are_the_same_with_a_trace_and_without(backend: Backend, tmp_path: Path) -> None:
    ctx, feeds, z, state = small(backend)
    with backend.new_context() as look:
        look.forward(state)
        with trace(tmp_path / "t.jsonl"):
            ctx.compute(feeds)
        traced, held = z.read(), look.compute().read(state)
        compiled = backend.counters.compiled
        ctx.compute(feeds)
        np.testing.assert_array_equal(z.read(), traced)
        np.testing.assert_array_equal(look.compute().read(state), held)
        assert held.any()
        assert backend.counters.compiled == compiled  # later runs cost nothing
    assert Context.observer is None


def test_a_recurrence_is_seen_before_its_step_and_makes_one(backend: Backend, tmp_path: Path) -> None:
    """The graph is computed twice while it is traced; its state must move on once."""
    state = backend.state((2, 4), DType.F32, "h")
    with backend.new_context() as ctx:
        at = ctx.input("at", (2,), DType.I32)
        new = state.set_rows(at, ctx.input("x", (2, 4)))
        ctx.update(state, new)
        ctx.forward(new * 2.0)
        with trace(tmp_path / "t.npz"):
            ctx.compute(dict(zip(ctx.inputs.values(), (np.array([1, 0], np.int32), np.ones((2, 4), np.float32)))))
    with read_trace(tmp_path / "t.npz") as found:
        np.testing.assert_array_equal(found.array("affine"), np.full((2, 4), 2.0))


def test_json_lines_and_npz_hold_the_same(tmp_path: Path) -> None:
    ctx, feeds, _, _ = small(open_reference())
    with trace(tmp_path / "t.npz"), trace(tmp_path / "t.jsonl"):
        ctx.compute(feeds)
    with read_trace(tmp_path / "t.npz") as npz, read_trace(tmp_path / "t.jsonl") as lines:
        assert npz.nodes == lines.nodes
        assert npz.header == lines.header
        assert lines.array("x") is None
        assert lines.statistics("x") == npz.statistics("x")
    for line in (tmp_path / "t.jsonl").read_text().splitlines():
        json.loads(line)


def test_non_finite_values_come_back(tmp_path: Path) -> None:
    ctx = open_reference().new_context()
    x = ctx.input("x", (3,))
    ctx.forward(x * 1.0)
    with trace(tmp_path / "t.jsonl"):
        ctx.compute({x: [np.nan, np.inf, 1.0]})
    statistics = read_trace(tmp_path / "t.jsonl").nodes["affine"].statistics
    assert statistics is not None
    assert (statistics.n_nan, statistics.n_inf) == (1, 1)
    assert np.array_equal(statistics.first, [np.nan, np.inf, 1.0], equal_nan=True)
    assert "NaN" not in (tmp_path / "t.jsonl").read_text()  # JSON has no NaN


def test_types_that_numpy_lacks(backend: Backend, tmp_path: Path) -> None:
    with backend.new_context() as ctx:
        x = ctx.input("x", (1, 32))
        ctx.forward(x.cast(DType.Q8_0).cast(DType.F32) + x.cast(DType.BF16).cast(DType.F32))
        with trace(tmp_path / "t.npz"):
            ctx.compute({x: np.full((1, 32), 127.0)})
    with read_trace(tmp_path / "t.npz") as found:
        assert [n.dtype for n in found.nodes.values()] == ["F32", "Q8_0", "F32", "BF16", "F32", "F32"]
        for name in ("cast", "cast#3"):
            np.testing.assert_array_equal(found.array(name), np.full((1, 32), 127.0))


def test_many_nodes_are_computed_some_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ctx, feeds, _, _ = small(open_reference())
    with trace(tmp_path / "whole.jsonl"):
        ctx.compute(feeds)
    monkeypatch.setattr(tracing, "_GROUP", 300)
    ctx, _, _, _ = small(open_reference())
    with trace(tmp_path / "some.jsonl"):
        ctx.compute(dict(zip(ctx.inputs.values(), feeds.values())))
    names = [list(read_trace(tmp_path / f"{n}.jsonl").nodes) for n in ("whole", "some")]
    assert names[0] == names[1]


def test_the_first_run_is_recorded_in_any_thread(tmp_path: Path) -> None:
    ctx = open_reference().new_context()
    x = ctx.input("x", (1,))
    ctx.forward(x + 1.0)
    with trace(tmp_path / "t.npz"):
        for value in (5.0, 6.0):
            thread = threading.Thread(target=ctx.compute, args=({x: [value]},))
            thread.start()
            thread.join()
    with read_trace(tmp_path / "t.npz") as found:
        np.testing.assert_array_equal(found.array("affine"), [6.0])


def test_nothing_computed_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="nothing was computed"), trace(tmp_path / "t.jsonl"):
        pass
    assert Context.observer is None
    with pytest.raises(TraceError, match="is empty"):
        read_trace(tmp_path / "t.jsonl")
    with pytest.raises(ZeroDivisionError), trace(tmp_path / "t.jsonl"):
        raise ZeroDivisionError  # the user's own error is the one to see


def test_a_file_that_cannot_be_written_is_an_error_at_once(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="cannot be written"), trace(tmp_path / "no" / "t.jsonl"):
        pytest.fail("the body ran")
    assert Context.observer is None


def test_the_variable_traces_the_first_run_of_a_watched_backend(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOTSHOE_TRACE", str(tmp_path / "t.jsonl"))
    other, model = open_reference(), open_reference()
    watch(model, {"model": "m.gguf"})
    for backend, name in ((other, "x"), (model, "y"), (model, "z")):
        with backend.new_context() as ctx:
            x = ctx.input(name, (1,))
            ctx.forward(x + 1.0).compute({x: [1.0]})
    found = read_trace(tmp_path / "t.jsonl")
    assert list(found.nodes) == ["y", "affine"]
    assert found.about == {"model": "m.gguf"}
    assert Context.observer is None
    watch(other, {})  # a second model in the process, which is not traced
    assert list(read_trace(tmp_path / "t.jsonl").nodes) == ["y", "affine"]


HEADER = '{"format": "hotshoe-trace", "version": 1, "about": {}}\n'
NODE = (
    b'{"name": "x", "op": "exp", "layer": 0, "dtype": "F32", "shape": [1], "sources": [], "attrs": {}, "statistics": '
    b'{"min": 1, "max": 1, "mean": 1, "std": 0, "rms": 1, "n_nan": 0, "n_inf": 0, "first": [1], '
    b'"sketch": [1, 1, 1, 1, 1, 1, 1, 1], "checksum": 3}}\n'
)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is empty"),
        (b"no JSON", "is neither a trace"),
        (b"\xff\xfe", "is neither a trace"),
        (b"[1]\n", "does not begin with the header"),
        (b'{"format": "other"}\n', "does not begin with the header"),
        (HEADER.replace("1", "9").encode(), "is a trace of version 9; expected 1"),
        (HEADER.encode() + b'{"name": "x"}\n', "line 2: is not a node of a trace"),
        (HEADER.encode() + b"[]\n", "line 2: is not a node of a trace"),
        (HEADER.encode() + b"{\n", "line 2: is not a node of a trace"),
        (b"PK\3\4 and no more", "is neither a trace"),
        (b"[" * 100_000, "is neither a trace"),
        (HEADER.encode() + b"[" * 100_000 + b"\n", "line 2: is not a node of a trace"),
        (HEADER.encode() + NODE.replace(b'"layer": 0', b'"layer": Infinity'), "line 2: is not a node of a trace"),
        (HEADER.encode() + NODE.replace(b'"mean": 1', b'"mean": 1' + b"0" * 400), "line 2: is not a node of a trace"),
    ],
)
def test_invalid_files(content: bytes, words: str, tmp_path: Path) -> None:
    (tmp_path / "t").write_bytes(content)
    with pytest.raises(TraceError, match=words):
        read_trace(tmp_path / "t")


def test_an_array_whose_header_lies(tmp_path: Path) -> None:
    for shape in (b"(9223372036854775808,)", b"(True,)", b"(-1,)", b"(1.5,)", b"x"):
        header = b"{'descr': '<f4', 'fortran_order': False, 'shape': " + shape + b"}"
        with zipfile.ZipFile(tmp_path / "t.npz", "w") as archive:
            archive.writestr("x.npy", b"\x93NUMPY\1\0" + struct.pack("<H", len(header)) + header + bytes(8))
        with pytest.raises(TraceError, match="plain arrays"):
            read_trace(tmp_path / "t.npz")


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such files")
def test_pipes_and_devices_do_not_hang(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/zero")):
        with pytest.raises(TraceError, match="it is a pipe, socket, device or folder; expected a file"):
            read_trace(path)


def test_a_damaged_npz(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "t.npz", "w") as archive:
        archive.writestr("x.npy", b"no array")
    with pytest.raises(TraceError, match="plain arrays"):
        read_trace(tmp_path / "t.npz")
    with trace(tmp_path / "r.npz"):
        ctx, feeds, _, _ = small(open_reference())
        ctx.compute(feeds)
    with zipfile.ZipFile(tmp_path / "r.npz") as whole, zipfile.ZipFile(tmp_path / "w.npz", "w") as wrong:
        for name in whole.namelist():
            wrong.writestr(name, whole.read("at.npy" if name == "x.npy" else name))
    with read_trace(tmp_path / "w.npz") as found, pytest.raises(TraceError, match=r"x is \(2,\); expected \(2, 32\)"):
        found.array("x")
    np.savez(tmp_path / "o.npz", x=np.array([{"a": 1}], dtype=object))
    with pytest.raises(TraceError, match="plain arrays"):
        read_trace(tmp_path / "o.npz")
    np.savez(tmp_path / "s.npz", x=np.array(["text"]))
    with pytest.raises(TraceError, match=r"expected numbers[^$]*float\(\)"):
        read_trace(tmp_path / "s.npz")
    with pytest.raises(TraceError, match="cannot be read"):
        read_trace(tmp_path / "nothing.npz")


def test_activations_of_other_code(tmp_path: Path) -> None:
    values = RNG.normal(size=(1, 3)).astype(np.float16)
    np.savez(tmp_path / "t.npz", **{"model.norm": values})
    with read_trace(tmp_path / "t.npz") as found:
        assert not found.recorded
        assert found.nodes["model.norm"].shape == (1, 3)
        assert isinstance(found.statistics("model.norm"), Statistics)
