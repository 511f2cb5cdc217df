"""Libraries without a plugin, in folders that the user names: one plugin of the family drives all of them."""

from __future__ import annotations

import logging

import pytest

from hotshoe_loader import Outcome, load_all, probe
from hotshoe_loader.ggml import without_plugin
from tests.loader.conftest import _forget


@pytest.fixture
def driver(native_plugin, natives):
    """A plugin that drives any library, and a folder of the user."""
    natives.variant("cpu-x64", 1)
    native_plugin("cpu", drives=True)
    return natives.folder.parent / "mine"


def libraries(registry):
    return {verdict.candidate: verdict for verdict in registry.verdicts if verdict.kind == "library"}


def names(registry):
    return [device.name for device in registry.devices]


def test_a_library_of_any_name_is_driven(driver, natives, verdicts):
    library = natives.variant("strange", None, folder=driver)
    registry = load_all(paths=driver)
    assert names(registry) == ["cpu", "strange:0", "strange:1", "reference"]
    assert registry.devices[1].library == library
    assert verdicts(registry)["ggml-strange"] == "available"
    plugin = next(v for v in registry.verdicts if v.candidate == "ggml-strange" and v.kind == "plugin")
    assert plugin.origin == "hotshoe-ggml-cpu 1.0"
    with registry.open("strange:1") as backend:
        assert backend.opened_by == "ggml-strange"
    loaded = [v.candidate for v in registry.verdicts if v.outcome is Outcome.LOADED]
    assert loaded == ["ggml-strange", "ggml-strange"], "the provider and its library"
    assert registry.select("strange") == list(registry.devices[1:3])


def test_of_its_variants_the_best_is_used(driver, natives):
    natives.variant("strange-old", 1, folder=driver)
    best = natives.variant("strange-new", 8, folder=driver)
    registry = load_all(paths=driver)
    assert registry.select("strange:0")[0].library == best
    assert libraries(registry)["ggml-strange-old"].outcome is Outcome.OUTSCORED


def test_one_in_the_folder_of_a_plugin_is_driven_too(driver, natives):
    natives.variant("strange", None)
    assert "strange:0" in names(load_all())


def test_each_has_a_probe_of_its_own(driver, natives, probes):
    """A crash affects only that library, and the next start probes neither."""
    natives.library("libggml-bad.so", "#include <stdlib.h>\nvoid *ggml_backend_init; __attribute__((constructor)) "
                    "static void start(void) { abort(); }", folder=driver)  # fmt: skip
    natives.variant("good", None, folder=driver)
    registry = load_all(paths=driver)
    assert names(registry) == ["cpu", "good:0", "good:1", "reference"]
    bad = libraries(registry)["ggml-bad"]
    assert (bad.outcome, bad.origin) == (Outcome.CRASHED, str(driver / "libggml-bad.so"))
    assert "SIGABRT" in bad.reason
    again = load_all(paths=driver, prefer="good")
    assert names(again)[0] == "good:0"


def test_without_a_driver_it_says_which_plugin_drives_it(site, natives):
    natives.variant("strange", None)
    verdict = libraries(load_all(paths=natives.folder))["ggml-strange"]
    assert verdict.outcome is Outcome.NOT_INSTALLED
    assert "pip install hotshoe-ggml-cpu" in verdict.hint


def test_libraries_for_the_cpu_need_their_plugin(site, natives):
    natives.variant("cpu-x64", 1)
    verdict = libraries(load_all(paths=natives.folder))["ggml-cpu-x64"]
    assert (verdict.outcome, verdict.hint) == (Outcome.NOT_INSTALLED, "pip install hotshoe-ggml-cpu")


def test_if_the_plugin_for_the_cpu_is_broken_only_its_verdict_says_so(site, native_plugin, natives):
    """Another plugin has libraries in the same folder, so that it is searched."""
    natives.variant("cpu-x64", 1)
    natives.variant("rpc", None)
    native_plugin("rpc", drives=True)
    site.install("hotshoe-ggml-cpu", "raise OSError('libhotshoe_kernels.so is damaged')")
    registry = load_all(paths=natives.folder)
    assert "ggml-cpu-x64" not in libraries(registry)
    assert [v.candidate for v in registry.verdicts if "is damaged" in v.reason] == ["hotshoe-ggml-cpu"]


