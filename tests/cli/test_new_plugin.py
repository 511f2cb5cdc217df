"""``hotshoe new-plugin``: names, refusals, what is written and printed. That it works: tests/zoo/test_new_plugin.py."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hotshoe.cli import main, new_plugin
from hotshoe.cli.new_plugin import Names, names_for
from hotshoe_core.errors import OptionError

ROOT = Path(__file__).parents[2]
KINDS = ("backend", "family", "encoder", "libraries")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("acme-npu", ("acme-npu", "hotshoe-acme-npu", "hotshoe_acme_npu", "AcmeNpu")),
        ("Acme_NPU.2", ("acme-npu-2", "hotshoe-acme-npu-2", "hotshoe_acme_npu_2", "AcmeNpu2")),
        ("numpy", ("numpy", "hotshoe-numpy", "hotshoe_numpy", "Numpy")),  # a binding is named after its library
    ],
)
def test_the_names_made_of_a_name(name: str, expected: tuple[str, str, str, str]) -> None:
    assert names_for(name, "backend")[:4] == expected


def test_the_package_may_have_another_name() -> None:
    assert names_for("npu", "backend", "Acme.Tools")[:4] == ("npu", "acme-tools", "acme_tools", "Npu")
    assert names_for("hotshoe-x", "backend", "acme-x")[:4] == ("hotshoe-x", "acme-x", "acme_x", "HotshoeX")
    with pytest.raises(OptionError, match="hotshoe-hotshoe-") as caught:
        names_for("hotshoe-acme", "backend")
    assert caught.value.hint == "name it acme"


@pytest.mark.parametrize(
    ("package", "words"),
    [
        ("acme npu", "PEP 508"),
        ("3d", "not a name in Python"),
        ("class", "not a name in Python"),
        ("json", "a module of Python"),
        ("tests", "has a file or folder"),
        ("numpy", "another package already"),
        ("hotshoe-mlx", "a name of hotshoe-mlx"),
        ("hotshoe", "a name of hotshoe"),
    ],
)
@pytest.mark.parametrize("kind", KINDS)
def test_names_of_packages_that_are_refused(package: str, words: str, kind: str) -> None:
    with pytest.raises(OptionError, match=re.escape(words)) as caught:
        names_for("acme", kind, package)
    assert caught.value.hint is not None


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("", "PEP 508"),
        ("-acme", "PEP 508"),
        ("acme npu", "PEP 508"),
        ("acmé", "PEP 508"),
        ("acme/npu", "PEP 508"),
        ("../acme", "PEP 508"),
        ("a" * 49, "1 to 48"),
        ("3d", "not a name in Python"),
        ("auto", "is reserved"),
        ("gpu", "is reserved"),
        ("cuda", "a name of hotshoe-ggml-cuda"),
        ("ggml_cpu", "a name of hotshoe-ggml-cpu"),
        ("hotshoe-mlx", "a name of hotshoe-mlx"),
        ("ggml-rpc", "a name of hotshoe"),
        ("Hotshoe", "a name of hotshoe"),
        ("reference", "a name of hotshoe"),
    ],
)
@pytest.mark.parametrize("kind", KINDS)
def test_names_that_are_refused(name: str, words: str, kind: str) -> None:
    with pytest.raises(OptionError, match=re.escape(words)) as caught:
        names_for(name, kind)
    assert caught.value.hint is not None


def test_a_family_of_ours_is_refused_as_a_family_only() -> None:
    with pytest.raises(OptionError, match=r"hotshoe 0.*is installed and uses this name in 'hotshoe.models'") as caught:
        names_for("llama", "family")
    assert "uninstall" not in str(caught.value.hint)  # of all of hotshoe
    assert names_for("llama", "backend").module == "hotshoe_llama"


def test_a_plugin_that_is_installed_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    info = tmp_path / "Acme_NPU-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: Acme_NPU\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[hotshoe.backends]\nnpu = acme_npu\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("npu", "acme-npu"):
        with pytest.raises(OptionError, match=r"Acme_NPU 1\.0") as caught:
            names_for(name, "backend")
        assert caught.value.hint == "take another name, such as acme-npu, or pip uninstall Acme_NPU"


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_written(kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "some" / "where else"
    assert main(["new-plugin", "acme-npu", f"--{kind}", "--package", "their-tools", "--output", str(target)]) == 0
    out = capsys.readouterr().out.splitlines()
    files = [path for path in target.rglob("*") if path.is_file()]
    assert out[0].startswith(f"{target}: {len(files)} files, ")
    assert "their-tools" in out[0]
    assert out[1] == "Python imports their_tools, hotshoe calls it acme-npu"
    assert f"    cd '{target}'" in out
    assert '    pip install -e ".[test]"' in out
    assert out[-1] == f"{target / 'README.md'} says what to write."
    assert os.listdir(target.parent) == ["where else"]
    assert target.stat().st_mode & 0o777 == target.parent.stat().st_mode & 0o777
    readme = (target / "README.md").read_text(encoding="utf-8")
    first = readme.split("```")[1].splitlines()[1:]
    assert len([line for line in first if not line.startswith("#")]) == 5  # the five commands of the first hour
    for path in files:
        assert path.suffix != ".in"
        text = path.read_text(encoding="utf-8")
        assert not re.search(rf"my.?{kind}|hotshoe.acme", str(path.relative_to(target)) + text, re.IGNORECASE), path
        if path.suffix == ".py":
            compile(text, str(path), "exec")
    assert any("YOURS" in path.read_text(encoding="utf-8") for path in files if path.suffix == ".py")


def test_the_files_are_formatted(tmp_path: Path) -> None:
    ruff = shutil.which("ruff", path=os.path.dirname(sys.executable))
    if ruff is None:
        pytest.skip("needs ruff, which `make lint` installs")
    for kind in KINDS:
        assert main(["new-plugin", "acme-npu", f"--{kind}", "--output", str(tmp_path / kind)]) == 0
    own = ["line-length = 120", "target-version = 'py311'", "src = ['*', '*/tests']"]
    (tmp_path / "ruff.toml").write_text("\n".join([*own, "lint.select = ['B', 'E', 'F', 'UP']", ""]))
    for command in (["check"], ["format", "--check"]):
        done = subprocess.run([ruff, *command, "--no-cache", "."], cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout


def test_nothing_is_overwritten(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["new-plugin", "Acme.NPU", "--backend"]) == 0
    written = sorted(Path("hotshoe-acme-npu").rglob("*"))
    (tmp_path / "hotshoe-acme-npu" / "pyproject.toml").write_text("mine")
    capsys.readouterr()
    assert main(["new-plugin", "acme-npu", "--family"]) == 2
    err = capsys.readouterr().err
    assert "hotshoe-acme-npu exists already" in err
    assert "hint: name another folder with --output" in err
    assert sorted(Path("hotshoe-acme-npu").rglob("*")) == written
    assert (tmp_path / "hotshoe-acme-npu" / "pyproject.toml").read_text() == "mine"
    (tmp_path / "file").touch()
    assert main(["new-plugin", "acme-npu", "--family", "--output", "file"]) == 2
    (tmp_path / "an empty one").mkdir()
    monkeypatch.chdir("an empty one")
    assert main(["new-plugin", "acme-npu", "--family", "--output", "."]) == 0
    assert Path("hotshoe_acme_npu", "model.py").is_file()
    assert sorted(os.listdir(tmp_path)) == ["an empty one", "file", "hotshoe-acme-npu"]


def test_everything_is_written_or_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def rendered(names: Names, kind: str, transformers: str | None) -> Iterator[tuple[str, str]]:
        yield "pyproject.toml", ""
        raise OSError("the disk is full")

    monkeypatch.setattr(new_plugin, "_rendered", rendered)
    assert main(["new-plugin", "acme-npu", "--backend", "--output", str(tmp_path / "new")]) == 2
    assert os.listdir(tmp_path) == []


def test_one_kind_must_be_chosen(capsys: pytest.CaptureFixture[str]) -> None:
    for kinds in ([], ["--backend", "--family"]):
        with pytest.raises(SystemExit) as caught:
            main(["new-plugin", "acme-npu", *kinds])
        assert caught.value.code == 2
        assert "--libraries" in capsys.readouterr().err


def test_stamping_says_which_ggml(tmp_path: Path) -> None:
    """stamp.py writes the version of a source tree, and the fingerprint that the loader compares."""
    abi = pytest.importorskip("hotshoe_ggml.abi", reason="needs hotshoe-ggml-cpu")
    assert main(["new-plugin", "acme-npu", "--libraries", "--output", str(tmp_path / "new")]) == 0
    source = tmp_path / "ggml"
    (source / "include").mkdir(parents=True)
    for name in abi.HEADERS:
        (source / "include" / name).write_text(f"int {Path(name).stem.replace('-', '_')};\n")
    parts = {"MAJOR": 0, "MINOR": 21, "PATCH": 4}
    (source / "CMakeLists.txt").write_text("".join(f"set(GGML_VERSION_{k} {v})\n" for k, v in parts.items()))
    subprocess.run([sys.executable, tmp_path / "new" / "stamp.py", source], check=True)

    from hotshoe_loader.ggml.library_abi import declared_ggml
    from hotshoe_loader.manifest import read_manifest

    built = declared_ggml(read_manifest(tmp_path / "new" / "hotshoe_acme_npu" / "hotshoe-plugin.json"))
    assert built is not None
    assert built.abi == ("0.21.4", abi.fingerprint([source / "include"], "0.21.4"))


def test_the_wheel_of_hotshoe_holds_the_templates() -> None:
    wheel = pytest.importorskip("hatchling.builders.wheel", reason="needs hatchling")
    held = {file.distribution_path for file in wheel.WheelBuilder(str(ROOT)).recurse_included_files()}
    templates = ROOT / "engine" / "hotshoe" / "cli" / "templates"
    assert {p.relative_to(ROOT / "engine").as_posix() for p in templates.rglob("*.in")} <= held
