"""Names: this project's names are reserved, conflicts log a warning, and a type means that type only."""

from __future__ import annotations

import logging

import pytest

from hotshoe_core.errors import DeviceNotFoundError
from hotshoe_loader import Outcome, load_all
from tests.support.fake_plugins import PROVIDER

OURS = ("hotshoe-ggml-cpu", "'ggml-cpu', 'ggml', ('cpu',), DeviceType.CPU")


def warned(caplog) -> str:
    return "\n".join(record.getMessage() for record in caplog.records if record.levelno == logging.WARNING)


def verdict(registry, origin):
    return next(each for each in registry.verdicts if each.origin.startswith(origin) and each.kind == "plugin")


@pytest.mark.parametrize("installed", [True, False])
@pytest.mark.parametrize("name", ["ggml-cpu", "ggml_cpu", "ggml-cuda", "cuda", "vulkan", "mlx"])
def test_another_plugin_cannot_take_the_name_of_our_provider(site, caplog, name, installed):
    """Whether ours is installed or not, and although the other plugin's entry point sorts first."""
    site.good("aaa", f"{name!r}, 'aaa', ('aaa:0',)", entry="aaa")
    if installed:
        site.good(*OURS)
    registry = load_all()
    found = verdict(registry, "aaa")
    assert found.outcome is Outcome.SHADOWED
    assert "aaa 1.0" in found.reason
    assert "hotshoe-" in found.reason
    assert "another name" in found.hint
    assert found.reason in warned(caplog)
    assert [device.name for device in registry.devices] == (["cpu"] if installed else []) + ["reference"]


@pytest.mark.parametrize(("name", "type"), [("cpu", "CPU"), ("cuda:0", "GPU"), ("vulkan:3", "IGPU"), ("metal", "GPU")])
def test_another_plugin_cannot_take_the_name_of_our_device(site, caplog, name, type):
    site.good("aaa", f"'aaa', 'aaa', ({name!r}, 'aaa:1'), DeviceType.{type}")
    site.good(*OURS)
    registry = load_all()
    found = verdict(registry, "aaa")
    assert found.outcome is Outcome.AVAILABLE, "its other device is fine"
    assert f"the name {name!r} is taken by hotshoe-ggml-" in found.reason
    assert f"the name {name!r} is taken by hotshoe-ggml-" in warned(caplog)
    assert {device.name: device.provider for device in registry.devices}["cpu"] == "ggml-cpu"
    assert registry.select("aaa:1")[0].provider == "aaa"


def test_another_plugin_cannot_take_our_entry_point(site, caplog):
    """Otherwise allow="ggml-cpu" and block="ggml-cpu" would also match it. Its code does not run."""
    site.install("aaa", "raise KeyboardInterrupt", entry="ggml-cpu")
    found = verdict(load_all(allow="ggml-cpu"), "aaa")
    assert found.outcome is Outcome.SHADOWED
    assert "aaa 1.0 calls its entry point 'ggml-cpu', which is a name of hotshoe-ggml-cpu" in warned(caplog)


def test_our_plugins_may_use_each_others_names(site):
    """An adopted set has providers of all its backends, and one plugin drives it."""
    site.good("hotshoe-ggml-cpu", "'ggml-cuda', 'ggml', ('cuda:0',), DeviceType.GPU")
    assert load_all().devices[0].name == "cuda:0"


def test_two_plugins_with_one_provider_name_are_both_named(site, caplog):
    site.good("zeta", "devices=('b',)")
    site.good("alpha", "devices=('a',)")
    registry = load_all()
    assert verdict(registry, "alpha").outcome is Outcome.AVAILABLE
    assert verdict(registry, "zeta").outcome is Outcome.SHADOWED
    assert "zeta 1.0 has a provider 'acme', but alpha 1.0 already has one" in warned(caplog)


def test_a_provider_with_the_name_of_an_entry_point_is_refused_as_reserved(site, caplog):
    site.good("alpha", "'zeta', 'alpha', ('a',)")
    site.good("zeta", "'other', 'zeta', ('z',)")
    assert verdict(load_all(), "alpha").outcome is Outcome.SHADOWED
    said = "alpha 1.0 has a provider 'zeta', but that name is reserved for the entry point 'zeta' of zeta 1.0"
    assert said in warned(caplog)


