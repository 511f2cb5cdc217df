"""Several ggml devices: the CPU and the devices of two RPC servers, each in another process."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hotshoe
from hotshoe.loading import plan_model
from hotshoe.runner.embedder import EmbeddingModel
from hotshoe.runner.text import TextModel
from hotshoe.sampling import DeviceSampling
from hotshoe_core import ops, scope
from hotshoe_core.contract.backend import Backend, Placement, WeightData
from hotshoe_core.contract.device import BackendParams
from hotshoe_core.contract.memory import AllocationStatus
from hotshoe_core.errors import (
    DeviceLostError,
    DeviceNotFoundError,
    HotshoeError,
    InsufficientMemoryError,
    OptionError,
    PlacementError,
    UnsupportedOpError,
)
from hotshoe_core.tensors.dtypes import DType
from hotshoe_core.tensors.quants import quantize
from hotshoe_core.testing import GRAPH_CASES, MultiDeviceConformance, OpConformance
from hotshoe_core.testing.run import AnyCase
from hotshoe_loader import load_all
from tests.support.each_family import FAMILIES, require_same_as_cpu
from tests.support.fixtures import minilm_folder, minilm_gguf  # noqa: F401  (fixtures)
from tests.support.rpc_server import Server, free_port
from tests.support.text_models import folder, gguf  # noqa: F401  (fixtures)

pytest.importorskip("hotshoe_ggml_rpc", reason="needs hotshoe-ggml-rpc: pip install ./plugins/ggml-rpc")

from hotshoe_ggml.native import lib
from hotshoe_ggml.native.context import OutOfMemory
from hotshoe_ggml.run.scheduler import ScheduledGraph, Scheduler
from hotshoe_ggml.unit import Unit

SHIPPED = Path(__file__).parents[2] / "examples" / "models" / "kjv-3m-q8_0.gguf"
DATA = Path(__file__).parents[1] / "data"
PROMPT = "In the beginning"


@contextlib.contextmanager
def two_servers() -> Iterator[list[Server]]:
    """The servers that HOTSHOE_RPC names, and load_all finds."""
    before = os.environ.get("HOTSHOE_RPC", "")
    running = [Server(), Server()]
    try:
        os.environ["HOTSHOE_RPC"] = ",".join(s.endpoint for s in running)
        load_all(refresh=True)
        yield running
    finally:
        os.environ["HOTSHOE_RPC"] = before
        for server in running:
            server.kill()
        load_all(refresh=True)


class OnServers:
    devices = ("rpc:0", "cpu")
    running = contextlib.ExitStack()

    @classmethod
    def open(cls, params: BackendParams) -> Backend:
        return load_all().open(list(cls.devices), params)

    @classmethod
    def setup_class(cls) -> None:
        cls.running.enter_context(two_servers())
        super().setup_class()  # type: ignore[misc]

    @classmethod
    def teardown_class(cls) -> None:
        super().teardown_class()  # type: ignore[misc]
        cls.running.close()


class TestWithTheCpu(OnServers, MultiDeviceConformance):
    pass


class TestTwoServers(TestWithTheCpu):
    devices = ("rpc:0", "rpc:1")


class TestGraphsWithTheCpu(OnServers, OpConformance):
    @classmethod
    def cases(cls) -> Sequence[AnyCase]:
        return GRAPH_CASES


class TestGraphsOnTwoServers(TestGraphsWithTheCpu):
    devices = ("rpc:0", "rpc:1")


@pytest.fixture(scope="module")
def servers() -> Iterator[list[Server]]:
    with two_servers() as running:
        yield running


@pytest.mark.usefixtures("servers")
def test_the_devices_of_the_servers_are_listed_and_never_the_default() -> None:
    registry = load_all()
    names = [d.name for d in registry.devices]
    assert {"cpu", "rpc:0", "rpc:1"} <= set(names)
    assert registry.select(None)[0].name == "cpu"


@pytest.mark.usefixtures("servers")
@pytest.mark.parametrize("device", ["rpc:0", ["rpc:0", "cpu"], ["cpu", "rpc:1"], ["rpc:0", "rpc:1"]], ids=str)
def test_a_model_computes_what_it_computes_on_the_cpu(device: str | list[str]) -> None:
    with hotshoe.load_model(SHIPPED, "cpu") as model:
        assert isinstance(model, TextModel)
        ids = model.tokenizer.encode(PROMPT)
        expected = model.logits(ids)
    with hotshoe.load_model(SHIPPED, device) as model:
        assert isinstance(model, TextModel)
        where = {d.device for d in model.memory().devices if d.weights}
        assert where == set([device] if isinstance(device, str) else device)
        got = model.logits(ids)
        assert np.abs(got - expected).max() <= 2e-2 * np.abs(expected).max()  # 8-bit products, rounded in two ways
        with model.sequence() as sequence:  # token by token: graphs that are computed again
            steps = [sequence.append(token) for token in ids]
        assert np.abs(np.stack(steps) - got).max() <= 2e-2 * np.abs(expected).max()


@pytest.mark.usefixtures("servers")
@pytest.mark.parametrize(
    ("device", "options"),
    [
        ("rpc:0", {"n_gpu_layers": 2}),
        ("rpc:0", {"n_gpu_layers": "all", "kv_offload": False}),
        ("rpc:0,rpc:1", {"tensor_split": (1, 3)}),
        ("rpc:0,rpc:1,cpu", {"layer_devices": ("rpc:1", "cpu", "cpu", "rpc:0")}),
    ],
    ids=str,
)
def test_the_placement_is_as_requested(device: str, options: dict[str, Any]) -> None:
    options = {**options, "fallback": False}
    with hotshoe.load_model(SHIPPED, "cpu") as model:
        assert isinstance(model, TextModel)
        ids = model.tokenizer.encode(PROMPT)
        expected = model.logits(ids)
    plan = plan_model(SHIPPED, device, **options)
    with hotshoe.load_model(SHIPPED, device, **options) as model:
        assert isinstance(model, TextModel)
        for d in model.memory().devices:
            there = plan.memory.on(d.device)
            assert {i: m.size for i, m in d.weights.items()} == {i: m.size for i, m in there.weights.items()}
            assert {i: m.size for i, m in d.cache.items()} == {i: m.size for i, m in there.cache.items()}
        got = model.logits(ids)
        assert np.abs(got - expected).max() <= 2e-2 * np.abs(expected).max()
        with model.sequence() as sequence:
            steps = [sequence.append(token) for token in ids]
        assert np.abs(np.stack(steps) - got).max() <= 2e-2 * np.abs(expected).max()
        splits = model.placements()
        assert {s.device for s in splits.splits} == set(model.backend.placement.devices)
        assert splits.nbytes
        if options.get("kv_offload") is False:
            assert {n.device for n in splits.nodes if n.op == "attention"} == {"cpu"}


@pytest.mark.usefixtures("servers")
@pytest.mark.parametrize("sampling", [DeviceSampling("argmax", 1), DeviceSampling("top_k", 8)], ids=lambda s: s.kind)
def test_sampling_runs_where_the_logits_are(sampling: DeviceSampling) -> None:
    """The input, and with it nodes without a layer, is on the CPU; the logits do not cross."""
    with hotshoe.load_model(SHIPPED, "rpc:0,cpu", fallback=False) as model:
        assert isinstance(model, TextModel)
        assert model.backend.placement.device(-1) == "cpu"
        graph = model._forward.build(model._forward.signature(1)._replace(sampling=sampling))
        with graph.context as ctx:
            splits = ctx.reserve().splits()
        assert splits.fallbacks == ()
        assert [s.device for s in splits.splits] == ["cpu", "rpc:0"]
        assert model.generate(PROMPT, max_tokens=3, temperature=0 if sampling.kind == "argmax" else 1).tokens


@pytest.mark.usefixtures("servers")
def test_experts_in_groups_are_chosen_on_the_device() -> None:
    path = DATA / "llamacpp" / "DeepseekV3ForCausalLM.gguf"
    ids = [5, 7, 9, 11]
    with hotshoe.load_model(path, "cpu", kv_dtype="f32", n_ctx=64) as model:
        assert isinstance(model, TextModel)
        expected = model.logits(ids)
    with hotshoe.load_model(path, "rpc:0", kv_dtype="f32", n_ctx=64, fallback=False) as model:
        assert isinstance(model, TextModel)
        assert np.abs(model.logits(ids) - expected).max() <= 1e-5 * np.abs(expected).max()
        assert model.placements().fallbacks == ()


@pytest.mark.usefixtures("servers")
def test_prompts_read_again_build_no_graph(gguf: Callable[..., Path]) -> None:  # noqa: F811
    """Lengths grow in coarser steps than on the CPU, and all graphs of a long prompt are kept."""
    ids = np.random.default_rng(0).integers(5, 250, 3000).tolist()
    path = gguf("LlamaForCausalLM", max_position_embeddings=4096)
    with hotshoe.load_model(path, "rpc:0,cpu", n_ctx=4096, n_ubatch=128) as model:
        assert isinstance(model, TextModel)
        built = []
        for _ in range(2):
            before = model._forward.contexts.n_built
            with model.engine.without_pace():  # its pieces depend on the measured time
                model.generate(ids, max_tokens=1, temperature=0)
            model.forget()
            built.append(model._forward.contexts.n_built - before)
    # 512, 1,024, … 3,072 cells, and the end of the prompt, with logits
    assert built == [7, 0]


@pytest.mark.usefixtures("servers")
@pytest.mark.parametrize("kv_dtype", ["f16", "q8_0", "q5_1"])
def test_attention_that_the_device_lacks_stays_there(kv_dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """CUDA's flash attention has no kernel for some sizes of heads and types of caches."""
    supports = Unit.supports

    def without_flash(unit: Unit, node: Any) -> bool:
        return (unit.runs_custom_kernels or node.op != lib().GGML_OP_FLASH_ATTN_EXT) and supports(unit, node)

    with hotshoe.load_model(SHIPPED, "rpc:0", kv_dtype=kv_dtype) as model:
        assert isinstance(model, TextModel)
        ids = model.tokenizer.encode(PROMPT)
        expected = model.logits(ids)
    monkeypatch.setattr(Unit, "supports", without_flash)
    with hotshoe.load_model(SHIPPED, "rpc:0", kv_dtype=kv_dtype, fallback=False) as model:
        assert isinstance(model, TextModel)
        assert [s.device for s in model.placements().splits] == ["rpc:0"]
        assert np.abs(model.logits(ids) - expected).max() <= 2e-2 * np.abs(expected).max()
    with (
        pytest.raises(PlacementError, match=r"attention .* would run on cpu"),
        hotshoe.load_model(SHIPPED, "rpc:0", kv_dtype=kv_dtype, fallback=False, flash_attention="on"),
    ):
        pass


