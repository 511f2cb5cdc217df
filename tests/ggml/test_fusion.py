"""Packed weights and fused products, compared with the reference backend."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import pytest

from hotshoe_core import Backend, BackendParams, Context, DType, Tensor, WeightData, ops
from hotshoe_core.eager.reference import open_reference
from hotshoe_core.tensors.quants import quantize

pytest.importorskip("hotshoe_ggml", reason="hotshoe-ggml-cpu is not installed")

from hotshoe_ggml.cpu import unit
from hotshoe_ggml.cpu.bf16 import multiplies_bf16
from hotshoe_ggml.cpu.packed import PackedWeight, pack_format
from hotshoe_ggml.native import ffi, kernels, lib
from hotshoe_loader import load_all

K, M = 96, 64
TOLERANCE = {DType.F32: 1e-5, DType.F16: 1e-5, DType.BF16: 1e-2, DType.Q8_0: 1e-2}  # bf16 keeps 8 bits

Build = Callable[[Tensor, Tensor, Tensor, Tensor], list[Tensor]]  # of x, residual, weight, bias

PATTERNS: dict[str, tuple[Build, int]] = {  # and the number of computed nodes in ggml's graph
    "product": (lambda x, r, w, b: [ops.linear(x, w)], 1),
    "bias": (lambda x, r, w, b: [ops.linear(x, w) + b], 1),
    "bias first": (lambda x, r, w, b: [b + ops.linear(x, w)], 1),
    "gelu": (lambda x, r, w, b: [ops.linear(x, w).gelu()], 1),
    "bias and gelu": (lambda x, r, w, b: [(ops.linear(x, w) + b).gelu()], 1),
    "residual": (lambda x, r, w, b: [ops.linear(x, w) + r], 1),
    "all": (lambda x, r, w, b: [r + (ops.linear(x, w) + b).gelu()], 1),
    "bias and residual": (lambda x, r, w, b: [ops.linear(x, w) + b + r], 1),
    "two products added": (lambda x, r, w, b: [(ops.linear(x, w) + b) + ops.linear(x.gelu(), w)], 3),
    "another activation": (lambda x, r, w, b: [(ops.linear(x, w) + b).relu()], 2),
    "read in between": (lambda x, r, w, b: [y := ops.linear(x, w), y + b], 2),
    "read twice": (lambda x, r, w, b: [(y := ops.linear(x, w) + b).gelu() * y], 3),
    "added to itself": (lambda x, r, w, b: [(y := ops.linear(x, w)) + y], 2),
    "the first features": (lambda x, r, w, b: [ops.linear(x, w)[..., :32]], 1),
    "features that split a panel": (lambda x, r, w, b: [ops.linear(x, w)[..., :24]], 2),
    "features that are not the first": (lambda x, r, w, b: [ops.linear(x, w)[..., 32:]], 2),
    "features of some rows": (lambda x, r, w, b: [ops.linear(x, w)[:1, :, :32]], 2),
    "features read twice": (lambda x, r, w, b: [(y := ops.linear(x, w))[..., :32], y], 2),
    "features with a bias": (lambda x, r, w, b: [(ops.linear(x, w) + b)[..., :32]], 2),
    "a residual that broadcasts": (lambda x, r, w, b: [ops.linear(x, w) + r[:1]], 2),
}


@pytest.fixture
def backend() -> Iterator[Backend]:
    with load_all().open("cpu", BackendParams(n_threads=2)) as opened:
        yield opened


def weight_data(dtype: DType) -> list[WeightData]:
    rng = np.random.default_rng(1)
    w, b = rng.standard_normal((M, K), np.float32), rng.standard_normal(M, np.float32)
    return [
        WeightData("w", (M, K), dtype, quantize(w, dtype), ("linear",), compute_bound=True),
        WeightData("b", (M,), DType.F32, quantize(b, DType.F32), ("add",), compute_bound=True),
    ]


def build(backend: Backend, dtype: DType, pattern: Build) -> tuple[Context, list[Tensor], list[Tensor]]:
    loaded = backend.load(weight_data(dtype))
    ctx = backend.new_context()
    x, r = ctx.input("x", (3, 5, K)), ctx.input("r", (3, 5, M))
    outputs = pattern(x, r, loaded["w"], loaded["b"])
    ctx.forward(*outputs)
    return ctx, [x, r], outputs


def compute(ctx: Context, inputs: list[Tensor], outputs: list[Tensor], seed: int) -> list[np.ndarray[Any, Any]]:
    rng = np.random.default_rng(seed)
    ctx.compute({t: rng.standard_normal(t.shape, np.float32) for t in inputs})
    return [t.read() for t in outputs]


@pytest.mark.parametrize("dtype", TOLERANCE, ids=lambda d: d.name)
@pytest.mark.parametrize("name", PATTERNS)
def test_fused_products_are_right(name: str, dtype: DType, backend: Backend) -> None:
    pattern, _ = PATTERNS[name]
    ours, expected = build(backend, dtype, pattern), build(open_reference(), dtype, pattern)
    for seed in range(2):
        for a, b in zip(compute(*ours, seed), compute(*expected, seed), strict=True):
            assert np.linalg.norm(a - b) <= TOLERANCE[dtype] * np.linalg.norm(b)


@pytest.mark.parametrize("name", PATTERNS)
def test_values_that_other_nodes_read_are_not_fused(name: str, backend: Backend) -> None:
    require_packed(DType.F32)
    pattern, nodes = PATTERNS[name]
    ctx, _, _ = build(backend, DType.F32, pattern)
    kinds = computed(ctx)
    assert len(kinds) == nodes, kinds


@pytest.mark.parametrize(("name", "n"), [("the first features", 32), ("features that split a panel", 64)])
def test_only_the_features_that_are_read_are_computed(name: str, n: int, backend: Backend) -> None:
    require_packed(DType.F32)
    ctx, _, _ = build(backend, DType.F32, PATTERNS[name][0])
    ctx.reserve()
    executable: Any = ctx._executable
    (product,) = [node for node in nodes_of(executable._cgraph) if node.op == lib().GGML_OP_CUSTOM]
    assert product.ne[0] == n


def nodes_of(graph: Any) -> list[Any]:
    return [lib().ggml_graph_node(graph, i) for i in range(lib().ggml_graph_n_nodes(graph))]


def computed(ctx: Context) -> list[str]:
    """The ops of ggml's graph, without views."""
    ctx.reserve()
    executable: Any = ctx._executable
    kinds = [ffi.string(lib().ggml_op_name(node.op)).decode() for node in nodes_of(executable._cgraph)]
    return [kind for kind in kinds if kind not in ("RESHAPE", "VIEW", "PERMUTE")]


