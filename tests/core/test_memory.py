"""Memory reports: sums, failures and their text."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from hotshoe_core.contract.device import Device, DeviceType
from hotshoe_core.contract.memory import AllocationStatus, BackendMemory, Memory
from hotshoe_core.eager.reference import open_reference
from hotshoe_core.errors import InsufficientMemoryError
from hotshoe_core.errors.text import format_bytes

ALLOCATED, FAILED = AllocationStatus.ALLOCATED, AllocationStatus.FAILED


def report() -> BackendMemory:
    memory = BackendMemory()
    gpu = memory.on("cuda:0")
    gpu.weights = {-1: Memory(100, ALLOCATED), 0: Memory(1000, ALLOCATED)}
    gpu.cache = {0: Memory(30, ALLOCATED)}
    gpu.graph = Memory(7, ALLOCATED)
    memory.on("cpu").weights[1] = Memory(1, ALLOCATED)
    return memory


def test_totals() -> None:
    memory = report()
    assert [d.total for d in memory.devices] == [1137, 1]
    assert memory.total == 1138
    assert memory.on("cuda:0") is memory.devices[0]
    assert not any(d.failed for d in memory.devices)


@pytest.mark.parametrize(("what", "layer", "before"), [("weights", 0, 1000), ("cache", 5, 0), ("graph", -1, 7)])
def test_what_failed_is_marked_and_the_rest_is_kept(what: str, layer: int, before: int) -> None:
    memory = report()
    memory.fail("cuda:0", what, 500, layer)  # type: ignore[arg-type]
    gpu, cpu = memory.devices
    assert (gpu.failed, cpu.failed) == (True, False)
    parts = {"weights": gpu.weights, "cache": gpu.cache}
    assert (parts[what][layer] if what in parts else gpu.graph) == Memory(before + 500, FAILED)
    assert memory.total == 1638


def test_a_report_has_the_uuids_of_its_devices() -> None:
    devices = [
        Device("cuda:0", DeviceType.GPU, "acme", "ggml", uuid="GPU-1"),
        Device("cpu", DeviceType.CPU, "b", "ggml"),
    ]
    memory = BackendMemory.of(devices)
    assert [(d["device"], d["uuid"]) for d in memory.to_json()["devices"]] == [("cuda:0", "GPU-1"), ("cpu", None)]
    with open_reference() as backend:
        backend.devices = (replace(backend.devices[0], uuid="GPU-2"),)
        assert backend.memory().on("reference").uuid == "GPU-2"


def test_the_report_as_json() -> None:
    memory = report()
    memory.fail("cpu", "cache", 512, layer=3)
    memory.on("cuda:0").larger["Q4_0"] = (10, 12)
    assert json.loads(json.dumps(memory.to_json())) == {
        "total": 1650,
        "devices": [
            {
                "device": "cuda:0",
                "uuid": None,
                "total": 1137,
                "weights": 1100,
                "cache": 30,
                "graph": 7,
                "failures": [],
                "layers": [
                    {"layer": -1, "weights": 100, "cache": 0},
                    {"layer": 0, "weights": 1000, "cache": 30},
                ],
                "larger": {"Q4_0": {"in_file": 10, "here": 12}},
            },
            {
                "device": "cpu",
                "uuid": None,
                "total": 513,
                "weights": 1,
                "cache": 512,
                "graph": 0,
                "failures": ["cache of layer 3, 512 B"],
                "layers": [{"layer": 1, "weights": 1, "cache": 0}, {"layer": 3, "weights": 0, "cache": 512}],
                "larger": {},
            },
        ],
    }


def test_the_report_reads_well() -> None:
    memory = report()
    assert (
        str(memory).splitlines()[0]
        == "cuda:0: 1.1 KiB (weights 1.1 KiB, including 100 B for the input, cache 30 B, graph 7 B)"
    )
    memory.fail("cpu", "graph", 2048)
    assert str(memory).splitlines()[1] == "cpu: 2.0 KiB FAILED (weights 1 B, cache 0 B, graph 2.0 KiB (failed))"
    memory.fail("cpu", "cache", 512, layer=3)
    assert str(memory).splitlines()[2] == "  failed: cache of layer 3, 512 B"
    assert memory.devices[0].input_weights == Memory(100, ALLOCATED)
    assert str(BackendMemory()) == "nothing allocated"
    error = InsufficientMemoryError("cpu has no 2.0 KiB", memory=memory, hint="buy some")
    assert str(error).splitlines() == ["cpu has no 2.0 KiB", "  hint: buy some", *str(memory).splitlines()]
    assert isinstance(error, MemoryError)


@pytest.mark.parametrize(
    ("n", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (5 << 20, "5.0 MiB"), (2**50, "1024.0 TiB")],
)
def test_format_bytes(n: int, text: str) -> None:
    assert format_bytes(n) == text
