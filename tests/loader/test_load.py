"""load_all: one registry for each set of options, for every caller and thread."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path

import pytest

from hotshoe_core.errors import DeviceNotFoundError
from hotshoe_loader import Registry, Verdict, load_all
from hotshoe_loader.options import Options

COUNTING = """
from hotshoe_core.contract.plugin import hookimpl
import counter
@hookimpl
def hotshoe_providers():
    counter.calls.append(1)
    import time; time.sleep(0.05)
    return []
"""


@pytest.fixture
def calls(site, monkeypatch):
    import sys
    import types

    counter = types.ModuleType("counter")
    counter.calls = []  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "counter", counter)
    site.install("counting", COUNTING)
    return counter.calls


def test_the_second_call_is_the_same_registry_and_looks_at_nothing(calls, monkeypatch):
    registry = load_all()
    for name in ("listdir", "scandir", "stat", "open"):
        monkeypatch.setattr(os, name, None)
    assert load_all() is registry
    assert len(calls) == 1


def test_options_that_only_rank_ask_no_plugin_again(calls):
    plain, preferring = load_all(), load_all(prefer="cpu")
    assert preferring is not plain
    assert preferring is load_all(prefer=["cpu"])
    with pytest.raises(DeviceNotFoundError):
        load_all(require="cuda")
    assert len(calls) == 1
    load_all(block="other")
    assert len(calls) == 2


def test_refresh_finds_what_was_installed_since(calls, site):
    before = load_all()
    site.good("later", "'later', 'later', ('later:0',)")
    assert load_all() is before
    after = load_all(refresh=True)
    assert [device.name for device in after.devices] == ["later:0", "reference"]
    assert load_all() is after
    assert [device.name for device in before.devices] == ["reference"], "a registry in use stays as it was"


def test_many_threads_make_one_registry(calls):
    found: list[Registry] = []
    barrier = threading.Barrier(8)

    def ask() -> None:
        barrier.wait()
        found.append(load_all())

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8
    assert len(set(map(id, found))) == 1
    assert len(calls) == 1


def test_a_failed_load_can_be_repeated(site, monkeypatch):
    site.install("bad", "raise KeyboardInterrupt")
    with pytest.raises(KeyboardInterrupt):
        load_all()
    (site.path / "bad.py").write_text("")
    assert load_all(refresh=True).devices


def test_arguments_and_environment_join(tmp_path):
    environ = {
        "HOTSHOE_PREFER": "gpu, cpu",
        "HOTSHOE_REQUIRE": "cpu",
        "HOTSHOE_BLOCK": "Vulkan,,a_b",
        "HOTSHOE_PATH": str(tmp_path),
    }
    options = Options.from_arguments(["cpu", "mlx"], "cuda", ["x"], "here", environ)
    assert options.prefer == ("cpu", "mlx", "gpu")
    assert options.require == ("cuda", "cpu")
    assert options.block == ("a-b", "vulkan", "x")
    assert options.paths == (Path("here").absolute(), tmp_path)


def test_equal_options_are_equal():
    one = Options.from_arguments("a", None, ["b", "c"], Path("/x/../y"), {})
    other = Options.from_arguments(("a",), (), ("C", "b"), ["/y"], {})
    assert one == other
    assert hash(one) == hash(other)


@pytest.mark.parametrize(
    "wrong", [{"prefer": 3}, {"require": [None]}, {"block": [b"x"]}, {"paths": 3}, {"paths": [3]}, {"prefer": b"cpu"}]
)
def test_a_wrong_argument_is_refused_by_name(site, wrong):
    with pytest.raises(TypeError, match=f"load_all\\({next(iter(wrong))}="):
        load_all(**wrong)


def test_verdicts_are_for_machines_too(site):
    site.good()
    verdicts = load_all().verdicts
    text = json.dumps([verdict.to_json() for verdict in verdicts])
    first = json.loads(text)[0]
    assert set(first) == {"candidate", "kind", "outcome", "reason", "hint", "origin", "elapsed", "details"}
    assert first["details"]["devices"] == ["npu:0"]
    assert isinstance(verdicts[0], Verdict)
    assert len(set(verdicts)) == len(verdicts), "hashable"
