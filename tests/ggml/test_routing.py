"""The order of nodes that CUDA and Vulkan fuse, and the same numbers: routing, and keys into the cache. Over RPC."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hotshoe
from hotshoe_core import Context, Tensor, ops
from hotshoe_core.contract.backend import Backend, WeightData
from hotshoe_core.eager.reference import open_reference
from hotshoe_core.tensors.dtypes import DType
from tests.support.rpc_server import backend_of_a_server
from tests.support.text_models import folder, gguf  # noqa: F401  (fixtures)

pytest.importorskip("hotshoe_ggml_rpc", reason="needs hotshoe-ggml-rpc: pip install ./plugins/ggml-rpc")

from hotshoe_ggml.native import ffi, lib

N_EXPERTS, K, DIM = 16, 4, 8
WEIGHT = np.random.default_rng(3).normal(size=(N_EXPERTS, 6, DIM)).astype(np.float32)
NORM = ["RESHAPE", "SUM_ROWS", "CLAMP", "DIV", "RESHAPE"]
FUSED = ["RESHAPE", "ARGSORT", "VIEW", "GET_ROWS"]


@pytest.fixture(scope="module")
def backend() -> Iterator[Backend]:
    with backend_of_a_server() as opened:
        yield opened


def route(scores: Tensor, choice: Tensor, *, least: float | None = None, norm: bool = True) -> tuple[Tensor, Tensor]:
    chosen = choice.top_k(K)
    weights = scores.take_along(chosen)
    if norm:
        total = weights.sum(keepdims=True)
        weights = weights / (total if least is None else total.clamp(min=least))
    return weights, chosen


def corrected(x: Tensor, correction: Tensor) -> tuple[Tensor, Tensor]:
    scores = x.sigmoid()
    return route(scores, scores + correction, least=2.0**-14)


def softmax(x: Tensor, **options: Any) -> tuple[Tensor, Tensor]:
    scores = x.softmax()
    return route(scores, scores, **options)


def sigmoid(x: Tensor, **options: Any) -> tuple[Tensor, Tensor]:
    scores = x.sigmoid()
    return route(scores, scores, **options)


CASES: dict[str, tuple[Callable[[Tensor, Tensor], tuple[Tensor, Tensor]], list[str]]] = {
    "softmax": (lambda x, c: softmax(x), ["SOFT_MAX", *FUSED, *NORM]),
    "softmax, limited": (lambda x, c: softmax(x, least=2.0**-14), ["SOFT_MAX", *FUSED, *NORM]),
    "softmax, as they are": (lambda x, c: softmax(x, norm=False), ["SOFT_MAX", *FUSED]),
    "sigmoid": (lambda x, c: sigmoid(x, least=2.0**-14), ["UNARY", *FUSED, *NORM]),
    "corrected": (corrected, ["UNARY", "RESHAPE", "ADD", *FUSED[1:], *NORM]),
}


def mixture(ctx: Context, weight: Tensor, n: int, make: Any) -> tuple[Tensor, dict[str, Tensor]]:
    inputs = {"x": ctx.input("x", (n, N_EXPERTS)), "y": ctx.input("y", (n, DIM)), "c": ctx.input("c", (N_EXPERTS,))}
    weights, chosen = make(inputs["x"], inputs["c"])
    products = ops.linear_experts(inputs["y"][:, None], weight, chosen)  # (n, K, 6)
    return (weights[:, None] @ products)[:, 0], inputs


def op_names(cgraph: Any) -> list[str]:
    nodes = (lib().ggml_graph_node(cgraph, i) for i in range(lib().ggml_graph_n_nodes(cgraph)))
    return [ffi.string(lib().ggml_op_name(node.op)).decode() for node in nodes]


def result(
    backend: Backend, n: int, make: Any, names: list[str] | None = None, sizes: list[list[int]] | None = None
) -> np.ndarray:
    """The numbers of a mixture. names and sizes: get the name and the sizes of each node."""
    data = WEIGHT.reshape(-1).view(np.uint8)
    weight = backend.load([WeightData("w", WEIGHT.shape, DType.F32, data, uses=("linear_experts",))])["w"]
    rng = np.random.default_rng(n)
    with backend.new_context() as ctx:
        y, inputs = mixture(ctx, weight, n, make)
        ctx.forward(y)
        feeds = {
            t: rng.normal(size=t.shape).astype(np.float32) for t in inputs.values() if t in set(ctx.inputs.values())
        }
        computed = ctx.compute(feeds).read(y)
        if names is not None:
            (executable,) = backend._executables  # type: ignore[attr-defined]
            names += op_names(executable._scheduled.cgraph)
            if sizes is not None:
                sizes += [list(node.ne) for node in _nodes(executable._scheduled.cgraph)]
    backend.release([weight])
    return np.array(computed)


@pytest.mark.parametrize("n", [1, 5])
@pytest.mark.parametrize("case", CASES)
def test_the_order_that_is_fused_gives_the_same_numbers(backend: Backend, case: str, n: int) -> None:
    make, expected = CASES[case]
    names: list[str] = []
    sizes: list[list[int]] = []
    computed = result(backend, n, make, names, sizes)
    start = names.index(expected[0])
    assert names[start : start + len(expected)] == expected
    # ggml_cuda_op_topk_moe and ggml_vk_topk_moe read the number of chosen experts from the last node
    assert sizes[start + len(expected) - 1] == [1, K, n, 1]
    with open_reference() as reference:
        assert np.allclose(computed, result(reference, n, make), rtol=1e-5, atol=1e-6)


def test_the_results_of_experts_are_summed_by_element_if_there_are_many_rows(backend: Backend) -> None:
    make, _ = CASES["softmax"]
    names: list[str] = []
    computed = result(backend, 9, make, names)
    assert "MUL_MAT" not in names
    assert names.count("ADD") == K - 1
    with open_reference() as reference:
        assert np.allclose(computed, result(reference, 9, make), rtol=1e-5, atol=1e-6)


def test_no_product_has_an_expert_twice_for_a_row(backend: Backend) -> None:
    """mmid.cu expects each expert at most once. Indices that are fed may have one twice."""
    data = WEIGHT.reshape(-1).view(np.uint8)
    weight = backend.load([WeightData("w", WEIGHT.shape, DType.F32, data, uses=("linear_experts",))])["w"]
    with backend.new_context() as ctx:
        y, chosen = ctx.input("y", (2, 1, DIM)), ctx.input("chosen", (2, 2), DType.I32)
        products = ops.linear_experts(y, weight, chosen)
        ctx.forward(products)
        given = np.float32([[np.arange(DIM)], [np.ones(DIM)]])
        computed = ctx.compute({y: given, chosen: [[3, 3], [1, 2]]}).read(products)
        (executable,) = backend._executables  # type: ignore[attr-defined]
        used = [n.src[2].ne[0] for n in _nodes(executable._scheduled.cgraph) if n.op == lib().GGML_OP_MUL_MAT_ID]
    backend.release([weight])
    assert used == [1, 1]
    assert np.allclose(
        computed,
        np.stack([given[0] @ WEIGHT[3].T] * 2 + [given[1] @ WEIGHT[i].T for i in (1, 2)]).reshape(2, 2, -1),
        rtol=1e-5,
    )


def both_read(x: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    scores = x.softmax()
    weights, chosen = route(scores, scores)
    return weights * scores.sum(keepdims=True), chosen


def other_choice(x: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    scores = x.softmax()
    return route(scores, scores * c)


def unlimited(x: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    return sigmoid(x)


@pytest.mark.parametrize("make", [both_read, other_choice, unlimited])
def test_what_has_another_form_is_computed_too(backend: Backend, make: Any) -> None:
    with open_reference() as reference:
        assert np.allclose(result(backend, 3, make), result(reference, 3, make), rtol=1e-5, atol=1e-6)


def test_a_computed_choice_beyond_the_experts_is_limited(backend: Backend) -> None:
    """ggml would end the process of the server."""

    def beyond(x: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        weights, chosen = softmax(x)
        return weights, chosen + 3

    def limited(x: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        weights, chosen = beyond(x, c)
        return weights, chosen.clamp(min=0, max=N_EXPERTS - 1)

    with open_reference() as reference:
        assert np.allclose(result(backend, 3, beyond), result(reference, 3, limited), rtol=1e-5, atol=1e-6)


@pytest.mark.usefixtures("backend")
def test_the_routing_of_a_model_has_that_order(gguf: Callable[..., Path]) -> None:  # noqa: F811
    with hotshoe.load_model(gguf("Qwen3MoeForCausalLM"), "rpc:0", task="text") as model:
        model.placements()
        expected = ["SOFT_MAX", *FUSED, *NORM]
        for executable in model.backend._executables:  # type: ignore[attr-defined]
            names = op_names(executable._scheduled.cgraph)
            starts = [i for i, name in enumerate(names) if name == "ARGSORT"]
            assert len(starts) == len(model.backend.placement.layers)
            at = expected.index("ARGSORT")
            assert all(names[i - at : i - at + len(expected)] == expected for i in starts)


def _nodes(cgraph: Any) -> list[Any]:
    return [lib().ggml_graph_node(cgraph, i) for i in range(lib().ggml_graph_n_nodes(cgraph))]


@pytest.mark.usefixtures("backend")
@pytest.mark.parametrize("before", [["ROPE"], ["RMS_NORM", "MUL", "ROPE"]], ids=["Llama", "Qwen3"])
@pytest.mark.parametrize("kv_dtype", ["f16", "f32"])
def test_rotated_keys_go_into_the_cache_in_one_kernel(
    gguf: Callable[..., Path],  # noqa: F811
    before: list[str],
    kv_dtype: str,
) -> None:
    """The conditions of ggml_cuda_should_fuse_rope_set_rows and ggml_vk_can_fuse_rope_set_rows."""
    path, tokens = gguf("LlamaForCausalLM" if len(before) == 1 else "Qwen3ForCausalLM"), [5, 9, 3, 7, 1, 2]
    with hotshoe.load_model(path, "cpu", task="text", kv_dtype=kv_dtype) as model:
        expected = model.logits(tokens)
    with hotshoe.load_model(path, "rpc:0", task="text", kv_dtype=kv_dtype) as model:
        assert np.abs(model.logits(tokens) - expected).max() < 1e-3 * np.abs(expected).max()
        n_layers = len(model.backend.placement.layers)
        for executable in model.backend._executables:  # type: ignore[attr-defined]
            nodes, names = _nodes(executable._scheduled.cgraph), op_names(executable._scheduled.cgraph)
            pattern = [*before, "VIEW", "SET_ROWS"]
            ends = [i + len(pattern) for i in range(len(names)) if names[i : i + len(pattern)] == pattern]
            assert len(ends) == n_layers
            for rope, view, set_rows in (nodes[i - 3 : i] for i in ends):
                assert view.src[0] == rope
                assert set_rows.src[0] == view
                assert set_rows.src[1].type == DType.I64.id
                assert lib().ggml_is_contiguous(view)
                assert view.ne[0] == rope.ne[0] * rope.ne[1]
                readers = [node for node in nodes for source in node.src if source in (rope, view)]
                assert readers == [view, set_rows]