def test_two_plugins_with_one_device_name_are_both_named(site, caplog):
    site.good("zeta", "'zeta', devices=('x', 'z')")
    site.good("alpha", "'alpha', devices=('x',)")
    registry = load_all()
    assert {device.name: device.provider for device in registry.devices}["x"] == "alpha"
    assert "zeta (zeta 1.0): the name 'x' is taken by 'alpha' of alpha 1.0" in warned(caplog)


def test_the_family_of_the_reference_is_its_own(site):
    site.good("aaa", "'aaa', 'reference', ('aaa:0',)")
    assert verdict(load_all(), "aaa").outcome is Outcome.SHADOWED


def called(name: object, type: str) -> str:
    hook = "@hookimpl\ndef hotshoe_providers():\n"
    return f"{PROVIDER}\n{hook}    return [Provider('aaa', 'aaa', ({name!r},), DeviceType.{type})]\n"


@pytest.mark.parametrize(
    ("name", "type"),
    [
        ("gpu", "CPU"),
        ("gpu", "GPU"),
        ("auto", "CPU"),
        ("CPU", "CPU"),
        ("accel", "ACCEL"),
        ("a, b", "GPU"),
        (" ", "GPU"),
        ("", "GPU"),
        ("a\x1b[2Jb", "GPU"),
        ("x" * 5000, "GPU"),
        (0, "GPU"),
    ],
)
def test_an_invalid_device_name_is_explained(site, name, type):
    site.install("bad", called(name, type))
    registry = load_all()
    found = verdict(registry, "bad")
    assert found.outcome is Outcome.INCOMPATIBLE_API
    assert "Device.name: " in found.reason
    assert "lower-case letters" in found.reason or "is reserved" in found.reason or "not a str" in found.reason
    assert "'cuda:0'" in found.hint
    assert found.reason.isprintable()
    assert len(found.reason) < 500
    assert [device.name for device in registry.devices] == ["reference"]


def test_a_cpu_called_gpu_does_not_meet_a_requirement(site):
    site.install("bad", called("gpu", "CPU"))
    with pytest.raises(DeviceNotFoundError):
        load_all(require="gpu")


def test_an_accelerator_is_no_default(site):
    """Its speed is unknown. It comes before the reference, which is certainly slow."""
    site.good("aaa", "'aaa', 'aaa', ('aaa:0',), DeviceType.ACCEL, memory_total=1 << 40")
    assert [device.name for device in load_all().devices] == ["aaa:0", "reference"]
    site.good(*OURS)
    registry = load_all(refresh=True)
    assert [device.name for device in registry.devices] == ["cpu", "aaa:0", "reference"]
    assert "aaa:0 ranks below the CPU; name it to use it" in registry.why()
    assert load_all(prefer="accel").devices[0].name == "aaa:0"


def test_another_cpu_backend_is_no_default_for_claiming_more_memory(site):
    site.good("aaa", "'aaa', 'aaa', ('aaa',), DeviceType.CPU, memory_total=1 << 49")
    site.good(*OURS)
    assert load_all().devices[0].name == "cpu"


def test_one_gpu_with_one_uuid_is_not_two(site):
    more = "DeviceType.GPU, uuid='GPU-1', memory_total"
    site.good("hotshoe-ggml-cuda", f"'ggml-cuda', 'ggml', ('cuda:0',), {more}=8 << 30")
    site.good("hotshoe-ggml-vulkan", f"'ggml-vulkan', 'ggml', ('vulkan:0', ), {more}=9 << 30")
    site.good("other", "'other', 'other', ('other:0',), DeviceType.GPU, memory_total=1 << 30")
    assert [device.name for device in load_all().devices] == ["cuda:0", "other:0", "vulkan:0", "reference"]


def test_the_words_of_the_warning_are_printable(site, caplog):
    site.install("bad", "raise RuntimeError('\\x1b[31m\\n\\r boo')")
    load_all()
    assert r"\x1b[31m boo" in warned(caplog)
    assert "\x1b" not in caplog.text
