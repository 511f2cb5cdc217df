"""dump and to_dot."""

from __future__ import annotations

import re
from collections.abc import Iterator

import gguf
import numpy as np
import pytest

from hotshoe_core.contract.backend import Backend, WeightData
from hotshoe_core.contract.device import BackendParams
from hotshoe_core.eager.reference import open_reference
from hotshoe_core.errors import ClosedError, GraphError, UnsupportedOpError
from hotshoe_core.inspect.debug import dump, to_dot
from hotshoe_core.tensors.dtypes import DType
from hotshoe_core.tensors.scope import scope
from hotshoe_core.tensors.tensor import constant


def test_dump_of_an_array_and_a_tensor() -> None:
    assert dump(np.array([1.0, 2.25]), precision=1) == "[1.0, 2.2]"
    assert dump(np.arange(2000.0), edge_items=1, precision=0) == "[   0., ..., 1999.]"
    assert dump(np.array([9801.0, 0.25]), precision=2) == "[9801.00,    0.25]"
    assert (
        dump(np.float32([[-1e7, 1e-6], [np.nan, -np.inf]]), precision=1)
        == "[[-10000000.0,         0.0],\n [        nan,        -inf]]"
    )
    assert dump(np.array([1e-9, 2e-7]), precision=2) == "[1.00e-09, 2.00e-07]"  # 0.00 would say nothing
    assert dump(np.array([np.inf, 1e-9, 2e-7]), precision=2) == "[     inf, 1.00e-09, 2.00e-07]"
    assert dump(np.array([np.nan, -np.inf])) == "[ nan, -inf]"
    assert dump(np.array(["a"])) == "['a']"
    assert dump(np.array([0.0, 3e8]), precision=1) == "[0.0e+00, 3.0e+08]"
    ctx = open_reference().new_context()
    x = ctx.input("x", (2,))
    y = x * 2.0
    ctx.forward(y)
    with pytest.raises(GraphError, match="no value yet"):
        dump(y)
    ctx.compute({x: [1, 2]})
    assert dump(y, precision=1) == "<Tensor affine F32[2]>\n[2.0, 4.0]"


@pytest.mark.parametrize("shape", [(2000,), (7, 300), (40, 2, 41), (3, 1, 7, 100)])
def test_dump_of_the_edges_is_numpys_and_copies_only_them(shape: tuple[int, ...]) -> None:
    array = np.random.default_rng(0).integers(-99, 99, shape).astype(np.float32)
    for n in (1, 2, 3):
        expected = np.array2string(array, threshold=10, edgeitems=n, floatmode="fixed", precision=1, separator=", ")
        assert dump(array, precision=1, threshold=10, edge_items=n) == expected
    large = np.broadcast_to(np.float32(1.5), (2**20, 2**20))  # 8 TiB as float64
    assert dump(large, precision=1, edge_items=1) == "[[1.5, ..., 1.5],\n ...,\n [1.5, ..., 1.5]]"


@pytest.fixture(params=["reference", "cpu"])
def backend(request: pytest.FixtureRequest) -> Iterator[Backend]:
    from hotshoe_loader import load_all

    registry = load_all()
    if request.param not in [d.name for d in registry.devices]:
        pytest.skip("no device 'cpu': hotshoe-ggml-cpu is not installed")
    with registry.open(request.param, BackendParams()) as opened:
        yield opened


def shown(text: str) -> np.ndarray:
    """The numbers that ``dump`` printed under the line that names the tensor."""
    return np.array(re.findall(r"-?[\d.]+(?:e[-+]\d+)?|-?inf|nan", text.partition("\n")[2]), np.float64)


STORED = ("F32", "F16", "BF16", "Q4_0", "Q5_1", "Q8_0", "Q4_K", "Q6_K", "MXFP4")


@pytest.mark.parametrize("compute_bound", [False, True])
@pytest.mark.parametrize("uses", [(), ("take",), ("linear",), ("take", "linear")], ids="+".join)
@pytest.mark.parametrize("name", STORED)
def test_dump_of_a_weight_in_every_layout(
    backend: Backend, name: str, uses: tuple[str, ...], compute_bound: bool
) -> None:
    """Compared with the gguf package. With "linear", the device may use another layout."""
    dtype, rng = DType[name], np.random.default_rng(0)
    values = rng.normal(size=(16, 512)).astype(np.float32)
    if name in ("Q4_K", "Q6_K"):  # gguf cannot write these: any bytes with finite scales are such a weight
        data = rng.integers(0, 32, (16, dtype.nbytes((512,))), np.uint8)
    else:
        data = gguf.quants.quantize(values, gguf.GGMLQuantizationType[name]).view(np.uint8)
    expected = gguf.quants.dequantize(data, gguf.GGMLQuantizationType[name])
    weight = backend.load([WeightData("w", (16, 512), dtype, data.reshape(-1), uses, 0, compute_bound)])["w"]
    text = dump(weight, precision=8, threshold=10**6)
    assert text.startswith(f"<Tensor w {name}[16, 512]>\n")
    got = shown(text).reshape(16, 512)
    # an encoder's Q8_0 is packed as bfloat16 where the CPU multiplies that: 8 bits of each number
    bound = 2**-8 if compute_bound and name == "Q8_0" else 1e-6
    np.testing.assert_allclose(got, expected, rtol=bound, atol=1e-7)


