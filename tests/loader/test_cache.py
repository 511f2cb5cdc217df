"""Kept reports: a second start probes nothing, changed plugins are probed again, a damaged file does no harm."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from pathlib import Path

import pytest

import hotshoe_core
from hotshoe_loader import cache, child_process, load_all, probe
from hotshoe_loader.find import find_plugins
from hotshoe_loader.report import Job, Report
from hotshoe_loader.used import file_of
from tests.loader.conftest import _forget
from tests.support.fake_plugins import GOOD

GOOD_CODE = GOOD.replace("{arguments}", "")


@pytest.fixture
def count(probes, site, monkeypatch):
    """The plugins that were probed since the last call."""
    probed: list[str] = []

    def run(jobs, limit):
        probed.extend(job.plugin.name for job in jobs)
        return [site.probe(job) for job in jobs]

    monkeypatch.setattr(probe, "_probe_now", run)

    def since():
        found = list(probed)
        probed.clear()
        return found

    return since


def start(**options):
    """load_all as in a new process."""
    _forget()
    return load_all(**options)


def test_the_second_start_probes_nothing(site, count):
    site.good("acme")
    first = start()
    assert count() == ["acme"]
    second = start()
    assert count() == []
    assert [device.name for device in second.devices] == [device.name for device in first.devices]
    assert second.verdicts[0].details["cached"] >= 0
    assert "cached" not in first.verdicts[0].details
    assert start(refresh=True).devices
    assert count() == ["acme"]


def test_real_children_are_kept_too(site, probes, monkeypatch):
    site.good("acme")
    start()
    monkeypatch.setattr(child_process, "run", None)
    registry = start()
    with registry.open() as backend:
        assert backend.devices[0].name == "npu:0"


CHANGES = {
    "code": lambda site, patch: (site.path / "acme.py").write_text(GOOD_CODE + "# more"),
    "record": lambda site, patch: (site.path / "acme-1.0.dist-info" / "RECORD").write_text(""),
    "an upgrade": lambda site, patch: (site.path / "acme-1.0.dist-info").rename(site.path / "acme-1.1.dist-info"),
    "visible devices": lambda site, patch: patch.setenv("CUDA_VISIBLE_DEVICES", "1"),
    "options": lambda site, patch: patch.setenv("HOTSHOE_BLOCK", "vulkan"),
    "processor": lambda site, patch: patch.setattr(cache, "_processor", lambda: "another"),
    "our own code": lambda site, patch: patch.setattr(cache, "_CODE", (str(site.path),)),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_causes_a_new_probe(site, count, monkeypatch, change):
    site.good("acme")
    start()
    start()
    assert count() == ["acme"]
    CHANGES[change](site, monkeypatch)
    start()
    assert count() == ["acme"]


def test_installing_something_else_does_not_cause_a_new_probe(site, count):
    site.good("acme")
    start()
    site.metadata("other", "1", None)
    (site.path / "other.py").write_text("")
    start()
    assert count() == ["acme"]


def test_installing_what_it_looked_for_causes_a_new_probe(site, count):
    site.install("acme", "try:\n    import faster_maths\nexcept ImportError:\n    pass\n" + GOOD_CODE)
    start()
    start()
    assert count() == ["acme"]
    (site.path / "faster_maths.py").write_text("")
    start()
    assert count() == ["acme"]
    sys.modules.pop("faster_maths", None)
    (site.path / "faster_maths.py").write_text("# another version")
    start()
    assert count() == ["acme"]
    sys.modules.pop("faster_maths", None)


def test_a_failure_is_tried_again_after_an_installation(site, count):
    site.install("bad", "raise OSError('no driver')")
    start()
    start()
    assert count() == ["bad"]
    site.metadata("driver", "1", None)
    start()
    assert count() == ["bad"]


def test_a_report_does_not_outlive_pythonpath(site, probes, tmp_path, monkeypatch):
    """The module of another folder was tested, so its device and its libraries are not those of this start."""
    site.good("acme")
    other = tmp_path / "other"
    other.mkdir()
    (other / "acme.py").write_text(GOOD.replace("{arguments}", "devices=('npu:7',)"))
    with monkeypatch.context() as patch:
        patch.syspath_prepend(str(other))
        assert start().devices[0].name == "npu:7"
    assert start().devices[0].name == "npu:0"


def test_a_native_file_that_was_used_counts(site, natives, probes, monkeypatch):
    library = natives.library("libhelper.so", "int a;")
    site.install("acme", f"import ctypes\nctypes.CDLL({str(library)!r})\n" + GOOD_CODE)
    start()
    monkeypatch.setattr(child_process, "run", lambda jobs, limit: pytest.fail("probed again"))
    start()
    os.utime(library, (1, 1))
    with pytest.raises(pytest.fail.Exception, match="probed again"):
        start()


def test_of_an_installed_hotshoe_only_the_record_is_looked_at(tmp_path, monkeypatch):
    package = tmp_path / "hotshoe_loader"
    monkeypatch.setattr(cache.hotshoe_loader, "__file__", str(package / "__init__.py"))
    record = tmp_path / "hotshoe_core-1.2.dist-info" / "RECORD"
    record.parent.mkdir()
    record.write_text("one line")
    assert cache.machine_state({"hotshoe-core": "1.2"})["hotshoe"] == cache._stat(str(record))
    assert len(cache.machine_state({"hotshoe-core": "1.3"})["hotshoe"]) > 50, "a checkout: every file"


def test_our_own_code_is_what_plugins_import():
    """All folders of core that a backend imports, and those of the loader."""
    core, loader = Path(hotshoe_core.__file__).parent, Path(cache.__file__).parent
    rooms = {path.parent for path in core.glob("*/*.py") if path.parent.name not in ("inspect", "testing")}
    assert {core, loader, loader / "ggml"} | rooms == {Path(folder) for folder in cache._CODE}


def test_changed_libraries_are_probed_again(native_plugin, natives, count):
    natives.variant("cpu-x64", 1)
    native_plugin()
    start()
    better = natives.variant("cpu-zen4", 9)
    assert start().devices[0].library == better
    better.unlink()
    assert start().devices[0].library == natives.folder / "libggml-cpu-x64.so"
    assert len(count()) == 3


def test_a_package_with_a_module_of_its_own_name_is_compared_as_a_whole(site, count):
    (site.path / "acme").mkdir()
    (site.path / "acme" / "__init__.py").write_text(GOOD_CODE)
    (site.path / "acme" / "acme.py").write_text("")
    (site.path / "acme" / "more.py").write_text("")
    site.install("acme", None)
    start()
    (site.path / "acme" / "more.py").write_text("# changed")
    start()
    assert count() == ["acme", "acme"]


def test_variables_of_the_manifest_count(site, count, monkeypatch):
    (site.path / "acme").mkdir()
    (site.path / "acme" / "__init__.py").write_text(GOOD_CODE)
    (site.path / "acme" / "hotshoe-plugin.json").write_text('{"format": 1, "environment": ["ACME_"]}')
    site.install("acme", None)
    start()
    monkeypatch.setenv("ACME_DEVICES", "0")
    start()
    assert count() == ["acme", "acme"]


def test_failures_are_kept_for_a_while_and_say_so(site, count, monkeypatch):
    site.install("bad", "import nowhere")
    start()
    verdict = start().verdicts[0]
    assert count() == ["bad"]
    assert "load_all(refresh=True) tests it again" in verdict.reason
    now = time.time()
    monkeypatch.setattr(cache.time, "time", lambda: now + cache.MAX_FAILURE_AGE + 1)
    assert "ago" not in start().verdicts[0].reason
    assert count() == ["bad"]


DAMAGE = [b"", b"{", b"[]", b"null", b'{"key": 1}', b"\xff\xfe", b'{"report": {"providers": [{}]}}']


@pytest.mark.parametrize("data", DAMAGE)
def test_damaged_entries_do_no_harm(site, probes, count, data):
    site.good("acme")
    start()
    (entry,) = probes.iterdir()
    entry.write_bytes(data)
    assert start().devices[0].name == "npu:0"
    assert count() == ["acme", "acme"]
    assert json.loads(entry.read_text())["report"], "written again"


def test_half_damaged_reports_do_no_harm(site, probes, count):
    site.good("acme")
    start()
    (entry,) = probes.iterdir()
    data = json.loads(entry.read_text())
    data["report"]["providers"][0]["devices"][0]["type"] = "toaster"
    entry.write_text(json.dumps(data))
    assert start().devices[0].name == "npu:0"
    assert count() == ["acme", "acme"]


@pytest.mark.parametrize("where", ["file", "device", "off"])
def test_folders_that_cannot_be_written(site, count, monkeypatch, tmp_path, where, caplog):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("HOTSHOE_CACHE_DIR", {"file": str(tmp_path / "file"), "device": "/dev/null/x"}.get(where, where))
    site.good("acme")
    assert start().devices[0].name == "npu:0"
    assert start().devices[0].name == "npu:0"
    assert count() == ["acme", "acme"]
    assert not caplog.records


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="modes are POSIX's")
def test_a_folder_that_others_can_write_is_not_used(site, probes, count):
    site.good("acme")
    start()
    probes.chmod(0o777)
    start()
    assert count() == ["acme", "acme"]


def test_a_longer_time_limit_is_a_reason_to_try_again(site, count):
    site.good("acme")
    start()
    start(timeout=60)
    assert count() == ["acme", "acme"]


def test_starts_at_the_same_time(site, probes, count):
    site.good("acme")
    store = cache.Cache(probes, cache.machine_state({}), {})
    start()
    assert probes.stat().st_mode & 0o777 == 0o700
    (path,) = probes.iterdir()
    report = Report.from_json(json.loads(path.read_text())["report"])
    job = Job(next(iter(find_plugins().plugins)))
    seen = []

    def work():
        for _ in range(30):
            store.put(job, report)
            seen.append(store.get(job))

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(each is not None for each in seen)
    assert not [each for each in probes.iterdir() if each.suffix == ".tmp"]


def test_old_entries_are_removed(site, probes, count):
    site.good("acme")
    start()
    old = probes / "old.json"
    old.write_text("{}")
    os.utime(old, (1, 1))
    start(refresh=True)
    assert not old.exists()


def test_the_folder_of_the_reports(monkeypatch):
    monkeypatch.setattr("sys.platform", "linux")
    assert cache.reports_folder({"XDG_CACHE_HOME": "/x"}) == Path("/x/hotshoe/probes")
    assert cache.reports_folder({"XDG_CACHE_HOME": "x"}) == Path.home() / ".cache/hotshoe/probes"
    assert cache.reports_folder({"HOTSHOE_CACHE_DIR": "/y"}) == Path("/y/probes")
    assert cache.reports_folder({"HOTSHOE_CACHE_DIR": "off"}) is None
    monkeypatch.setattr("sys.platform", "darwin")
    assert cache.reports_folder({}) == Path.home() / "Library/Caches/hotshoe/probes"
    monkeypatch.setattr("sys.platform", "win32")
    assert cache.reports_folder({}) is None


def test_a_device_that_is_missing_now_is_an_error(site, probes, monkeypatch):
    from hotshoe_core.errors import BackendError

    code = GOOD_CODE.replace(
        "for name in self.names", "for name in __import__('os').environ.get('FAKE_NPU', 'npu:0').split()"
    )
    site.install("acme", code)
    registry = start()
    monkeypatch.setenv("FAKE_NPU", "npu:1")
    with pytest.raises(BackendError, match="'npu:0' existed when 'acme' was tested, but is missing now") as caught:
        registry.open("npu:0")
    assert "refresh=True" in caught.value.hint
    assert list(probes.iterdir()) == [], "the report is dropped"


def test_old_entries_are_removed_once_per_start(site, count, monkeypatch):
    """Not for each of two thousand plugins, in a folder with two thousand files."""
    looked = []
    prune = cache.Cache._prune
    monkeypatch.setattr(cache.Cache, "_prune", staticmethod(lambda where: looked.append(where) or prune(where)))
    for name in ("aaa", "bbb", "ccc"):
        site.install(name, "raise RuntimeError")
    start()
    assert count() == ["aaa", "bbb", "ccc"]
    assert len(looked) == 1


def test_a_finder_that_exits_does_not_end_the_program(monkeypatch):
    class Exits:
        def find_spec(self, name, path, target=None):
            sys.exit("no")

    monkeypatch.setattr(sys, "meta_path", [Exits()])
    assert file_of("nowhere_at_all") == ""