@pytest.mark.parametrize("repack", [True, "engine"])
@pytest.mark.parametrize("dtype", [DType.F32, DType.F16, DType.BF16], ids=lambda d: d.name)
def test_a_decoder_uses_our_products_too(dtype: DType, repack: bool | Literal["engine"]) -> None:
    """For one row and for many; ggml computes them with repack="engine"."""
    require_packed(dtype)
    w, b = (replace(w, compute_bound=False) for w in weight_data(dtype))
    for n_rows in (1, 30):
        answers = []
        for backend in (load_all().open("cpu", BackendParams(n_threads=2, repack=repack)), open_reference()):
            loaded = backend.load([w, b])
            with backend, backend.new_context() as ctx:
                x, r = ctx.input("x", (n_rows, K)), ctx.input("r", (n_rows, M))
                y = (ops.linear(x, loaded["w"]) + loaded["b"]).gelu() + r
                ctx.forward(y)
                answers.append(compute(ctx, [x, r], [y], 0)[0])
                if backend.name != "reference":
                    assert ("MUL_MAT" in computed(ctx)) == (repack == "engine")
                    assert repack == "engine" or computed(ctx) == ["CUSTOM"]
        assert np.linalg.norm(answers[0] - answers[1]) <= 1e-2 * np.linalg.norm(answers[1])


def test_placements_name_what_was_fused(backend: Backend) -> None:
    ctx, _, _ = build(backend, DType.F16, PATTERNS["all"][0])
    assert [p.op for p in ctx.reserve().placements()] == ["linear", "add", "gelu", "add"]


