"""A caller that names a device waits for the plugins that decide what the name means, and for no other plugin."""

from __future__ import annotations

import threading

import pytest

from hotshoe_core.errors import DeviceNotFoundError, InputTypeError, PluginError
from hotshoe_loader import Outcome, load_all, probe, registry
from hotshoe_loader.verdict import Rejected
from tests.support.fake_plugins import GOOD

CPU = GOOD.replace("{arguments}", "'ggml-cpu', 'ggml', ('cpu',), DeviceType.CPU")


@pytest.fixture
def probed(site, monkeypatch):
    """The plugins that were probed, in order."""
    seen: list[str] = []

    def run(jobs, limit):
        seen.extend(job.plugin.name for job in jobs)
        return [site.probe(job) for job in jobs]

    monkeypatch.setattr(probe, "_probe_now", run)
    site.install("hotshoe-ggml-cpu", CPU, entry="ggml-cpu")
    site.good("acme", "'acme', 'acme', ('acme:0', 'acme:1')")
    site.good("slow", "'slow', 'slow', ('slow:0',)")
    return seen


def names(registry) -> list[str]:
    return [device.name for device in registry.devices]


@pytest.mark.parametrize(
    ("device", "expected"),
    [
        ("cpu", ["ggml-cpu"]),
        ("ggml-cpu", ["ggml-cpu"]),
        ("reference", []),
        ("acme:1", ["acme", "ggml-cpu"]),
        ("acme", ["acme", "ggml-cpu"]),
        (["cpu", "acme:0"], ["acme", "ggml-cpu"]),
        ("cpu,reference", ["ggml-cpu"]),
        ("gpu", ["acme", "ggml-cpu", "slow"]),
        (None, ["acme", "ggml-cpu", "slow"]),
        ("elsewhere:0", ["acme", "ggml-cpu", "slow"]),
    ],
)
def test_only_what_the_name_needs_is_tested(probed, device, expected):
    load_all(device=device)
    assert sorted(probed) == expected


def test_the_same_registry_is_completed_later(probed, caplog):
    registry = load_all(device="cpu")
    assert names(registry) == ["cpu", "reference"]
    assert registry.why("cpu") == "cpu (ggml-cpu): requested"
    with registry.open("cpu"):
        assert load_all() is registry
        assert names(registry) == ["cpu", "acme:0", "acme:1", "slow:0", "reference"]
        assert "best of 5 devices" in registry.why()
        verdict = next(verdict for verdict in registry.verdicts if verdict.candidate == "ggml-cpu")
        assert verdict.outcome is Outcome.LOADED, "what was opened before is not forgotten"
    assert sorted(probed) == ["acme", "ggml-cpu", "slow"], "each plugin once"
    assert load_all(device="acme:0") is registry


def test_a_second_name_adds_its_plugin(probed):
    registry = load_all(device="cpu")
    assert load_all(device="acme:0") is registry
    assert names(registry) == ["cpu", "acme:0", "acme:1", "reference"]
    assert sorted(probed) == ["acme", "ggml-cpu"]


@pytest.mark.parametrize("device", ["accel", "npu", "ggml", "same:0"])
def test_the_meaning_of_a_name_does_not_depend_on_earlier_calls(probed, site, device):
    """Any plugin may have a device of a type or family, or of a name that is not reserved."""
    site.good("aaa", "'aaa', 'ggml', ('npu:7', 'same:0')")
    site.good("zzz", "'zzz', 'ggml', ('npu:8', 'same:0')")
    load_all(device="zzz")
    load_all(device=device)
    assert {"aaa", "slow"} <= set(probed)


@pytest.mark.parametrize("entry", ["gpu", "ggml"])
def test_an_entry_point_with_the_name_of_a_type_or_family_does_not_hide_others(probed, site, entry):
    site.good("acme-odd", "'odd', 'odd', ('odd:0',), DeviceType.GPU", entry=entry)
    load_all(device=entry)
    assert sorted(probed) == sorted(["acme", "ggml-cpu", "slow", entry])


@pytest.mark.parametrize("device", [5, [], ["cpu", 5], b"cpu"])
def test_a_device_that_is_no_name_is_an_error(probed, device):
    with pytest.raises(InputTypeError, match="a name or a list of names"):
        load_all(device=device)
    assert not probed


