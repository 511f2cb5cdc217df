"""A device costs only itself: one that hangs, or is slow at its first start, does not take others along."""

from __future__ import annotations

import json
import logging
import sys

import pytest

from hotshoe_core.errors import DeviceNotFoundError
from hotshoe_loader import Outcome, child_process, load_all, options
from tests.support.fake_plugins import NATIVE, PROVIDER

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="builds libraries of ELF")

# Opening one of the devices in `slow` takes `seconds`, as the first compilation of shaders does.
SLOW = (
    PROVIDER
    + """
import time

class Slow(Provider):
    def open(self, devices, params):
        if devices[0].name in {slow}:
            time.sleep({seconds})
        return super().open(devices, params)

@hookimpl
def hotshoe_providers():
    return [Slow({arguments}), Provider("other", devices=("other:0",))]
"""
)


def slow(devices: str, slow: str, seconds: float = 60) -> str:
    code = SLOW.replace("{arguments}", f"'acme', devices={devices}")
    return code.replace("{slow}", slow).replace("{seconds}", str(seconds))


def names(registry) -> list[str]:
    return [device.name for device in registry.devices]


def verdict(registry, name):
    return next(each for each in registry.verdicts if each.candidate == name)


def test_a_device_that_hangs_costs_neither_its_provider_nor_the_next(site, probes):
    site.install("bad", slow("('acme:0', 'acme:1', 'acme:2')", "('acme:0',)"))
    registry = load_all(timeout=3)
    assert sorted(names(registry)) == ["acme:1", "acme:2", "other:0", "reference"]
    found = verdict(registry, "acme")
    assert found.outcome is Outcome.AVAILABLE
    assert "not used: it did not finish within 3" in found.reason
    assert "while computing on acme:0" in found.reason
    assert "HOTSHOE_PROBE_TIMEOUT" in found.hint


def test_a_provider_whose_devices_all_hang_leaves_its_neighbour(site, probes):
    site.install("bad", slow("('acme:0', 'acme:1')", "('acme:0', 'acme:1')"))
    registry = load_all(timeout=3)
    assert names(registry) == ["other:0", "reference"]
    assert verdict(registry, "acme").outcome is Outcome.TIMED_OUT


def test_a_provider_that_hangs_while_listing_leaves_its_neighbour(site, probes):
    hangs = "class Hangs(Provider):\n    def devices(self, library):\n        import time; time.sleep(60)\n"
    hook = "@hookimpl\ndef hotshoe_providers(): return [Provider(), Hangs('bad', devices=('bad:0',))]\n"
    site.install("two", PROVIDER + hangs + hook)
    registry = load_all(timeout=3)
    assert names(registry) == ["npu:0", "reference"]
    assert verdict(registry, "bad").outcome is Outcome.TIMED_OUT


@pytest.fixture
def short(monkeypatch):
    """The limits that hold if the user gives none, in tenths of seconds."""
    monkeypatch.setattr(options, "DEFAULT_TIMEOUT", 1.0)
    monkeypatch.setattr(child_process, "DEFAULT_TIMEOUT", 1.0)


@pytest.mark.usefixtures("short", "probes")
def test_who_names_a_device_waits_for_its_first_start(site, caplog):
    """And is told so. It is also true after a start that did not name it, and gave up on it."""
    site.install("acme", slow("('acme:0', 'acme:1')", "('acme:0',)", 2.5))
    registry = load_all()
    assert "acme:0" not in names(registry)
    assert "name the device, as in load_model(path, 'acme:0')" in verdict(registry, "acme").hint
    with caplog.at_level(logging.WARNING, "hotshoe.loader"):
        registry = load_all(device="acme:0")
    assert [device.name for device in registry.select("acme:0")] == ["acme:0"]
    assert "acme: still computing on acme:0 after 1 s; a first start may compile shaders" in caplog.text
    assert "acme:0" in names(load_all()), "and the report is kept"


def test_a_first_start_may_take_minutes():
    assert options.Options().limits(named=True).device >= 120
    assert options.Options().limits(named=False).device <= 10