@pytest.mark.parametrize("dtype", [DType.F32, DType.Q8_0], ids=lambda d: d.name)
def test_memory_is_that_of_the_layout(dtype: DType, backend: Backend) -> None:
    require_packed(dtype)
    (w, b) = weight_data(dtype)
    loaded = backend.load([w, b])
    assert isinstance(loaded["w"].handle, PackedWeight)
    total = backend.memory().total
    assert total == loaded["w"].handle.nbytes + 4 * M
    with load_all().open("cpu", BackendParams(allocate=False)) as dry:
        dry.load([w, b])
        assert dry.memory().total == total
    backend.release([loaded["w"]])
    assert backend.memory().total == 4 * M


def test_a_graph_keeps_its_weight_alive_and_refuses_to_run_without_it(backend: Backend) -> None:
    from hotshoe_core.errors import ClosedError

    loaded = backend.load(weight_data(DType.F16))
    ctx = backend.new_context()
    x = ctx.input("x", (1, K))
    ctx.forward(ops.linear(x, loaded["w"])).compute({x: np.ones((1, K), np.float32)})
    backend.release([loaded["w"]])
    with pytest.raises(ClosedError, match="released"):
        ctx.compute({x: np.ones((1, K), np.float32)})


@pytest.mark.parametrize("compute_bound", [False, True])
@pytest.mark.parametrize("dtype", [DType.Q4_0, DType.Q8_0, DType.F16], ids=lambda d: d.name)
def test_an_embedding_that_is_the_output_too(dtype: DType, compute_bound: bool, backend: Backend) -> None:
    """Rows are read in the file's layout; the product may use another."""
    values = np.random.default_rng(0).standard_normal((64, 64), np.float32)
    data = quantize(values, dtype)
    data.setflags(write=False)
    w = WeightData("w", (64, 64), dtype, data, ("take", "linear"), compute_bound=compute_bound)
    outputs = []
    for b in (backend, open_reference()):
        weight = b.load([w])["w"]
        with b.new_context() as ctx:
            ids = ctx.input("ids", (5,), DType.I32)
            rows = weight.take(ids)
            logits = ops.linear(rows, weight)
            ctx.forward(rows, logits).compute({ids: [3, 0, 63, 7, 3]})
            outputs.append((rows.read(), logits.read()))
        b.release([weight])
        assert b.memory().total == 0
    for ours, expected in zip(*outputs, strict=True):
        assert np.linalg.norm(ours - expected) <= 2e-2 * np.linalg.norm(expected)


@pytest.mark.parametrize("dtype", [DType.F32, DType.F16], ids=lambda d: d.name)
@pytest.mark.parametrize("name", ["product", "all"])
def test_weights_are_rounded_to_bf16_with_matmul_precision(name: str, dtype: DType) -> None:
    if not multiplies_bf16():
        pytest.skip("this CPU has no product of BF16")
    outputs = []
    for params in (BackendParams(n_threads=2), BackendParams(n_threads=2, matmul_precision="bf16")):
        with load_all().open("cpu", params) as opened:
            assert "matmul_precision" in opened.honours
            outputs += compute(*build(opened, dtype, PATTERNS[name][0]), 0)
    stored, rounded = outputs
    assert 1e-4 < np.linalg.norm(rounded - stored) / np.linalg.norm(stored) < TOLERANCE[DType.BF16]


def test_bf16_without_effect_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    if not multiplies_bf16():
        pytest.skip("this CPU has no product of BF16")
    data = weight_data(DType.F16)
    decoder = [replace(weight, compute_bound=False) for weight in data]
    exact = [replace(weight, compute_bound=False) for weight in weight_data(DType.F32)]
    said = "this model has no weights that it would affect (F16, or F32 of an encoder, on the CPU)"
    for weights, repack, has_effect in (
        (data, True, True), (data, False, False), (decoder, True, True), (decoder, False, False), (exact, True, False),
    ):  # fmt: skip
        caplog.clear()
        with load_all().open("cpu", BackendParams(n_threads=2, matmul_precision="bf16", repack=repack)) as opened:
            opened.load(weights)
        messages = [r.getMessage() for r in caplog.records if "matmul_precision" in r.getMessage()]
        assert messages == ([] if has_effect else [f"matmul_precision='bf16' has no effect: {said}"])


def test_a_cpu_without_bf16_says_so(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unit, "multiplies_bf16", lambda: False)
    with load_all().open("cpu", BackendParams(n_threads=2, matmul_precision="bf16")) as opened:
        opened.load(weight_data(DType.F32))
    messages = [r.getMessage() for r in caplog.records if "matmul_precision" in r.getMessage()]
    assert messages == ["ggml ignores matmul_precision='bf16'"]