@pytest.mark.parametrize("name", ["F32", "Q4_0", "Q4_K"])
def test_dump_of_experts(backend: Backend, name: str) -> None:
    dtype, rng = DType[name], np.random.default_rng(0)
    data = rng.integers(0, 32, (3 * 8, dtype.nbytes((768,))), np.uint8)
    if name == "F32":
        data = rng.normal(size=(3 * 8, 768)).astype(np.float32).view(np.uint8)
    expected = gguf.quants.dequantize(data, gguf.GGMLQuantizationType[name]).reshape(3, 8, 768)
    weight = backend.load([WeightData("w", (3, 8, 768), dtype, data.reshape(-1), ("linear_experts",))])["w"]
    got = shown(dump(weight, precision=8, threshold=10**6)).reshape(3, 8, 768)
    np.testing.assert_allclose(got, expected, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("dtype", [DType.F32, DType.F16, DType.Q8_0])
def test_dump_of_a_state_is_what_the_last_run_left(backend: Backend, dtype: DType) -> None:
    state = backend.state((4, 32), dtype, "cache")
    assert not shown(dump(state)).any()
    with backend.new_context() as ctx:
        at, rows = ctx.input("at", (1,), DType.I32), ctx.input("rows", (1, 32))
        ctx.update(state, state.set_rows(at, rows)).compute({at: [2], rows: np.full((1, 32), 127.0)})
        got = shown(dump(state)).reshape(4, 32)
        np.testing.assert_array_equal(got, np.repeat([[0], [0], [127], [0]], 32, axis=1))


def test_dump_of_inputs_and_constants(backend: Backend) -> None:
    with backend.new_context() as ctx:
        x = ctx.input("x", (2,), DType.I32)
        c = constant([1.0, 2.5])
        ctx.forward(x.cast(DType.F32) + c)
        with pytest.raises(GraphError, match="no value yet"):
            dump(x)
        for value in ([3, 4], [5, 6]):
            ctx.compute({x: value})
            assert dump(x) == f"<Tensor x I32[2]>\n{value}"
        assert dump(c, precision=1) == "<Tensor constant F32[2]>\n[1.0, 2.5]"


@pytest.mark.parametrize("dtype", [DType.BF16, DType.Q8_0])
def test_dump_of_a_computed_tensor_that_numpy_has_no_type_for(backend: Backend, dtype: DType) -> None:
    with backend.new_context() as ctx:
        x = ctx.input("x", (1, 32))
        y = x.cast(dtype)
        values = np.linspace(-1, 1, 32, dtype=np.float32)[None]
        ctx.forward(y).compute({x: values})
        kind = gguf.GGMLQuantizationType[dtype.name]
        expected = gguf.quants.dequantize(gguf.quants.quantize(values, kind), kind)
        np.testing.assert_allclose(shown(dump(y, precision=8))[None], expected, atol=1e-8)
        assert y.read().dtype == np.float32


def test_dump_says_why_there_is_nothing_to_show(backend: Backend) -> None:
    weight = backend.load([WeightData("w", (2,), DType.F32, np.zeros(8, np.uint8))])["w"]
    backend.release([weight])
    with pytest.raises(ClosedError, match="was released"):
        dump(weight)
    weight.owner = None
    with pytest.raises(GraphError, match="NoneType; expected a Backend"):
        dump(weight)


def test_dump_of_a_weight_that_no_op_can_read(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = open_reference()
    weight = backend.load([WeightData("w", (2, 2), DType.F32, np.zeros(16, np.uint8))])["w"]

    def refuse(graph: object) -> None:
        raise UnsupportedOpError("no")

    monkeypatch.setattr(backend, "compile", refuse)
    with pytest.raises(UnsupportedOpError, match="cannot read its numbers"):
        dump(weight)


@pytest.mark.parametrize("wrong", [{"edge_items": 0}, {"precision": -1}])
def test_dump_refuses_senseless_options(wrong: dict[str, int]) -> None:
    with pytest.raises(GraphError, match="expected"):
        dump(np.zeros(3), **wrong)


def test_dot_has_every_node_and_every_edge() -> None:
    backend = open_reference()
    ctx = backend.new_context()
    x, at = ctx.input('the "x"', (1, 3)), ctx.input("at", (1,), DType.I32)
    state = backend.state((4, 3), DType.F32, "cache")
    with scope("blk.0", 0):
        rows = x * constant([1.0, 2.0, 3.0]) + x
    new = state.set_rows(at, rows)
    graph = ctx.update(state, new).forward(rows).graph()
    lines = [line.strip() for line in to_dot(graph).splitlines()]
    nodes = {m[1]: m[2] for m in map(re.compile(r'^(n\d+) \[label="([^"]*)".*\];$').match, lines) if m}
    edges = {m.groups() for m in map(re.compile(r"^(n\d+) -> (n\d+);$").match, lines) if m}
    dashed = re.compile(r"^(n\d+) -> (n\d+) \[style=dashed, label=update\];$")
    updates = {m.groups() for m in map(dashed.match, lines) if m}
    tensors = (*graph.leaves, *graph.nodes)
    assert nodes.keys() == {f"n{t.id}" for t in tensors}
    assert nodes[f"n{x.id}"] == "the 'x'\\nF32 [1, 3]"
    assert nodes[f"n{new.id}"] == "set_rows\\nF32 [4, 3]"
    assert edges == {(f"n{s.id}", f"n{t.id}") for t in graph.nodes for s in t.sources if s is not None}
    assert updates == {(f"n{new.id}", f"n{state.id}")}
    assert 'label="blk.0"; color=grey;' in lines
    assert lines[0] == "digraph hotshoe {"
    opened, closed = (sum(line.count(c) for line in lines) for c in "{}")
    assert opened == closed