@pytest.mark.parametrize(("file", "whose"), [("mlx", "hotshoe-mlx"), ("reference", "hotshoe's reference backend")])
def test_the_names_of_other_engines_cannot_be_taken(driver, natives, caplog, file, whose):
    natives.variant(file, None, folder=driver)
    with caplog.at_level(logging.WARNING, "hotshoe.loader"):
        registry = load_all(paths=driver)
    verdict = libraries(registry)[f"ggml-{file}"]
    assert verdict.outcome is Outcome.SHADOWED
    assert whose in verdict.reason
    assert "another name" in verdict.hint
    assert verdict.reason in caplog.text
    assert names(registry) == ["cpu", "reference"]


@pytest.mark.parametrize("file", ["gpu", "auto", "Loud", "a" * 48])
def test_a_name_that_no_device_may_have(driver, natives, file):
    natives.variant(file, None, folder=driver)
    registry = load_all(paths=driver)
    verdict = libraries(registry)[f"ggml-{file}"]
    assert verdict.outcome is Outcome.INCOMPATIBLE_API
    assert "another name" in verdict.hint
    assert names(registry) == ["cpu", "reference"]


def test_a_plugin_has_its_name_before_a_library(driver, natives, site, caplog):
    site.good("strange", 'name="strange", devices=("strange:0",)')
    natives.variant("strange", None, folder=driver)
    with caplog.at_level(logging.WARNING, "hotshoe.loader"):
        registry = load_all(paths=driver)
    assert names(registry) == ["cpu", "strange:0", "reference"]
    assert registry.select("strange:0")[0].provider == "strange"
    assert "the name 'strange:0' is taken by the entry point 'strange' of strange 1.0" in caplog.text


def test_thousands_of_files_take_no_process_each(driver, natives, monkeypatch):
    """Their headers are read in this process, and a folder may not start a process for each of its files."""
    tested = []
    real = probe._probe_now
    monkeypatch.setattr(probe, "_probe_now", lambda jobs, limit: tested.extend(jobs) or real(jobs, limit))
    strange = natives.variant("strange", None, folder=driver)
    for i in range(2000):
        (driver / f"libggml-empty{i}.so").touch()
    for i in range(100):
        (driver / f"libggml-more{i:03}.so").symlink_to(strange)
    monkeypatch.setattr(without_plugin, "MAX_BACKENDS", 3)
    found = libraries(load_all(paths=driver))
    assert [job.driven_backend for job in tested] == ["", "more000", "more001", "more002"]
    assert found["ggml-empty1999"].outcome is Outcome.IMPORT_ERROR
    assert "not a shared library" in found["ggml-empty1999"].reason
    assert "it was not tested: the folders contain libraries of" in found["ggml-strange"].reason


def test_the_header_of_a_library_with_a_valid_report_is_not_read(driver, natives, probes, monkeypatch):
    natives.variant("strange", None, folder=driver)
    assert "strange:0" in names(load_all(paths=driver))
    _forget()
    monkeypatch.setattr(without_plugin, "_fault", None)
    assert "strange:0" in names(load_all(paths=driver))


def test_block_and_allow(driver, natives):
    library = natives.variant("strange", None, folder=driver)
    other = natives.variant("other", None, folder=driver)
    for word in ("strange", "ggml-strange", library.name, str(library)):
        registry = load_all(paths=driver, block=word)
        assert libraries(registry)["ggml-strange"].outcome is Outcome.BLOCKED, word
        assert names(registry) == ["cpu", "other:0", "other:1", "reference"]
        assert "matches nothing" not in registry.explain()
    registry = load_all(paths=driver, allow="cpu")
    assert {verdict.outcome for name, verdict in libraries(registry).items() if "cpu" not in name} == {Outcome.BLOCKED}
    for word in ("other", other.name, str(other)):
        assert names(load_all(paths=driver, allow=["cpu", word])) == ["cpu", "other:0", "other:1", "reference"], word


def test_a_library_that_offers_no_device(driver, natives):
    """The verdict names the library's own fault, not a plugin that the user does not know."""
    (driver.parent / "mine").mkdir()
    (driver / "libggml-text.so").write_text("not a library")
    natives.library("libggml-plain.so", "int x;", folder=driver)
    natives.variant("old", 0, folder=driver)
    registry = load_all(paths=driver)
    found = libraries(registry)
    assert found["ggml-text"].outcome is Outcome.IMPORT_ERROR
    assert found["ggml-plain"].outcome is Outcome.INCOMPATIBLE_API
    assert found["ggml-old"].outcome is Outcome.NO_DEVICE
    assert not {"ggml-text", "ggml-plain", "ggml-old"} & {v.candidate for v in registry.verdicts if v.kind == "plugin"}
    assert names(registry) == ["cpu", "reference"]