def require_packed(dtype: DType) -> None:
    if pack_format(weight_data(dtype)[0]) is None:
        pytest.skip(f"this CPU has no fast kernel of ours for {dtype.name}")


Pair = Callable[[Tensor, Tensor, Tensor, Tensor], list[Tensor]]  # of x, another x, a gate's weight, the product's

GATED: dict[str, tuple[Pair, int]] = {  # and how many nodes ggml's graph has
    "swiglu": (lambda x, z, g, w: [ops.swiglu(ops.linear(x, g), ops.linear(x, w))], 1),
    "geglu": (lambda x, z, g, w: [ops.geglu(ops.linear(x, g), ops.linear(x, w))], 1),
    "product first": (lambda x, z, g, w: [ops.swiglu(*reversed([ops.linear(x, w), ops.linear(x, g)]))], 1),
    "two of them": (
        lambda x, z, g, w: [ops.swiglu(*(ops.linear(t, v) for v in pair)) for t, pair in ((x, (g, w)), (z, (w, g)))],
        2,
    ),
    "exact gelu": (lambda x, z, g, w: [ops.geglu(ops.linear(x, g), ops.linear(x, w), approximate="none")], 2),
    "of two inputs": (lambda x, z, g, w: [ops.swiglu(ops.linear(x, g), ops.linear(z, w))], 3),
    "the gate is read": (lambda x, z, g, w: [y := ops.linear(x, g), ops.swiglu(y, ops.linear(x, w))], 2),
    "the product is read": (lambda x, z, g, w: [ops.swiglu(ops.linear(x, g), y := ops.linear(x, w)), y], 2),
    "the gate is the product": (lambda x, z, g, w: [ops.swiglu(y := ops.linear(x, g), y)], 2),
    "the gate is shifted": (lambda x, z, g, w: [ops.swiglu(ops.linear(x, g) + 1, ops.linear(x, w))], 3),
}


@pytest.mark.parametrize("dtype", [DType.Q4_0, DType.Q8_0, DType.Q4_1, DType.MXFP4], ids=lambda d: d.name)
@pytest.mark.parametrize("name", GATED)
def test_a_gate_and_its_product_are_one(name: str, dtype: DType, backend: Backend) -> None:
    """Few rows, several tiles, several blocks; m is not a multiple of a panel."""
    if not kernels().hotshoe_quants_has(dtype.id, K):
        pytest.skip("this CPU has no products of ours for quantized weights")
    rng, (build, nodes), m = np.random.default_rng(0), GATED[name], 520
    weights = [
        WeightData(part, (m, K), dtype, quantize(rng.standard_normal((m, K), np.float32), dtype), ("linear",))
        for part in ("gate", "up")
    ]
    for n in (1, 2, 3, 20, 300):
        answers = []
        for b in (backend, open_reference()):
            loaded = b.load(weights)
            with b.new_context() as ctx:
                x, z = ctx.input("x", (n, K)), ctx.input("z", (n, K))
                outputs = build(x, z, loaded["gate"], loaded["up"])
                ctx.forward(*outputs)
                answers.append(compute(ctx, [x, z], outputs, n))
                if b is backend:
                    assert isinstance(loaded["up"].handle, PackedWeight)
                    assert len(computed(ctx)) == nodes, computed(ctx)
            b.release(list(loaded.values()))
        for ours, expected in zip(*answers, strict=True):
            assert np.linalg.norm(ours - expected) <= 2e-2 * np.linalg.norm(expected)


Chosen = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], list[Tensor]]  # of x, choices, others, gate's, product's

GATED_EXPERTS: dict[str, tuple[Chosen, int]] = {
    "swiglu": (lambda x, c, o, g, w: [ops.swiglu(ops.linear_experts(x, g, c), ops.linear_experts(x, w, c))], 1),
    "of two choices": (lambda x, c, o, g, w: [ops.swiglu(ops.linear_experts(x, g, c), ops.linear_experts(x, w, o))], 3),
    "the gate is read": (
        lambda x, c, o, g, w: [y := ops.linear_experts(x, g, c), ops.swiglu(y, ops.linear_experts(x, w, c))],
        3,
    ),
    "by itself": (lambda x, c, o, g, w: [ops.linear_experts(x, g, c)], 1),
}


