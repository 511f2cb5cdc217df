"""``hotshoe new-plugin --family --transformers`` and ``--encoder``: the packages pass their tests.

That of a family passes once its config says what the class needs."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from hotshoe.cli import main
from hotshoe.cli.new_plugin import names_for
from hotshoe_core.errors import OptionError

COMMANDS = {
    # a Llama, if all its layers see all tokens
    "family": ["cwm", "--family", "--arch", "cwm_1.x", "--transformers", "CwmForCausalLM"],
    "encoder": ["their-encoder", "--encoder", "--arch", "eurobert_2"],
}


@pytest.mark.parametrize("kind", COMMANDS)
def test_the_package_passes_its_test(kind: str, tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="the tests of these packages need torch")
    pytest.importorskip("transformers", reason="the tests of these packages need transformers")
    package = tmp_path / "package"
    assert main(["new-plugin", *COMMANDS[kind], "--output", str(package)]) == 0
    test = package / "tests" / "test_model.py"
    if kind == "family":
        rope = '"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}'
        more = f'"layer_types": ["full_attention"] * 2, {rope}'
        old = test.read_text()
        new = old.replace('"tie_word', f'{more}, "tie_word')  # as its reader must, for this class
        assert new != old
        test.write_text(new)
    project = tomllib.loads((package / "pyproject.toml").read_text())["project"]
    assert {"torch", "transformers"} <= set(project["optional-dependencies"]["test"])
    assert list(project["entry-points"]["hotshoe.models"]) == [COMMANDS[kind][3]]
    info = tmp_path / f"{project['name'].replace('-', '_')}-0.1.0.dist-info"  # as pip would install it
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: 0.1.0\n")
    groups = [
        f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in entries.items())
        for group, entries in project["entry-points"].items()
    ]
    (info / "entry_points.txt").write_text("".join(groups))
    path = os.pathsep.join([str(package), str(tmp_path)])
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(package), str(test)]
    environment = os.environ | {"PYTHONPATH": path}
    done = subprocess.run(command, cwd=package, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    assert re.search(r"\d passed", done.stdout)


def test_the_files_are_formatted(tmp_path: Path) -> None:
    ruff = shutil.which("ruff", path=os.path.dirname(sys.executable))
    if ruff is None:
        pytest.skip("needs ruff, which `make lint` installs")
    for kind, command in COMMANDS.items():
        assert main(["new-plugin", *command, "--output", str(tmp_path / kind)]) == 0
    own = ["line-length = 120", "target-version = 'py311'", "src = ['*', '*/tests']"]
    (tmp_path / "ruff.toml").write_text("\n".join([*own, "lint.select = ['B', 'E', 'F', 'UP']", ""]))
    for check in (["check"], ["format", "--check"]):
        done = subprocess.run([ruff, *check, "--no-cache", "."], cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout


def test_the_architecture_may_have_another_name() -> None:
    assert names_for("qwen", "family", arch="qwen_9.x") == ("qwen", "hotshoe-qwen", "hotshoe_qwen", "Qwen", "qwen_9.x")
    with pytest.raises(OptionError, match=r"uses this name in 'hotshoe.models'"):
        names_for("acme", "family", arch="llama")
    with pytest.raises(OptionError, match="expected letters, digits"):
        names_for("acme", "family", arch="a b")
    with pytest.raises(OptionError, match="it is for families only"):
        names_for("acme", "backend", arch="a")


@pytest.mark.parametrize("arguments", [["--backend", "--transformers", "A"], ["--family", "--transformers", "a b"]])
def test_a_class_that_cannot_be(arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["new-plugin", "acme", *arguments, "--output", str(tmp_path / "new")]) == 2
    assert "expected the name of a class, for --family or --encoder" in capsys.readouterr().err
    assert not (tmp_path / "new").exists()


def test_a_class_that_is_converted_already(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--family", "--transformers", "LlamaForCausalLM", "--output", str(tmp_path / "new")]
    assert main(["new-plugin", "acme", *arguments]) == 2
    assert (
        "--transformers is 'LlamaForCausalLM', which hotshoe or another installed package converts already"
        in capsys.readouterr().err
    )
    assert not (tmp_path / "new").exists()
