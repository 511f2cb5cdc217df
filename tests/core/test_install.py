"""The commands that hints propose, for each way of installing hotshoe."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from hotshoe_core.errors import install
from hotshoe_core.errors.install import _checkout, pip_build, pip_install

ROOT = Path(__file__).parents[2]
PLUGINS = ("ggml-cpu", "ggml-cuda", "mlx")  # of a checkout that lacks the others


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    _checkout.cache_clear()
    yield
    _checkout.cache_clear()


def make_checkout(root: Path) -> Path:
    for folder in (".", "core", *(f"plugins/{name}" for name in PLUGINS)):
        (root / folder).mkdir(parents=True, exist_ok=True)
        (root / folder / "pyproject.toml").touch()
    (root / ".git").mkdir()
    return root


def installed(monkeypatch: pytest.MonkeyPatch, site: Path, origin: object = None) -> None:
    """Pretend that hotshoe_core lies in ``site``, and that pip wrote ``origin`` about where it got it."""
    info = site / "hotshoe_core-0.1.0.dist-info"
    info.mkdir(parents=True)
    if origin is not None:
        (info / "direct_url.json").write_text(origin if isinstance(origin, str) else json.dumps(origin))
    monkeypatch.setattr(install, "_PACKAGE", str(site / "hotshoe_core"))


def test_this_checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(install, "_PACKAGE", str(ROOT / "core" / "hotshoe_core"))
    assert _checkout() == str(ROOT)


def test_from_wheels(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    installed(monkeypatch, tmp_path / "site")
    assert pip_install("hotshoe-ggml-cuda") == "pip install hotshoe-ggml-cuda"
    assert pip_install("hotshoe[grammar]") == "pip install 'hotshoe[grammar]'"
    assert pip_install("hotshoe", "--upgrade") == "pip install --upgrade hotshoe"
    assert pip_install("acme", "--force-reinstall") == "pip install --force-reinstall acme"
    assert pip_build("acme") == "pip install --force-reinstall --no-deps --no-binary acme acme"
    assert pip_install("a; rm -rf ~") == "pip install 'a; rm -rf ~'"


@pytest.mark.parametrize(
    "origin",
    [
        {"url": "file:///dist/hotshoe_core-0.1.0-py3-none-any.whl", "archive_info": {}},
        {"url": "https://example.org/hotshoe.git", "vcs_info": {}},
        {"dir_info": {}},
        {"url": 5, "dir_info": {}},
        {"url": "file:///x", "dir_info": 5},
        ["file:///"],
        "{",
        "[" * 60_000,
    ],
)
def test_from_something_that_is_not_a_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, origin: object) -> None:
    installed(monkeypatch, tmp_path / "site", origin)
    assert pip_install("hotshoe-ggml-cpu") == "pip install hotshoe-ggml-cpu"


def test_editable(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    root = make_checkout(tmp_path / "hotshoe")
    installed(monkeypatch, root / "core")
    assert pip_install("hotshoe-ggml-cpu", "--force-reinstall") == f"pip install {root}/plugins/ggml-cpu"
    assert pip_install("hotshoe-ggml-cuda") == f"pip install {root}/plugins/ggml-cpu {root}/plugins/ggml-cuda"
    assert pip_install("hotshoe-mlx") == f"pip install {root}/plugins/mlx"
    assert pip_build("hotshoe-ggml-cpu") == f"pip install {root}/plugins/ggml-cpu"
    assert pip_install("hotshoe[grammar]") == f"pip install -e '{root}[grammar]'"
    assert pip_install("hotshoe", "--upgrade") == f"git -C {root} pull && pip install -e {root}/core -e {root}"
    assert pip_install("hotshoe-olmo2", "--upgrade") == "pip install --upgrade hotshoe-olmo2", "of somebody else"
    assert pip_install("acme", "--upgrade") == "pip install --upgrade acme"
    assert pip_install("hotshoe-ggml-rpc") == "pip install hotshoe-ggml-rpc", "this checkout lacks it"
    (root / ".git").rmdir()
    assert pip_install("hotshoe", "--upgrade") == f"pip install -e {root}/core -e {root}", "not made by git"


def test_copied_from_a_checkout(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    root = make_checkout(tmp_path / "my hotshoe")
    installed(monkeypatch, tmp_path / "site", {"url": (root / "core").as_uri(), "dir_info": {}})
    assert pip_install("hotshoe-ggml-cpu") == f"pip install '{root}/plugins/ggml-cpu'"
    assert pip_install("hotshoe[grammar]") == f"pip install '{root}[grammar]'"
    assert pip_install("hotshoe", "--upgrade") == f"git -C '{root}' pull && pip install '{root}/core' '{root}'"


def test_copied_from_a_checkout_that_was_removed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    installed(monkeypatch, tmp_path / "site", {"url": "file:///gone/hotshoe/core", "dir_info": {}})
    step = "in a checkout of hotshoe: pip install"
    assert pip_install("hotshoe-ggml-rpc") == f"{step} ./plugins/ggml-cpu ./plugins/ggml-rpc"
    assert pip_install("hotshoe[grammar]") == f"{step} '.[grammar]'"
    assert pip_install("hotshoe", "--upgrade") == f"{step} ./core ."
    assert pip_install("acme") == "pip install acme"
    assert pip_install("hotshoe-olmo2") == "pip install hotshoe-olmo2", "of somebody else"


def test_our_distributions() -> None:
    projects = (ROOT / "pyproject.toml", ROOT / "core" / "pyproject.toml", *ROOT.glob("plugins/*/pyproject.toml"))
    names = {tomllib.loads(path.read_text(encoding="utf-8"))["project"]["name"]: path.parent for path in projects}
    assert {name: Path(f"{ROOT}{folder}") for name, folder in install._FOLDERS.items()} == names


@pytest.mark.parametrize("editable", [True, False])
def test_a_distribution_of_others_from_a_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, editable: bool
) -> None:
    installed(monkeypatch, tmp_path / "site")
    source, info = tmp_path / "my npu", tmp_path / "acme_npu-1.0.dist-info"
    info.mkdir()
    origin = {"url": source.as_uri(), "dir_info": {"editable": True} if editable else {}}
    (info / "direct_url.json").write_text(json.dumps(origin))
    assert pip_install("acme-npu", "--upgrade", str(info)) == "pip install --upgrade acme-npu", "it was removed"
    source.mkdir()
    command = f"pip install {'-e ' if editable else ''}'{source}'"
    assert pip_install("acme-npu", "--upgrade", str(info)) == command


def test_no_message_has_a_command_of_its_own_for_our_distributions() -> None:
    """pip_install makes these commands, because the right one depends on the installation."""
    own = re.compile(r"(?<!``)pip install[^\n]*(hotshoe|\./plugins)")
    found = [
        f"{path.relative_to(ROOT)}: {line.strip()}"
        for folder in ("core", "loader", "engine", "plugins")
        for path in (ROOT / folder).rglob("*.py")
        for line in path.read_text(encoding="utf-8").splitlines()
        if own.search(line) and path.name != "install.py" and "build" not in path.relative_to(ROOT).parts
    ]
    assert not found
