"""Free memory: the devices, a plan and the doctor give one answer, that of ``host_memory``."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path

import pytest

import hotshoe
from hotshoe.cli import main
from hotshoe_core.contract.host_memory import HostMemory, host_memory
from hotshoe_core.eager.adapter import EagerBackend

VERSE = str(Path(__file__).parents[2] / "examples" / "models" / "kjv-3m-q8_0.gguf")


def near(free: int) -> bool:
    """Whether these bytes are what the host has available: less than all, and about as much a moment later."""
    memory = host_memory()
    assert memory is not None
    return free < memory.total and abs(free - memory.available) < memory.total // 4


def test_devices_in_the_hosts_memory_say_what_is_available(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["devices", "--json"]) == 0
    devices = {d["name"]: d for d in json.loads(capsys.readouterr().out)["devices"]}
    memory = host_memory()
    assert memory is not None
    for name in devices.keys() & {"cpu", "reference"}:
        assert devices[name]["memory_total"] == memory.total
        assert near(devices[name]["memory_free"]), name


@pytest.mark.parametrize("name", ["cpu", "reference"])
def test_an_opened_device_says_what_is_available(name: str) -> None:
    registry = hotshoe.load_all()
    if name not in {d.name for d in registry.devices}:
        pytest.skip(f"{name} is not installed")
    with registry.open(name) as backend:
        assert near(backend.memory_free()[name])


def test_a_plan_counts_with_what_is_available(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", str(data / "bert-tiny-llamacpp.gguf"), "--device", "reference", "--json"]) == 0
    (device,) = json.loads(capsys.readouterr().out)["devices"]
    assert near(device["free"])


def test_a_limit_below_the_model_does_not_fit(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("hotshoe_core.eager.reference.host_memory", lambda: HostMemory(16 << 30, 2 << 20))
    assert main(["plan", VERSE, "--device", "reference"]) == 1
    assert "It does not fit: reference lacks" in capsys.readouterr().out


def test_a_container_below_the_model_does_not_fit_on_the_cpu(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("hotshoe_ggml", reason="hotshoe-ggml-cpu is not installed")
    monkeypatch.setattr("hotshoe_ggml.native.libraries.host_memory", lambda: HostMemory(16 << 30, 2 << 20))
    assert main(["plan", VERSE, "--device", "cpu"]) == 1
    assert "It does not fit: cpu lacks" in capsys.readouterr().out
    assert hotshoe.plan_model(VERSE, "cpu").free == {"cpu": 2 << 20}


def test_what_counts_is_the_memory_that_is_free_now(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not that of the time when the devices were found."""
    monkeypatch.setattr(EagerBackend, "memory_free", lambda self: {"reference": 2 << 20})
    assert not hotshoe.plan_model(VERSE, "reference").fits
    monkeypatch.setattr(EagerBackend, "memory_free", lambda self: {"reference": 1 << 30})
    assert hotshoe.plan_model(VERSE, "reference").fits


def test_a_plan_for_many_texts_allocates_nothing() -> None:
    def planned(n_sequences: int) -> tuple[int, int]:
        """Bytes that planning takes, and those that are planned."""
        tracemalloc.start()
        try:
            plan = hotshoe.plan_model(VERSE, "reference", n_sequences=n_sequences)
            return tracemalloc.get_traced_memory()[1], plan.memory.total
        finally:
            tracemalloc.stop()

    planned(1)  # what is imported at the first time
    (one, size_of_one), (many, size_of_many) = planned(1), planned(256)
    assert size_of_many > 10 * size_of_one
    assert many < one + (1 << 20)