@pytest.mark.usefixtures("servers")
def test_positions_move_where_the_cache_is() -> None:
    """Moving them is a graph without a layer, and the input is on the CPU: keys are rotated on their device."""
    texts = []
    for device in ("rpc:0", "rpc:0,cpu"):
        with hotshoe.load_model(SHIPPED, device, n_ctx=24) as model:
            assert isinstance(model, TextModel)
            assert model.backend.placement.input == device.split(",")[-1]
            texts.append(model.generate(PROMPT, max_tokens=40, temperature=0, context_shift=4).text)
    assert texts[0] == texts[1]


@pytest.mark.usefixtures("servers")
def test_experts_on_another_device_than_their_layers(gguf: Callable[..., Path]) -> None:  # noqa: F811
    path = gguf("Qwen3MoeForCausalLM")
    logits = []
    for options, expected in (({}, {"rpc:0"}), ({"cpu_moe": 1}, {"cpu", "rpc:0"}), ({"cpu_moe": True}, {"cpu"})):
        with hotshoe.load_model(path, "rpc:0", **options) as model:
            assert isinstance(model, TextModel)
            experts = {n.device for n in model.placements().nodes if n.op == "linear_experts"}
            assert experts == expected
            logits.append(model.logits(model.tokenizer.encode("the quick brown fox")))
    for other in logits[1:]:
        assert np.abs(other - logits[0]).max() <= 1e-2 * np.abs(logits[0]).max()


