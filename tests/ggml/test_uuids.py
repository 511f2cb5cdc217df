"""The UUIDs of GPUs, from the files of their drivers."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("hotshoe_ggml", reason="hotshoe-ggml-cpu is not installed")

from hotshoe_ggml import native, provider
from hotshoe_ggml.uuids import uuid_of

NVIDIA = """Model: \t\t NVIDIA H200
IRQ:   \t\t 255
GPU UUID: \t GPU-1b2c3d4e-5f60-7182-93a4-b5c6d7e8f901
Bus Location: \t 0000:4e:00.0
"""


@pytest.mark.parametrize(
    ("place", "file", "text", "uuid"),
    [
        (
            "0000:4E:00.0",
            "proc/driver/nvidia/gpus/0000:4e:00.0/information",
            NVIDIA,
            "GPU-1b2c3d4e-5f60-7182-93a4-b5c6d7e8f901",
        ),
        ("0000:03:00.0", "sys/bus/pci/devices/0000:03:00.0/unique_id", "9a1b2c3d4e5f6071\n", "GPU-9a1b2c3d4e5f6071"),
        ("0000:03:00.0", "sys/bus/pci/devices/0000:03:00.0/unique_id", "0\n", None),
        ("0000:03:00.0", "sys/elsewhere", "", None),
        ("../../etc", "etc/information", NVIDIA, None),
    ],
)
def test_the_uuid_of_a_gpu(tmp_path: Path, place: str, file: str, text: str, uuid: str | None) -> None:
    target = tmp_path / file
    target.parent.mkdir(parents=True)
    target.write_text(text)
    assert uuid_of(place, tmp_path) == uuid


def test_the_devices_of_a_library_have_their_uuids(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fact = SimpleNamespace(type=1, description="GPU", memory_total=2, memory_free=1, device_id="0000:01:00.0")
    opened = SimpleNamespace(features=dict, devices=lambda: [fact])
    monkeypatch.setattr(native, "load_backend", lambda library: opened)
    monkeypatch.setattr(provider, "uuid_of", lambda place: f"GPU at {place}")
    (device,) = provider.GgmlProvider("ggml-acme", "acme", tmp_path, "acme").devices(tmp_path / "libggml-acme.so")
    assert (device.uuid, device.pci_id) == ("GPU at 0000:01:00.0", "0000:01:00.0")
