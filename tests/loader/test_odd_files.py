"""FIFOs, devices, link loops, deeply nested JSON in place of files: nothing hangs, and each rejects one plugin."""

from __future__ import annotations

import os
import signal
import sys

import pytest

from hotshoe_core.errors import PluginError
from hotshoe_loader import Outcome, load_all
from hotshoe_loader.files import file_state, load_json, read_bytes, read_text
from hotshoe_loader.find import GROUP
from tests.loader.conftest import _forget
from tests.support.fake_plugins import GOOD

pytestmark = pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs POSIX's odd files")

DEEP = "[" * 200_000


@pytest.fixture(autouse=True)
def no_hang():
    """End a test that waits for a FIFO."""

    def end(*_: object) -> None:
        raise TimeoutError("it hangs")

    before = signal.signal(signal.SIGALRM, end)
    signal.alarm(60)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def fifo(path):
    os.mkfifo(path)


def zero(path):
    path.symlink_to("/dev/zero")


def loop(path):
    path.symlink_to(path)


def folder(path):
    path.mkdir()


def deep(path):
    path.write_text(DEEP)


def large(path):
    with open(path, "wb") as file:
        file.truncate(1 << 30)  # no block of it is on the disk


def binary(path):
    path.write_bytes(f"[{GROUP}]\n".encode() + b"\xff\xfe = x\n")


ODD = [fifo, zero, loop, folder, large]


@pytest.mark.parametrize("put", [*ODD, binary])
def test_entry_points_that_cannot_be_read_are_a_verdict(site, put):
    site.good("acme")
    info = site.metadata("bad", "1.0", None)
    put(info / "entry_points.txt")
    registry = load_all()
    found = {each.candidate: each for each in registry.verdicts}
    assert found["bad"].outcome is Outcome.IMPORT_ERROR
    assert "its entry_points.txt cannot be read: " in found["bad"].reason
    assert found["bad"].hint == "pip install --force-reinstall bad"
    assert found["acme"].outcome is Outcome.AVAILABLE


@pytest.mark.parametrize("put", ODD)
@pytest.mark.parametrize("name", ["METADATA", "RECORD", "WHEEL"])
def test_a_plugin_works_without_other_metadata(site, put, name):
    site.good("acme")
    info = site.path / "acme-1.0.dist-info"
    (info / name).unlink(missing_ok=True)
    put(info / name)
    assert {each.candidate: each.outcome for each in load_all().verdicts}["acme"] is Outcome.AVAILABLE


@pytest.mark.parametrize("put", [*ODD, deep])
def test_a_manifest_costs_its_own_plugin_only(site, put):
    site.good("acme")
    site.install("bad", None)
    (site.path / "bad").mkdir()
    (site.path / "bad" / "__init__.py").write_text(GOOD.replace("{arguments}", "'bad', 'bad', ('bad:0',)"))
    put(site.path / "bad" / "hotshoe-plugin.json")
    registry = load_all()
    found = {each.candidate: each for each in registry.verdicts}
    assert found["acme"].outcome is Outcome.AVAILABLE
    if put in (deep, large):  # otherwise it is not a file, so there is no manifest
        assert found["bad"].outcome is Outcome.INCOMPATIBLE_API
        assert "hotshoe-plugin.json cannot be used" in found["bad"].reason
    else:
        assert found["bad"].outcome is Outcome.AVAILABLE


@pytest.mark.parametrize("put", [*ODD, deep])
def test_a_kept_report_that_is_an_odd_file_is_made_again(site, probes, put):
    site.good("acme")
    load_all()
    (entry,) = probes.iterdir()
    entry.unlink()
    put(entry)
    _forget()
    assert load_all().devices[0].name == "npu:0"


@pytest.mark.parametrize("put", ODD)
@pytest.mark.parametrize("name", ["libggml-cpu-odd.so", "libggml-base.so.0"])
def test_libraries(site, native_plugin, natives, tmp_path, put, name):
    natives.variant("cpu-x64", 1)
    (tmp_path / "mine").mkdir()
    put(tmp_path / "mine" / name)
    native_plugin()
    registry = load_all(paths=tmp_path / "mine")
    assert registry.devices[0].library == natives.folder / "libggml-cpu-x64.so"
    odd = [each for each in registry.verdicts if each.candidate == "ggml-cpu-odd"]
    assert [each.outcome for each in odd] == ([Outcome.IMPORT_ERROR] if "odd" in name else [])