@pytest.mark.usefixtures("servers")
def test_graphs_share_one_buffer() -> None:
    """Many graphs take the memory of the largest; each keeps its inputs and outputs, whichever ran last."""
    with load_all().open(["rpc:0", "cpu"]) as backend:
        state = backend.state((4, 64), DType.F32, "state")
        graphs = []
        for n in (8, 512, 64, 32, 16, 128, 1, 256):
            ctx = backend.new_context()
            x = ctx.input("x", (n, 64))
            y, count = x * float(n) + 1.0, state[:1] + 1.0
            ctx.forward(y, count).update(state, state + 1.0)
            graphs.append((ctx, x, y, count, n))
        sizes = [ctx.reserve().memory()["rpc:0"].size for ctx, *_ in graphs]
        size = backend.memory().on("rpc:0").graph.size
        assert max(sizes) <= size < sum(sizes)
        rng = np.random.default_rng(0)
        for turn in range(2):
            values = [rng.standard_normal((n, 64), np.float32) for *_, n in graphs]
            for (ctx, x, *_), value in zip(graphs, values, strict=True):
                ctx.compute({x: value})
            for i, ((ctx, _, y, count, n), value) in enumerate(zip(graphs, values, strict=True)):
                np.testing.assert_allclose(ctx.read(y), value * n + 1, rtol=1e-6)  # after all others ran
                assert np.all(ctx.read(count) == turn * len(graphs) + i + 1)
        for ctx, *_ in graphs:
            ctx.close()
        assert not any(d.graph.size for d in backend.memory().devices)


