"""Discovery reads metadata and file names only, keeps an order, and survives damaged files."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hotshoe_loader import Outcome, find, load_all
from hotshoe_loader.find import GROUP, find_plugins
from hotshoe_loader.ggml.file_names import find_libraries, list_libraries

_SEARCH_PATH = find._search_path


def test_the_group_is_that_of_the_contract():
    from hotshoe_core.contract.plugin import ENTRY_POINT_GROUP

    assert GROUP == ENTRY_POINT_GROUP


def test_finding_imports_nothing(site):
    site.install("boom", "raise KeyboardInterrupt")
    (plugin,) = find_plugins().plugins
    assert (plugin.name, plugin.value, plugin.origin) == ("boom", "boom", "boom 1.0")
    assert "boom" not in sys.modules


def test_the_order_depends_on_names_alone(site):
    for name in ("delta", "alpha", "charlie", "bravo"):
        site.install(name, "")
    assert [plugin.name for plugin in find_plugins().plugins] == ["alpha", "bravo", "charlie", "delta"]


def test_other_groups_and_plain_distributions_are_not_candidates(site):
    site.metadata("plain", "1", None)
    site.metadata("tool", "1", "[console_scripts]\ntool = tool:main\n")
    assert find_plugins().plugins == []


def test_damaged_metadata_is_a_verdict_or_nothing(site, verdicts):
    site.metadata("binary", "1", b"[hotshoe.backends]\n\xff\xfe = x\n")
    site.metadata("format", "1", f"stray line\n[{GROUP}]\nx\n")
    nameless = site.metadata("nameless", "1", f"[{GROUP}]\nnameless = nowhere_such\n")
    (nameless / "METADATA").unlink()
    site.good()
    outcomes = verdicts(load_all())
    assert outcomes["acme"] == "available"
    assert outcomes["nameless"] == "import-error"


def test_an_older_copy_of_a_distribution_is_shadowed(site, caplog):
    site.good("acme", version="2.0")
    site.metadata("acme", "1.0", f"[{GROUP}]\nacme = acme\n", site=site.path)
    registry = load_all()
    outcomes = [verdict.outcome for verdict in registry.verdicts if verdict.details.get("plugin") == "acme"]
    assert sorted(outcome.value for outcome in outcomes) == ["available", "shadowed"]
    assert "comes after acme 1.0" in caplog.text, "another copy may have been put there to be used in its place"
    line = f"another copy of acme 2.0, in {site.path}, is not used"
    assert line in registry.why("npu:0")
    assert line in load_all(device="acme", refresh=True).why("acme")


def test_entries_of_the_path_that_are_not_text_are_ignored(site, probes, monkeypatch):
    """As Python does: a Path is a common mistake, and None is what some frozen programs have."""
    site.good()
    monkeypatch.setattr(find, "_search_path", _SEARCH_PATH)
    monkeypatch.setattr(sys, "path", [None, site.path, 5, *sys.path])
    assert load_all(allow="acme").devices[0].name == "npu:0"
    assert load_all(allow="acme", refresh=True).devices[0].name == "npu:0"


def test_the_current_directory_is_not_searched(tmp_path):
    folder = tmp_path / "evil-1.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: evil\nVersion: 1\n")
    (folder / "entry_points.txt").write_text(f"[{GROUP}]\nevil = evil\n")
    code = "import sys; assert '' in sys.path; from hotshoe_loader import find; print(find.find_plugins())"
    names = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert "evil" not in names.stdout


def test_finding_works_with_the_backport_in_charge(tmp_path):
    # asked of a fresh process: in this one, setuptools may have put its own copy on the path
    if subprocess.run([sys.executable, "-c", "import importlib_metadata"], capture_output=True).returncode:
        pytest.skip("needs the package importlib-metadata")
    folder = tmp_path / "acme-1.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: acme\nVersion: 1\n")
    (folder / "entry_points.txt").write_text(f"[{GROUP}]\nacme = acme\n")
    code = (
        f"import sys, importlib_metadata; sys.path.append({str(tmp_path)!r})\nfrom hotshoe_loader import find\n"
        "print([(p.name, p.origin) for p in find.find_plugins().plugins if p.name == 'acme'])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[('acme', 'acme 1')]"


def touch(folder: Path, *names: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        (folder / name).touch()


@pytest.fixture
def linux(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "linux")


def test_libraries_are_known_by_ggmls_naming(tmp_path, linux):
    touch(
        tmp_path,
        "libggml-cpu.so",
        "libggml-cpu-zen4.so",
        "libggml-cpu-x64.so",
        "libggml-cpux.so",
        "libggml-base.so",
        "libggml-base-x.so",
        "libggml-cpu-old.so.0",
        "libggml.so",
        "libllama.so",
        "notes.txt",
    )
    found = find_libraries("cpu", [tmp_path])
    assert [(library.variant, library.name) for library in found] == [
        ("x64", "ggml-cpu-x64"),
        ("zen4", "ggml-cpu-zen4"),
        ("", "ggml-cpu"),
    ]
    assert [library.name for library in list_libraries(tmp_path)] == [
        "ggml-cpu-x64",
        "ggml-cpu-zen4",
        "ggml-cpu",
        "ggml-cpux",
    ]


def test_names_on_other_platforms(tmp_path, monkeypatch):
    touch(tmp_path, "libggml-metal.dylib", "libggml-cpu-apple_m1.so", "ggml-cpu-x64.dll", "libggml-cpu-haswell.dll")
    monkeypatch.setattr(sys, "platform", "darwin")
    assert [library.name for library in list_libraries(tmp_path)] == ["ggml-cpu-apple_m1", "ggml-metal"]
    monkeypatch.setattr(sys, "platform", "win32")
    assert [library.name for library in list_libraries(tmp_path)] == ["ggml-cpu-x64", "ggml-cpu-haswell"]


def test_a_file_reached_twice_counts_once_and_the_first_folder_wins(tmp_path, linux):
    touch(tmp_path / "a", "libggml-cpu-x64.so")
    os.symlink(tmp_path / "a", tmp_path / "b")
    found = find_libraries("cpu", [tmp_path / "b", tmp_path / "a", tmp_path / "none"])
    assert [library.path for library in found] == [tmp_path / "b" / "libggml-cpu-x64.so"]


def test_relative_folders_are_not_searched(tmp_path, monkeypatch, linux):
    touch(tmp_path, "libggml-cpu-x64.so")
    monkeypatch.chdir(tmp_path)
    assert find_libraries("cpu", [Path(), Path(".")]) == []


def test_relative_entries_of_the_variable_are_refused_by_name(site, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOTSHOE_PATH", os.pathsep.join(["", "build/lib", str(tmp_path / "none")]))
    found = {verdict.candidate: verdict.outcome for verdict in load_all().verdicts if verdict.kind == "library"}
    assert found == {"build/lib": Outcome.UNTRUSTED, str(tmp_path / "none"): Outcome.NOT_INSTALLED}