@pytest.mark.parametrize("put", ODD)
def test_folders_of_the_search_path(site, monkeypatch, tmp_path, put):
    from hotshoe_loader import find

    site.good("acme")
    put(tmp_path / "odd")
    monkeypatch.setattr(find, "_search_path", lambda: [str(tmp_path / "odd"), str(site.path)])
    assert load_all(paths=tmp_path / "odd").devices[0].name == "npu:0"


def test_reading(tmp_path):
    path = tmp_path / "file"
    path.write_text("ä")
    assert read_text(path, 2) == "ä"
    with pytest.raises(OSError, match="has 2 bytes; expected at most 1"):
        read_bytes(path, 1)
    with pytest.raises(OSError, match="has more than 3 bytes"):
        read_bytes("/proc/self/status", 3)
    with pytest.raises(ValueError, match="nested too deeply"):
        load_json(DEEP)
    assert file_state(path)[0] == 2
    assert file_state(tmp_path / "none") is file_state("a\0b") is None


# -- very many ----------------------------------------------------------------------------------------------


def test_a_distribution_with_two_thousand_entry_points(site):
    site.good("acme")
    lines = "".join(f"bad{i} = bad{i}\n" for i in range(2000))
    site.metadata("bad", "1.0", f"[{GROUP}]\n{lines}")
    found = [each for each in load_all().verdicts if each.origin == "bad 1.0"]
    assert [each.outcome for each in found] == [Outcome.IMPORT_ERROR]
    assert "it has 2000 entry points in 'hotshoe.backends'; expected at most 32" in found[0].reason


@pytest.mark.skipif(sys.platform != "linux", reason="starts processes")
def test_many_plugins_have_a_budget_together(site, probes, monkeypatch):
    """Plugins without time left are not tested; the reports on the others are kept, so the next start gets further."""
    from hotshoe_loader import child_process

    monkeypatch.setattr(child_process, "_MIN_COUNTED_LIMIT", 0.0)
    monkeypatch.setattr(child_process, "_MAX_PARALLEL", 1)
    monkeypatch.setattr(child_process, "_TOTAL_FACTOR", 1)
    for name in ("aaa", "bbb", "ccc"):
        site.install(name, "import time; time.sleep(60)")
    registry = load_all(timeout=0.5)
    found = {each.candidate: each for each in registry.verdicts}
    assert [found[name].outcome for name in ("aaa", "bbb", "ccc")] == [Outcome.TIMED_OUT] * 3
    assert "did not finish within" in found["aaa"].reason
    assert "it was not tested: " in found["ccc"].reason
    assert "there are 3 plugins" in found["ccc"].reason
    assert "allow=" in found["ccc"].hint
    assert len(list(probes.iterdir())) == sum("not tested" not in found[name].reason for name in ("aaa", "bbb", "ccc"))


# -- between the test and the use of it ---------------------------------------------------------------------


@pytest.mark.parametrize("which", ["library", "core"])
@pytest.mark.parametrize("how", ["replaced", "removed"])
def test_a_library_that_was_changed_since_its_test_is_not_opened(native_plugin, natives, which, how):
    library = natives.variant("cpu-x64", 1)
    native_plugin()
    registry = load_all()
    path = library if which == "library" else natives.folder / "libggml-base.so"
    path.unlink()
    if how == "replaced":
        path.write_bytes(b"another one")
    with pytest.raises(PluginError) as caught:
        registry.open("cpu")
    assert f"{path} is not the file that was tested: it was changed or removed since" in caught.value.message
    assert "refresh=True" in caught.value.hint
    assert registry.verdicts[0].outcome is Outcome.UNTRUSTED


def test_an_open_library_stays_open(native_plugin, natives):
    """An upgrade while the program runs: the loaded library is the one that was tested."""
    library = natives.variant("cpu-x64", 1)
    native_plugin()
    registry = load_all()
    registry.open("cpu").close()
    library.unlink()  # as pip does: written over where it is mapped, it would end the process by SIGBUS
    library.write_bytes(b"another one")
    registry.open("cpu").close()


def test_a_library_that_changes_during_its_test_is_not_used(native_plugin, natives, monkeypatch):
    from hotshoe_loader.child_state import ProbeState

    library = natives.variant("cpu-x64", 1)
    native_plugin()
    test_devices = ProbeState.test_devices

    def changing(self, provider, path):
        os.utime(library, (1, 1))
        return test_devices(self, provider, path)

    monkeypatch.setattr(ProbeState, "test_devices", changing)
    found = {each.candidate: each for each in load_all().verdicts}
    assert found["ggml-cpu-x64"].outcome is Outcome.UNTRUSTED
    assert "was changed during its test" in found["ggml-cpu-x64"].reason