@pytest.mark.usefixtures("servers")
def test_too_little_memory_to_measure_a_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: Scheduler, graph: ScheduledGraph) -> dict[str, int]:
        raise OutOfMemory(1 << 30)

    with load_all().open(["rpc:0", "cpu"]) as backend:
        ctx = backend.new_context()
        ctx.forward(ctx.input("x", (4, 64)) + 1.0).reserve()
        monkeypatch.setattr(Scheduler, "measure", fail)
        with pytest.raises(InsufficientMemoryError):
            ctx.memory()
        monkeypatch.undo()
        assert all(m.status is not AllocationStatus.ALLOCATED for m in ctx.memory().values()), "a plan"


@pytest.mark.usefixtures("servers")
def test_graphs_of_equal_sizes_have_separate_plans() -> None:
    """ggml's allocator compares the sizes of nodes only, and would mistake one graph for the other."""
    with load_all().open(["rpc:0", "cpu"]) as backend:
        graphs = []
        for is_chain in (False, True):
            ctx = backend.new_context()
            x = ctx.input("x", (4, 64))
            a = x.exp()
            b = (a if is_chain else x).sin()
            c = (b if is_chain else a) * (b if is_chain else x).cos()
            y = c + (c if is_chain else b)
            graphs.append((ctx.forward(y), x, y))
        value = np.random.default_rng(0).standard_normal((4, 64), np.float32)
        e = np.exp(value)
        expected = [e * np.cos(value) + np.sin(value), 2 * np.sin(e) * np.cos(np.sin(e))]
        for _ in range(3):
            for (ctx, x, y), one in zip(graphs, expected, strict=True):
                np.testing.assert_allclose(ctx.compute({x: value}).read(y), one, rtol=1e-4, atol=1e-5)


@pytest.mark.usefixtures("servers")
@pytest.mark.parametrize("architecture", FAMILIES)
def test_twelve_families(architecture: str, gguf: Callable[..., Path]) -> None:  # noqa: F811
    """A model with some layers on a server and the others on the CPU."""
    require_same_as_cpu(gguf(architecture), ["rpc:0", "cpu"], 1e-3)