@pytest.mark.usefixtures("short", "probes")
def test_a_limit_that_is_given_holds_for_named_devices_too(site):
    site.install("acme", slow("('acme:0',)", "('acme:0',)", 2.5))
    registry = load_all(device="acme:0", timeout=1)
    with pytest.raises(DeviceNotFoundError, match="did not finish within 1"):
        registry.select("acme:0")


@pytest.mark.usefixtures("short", "probes")
@pytest.mark.parametrize(("seconds", "outcome"), [(30, Outcome.AVAILABLE), (0.5, Outcome.TIMED_OUT)])
def test_a_manifest_may_ask_for_a_longer_probe(site, seconds, outcome):
    """For all of it: cuBLAS is hundreds of megabytes. It cannot ask for a shorter one."""
    package = site.path / "acme"
    package.mkdir()
    wait = 2.5 if outcome is Outcome.AVAILABLE else 60
    code = slow("('acme:0',)", "('acme:0',)", wait).replace("import time", f"import time\ntime.sleep({wait / 2})", 1)
    (package / "__init__.py").write_text(code)
    (package / "hotshoe-plugin.json").write_text(json.dumps({"format": 1, "probe_seconds": seconds}))
    site.install("acme", None)
    found = [each for each in load_all().verdicts if each.details.get("plugin") == "acme"]
    assert found[0].outcome is outcome


@pytest.mark.parametrize("seconds", [-1, 601, True, "60"])
def test_a_manifest_that_asks_for_an_impossible_time(site, seconds):
    package = site.path / "acme"
    package.mkdir()
    (package / "__init__.py").write_text(NATIVE)
    (package / "hotshoe-plugin.json").write_text(json.dumps({"format": 1, "probe_seconds": seconds}))
    site.install("acme", None)
    assert '"probe_seconds" is' in verdict(load_all(), "acme").reason


ADOPTS = (
    NATIVE
    + """
import time

class Driven(Native):
    def native(self):
        return {**super().native(), "name": self.name.removeprefix("ggml-"), "directories": []}

    def open(self, devices, params):
        time.sleep(60)

@hookimpl
def hotshoe_adopt(folder):
    return [Native("ggml-cpu", "ggml", ("cpu",), DeviceType.CPU)]

@hookimpl
def hotshoe_drive(backend):
    return [Driven("ggml-" + backend, "ggml", (backend + ":0",), DeviceType.GPU)]
"""
)


@pytest.fixture
def adopted(site, probes, natives):
    """A set of ggml's libraries with the CPU and a slow GPU, and a plugin that adopts it."""
    natives.variant("cpu", 1)
    natives.variant("vulkan", 1)
    natives.library("libggml-base.so", 'const char version[] = "0.25.1";')
    package = site.path / "hotshoe_ggml_cpu"
    package.mkdir()
    ggml = {"version": "0.20.2", "adopts": ["0.20.2", "0.25.1"]}
    (package / "hotshoe-plugin.json").write_text(json.dumps({"format": 1, "ggml": ggml}))
    code = ADOPTS.replace("{folder}", str(natives.folder)).replace("{backend}", "cpu")
    (package / "__init__.py").write_text(code)
    site.install("hotshoe-ggml-cpu", None, entry="ggml-cpu")
    return natives.folder


def test_a_slow_gpu_of_an_adopted_set_does_not_cost_the_cpu(adopted):
    registry = load_all(ggml=adopted, timeout=3)
    assert names(registry) == ["cpu", "reference"]
    assert verdict(registry, "ggml-vulkan").outcome is Outcome.TIMED_OUT


def test_the_cpu_of_an_adopted_set_does_not_wait_for_its_gpu(adopted, monkeypatch):
    tested = []
    run = child_process.run

    def watched(jobs, limits):
        tested.extend(job.driven_backend or job.plugin.name for job in jobs)
        return run(jobs, limits)

    monkeypatch.setattr(child_process, "run", watched)
    registry = load_all(ggml=adopted, device="cpu", timeout=3)
    assert names(registry) == ["cpu", "reference"]
    assert tested == ["ggml-cpu"]
