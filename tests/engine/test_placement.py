"""Models on several devices: what each device holds, equal results, and what happens when memory runs out."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hotshoe
from hotshoe.loading import plan_model
from hotshoe.placement import PlacementParams
from hotshoe.placement.plan import Plan
from hotshoe.runner.base import LoadedModel
from hotshoe.runner.embedder import EmbeddingModel
from hotshoe.runner.text import TextModel
from hotshoe_core import BackendMemory, Device, DeviceType
from hotshoe_core.errors import InputTooLongError, InsufficientMemoryError, PlacementError
from tests.support.fake_registry import MIB, FakeRegistry, fake

MODEL = Path(__file__).parents[2] / "examples" / "models" / "kjv-3m-q8_0.gguf"
N_LAYERS = 4
PROMPT = "And God said"
CPU = fake("host:0", type=DeviceType.CPU)
TWO = (fake("gpu:0"), fake("gpu:1"))

Open = Callable[..., LoadedModel]


@pytest.fixture
def fakes(monkeypatch: pytest.MonkeyPatch) -> Callable[..., FakeRegistry]:
    """Replace the machine's devices by these."""

    def install(*devices: Device, **more: Any) -> FakeRegistry:
        registry = FakeRegistry(*devices, **more)
        monkeypatch.setattr("hotshoe.loading.load_all", lambda **options: registry)
        return registry

    return install


@pytest.fixture
def load(fakes: Callable[..., FakeRegistry]) -> Iterator[Open]:
    """``load(devices, device, path=MODEL, n_ctx=128, **options)``."""
    opened: list[LoadedModel] = []

    def get(
        devices: tuple[Device, ...], device: Any = None, path: Path = MODEL, n_ctx: int = 128, **options: Any
    ) -> LoadedModel:
        fakes(*devices)
        opened.append(hotshoe.load_model(path, device, n_ctx=n_ctx, **options))
        return opened[-1]

    yield get
    for model in opened:
        model.close()


@pytest.fixture(scope="module")
def reference() -> Iterator[TextModel]:
    with hotshoe.load_model(MODEL, "reference", n_ctx=128) as model:
        assert isinstance(model, TextModel)
        yield model


def same_logits(model: LoadedModel, expected_of: TextModel) -> None:
    assert isinstance(model, TextModel)
    ids = expected_of.tokenizer.encode(PROMPT)
    expected = expected_of.logits(ids)
    np.testing.assert_allclose(model.logits(ids), expected, atol=1e-4 * np.abs(expected).max())
    with model.sequence() as sequence:  # token by token: a graph that is computed again
        steps = [sequence.append(token) for token in ids]
    np.testing.assert_allclose(np.stack(steps), expected, atol=1e-4 * np.abs(expected).max())


def layers_of(model: LoadedModel) -> str:
    """Return the last digit of each layer's device; "c" is the CPU."""
    p = model.backend.placement
    names = [p.input, *p.layers, p.device(len(p.layers))]
    return "".join("c" if name == CPU.name else name[-1] for name in names)


@pytest.mark.parametrize(
    ("devices", "device", "options", "expected"),
    [
        (TWO, "gpu:0", {}, "000000"),  # asked for by name: nothing else is used
        ((*TWO, CPU), None, {}, "c00000"),
        ((*TWO, CPU), "gpu:0,gpu:1", {}, "000111"),
        ((*TWO, CPU), ["gpu:0", "gpu:1", "host:0"], {}, "c00111"),
        ((*TWO, CPU), "gpu:0", {"n_gpu_layers": 3}, "cc000c"),
        ((*TWO, CPU), "gpu:0", {"n_gpu_layers": "all"}, "000000"),
        ((*TWO, CPU), "gpu:0", {"n_gpu_layers": 0}, "cccccc"),
        ((*TWO, CPU), "gpu:0,gpu:1", {"tensor_split": (3, 1)}, "000001"),
        ((*TWO, CPU), "gpu:0,gpu:1", {"main_gpu": 0}, "000000"),
        ((*TWO, CPU), "gpu:0,gpu:1,host:0", {"layer_devices": ("gpu:1", "host:0", "gpu:0", "gpu:1")}, "11c011"),
    ],
    ids=str,
)
def test_layers_go_to_the_requested_devices(
    load: Open,
    reference: TextModel,
    devices: tuple[Device, ...],
    device: Any,
    options: dict[str, Any],
    expected: str,
) -> None:
    model = load(devices, device, **options)
    assert layers_of(model) == expected
    placement = model.backend.placement
    for i in range(N_LAYERS):
        for d in model.memory().devices:
            assert (i in d.weights) == (i in d.cache) == (d.device == placement.layers[i])
    assert model.memory().on(placement.input).input_weights.size > 0
    same_logits(model, reference)


