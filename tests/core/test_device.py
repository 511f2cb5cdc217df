"""Devices are checked when a plugin makes them, and foreign text is escaped."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hotshoe_core import Device, DeviceType
from hotshoe_core.contract.device import name_problem
from hotshoe_core.errors import PluginError
from hotshoe_core.errors.text import printable


def device(name: Any = "acme:0", type: Any = DeviceType.ACCEL, **fields: Any) -> Device:
    return Device(**{"name": name, "type": type, "provider": "acme", "family": "acme", **fields})


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"type": "cpu"}, "Device.type is 'cpu'; expected a DeviceType, such as DeviceType.CPU"),
        ({"name": 0}, "Device.name: it is 0, not a str"),
        ({"name": None}, "Device.name: it is None"),
        ({"provider": ""}, "Device.provider: it is ''"),
        ({"family": 3}, "Device.family: it is 3"),
        ({"description": 5}, "Device.description is 5; expected printable text"),
        ({"description": "\x1b[2J"}, r"Device.description is '\x1b[2J'"),
        ({"description": "x" * 600}, "at most 512 characters"),
        ({"pci_id": 5}, "Device.pci_id is 5"),
        ({"uuid": b"1"}, "Device.uuid is b'1'"),
        ({"memory_total": 1.5}, "Device.memory_total is 1.5; expected a whole number of bytes"),
        ({"memory_free": float("nan")}, "Device.memory_free is nan"),
        ({"memory_total": True}, "Device.memory_total is True"),
        ({"library": "/lib/x.so"}, "Device.library is '/lib/x.so'; expected the Path"),
        ({"properties": [1]}, "Device.properties is [1]; expected a mapping"),
        ({"properties": {"a": object}}, "Device.properties is {'a':"),
        ({"properties": {"a": "\x1b"}}, "printable names with printable text"),
        ({"properties": {1: "a"}}, "printable names"),
    ],
)
def test_a_field_that_is_wrong_is_named(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(PluginError) as caught:
        device(**fields)
    assert words in caught.value.message


BAD = ["auto", "gpu", "igpu", "accel", "all", "none", "CPU", "Acme", "a, b", "a b", "a\n", "\x1b[1m", "", "-a", "ä"]


@pytest.mark.parametrize("name", [*BAD, "a" * 49, "acme:", "acme:0:1", "acme:A", "acme:" + "1" * 17, "gpu:0", "cpu:0"])
def test_invalid_names_of_devices(name: str) -> None:
    with pytest.raises(PluginError, match=r"Device\.name: ") as caught:
        device(name)
    assert "'cuda:0'" in (caught.value.hint or "")


@pytest.mark.parametrize(
    ("name", "type"),
    [
        ("cpu", DeviceType.CPU),
        ("gpu:0", DeviceType.GPU),
        ("gpu:1", DeviceType.IGPU),
        ("igpu:0", DeviceType.IGPU),
        ("cuda:10", DeviceType.GPU),
        ("twin_a", DeviceType.ACCEL),
        ("acme-npu.2:left", DeviceType.ACCEL),
        ("7900xt", DeviceType.GPU),
    ],
)
def test_valid_names_of_devices(name: str, type: DeviceType) -> None:
    assert device(name, type).name == name


@pytest.mark.parametrize("type", [DeviceType.GPU, DeviceType.IGPU, DeviceType.ACCEL])
def test_only_a_cpu_may_be_called_cpu(type: DeviceType) -> None:
    with pytest.raises(PluginError, match="is reserved"):
        device("cpu", type)


@pytest.mark.parametrize("name", [*BAD, "cpu", "a" * 49, "a:0", 3, None])
def test_invalid_names_of_providers(name: Any) -> None:
    assert name_problem(name)


def test_a_valid_device() -> None:
    whole = device(
        description="AMD Radeon™ RX 7900",
        memory_total=1 << 34,
        memory_free=1 << 33,
        pci_id="0000:01:00.0",
        uuid="GPU-1",
        library=Path("/x.so"),
        properties={"index": 0, "fast": True, "variant": ""},
    )
    assert whole.uuid == "GPU-1"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("AMD Radeon™ – ä 漢 🦙", "AMD Radeon™ – ä 漢 🦙"),
        ("\x1b[31mred\x1b[0m", r"\x1b[31mred\x1b[0m"),
        ("a\r\nb\tc\0", r"a\r\nb\tc\x00"),
        ("\x9b2J\x7f", r"\x9b2J\x7f"),
        ("\u202eevil\u2066", r"\u202eevil\u2066"),
        ("\udc80", r"\udc80"),
        ("", ""),
    ],
)
def test_foreign_text_is_made_printable(text: str, shown: str) -> None:
    assert printable(text) == shown
    assert printable(text).isprintable()


def test_long_text_is_cut() -> None:
    assert printable("x" * 50, 10) == "x" * 9 + "…"
    assert printable("x" * 10, 10) == "x" * 10