@pytest.mark.parametrize("dtype", [DType.Q4_0, DType.Q8_0], ids=lambda d: d.name)
@pytest.mark.parametrize("name", GATED_EXPERTS)
def test_a_gate_of_experts_and_its_product_are_one(name: str, dtype: DType, backend: Backend) -> None:
    if not kernels().hotshoe_quants_has(dtype.id, K):
        pytest.skip("this CPU has no products of ours for quantized weights")
    rng, (build, nodes), m, e, used = np.random.default_rng(0), GATED_EXPERTS[name], 72, 4, 2
    weights = [
        WeightData(
            part, (e, m, K), dtype, quantize(rng.standard_normal((e * m, K), np.float32), dtype), ("linear_experts",)
        )
        for part in ("gate", "up")
    ]
    for n in (1, 3, 300):
        answers = []
        choices = [rng.integers(0, e, (n, used), np.int32) for _ in range(2)]
        values = rng.standard_normal((n, 1, K), np.float32)
        for b in (backend, open_reference()):
            loaded = b.load(weights)
            with b.new_context() as ctx:
                x = ctx.input("x", (n, 1, K))
                chosen, others = (ctx.input(f"c{i}", (n, used), DType.I32) for i in range(2))
                outputs = build(x, chosen, others, loaded["gate"], loaded["up"])
                ctx.forward(*outputs).compute({x: values, chosen: choices[0], others: choices[1]})
                answers.append([ctx.read(y) for y in outputs])
                if b is backend:
                    assert len(computed(ctx)) == nodes, computed(ctx)
            b.release(list(loaded.values()))
        for ours, expected in zip(*answers, strict=True):
            assert np.linalg.norm(ours - expected) <= 2e-2 * np.linalg.norm(expected)


def test_weights_of_two_types_are_not_a_pair(backend: Backend) -> None:
    """llama.cpp mixes types in some files."""
    rng = np.random.default_rng(0)
    weights = [
        WeightData(d.name, (M, K), d, quantize(rng.standard_normal((M, K), np.float32), d), ("linear",))
        for d in (DType.Q4_0, DType.Q5_0)
    ]
    loaded = backend.load(weights)
    with backend.new_context() as ctx:
        x = ctx.input("x", (3, K))
        ctx.forward(ops.swiglu(ops.linear(x, loaded["Q4_0"]), ops.linear(x, loaded["Q5_0"])))
        assert len(computed(ctx)) == 2  # both products, and the activation


@pytest.mark.parametrize("compute_bound", [False, True])
def test_products_of_the_same_rows_are_one_node(backend: Backend, compute_bound: bool) -> None:
    """Queries, keys and values: of several types and sizes, some with a bias. Each has the bits of its own product."""
    require_packed(DType.Q4_0)
    rng = np.random.default_rng(0)
    sizes = [("q", 520, DType.Q4_0), ("k", 72, DType.Q4_0), ("v", 8, DType.Q8_0), ("other", 200, DType.Q5_0)]

    def weight(name: str, shape: tuple[int, ...], dtype: DType, use: str) -> WeightData:
        data = quantize(rng.standard_normal(shape, np.float32), dtype)
        return WeightData(name, shape, dtype, data, (use,), compute_bound=compute_bound)

    weights = [weight(name, (m, K), dtype, "linear") for name, m, dtype in sizes]
    weights += [weight(f"{name}.bias", (m,), DType.F32, "add") for name, m, _ in sizes[1:3]]
    loaded = backend.load(weights)

    def products(x: Tensor) -> list[Tensor]:
        k, v = (ops.linear(x, loaded[name]) + loaded[f"{name}.bias"] for name in "kv")
        return [ops.linear(x, loaded["q"]), k, v.gelu(), ops.linear(x, loaded["other"])]

    for n in (1, 2, 3, 20, 300):
        values = rng.standard_normal((n, K), np.float32)
        values[0, 3] = 100.0  # an outlier
        with backend.new_context() as ctx:
            x = ctx.input("x", (n, K))
            together = products(x)
            ctx.forward(*together).compute({x: values})
            got = [y.read() for y in together]
            assert computed(ctx) == ["CUSTOM"]
        for i, of_all in enumerate(got):
            with backend.new_context() as ctx:
                x = ctx.input("x", (n, K))
                alone = products(x)[i]
                ctx.forward(alone).compute({x: values})
                np.testing.assert_array_equal(of_all, alone.read())


