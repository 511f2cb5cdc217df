"""Fit: which layers go to which device, and properties that hold for any devices. No device is used."""

from __future__ import annotations

import dataclasses
import random
from typing import Any

import numpy as np
import pytest

from hotshoe.placement import PlacementParams
from hotshoe.placement.fit import Fitted, fit, usage
from hotshoe.placement.sizes import LayerSizes, ModelSizes
from hotshoe_core import Device, DeviceType
from hotshoe_core.errors import PlacementError

GIB = 1 << 30
TYPES = {"c": DeviceType.CPU, "i": DeviceType.IGPU, "g": DeviceType.GPU}


def device(name: str, free: float) -> Device:
    """Make a device; the first letter of its name gives its type: cpu, igpu or gpu."""
    return Device(name, TYPES[name[0]], "test", "test", memory_total=int(free), memory_free=int(free))


def model(n: int = 8, layer: int = GIB, **more: int) -> ModelSizes:
    return ModelSizes((LayerSizes(layer),) * n, **more)


def placed(sizes: ModelSizes, *devices: tuple[str, float], **options: Any) -> Fitted:
    return fit(sizes, [device(*d) for d in devices], PlacementParams(**options))


def drawn(fitted: Fitted) -> str:
    """Draw input, layers and output by the last letters of the devices' names: ``"c ccgg g"``."""
    p = fitted.placement
    return f"{p.input[-1]} {''.join(name[-1] for name in p.layers)} {p.device(len(p.layers))[-1]}"


CPU = ("c", 100 * GIB)


@pytest.mark.parametrize(
    ("devices", "expected"),
    [
        ([CPU], "c cccccccc c"),
        ([("g", 100 * GIB), CPU], "c gggggggg g"),
        ([("g", 5 * GIB), CPU], "c ccccgggg c"),  # the last layers first
        ([("g", 9.1 * GIB), CPU], "c gggggggg c"),  # and the output after them
        ([("g", 0.5 * GIB), CPU], "c cccccccc c"),  # tiny
        ([("g", 0), CPU], "c gggggggg g"),  # says nothing of its memory: it is tried
        ([("g0", 20 * GIB), ("g1", 20 * GIB), CPU], "c 00001111 1"),
        ([("g0", 10 * GIB), ("g1", 30 * GIB), CPU], "c 00111111 1"),
        ([("g0", 2.8 * GIB), ("g1", 4.1 * GIB), CPU], "c ccc00111 c"),
        ([("g0", 3 * GIB), ("g1", 0.1 * GIB), CPU], "c cccccc00 c"),
        ([(f"g{i}", 20 * GIB) for i in range(4)] + [CPU], "c 00112233 3"),
        ([(f"g{i}", 20 * GIB) for i in range(8)] + [CPU], "c 01234567 7"),
        ([("g0", 20 * GIB), ("g1", 20 * GIB)], "0 00001111 1"),  # without the CPU the input is on the first
        ([("g0", 4 * GIB), ("g1", 4 * GIB)], "0 00001111 1"),  # too little, and evenly so
        ([("i", 100 * GIB), CPU], "c iiiiiiii i"),
        ([("i", 0), CPU], "c iiiiiiii i"),
        ([("i", 100 * GIB), ("c", 5.6 * GIB)], "c cccciiii c"),  # the CPU's memory is its own
    ],
    ids=str,
)
def test_where_layers_go(devices: list[tuple[str, float]], expected: str) -> None:
    assert drawn(placed(model(input=GIB // 2, output=GIB // 2), *devices)) == expected


@pytest.mark.parametrize(
    ("free", "n_layers"),
    [(1.4, 1), (1.3, 0), (4.1, 3), (3.9, 2), (5.1, 4), (4.9, 3), (9.1, 8), (8.9, 7)],
)
def test_what_is_left_free(free: float, n_layers: int) -> None:
    """1 GiB; of less than 4 GiB, a quarter."""
    assert drawn(placed(model(), ("g", free * GIB), CPU)).count("g") == n_layers + (n_layers == 8)


def test_of_a_large_device_a_twentieth_is_left_free() -> None:
    assert drawn(placed(model(19), ("g", 20.1 * GIB), CPU)).count("g") == 20
    assert drawn(placed(model(95), ("g", 98 * GIB), CPU)).count("g") == 93


def test_whether_it_fits() -> None:
    assert placed(model(), ("g", 5 * GIB), CPU).fits
    assert not placed(model(), ("g", 5 * GIB)).fits
    assert not placed(model(), ("g", 5 * GIB), ("c", GIB)).fits
    assert not placed(model(), ("c", 5 * GIB)).fits
    assert not placed(model(), ("i", 100 * GIB), ("c", 5 * GIB)).fits  # 4 layers there, and 4 more in the same memory
    assert placed(model(), ("g", 0)).fits


def test_cache_and_graph_take_room_too() -> None:
    sizes = ModelSizes((LayerSizes(GIB, cache=GIB),) * 4, graph=GIB)
    assert drawn(placed(sizes, ("g", 6.1 * GIB), CPU)) == "c ccgg c"
    assert drawn(placed(sizes, ("g", 6.1 * GIB), CPU, kv_offload=False)) == "c gggg g"


def test_an_embedding_that_is_the_output_too_is_on_both_devices() -> None:
    sizes = model(2, input=GIB, tied=GIB)
    both = placed(sizes, ("g", 100 * GIB), CPU)
    assert both.planned == {"c": GIB, "g": 3 * GIB}
    assert placed(sizes, ("g", 100 * GIB)).planned == {"g": 3 * GIB}


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"n_gpu_layers": 0}, "c cccccccc c"),
        ({"n_gpu_layers": 3}, "c ccccc011 c"),
        ({"n_gpu_layers": 8}, "c 00001111 c"),
        ({"n_gpu_layers": 9}, "c 00001111 1"),
        ({"n_gpu_layers": "all"}, "c 00001111 1"),
        ({"tensor_split": (3, 1)}, "c 00000001 1"),
        ({"tensor_split": (0, 1)}, "c 11111111 1"),
        ({"tensor_split": (1, 1), "n_gpu_layers": 4}, "c cccc0011 c"),
        ({"main_gpu": 0}, "c 00000000 0"),
        ({"main_gpu": 1}, "c 11111111 1"),
        ({"layer_devices": tuple("ccc") + ("g0",) * 2 + ("g1",) * 3}, "c ccc00111 1"),
    ],
    ids=str,
)
def test_explicit_options(options: dict[str, Any], expected: str) -> None:
    assert drawn(placed(model(), ("g0", 40 * GIB), ("g1", 40 * GIB), CPU, **options)) == expected