@pytest.mark.usefixtures("servers")
def test_an_encoder_on_a_server(minilm_gguf: Callable[[str], Path]) -> None:  # noqa: F811
    texts = ["a cat sleeps", "stocks fell", "the feline naps"]
    vectors = []
    for device in ("cpu", "rpc:0"):
        with hotshoe.load_model(minilm_gguf("f16"), device) as model:
            assert isinstance(model, EmbeddingModel)
            vectors.append(model.embed(texts))
    assert (vectors[0] * vectors[1]).sum(1).min() > 0.9999


def test_a_server_that_ends_in_mid_generation(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server()
    monkeypatch.setenv("HOTSHOE_RPC", server.endpoint)
    load_all(refresh=True)
    model = hotshoe.load_model(SHIPPED, "rpc:0")
    idle = hotshoe.load_model(SHIPPED, "rpc:0")
    assert isinstance(model, TextModel)
    assert isinstance(idle, TextModel)
    stream = model.stream(PROMPT, max_tokens=200, temperature=0)
    for _ in range(3):
        next(stream)
    server.kill()
    with pytest.raises(DeviceLostError, match=r"rpc:0 .*was lost[\s\S]*load the model again"):
        list(stream)
    verdict = next(v for v in load_all().verdicts if v.candidate == "ggml-rpc")
    assert (verdict.outcome.value, "was lost" in verdict.reason) == ("no-device", True)
    with pytest.raises(HotshoeError):
        model.generate(PROMPT, max_tokens=2)
    model.close()
    with hotshoe.load_model(SHIPPED, "cpu") as other:  # the process still works
        assert isinstance(other, TextModel)
        expected = other.generate(PROMPT, max_tokens=4, temperature=0).text
        assert expected
    again = Server(server.address[1])  # the hint: load again when the server is back
    with hotshoe.load_model(SHIPPED, "rpc:0") as back:
        assert isinstance(back, TextModel)
        with pytest.raises(DeviceLostError):  # the server is back, but the model's memory there is lost
            idle.generate(PROMPT, max_tokens=2)
        idle.close()
        assert back.generate(PROMPT, max_tokens=4, temperature=0).text == expected
    again.kill()


def test_a_server_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    endpoint = f"127.0.0.1:{free_port()}"
    monkeypatch.setenv("HOTSHOE_RPC", endpoint)
    with pytest.raises(DeviceNotFoundError, match=endpoint):
        load_all(refresh=True).open("rpc:0")
    assert "cpu" in {d.name for d in load_all().devices}
    verdict = next(v for v in load_all().verdicts if v.candidate == "ggml-rpc" and v.kind == "plugin")
    assert (verdict.outcome.value, "start hotshoe-rpc-serve there" in verdict.hint) == ("no-device", True)
    with pytest.raises(DeviceNotFoundError) as caught:
        load_all().select("rpc:0")
    assert str(caught.value).count(f"no server answers at {endpoint}") == 1
    monkeypatch.setenv("HOTSHOE_RPC", "nonsense")
    with pytest.raises(DeviceNotFoundError, match="expected host:port"):
        load_all(refresh=True).open("rpc:0")


def test_a_server_that_is_down_does_not_hide_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    up = Server()
    try:
        monkeypatch.setenv("HOTSHOE_RPC", f"127.0.0.1:{free_port()},{up.endpoint}")
        registry = load_all(refresh=True)
        assert [d.name for d in registry.devices if d.provider == "ggml-rpc"] == ["rpc:1"], "it keeps its name"
        with registry.open("rpc:1"):
            pass
    finally:
        up.kill()
        monkeypatch.setenv("HOTSHOE_RPC", "")
        load_all(refresh=True)


def test_no_server_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the missing server, not a driver or hardware."""
    monkeypatch.delenv("HOTSHOE_RPC", raising=False)
    verdict = next(v for v in load_all(refresh=True).verdicts if v.candidate == "ggml-rpc")
    assert (verdict.outcome.value, verdict.reason) == ("no-device", "no server is named")
    assert "HOTSHOE_RPC=HOST:PORT" in verdict.hint


def test_a_server_named_in_the_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """device="rpc://HOST:PORT" works without HOTSHOE_RPC."""
    monkeypatch.setenv("HOTSHOE_RPC", "")
    registry = load_all(refresh=True)
    server = Server()
    with hotshoe.load_model(SHIPPED, f"rpc://{server.endpoint},cpu") as model:
        assert isinstance(model, TextModel)
        assert [d.name for d in model.backend.devices] == ["rpc:0", "cpu"]
        assert model.generate(PROMPT, max_tokens=2).tokens
    assert [d.name for d in registry.select(f"rpc://{server.endpoint}")] == ["rpc:0"]
    absent = f"127.0.0.1:{free_port()}"
    with pytest.raises(DeviceNotFoundError, match=absent):
        registry.select(f"rpc://{absent}")
    assert [d.name for d in registry.select(f"rpc://{server.endpoint}")] == ["rpc:0"]  # the others are still there
    assert os.environ["HOTSHOE_RPC"] == server.endpoint
    for wrong in ("rpc://", "rpc://host", "rpc://:1", "rpc://host:70000"):
        with pytest.raises(OptionError, match="expected rpc://host:port"):
            registry.select(wrong)
    server.kill()
    monkeypatch.setenv("HOTSHOE_RPC", "")
    load_all(refresh=True)


def test_a_server_that_others_can_reach_warns(capfd: pytest.CaptureFixture[str]) -> None:
    command = [sys.executable, "-m", "hotshoe_ggml_rpc.serve", "--listen"]
    done = subprocess.run([*command, "nothing"], capture_output=True, text=True)
    assert done.returncode == 2
    assert "expected HOST:PORT" in done.stderr
    with socket.socket() as taken:
        taken.bind(("0.0.0.0", 0))
        taken.listen()
        done = subprocess.run(
            [*command, f"0.0.0.0:{taken.getsockname()[1]}"], capture_output=True, text=True, timeout=60
        )
    assert done.returncode == 2
    assert "has no passwords" in done.stderr
    assert "is the port in use?" in done.stderr


@pytest.mark.parametrize("dtype", [DType.IQ2_XXS, DType.IQ3_S, DType.IQ1_M])
def test_a_state_of_a_type_that_is_never_written_is_refused(dtype: DType) -> None:
    """A server computes what it is sent: this would end it."""
    with two_servers(), load_all().open("rpc:0") as backend:
        with backend.new_context() as ctx:
            x, at = ctx.input("x", (2, 256)), ctx.input("at", (2,), DType.I32)
            state = backend.state((4, 256), dtype, "state")
            ctx.update(state, state.set_rows(at, x))
            with pytest.raises(UnsupportedOpError, match="SET_ROWS"):
                ctx.compute({x: np.zeros((2, 256)), at: [0, 1]})
        with backend.new_context() as ctx:  # the server still computes
            y = ctx.input("y", (3,))
            double = y * 2.0
            assert ctx.forward(double).compute({y: [1, 2, 3]}).read(double).tolist() == [2, 4, 6]


@pytest.mark.usefixtures("servers")
def test_products_of_one_node_are_reported_where_they_run() -> None:
    """The CPU packs these weights for its own kernel, so the device of the layer cannot multiply by them."""
    data = quantize(np.random.default_rng(0).standard_normal((64, 96), np.float32), DType.Q8_0)
    weights = [WeightData(name, (64, 96), DType.Q8_0, data, ("linear",)) for name in "qk"]
    with load_all().open("rpc:0,cpu") as backend:
        q, k = backend.load(weights, Placement("cpu", ("rpc:0",), "rpc:0")).values()
        with backend.new_context() as ctx, scope("layer", layer=0):
            x = ctx.input("x", (3, 96))
            ctx.forward(ops.linear(x, q), ops.linear(x, k))
            places = ctx.reserve().placements()
    assert [(p.op, p.device, p.how) for p in places] == [("linear", "cpu", "fallback")] * 2