def test_a_gate_keeps_nan(backend: Backend) -> None:
    rng = np.random.default_rng(0)
    weights = [
        WeightData(part, (M, K), DType.Q8_0, quantize(rng.standard_normal((M, K), np.float32), DType.Q8_0), ("linear",))
        for part in ("gate", "up")
    ]
    loaded = backend.load(weights)
    with backend.new_context() as ctx:
        x = ctx.input("x", (4, K))
        y = ops.swiglu(ops.linear(x, loaded["gate"]), ops.linear(x, loaded["up"]))
        values = rng.standard_normal((4, K), np.float32)
        values[1, 3], values[2] = np.nan, values[2] * 1e4
        got = ctx.forward(y).compute({x: values}).read(y)
    assert np.isnan(got[1]).all()
    assert np.isfinite(got[[0, 2, 3]]).all()


def test_no_more_than_four_products_are_one_node(backend: Backend) -> None:
    """All layers of a decoder may read the same rows of an encoder."""
    require_packed(DType.Q4_0)
    data = quantize(np.random.default_rng(0).standard_normal((M, K), np.float32), DType.Q4_0)
    loaded = backend.load([WeightData(f"{i}", (M, K), DType.Q4_0, data, ("linear",)) for i in range(9)])
    with backend.new_context() as ctx:
        x = ctx.input("x", (3, K))
        ctx.forward(*(ops.linear(x, w) for w in loaded.values()))
        assert computed(ctx) == ["CUSTOM"] * 3  # of 4, 4, and 1


def test_a_gate_is_not_computed_twice_for_a_third_product(backend: Backend) -> None:
    """Attention and a gated layer may read the same rows."""
    require_packed(DType.Q4_0)
    data = quantize(np.random.default_rng(0).standard_normal((M, K), np.float32), DType.Q4_0)
    loaded = backend.load(
        [WeightData(name, (M, K), DType.Q4_0, data, ("linear",)) for name in ("gate", "up", "q", "k")]
    )
    with backend.new_context() as ctx:
        x = ctx.input("x", (3, K))
        gate, up, q, k = (ops.linear(x, w) for w in loaded.values())
        ctx.forward(ops.swiglu(gate, up), q, k)
        assert computed(ctx) == ["CUSTOM", "CUSTOM"]
        executable: Any = ctx._executable
        products = [node for node in nodes_of(executable._cgraph) if node.op == lib().GGML_OP_CUSTOM]
        assert sorted(lib().ggml_nelements(node) for node in products) == [3 * M, 2 * 3 * M]


def test_products_that_stage_differently_are_two_nodes(backend: Backend) -> None:
    """An encoder's activations near outliers have more bits."""
    require_packed(DType.Q4_0)
    data = quantize(np.random.default_rng(0).standard_normal((M, K), np.float32), DType.Q4_0)
    weights = [WeightData(f"{i}", (M, K), DType.Q4_0, data, ("linear",), compute_bound=i % 2 == 1) for i in range(3)]
    loaded = backend.load(weights)
    with backend.new_context() as ctx:
        x = ctx.input("x", (3, K))
        ctx.forward(*(ops.linear(x, w) for w in loaded.values()))
        assert computed(ctx) == ["CUSTOM"] * 2


@pytest.mark.parametrize("gated", [False, True])
def test_a_product_reads_a_state_before_it_is_overwritten(gated: bool, backend: Backend) -> None:
    require_packed(DType.Q8_0)
    loaded = backend.load([replace(w, compute_bound=False) for w in weight_data(DType.Q8_0)])
    state = backend.state((3, K), DType.F32, "s")
    with backend.new_context() as ctx:
        rows, at = ctx.input("rows", (3, K)), ctx.input("at", (3,), DType.I32)
        y, bias = ops.linear(state, loaded["w"]), loaded["b"] + 0
        after = ops.swiglu(y, ops.linear(state, loaded["w"])) if gated else y + loaded["b"]
        ctx.update(state, state.set_rows(at, rows))
        ctx.forward(after, bias).compute({rows: np.ones((3, K), np.float32), at: np.arange(3, dtype=np.int32)})
        expected = np.zeros(M) if gated else bias.read()
        np.testing.assert_array_equal(after.read(), np.tile(expected, (3, 1)))