def test_the_main_device_is_filled_first() -> None:
    devices = [("g0", 6.1 * GIB), ("g1", 40 * GIB), CPU]
    assert drawn(placed(model(output=1), *devices, main_gpu=0)) == "c 11100000 0"


def test_explicit_options_are_planned_even_if_they_do_not_fit() -> None:
    asked = placed(model(), ("g", GIB), CPU, n_gpu_layers=8)
    assert (drawn(asked), asked.fits) == ("c gggggggg c", False)


def test_experts_and_caches_on_the_cpu() -> None:
    sizes = ModelSizes((LayerSizes(GIB, cache=GIB, experts=10 * GIB),) * 4)
    tight = placed(sizes, ("g", 9 * GIB), CPU)
    assert drawn(tight) == "c cccc c"
    first = placed(sizes, ("g", 21 * GIB), CPU, cpu_moe=3)
    assert (drawn(first), first.placement.experts) == ("c gggg g", ("c",) * 3)
    assert first.planned == {"c": 30 * GIB, "g": 18 * GIB}
    all_of_them = placed(sizes, ("g", 9 * GIB), CPU, cpu_moe=True, kv_offload=False)
    assert (drawn(all_of_them), all_of_them.planned) == ("c gggg g", {"c": 44 * GIB, "g": 4 * GIB})
    assert all_of_them.placement.cache == ("c",) * 4