def test_a_missing_device_is_looked_for_everywhere(probed):
    with pytest.raises(DeviceNotFoundError, match="found: cpu"):
        load_all(device="cuda:0").open("cuda:0")
    assert sorted(probed) == ["acme", "ggml-cpu", "slow"]


def test_another_plugin_cannot_take_the_name_of_an_entry_point(probed, site, caplog):
    """Otherwise "acme:0" would mean another device for a caller that does not wait for this plugin."""
    site.good("aaa", "'aaa', 'aaa', ('acme:0', 'aaa:0')")
    for device in ("acme:0", None):
        assert load_all(device=device).select("acme:0")[0].provider == "acme"
    assert "aaa:0" in names(load_all())
    assert "the name 'acme:0' is taken by the entry point 'acme' of acme 1.0" in caplog.text


def test_a_broken_plugin_is_warned_of_when_it_is_tested_and_once(probed, site, caplog):
    site.install("bad", "raise ValueError('no')")
    load_all(device="cpu")
    assert not caplog.records
    load_all()
    load_all(prefer="cpu")
    assert caplog.text.count("bad: import-error") == 1


def test_requirements_of_the_environment_are_about_callers_that_name_no_device(probed, monkeypatch):
    monkeypatch.setenv("HOTSHOE_REQUIRE", "gpu")
    with load_all(device="cpu").open("cpu"):
        pass
    with pytest.raises(DeviceNotFoundError, match="HOTSHOE_REQUIRE=gpu"):
        load_all()
    with load_all(device="cpu").open("cpu"):
        pass
    with pytest.raises(DeviceNotFoundError, match="require='cuda'"):
        load_all(require="cuda", device="cpu")


def test_a_misspelt_block_makes_the_search_complete(probed, caplog):
    """The name may be that of a library or device of a plugin that was not tested."""
    load_all(device="cpu", block="slow:0")
    assert sorted(probed) == ["acme", "ggml-cpu", "slow"]
    assert not caplog.records


def test_threads_that_ask_for_different_names_get_one_registry(probed):
    found = []
    asks = [threading.Thread(target=lambda d=d: found.append(load_all(device=d))) for d in ("cpu", None, "acme:0") * 3]
    for thread in asks:
        thread.start()
    for thread in asks:
        thread.join()
    assert len(set(map(id, found))) == 1
    assert sorted(probed) == ["acme", "ggml-cpu", "slow"]


@pytest.fixture
def servers(probed, site, monkeypatch):
    """A plugin that lists a device for each server in HOTSHOE_RPC."""
    code = GOOD.replace("{arguments}", "'ggml-rpc', 'ggml', ()").replace(
        "Device(name, self.type, self.name, self.family, library=library, **self.more) for name in self.names",
        "Device(f'rpc:{i}', self.type, self.name, self.family, properties={'endpoint': name})"
        " for i, name in enumerate(filter(None, os.environ.get('HOTSHOE_RPC', '').split(',')))",
    )
    site.install("hotshoe-ggml-rpc", "import os\n" + code, entry="ggml-rpc")
    monkeypatch.setenv("HOTSHOE_RPC", "a:1")
    return probed


def test_naming_a_server_tests_the_plugin_for_servers_only(servers):
    registry = load_all()
    servers.clear()
    assert [device.name for device in registry.select("rpc://b:2")] == ["rpc:1"]
    assert servers == ["ggml-rpc"]
    assert "slow:0" in names(registry)


def test_a_server_can_be_named_before_anything_was_tested(servers):
    registry = load_all(device="rpc://b:2,cpu")
    assert [device.name for device in registry.select("rpc://b:2,cpu")] == ["rpc:1", "cpu"]
    assert sorted(set(servers)) == ["ggml-cpu", "ggml-rpc"]


@pytest.mark.parametrize("how", ["failed", "unloaded", "lost"])
def test_a_new_test_of_the_plugin_for_servers_forgets_what_happened_before(servers, monkeypatch, how):
    found = load_all()
    if how == "failed":

        def fail(*arguments):
            raise Rejected(Outcome.CRASHED, "it fails once")

        with monkeypatch.context() as patch:
            patch.setattr(registry, "open_backend", fail)
            with pytest.raises(PluginError, match="fails once"):
                found.open("rpc:0")
    elif how == "unloaded":
        found.unload("rpc:0")
    else:
        found._note_lost("rpc:0", "the network is down")
    assert [device.name for device in found.select("rpc://c:3")] == ["rpc:1"]
    assert (found._failed, found._unloaded, found._lost) == ({}, set(), {})