def test_the_cpu_joins_only_on_request_or_by_default(fakes: Callable[..., FakeRegistry]) -> None:
    registry = fakes(*TWO, CPU)
    for device, options in (("gpu:0", {}), (None, {}), ("gpu:0", {"kv_offload": False})):
        hotshoe.load_model(MODEL, device, n_ctx=128, **options).close()
    assert registry.opened == [["gpu:0"], ["gpu:0", "host:0"], ["gpu:0", "host:0"]]


def test_caches_on_the_cpu(load: Open, reference: TextModel) -> None:
    model = load((*TWO, CPU), "gpu:0", kv_offload=False, n_gpu_layers="all")
    gpu, cpu = model.memory().devices
    assert (set(gpu.cache), set(cpu.cache)) == (set(), set(range(N_LAYERS)))
    assert set(range(N_LAYERS)) <= set(gpu.weights)
    same_logits(model, reference)
    splits = model.placements()
    where = {n.op: n.device for n in splits.nodes if n.layer == 1}
    assert where["set_rows"] == "host:0"
    assert where["softmax"] == "host:0"  # the scores do not cross
    assert where["linear"] == "gpu:0"
    assert not splits.fallbacks


@pytest.mark.parametrize(("option", "n"), [(True, 2), (1, 1), (0, 0)])
def test_experts_on_the_cpu(load: Open, gguf: Callable[..., Path], option: int | bool, n: int) -> None:
    path = gguf("Qwen3MoeForCausalLM")
    model = load((*TWO, CPU), None, path, cpu_moe=option)
    assert isinstance(model, TextModel)
    assert layers_of(model) == "c000"
    there = {i for i in model.memory().on("host:0").weights if i >= 0}
    assert there == set(range(n))
    for node in model.placements().nodes:
        if node.op in ("linear_experts", "silu", "softmax") and node.layer >= 0:
            apart = node.layer < n and node.op != "softmax"
            assert node.device == ("host:0" if apart else "gpu:0"), node
    ids = model.tokenizer.encode("the quick brown fox")
    with hotshoe.load_model(path, "gpu:0", n_ctx=128) as whole:
        assert isinstance(whole, TextModel)
        np.testing.assert_allclose(model.logits(ids), whole.logits(ids), atol=1e-4)


def test_a_model_without_a_cache(load: Open, minilm_gguf: Callable[[str], Path]) -> None:
    with pytest.raises(PlacementError, match="no cache of keys, values or states"):
        load((*TWO, CPU), None, minilm_gguf("f32"), kv_offload=False)


def test_devices_may_come_from_a_generator(load: Open) -> None:
    assert layers_of(load((*TWO, CPU), (name for name in ("gpu:1", "host:0")))) == "c11111"


def test_a_model_without_experts(load: Open) -> None:
    with pytest.raises(PlacementError, match="cpu_moe=True: the model has no experts"):
        load((*TWO, CPU), None, cpu_moe=True)


def test_what_all_layers_read_is_on_each_of_their_devices(load: Open, gguf: Callable[..., Path]) -> None:
    """Llama 3's RoPE factors are on each device; otherwise every layer would copy them."""
    scaling = {"rope_type": "llama3", "rope_theta": 1e4, "factor": 8.0, "low_freq_factor": 1.0}
    scaling |= {"high_freq_factor": 4.0, "original_max_position_embeddings": 64}
    path = gguf("LlamaForCausalLM", rope_parameters=scaling)
    model = load((*TWO, CPU), "gpu:0,gpu:1,host:0", path, layer_devices=("host:0", "gpu:0", "gpu:1"))
    assert isinstance(model, TextModel)
    bound = {getattr(p.module, p.attribute) for p in model._model.parameters()} - {None}
    assert len([t for t in bound if t.name == "rope_freqs.weight"]) == 3
    assert [name for name in model.weights if name.startswith("rope")] == ["rope_freqs.weight"]
    assert not [c for c in model.placements().crossings if c.kind == "weight"]
    ids = model.tokenizer.encode("the quick brown fox")
    with hotshoe.load_model(path, "gpu:0", n_ctx=128) as whole:
        assert isinstance(whole, TextModel)
        assert [name for name in whole.weights if name.startswith("rope")] == ["rope_freqs.weight"]
        np.testing.assert_allclose(model.logits(ids), whole.logits(ids), atol=1e-4)


