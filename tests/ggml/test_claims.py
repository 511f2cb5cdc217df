"""No node is given to a device whose kernel would end the process, although the library claims that it runs it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import hotshoe
from hotshoe_core.contract.backend import Backend
from hotshoe_core.contract.device import BackendParams
from hotshoe_core.errors import UnsupportedOpError
from hotshoe_core.tensors.dtypes import DType
from hotshoe_core.testing.cases import OP_CASES
from hotshoe_core.testing.graphs import GRAPH_CASES
from hotshoe_core.testing.run import AnyCase, Maker
from hotshoe_loader import load_all
from tests.support import cuda_source
from tests.support.rpc_server import Server

pytest.importorskip("hotshoe_ggml_rpc", reason="needs hotshoe-ggml-rpc: pip install ./plugins/ggml-rpc")

from hotshoe_ggml import unit
from hotshoe_ggml.claims import fails, overstated
from hotshoe_ggml.native import ffi, lib
from hotshoe_ggml.native.context import NativeContext, is_view_op

SHIPPED = Path(__file__).parents[2] / "examples" / "models" / "kjv-3m-q8_0.gguf"
CASES: list[AnyCase] = [*OP_CASES, *GRAPH_CASES]


@pytest.fixture(scope="module")
def cuda() -> Iterator[Backend]:
    """A backend over one device that claims what CUDA claims. It allocates and computes nothing."""
    with claiming_as_cuda() as patch:
        patch.setattr(Maker, "_fill", lambda self, state, values: None)  # nothing is computed
        with load_all().open("rpc:0", BackendParams(allocate=False)) as backend:
            yield backend


@contextlib.contextmanager
def claiming_as_cuda() -> Iterator[pytest.MonkeyPatch]:
    """rpc:0 is a device of a server, and claims what CUDA claims."""
    with pytest.MonkeyPatch.context() as patch:
        server = Server()
        patch.setenv("HOTSHOE_RPC", server.endpoint)
        asks = unit.Unit._claims

        def asks_cuda(self: unit.Unit, node: Any) -> bool:
            return asks(self, node) if self.runs_custom_kernels else cuda_source.claims(node)

        patch.setattr(unit.Unit, "_claims", asks_cuda)
        patch.setattr(unit, "overstated", lambda library: overstated("CUDA"))
        load_all(refresh=True)
        try:
            yield patch
        finally:
            server.kill()
    load_all(refresh=True)


@pytest.mark.parametrize("kv_dtype", ["f16", "bf16", "q8_0", "q5_1", "q4_0"])
def test_the_models_of_the_readme_stay_on_cuda(kv_dtype: str) -> None:
    """Their heads have 32 elements, for which CUDA has no flash attention, nor for each type of cache."""
    with claiming_as_cuda(), hotshoe.load_model(SHIPPED, "rpc:0", kv_dtype=kv_dtype, fallback=False) as model:
        placements = model.placements()
    assert [split.device for split in placements.splits] == ["rpc:0"]
    assert placements.fallbacks == ()


def hazards(backend: Any, case: AnyCase) -> list[str]:
    """The nodes that would end the process, of the graph of a case."""
    make = Maker(backend, case.id)
    outputs = [t if t.dtype.numpy is not None else t.cast(DType.F32) for t in case.build(make)]
    make.context.forward(*outputs).reserve()
    found = []
    for executable in backend._executables:
        scheduled = executable._scheduled
        for i in range(lib().ggml_graph_n_nodes(scheduled.cgraph)):
            node = lib().ggml_graph_node(scheduled.cgraph, i)
            unit = scheduled.unit(node)
            assert (unit < 0) == is_view_op(node), "each node that computes has a unit"
            if unit >= 0 and backend.units[unit].name == "rpc:0" and not cuda_source.runs(node):
                found.append(ffi.string(lib().ggml_op_desc(node)).decode())
    make.close()
    return found


@pytest.mark.parametrize("part", range(8))
def test_no_case_of_the_kit_would_end_the_process(cuda: Backend, part: int) -> None:
    found, refused = {}, set()
    for case in CASES[part::8]:
        try:
            if nodes := hazards(cuda, case):
                found[case.id] = nodes
        except UnsupportedOpError:
            assert case.optional, case.id
            refused.add(case.id)
    assert found == {}
    assert len(refused) < len(CASES[part::8]) // 10


@pytest.fixture
def context() -> Iterator[NativeContext]:
    made = NativeContext(64, 64)
    yield made
    made.free()


def tensor(context: NativeContext, dtype: DType, *ne: int) -> Any:
    return lib().ggml_new_tensor(context.pointer, dtype.id, len(ne), list(ne))


def test_the_claims_of_a_library_that_is_correct_are_believed(context: NativeContext) -> None:
    turned = lib().ggml_transpose(context.pointer, tensor(context, DType.I8, 4, 3))
    copy = lib().ggml_cont(context.pointer, turned)
    for library, expected in (("CUDA", True), ("ROCm", True), ("RPC", True), ("Vulkan", False), ("Metal", False)):
        assert fails(overstated(library), copy) is expected


@pytest.mark.parametrize("kernel", range(2, 17))
def test_convolutions_that_cuda_computes_stay_there(context: NativeContext, kernel: int) -> None:
    x, weight = tensor(context, DType.F32, kernel + 3, 128, 1), tensor(context, DType.F32, kernel, 128)
    node = lib().ggml_ssm_conv(context.pointer, x, weight)
    assert cuda_source.claims(node)
    assert fails(overstated("CUDA"), node) is not cuda_source.runs(node)