@pytest.mark.parametrize(
    ("devices", "options", "message"),
    [
        ([CPU], {"n_gpu_layers": 2}, r"n_gpu_layers=2: expected a GPU or another device; the model is on c only"),
        (
            [CPU],
            {"n_gpu_layers": "all"},
            r"n_gpu_layers='all': expected a GPU or another device; the model is on c only",
        ),
        (
            [CPU],
            {"tensor_split": (1,)},
            r"tensor_split=\(1.0,\): expected a GPU or another device; the model is on c only",
        ),
        ([CPU], {"main_gpu": 0}, r"main_gpu=0: expected a GPU or another device; the model is on c only"),
        ([("g", GIB)], {"kv_offload": False}, r"kv_offload=False: the devices \(g\) do not include the CPU"),
        ([("g", GIB)], {"n_gpu_layers": 2}, r"n_gpu_layers=2: the devices \(g\) do not"),
        ([("g", GIB), CPU], {"tensor_split": (1, 1)}, "tensor_split has 2 numbers; there are 1 devices"),
        ([("g", GIB), CPU], {"main_gpu": 1}, "main_gpu is 1; the devices other than the CPU are 0: g"),
        ([("g", GIB), CPU], {"n_gpu_layers": 10}, "n_gpu_layers is 10; the model has 8 layers"),
        ([("g", GIB), CPU], {"cpu_moe": 2}, "cpu_moe=2: the model has no experts"),
        ([("g", GIB), CPU], {"kv_offload": False}, "kv_offload=False: the model has no cache"),
        (
            [("g", GIB), CPU],
            {"layer_devices": ("g",) * 7},
            r"layer_devices names 7 layers; expected 8(.|\n)*hint: the model has the layers 0 to 7",
        ),
        ([("g", GIB), CPU], {"layer_devices": ("x",) * 8}, "layer_devices names x; the devices are g, c"),
    ],
    ids=str,
)
def test_impossible_options_are_refused(
    devices: list[tuple[str, float]], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(PlacementError, match=message):
        placed(model(), *devices, **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_gpu_layers": -1}, r"n_gpu_layers is .*-1[\s\S]*n_gpu_layers='all'"),
        ({"n_gpu_layers": 2.5}, "n_gpu_layers is .*2.5"),
        ({"n_gpu_layers": True}, "n_gpu_layers is .*True"),
        ({"n_gpu_layers": "most"}, "'auto' or 'all'"),
        ({"tensor_split": ()}, "tensor_split is"),
        ({"tensor_split": (0, 0)}, "tensor_split is"),
        ({"tensor_split": (1, -1)}, "tensor_split is"),
        ({"tensor_split": "3,1"}, "tensor_split is"),
        ({"tensor_split": (float("nan"), 1)}, "tensor_split is"),
        ({"tensor_split": (10**400,)}, "tensor_split is"),
        ({"n_gpu_layers": 10**5000}, "n_gpu_layers is"),
        ({"n_gpu_layers": np.zeros(2)}, "n_gpu_layers is"),
        ({"main_gpu": -1}, "main_gpu is"),
        ({"cpu_moe": -2}, "cpu_moe is"),
        ({"kv_offload": "no"}, "kv_offload is"),
        ({"fallback": 1}, "fallback is"),
        ({"layer_devices": "cpu"}, "layer_devices is"),
        ({"layer_devices": ("cpu", 3)}, "layer_devices is"),
        ({"layer_devices": ()}, "layer_devices is"),
        ({"layer_devices": ("cpu",), "n_gpu_layers": 1}, "layer_devices and n_gpu_layers exclude each other"),
        ({"layer_devices": ("cpu",), "main_gpu": 1}, "layer_devices and main_gpu exclude each other"),
        ({"tensor_split": (1, 1), "main_gpu": 1}, "tensor_split and main_gpu"),
    ],
)
def test_invalid_values(options: dict[str, Any], message: str) -> None:
    with pytest.raises(PlacementError, match=message):
        PlacementParams(**options)


def some_model(draw: random.Random) -> ModelSizes:
    layers = [LayerSizes(draw.randint(0, 100), draw.randint(0, 30)) for _ in range(draw.randint(1, 40))]
    tied = draw.choice((0, 50))
    return ModelSizes(tuple(layers), tied + draw.randint(0, 100), draw.randint(0, 100), tied, draw.randint(0, 20))


def some_devices(draw: random.Random) -> list[Device]:
    others = [device(f"{draw.choice('gggi')}{i}", draw.randint(0, 2000)) for i in range(draw.randint(0, 8))]
    host = [device("c", draw.choice((0, 500, 10**6)))] if draw.random() < 0.7 or not others else []
    return draw.choice((others + host, host + others))


@pytest.mark.parametrize("seed", range(300))
def test_properties_for_any_devices(seed: int) -> None:
    """Each layer is on one device, in the order of the devices; and a fit that claims to fit does fit."""
    draw = random.Random(seed)
    sizes, devices = some_model(draw), some_devices(draw)
    fitted = fit(sizes, devices, PlacementParams())
    n, names = len(sizes.layers), [d.name for d in devices]
    layers = fitted.placement.layers
    assert len(layers) == n
    assert set(fitted.placement.devices) <= set(names)
    order = sorted(names, key=lambda name: name != "c")  # the CPU has the first layers
    assert [order.index(name) for name in layers] == sorted(order.index(name) for name in layers)
    layers_total = sum(part.weights + part.cache + part.experts for part in sizes.layers)
    total = layers_total + sizes.input + sizes.output
    twice = sizes.tied if fitted.placement.input != fitted.placement.device(n) else 0
    used = usage(sizes, fitted.placement)
    assert sum(used.values()) == total + twice + sizes.graph * len(used)
    assert fitted.planned == used
    if fitted.fits:
        assert all(used.get(d.name, 0) <= d.memory_free for d in devices if d.memory_free)
    if "c" in names:  # what is taken off the CPU fits where it goes
        assert all(used.get(d.name, 0) <= d.memory_free for d in devices if d.memory_free and d.name != "c")


@pytest.mark.parametrize("seed", range(300))
def test_more_memory_never_puts_fewer_layers_on_devices(seed: int) -> None:
    draw = random.Random(seed)
    sizes, devices = some_model(draw), some_devices(draw)
    known = [d for d in devices if d.memory_free]
    if "c" not in [d.name for d in devices] or not known:
        return
    more = draw.choice(known)
    larger = dataclasses.replace(more, memory_free=more.memory_free + draw.randint(1, 500), memory_total=0)
    before = fit(sizes, devices, PlacementParams())
    after = fit(sizes, [larger if d is more else d for d in devices], PlacementParams())
    assert after.n_layers >= before.n_layers