def test_positions_move_where_the_cache_is(load: Open) -> None:
    """The graph that moves positions belongs to no layer; it rotates each key on the key's device."""
    for options in ({"n_gpu_layers": 2}, {"kv_offload": False}):
        model = load((*TWO, CPU), "gpu:0", n_ctx=24, **options)
        assert isinstance(model, TextModel)
        whole = load((*TWO, CPU), "gpu:0", n_ctx=24)
        assert isinstance(whole, TextModel)
        texts = [m.generate(PROMPT, max_tokens=30, temperature=0, context_shift=4).text for m in (model, whole)]
        assert texts[0] == texts[1]


def test_an_encoder_over_devices(load: Open, minilm_gguf: Callable[[str], Path]) -> None:
    path = minilm_gguf("f32")
    model = load((*TWO, CPU), "gpu:0,gpu:1,host:0", path)
    assert isinstance(model, EmbeddingModel)
    assert layers_of(model) == "c0001111"
    with hotshoe.load_model(path, "gpu:0", n_ctx=128) as whole:
        assert isinstance(whole, EmbeddingModel)
        np.testing.assert_allclose(model.embed("a cat"), whole.embed("a cat"), atol=1e-5)
    splits = model.placements(5)
    assert [s.device for s in splits.splits] == ["host:0", "gpu:0", "gpu:1"]
    assert [(c.source, c.target) for c in splits.crossings] == [("host:0", "gpu:0"), ("gpu:0", "gpu:1")]
    assert splits.nbytes == 2 * 5 * 384 * 4


# Memory that ends


def test_layers_are_moved_where_memory_runs_out(
    load: Open, reference: TextModel, caplog: pytest.LogCaptureFixture
) -> None:
    """The device reports a GiB, but has 8 MiB: it takes two of four layers of 2.9 MiB each."""
    with caplog.at_level(logging.INFO, "hotshoe.placement"):
        model = load((fake("gpu:0", capacity=8 * MIB), CPU))
    assert layers_of(model) == "ccc00c"
    report = model.placement_report()
    assert [line.split(":")[0] for line in report.moved] == ["gpu"] * len(report.moved)
    assert "gpu:0 had too little memory (weights of layer" in report.moved[0]
    assert str(report).startswith("input and layers 0-1 on host:0; layers 2-3 on gpu:0; output on host:0\n")
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert report.moved[0] in record.getMessage()
    assert "layers 2-3 on gpu:0" in model.why
    same_logits(model, reference)


@pytest.mark.parametrize("n", range(N_LAYERS + 1))
def test_memory_that_runs_out_at_any_layer(load: Open, n: int) -> None:
    """With the bytes of the last ``n`` layers and the largest graph, a device holds at most those layers."""
    whole = load((fake("gpu:0"), CPU), n_gpu_layers="all")
    there = whole.memory().on("gpu:0")
    layers = sum(there.weights[i].size + there.cache[i].size for i in range(N_LAYERS - n, N_LAYERS))
    model = load((fake("gpu:0", capacity=layers + there.graph.size + MIB), CPU))
    on_device = model.backend.placement.layers.count("gpu:0")
    assert n - 1 <= on_device <= n
    assert bool(model.moved) == (n < N_LAYERS)


def test_a_cache_that_does_not_fit_is_moved_with_its_layer(load: Open) -> None:
    whole = load((fake("gpu:0"), CPU), n_gpu_layers="all")
    weights = sum(m.size for m in whole.memory().on("gpu:0").weights.values())
    model = load((fake("gpu:0", capacity=weights + 100_000), CPU))
    assert "cache of layer" in model.moved[0]


def test_a_device_that_takes_nothing(load: Open, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "hotshoe.placement"):
        model = load((fake("gpu:0", 1000), CPU))
    assert layers_of(model) == "cccccc"
    assert model.device is CPU  # and not the one that was chosen and holds nothing
    assert caplog.messages == ["0 of 4 layers fit on gpu:0: everything on host:0"]
    assert layers_of(load((fake("gpu:0", 0, capacity=1000), CPU))) == "cccccc"  # it says nothing of its memory


def test_another_device_takes_over(load: Open) -> None:
    model = load((fake("gpu:0", capacity=5 * MIB), fake("gpu:1")), "gpu:0,gpu:1")
    assert "0" not in layers_of(model)[3:]
    assert model.moved


@pytest.mark.parametrize(
    ("device", "options", "hint"),
    [
        ("gpu:0", {}, r"device='gpu:0,cpu'"),
        ("gpu:0", {"n_gpu_layers": "all"}, r"lower n_gpu_layers, or leave it out"),
        ("gpu:0", {"n_gpu_layers": 4}, r"lower n_gpu_layers, or leave it out"),
        ("gpu:0", {"tensor_split": (1,)}, r"a smaller share in tensor_split, or lower n_gpu_layers"),
        ("gpu:0", {"layer_devices": ("gpu:0",) * 4}, r"fewer layers in layer_devices"),
    ],
    ids=str,
)
def test_explicit_options_are_not_changed(
    fakes: Callable[..., FakeRegistry], device: Any, options: dict[str, Any], hint: str
) -> None:
    registry = fakes(fake("gpu:0", capacity=8 * MIB), CPU)
    with pytest.raises(InsufficientMemoryError, match=hint) as caught:
        hotshoe.load_model(MODEL, device, n_ctx=128, **options)
    assert caught.value.memory.on("gpu:0").failed
    assert len(registry.opened) == 1


def test_a_cpu_without_memory_is_an_error(fakes: Callable[..., FakeRegistry]) -> None:
    registry = fakes(fake("gpu:0"), fake("host:0", 1 << 30, DeviceType.CPU, capacity=1000))
    with pytest.raises(InsufficientMemoryError, match="host:0 cannot allocate"):
        hotshoe.load_model(MODEL, n_ctx=128)
    assert len(registry.opened) == 1


# No op may leave its device


def test_an_op_that_would_leave_its_device(fakes: Callable[..., FakeRegistry]) -> None:
    fakes(fake("gpu:0"), CPU, lacks={"host:0": "softmax"})
    with hotshoe.load_model(MODEL, "gpu:0", n_ctx=128, n_gpu_layers=2) as model:
        splits = model.placements(4)
        assert {(n.op, n.layer, n.device) for n in splits.fallbacks} == {("softmax", i, "gpu:0") for i in (0, 1)}
        assert "not on its own device: softmax (blk.0." in str(splits)
    refused: Any = {"n_gpu_layers": 2, "fallback": False}
    with pytest.raises(PlacementError, match=r"softmax \(blk\.0\..*, layer 0\) would run on gpu:0") as caught:
        hotshoe.load_model(MODEL, "gpu:0", n_ctx=128, **refused)
    assert (caught.value.op, caught.value.layer, caught.value.device) == ("softmax", 0, "gpu:0")
    with pytest.raises(PlacementError, match="softmax"):
        plan_model(MODEL, "gpu:0", n_ctx=128, **refused)
    # no layer is on the device that lacks it
    hotshoe.load_model(MODEL, "gpu:0", n_ctx=128, n_gpu_layers=4, fallback=False).close()


def test_every_graph_is_checked(load: Open) -> None:
    model = load((*TWO, CPU), fallback=False)
    assert isinstance(model, TextModel)
    assert model.backend.strict
    assert model.generate(PROMPT, max_tokens=3).tokens


# Reports


def test_what_crosses_between_devices(load: Open) -> None:
    model = load((*TWO, CPU), "gpu:0,gpu:1,host:0", layer_devices=("gpu:0", "gpu:0", "gpu:1", "gpu:1"))
    for n_tokens in (1, 7):
        splits = model.placements(n_tokens)
        assert [s.device for s in splits.splits] == ["gpu:0", "gpu:1"]
        dim = 256
        (crossing,) = splits.crossings
        assert (crossing.source, crossing.target, crossing.nbytes) == ("gpu:0", "gpu:1", n_tokens * dim * 4)
        assert splits.nbytes == crossing.nbytes
        assert f"gpu:0 -> gpu:1: {crossing.value}" in str(splits)
    with pytest.raises(InputTooLongError, match="at most n_ubatch=512"):
        model.placements(513)
    with pytest.raises(InputTooLongError, match="n_tokens is 0"):
        model.placements(0)


def test_on_one_device_nothing_crosses(reference: TextModel) -> None:
    splits = reference.placements()
    assert (len(splits.splits), splits.nbytes, splits.crossings) == (1, 0, ())
    assert str(reference.placement_report()) == "everything on reference"


# Plans


def amounts(memory: BackendMemory) -> dict[str, Any]:
    """Return the bytes of weights and caches by device and layer."""
    return {
        d.device: ({i: m.size for i, m in d.weights.items()}, {i: m.size for i, m in d.cache.items()})
        for d in memory.devices
    }


@pytest.mark.parametrize(
    ("device", "options"),
    [
        (None, {}),
        ("gpu:0", {}),
        ("gpu:0,gpu:1", {"tensor_split": (1, 3)}),
        ("gpu:0", {"n_gpu_layers": 2}),
        ("gpu:0", {"kv_offload": False, "n_gpu_layers": "all"}),
    ],
    ids=str,
)
def test_a_plan_is_what_is_then_allocated(load: Open, device: Any, options: dict[str, Any]) -> None:
    model = load((*TWO, CPU), device, **options)
    plan = plan_model(MODEL, device, n_ctx=128, **options)
    assert amounts(plan.memory) == amounts(model.memory())
    assert plan.placement == model.backend.placement
    assert plan.fits
    # the largest graph is allocated at once, on one device as on several
    assert {d.device: d.graph.size for d in plan.memory.devices} == {
        d.device: d.graph.size for d in model.memory().devices
    }


@pytest.mark.parametrize("name", ["cpu", "reference"])
def test_a_plan_on_the_devices_of_this_machine(name: str, minilm_gguf: Callable[[str], Path]) -> None:
    if name not in [d.name for d in hotshoe.load_all().devices]:
        pytest.skip(f"no device {name!r}: hotshoe-ggml-cpu is not installed")
    for path, n_ctx in ((MODEL, 200), (minilm_gguf("q8_0"), None)):
        plan = plan_model(path, name, n_ctx=n_ctx)
        assert plan.free[name] > 0 or name == "reference"
        with hotshoe.load_model(path, name, n_ctx=n_ctx) as model:
            assert amounts(plan.memory) == amounts(model.memory())
            model.reserve()
            assert plan.memory.on(name).graph.size == model.memory().on(name).graph.size
        assert (plan.fits, plan.moved) == (True, ())


def test_a_plan_moves_layers_as_loading_does(fakes: Callable[..., FakeRegistry]) -> None:
    """The weights of the file fit into 8 MiB; on these devices they take four times as much, and the plan knows it."""
    fakes(fake("gpu:0", 8 * MIB), CPU)
    plan = plan_model(MODEL, n_ctx=128)
    assert plan.moved
    assert plan.fits
    assert 0 < plan.placement.layers.count("gpu:0") < N_LAYERS
    with hotshoe.load_model(MODEL, n_ctx=128) as model:
        assert model.backend.placement == plan.placement
    tight = dataclasses.replace(CPU, memory_free=MIB)
    fakes(tight, fake("gpu:0", 8 * MIB))
    both = plan_model(MODEL, "host:0,gpu:0", n_ctx=128)  # neither has room: what can be moved is
    assert (both.placement, both.fits) == (plan.placement, False)
    fakes(fake("gpu:0", 8 * MIB), CPU)
    fixed = plan_model(MODEL, "gpu:0", n_ctx=128)
    assert (fixed.fits, fixed.moved) == (False, ())


def planned_on(*devices: Device, **options: Any) -> Plan:
    return plan_model(MODEL, n_ctx=128, **options, simulate=devices)


def test_a_plan_for_simulated_devices() -> None:
    plan = planned_on(fake("gpu:0", 5 * MIB), CPU)
    assert plan.fits
    assert 0 < plan.placement.layers.count("gpu:0") < N_LAYERS
    in_file = {p.layer: p.weights for p in plan.parts}
    assert in_file["input"] == 544 * 1024
    report = plan.to_json()
    assert report["fits"] is True
    assert [d["name"] for d in report["devices"]] == ["gpu:0", "host:0"]
    assert sum(p["weights"] + p["cache"] for p in report["layers"]) == sum(
        d["weights"] + d["cache"] for d in report["devices"]
    )
    assert not planned_on(fake("gpu:0", MIB)).fits


def test_default_params() -> None:
    assert PlacementParams().adapts
    assert not dataclasses.replace(PlacementParams(), n_gpu_layers=3).adapts


@pytest.mark.parametrize("simulate", ["gpu0=1GiB", 5, ["gpu0"]])
def test_simulate_takes_devices_only(simulate: Any) -> None:
    with pytest.raises(PlacementError, match="expected a list of Device"):
        plan_model(MODEL, simulate=simulate)
    with pytest.raises(PlacementError, match="simulate is empty; expected one Device or more"):
        plan_model(MODEL, simulate=[])
