"""Two real ggmls of different versions on one machine. Skips unless HOTSHOE_TEST_GGML names the folder of another one:

npm pack @node-llama-cpp/linux-x64 && tar xzf node-llama-cpp-linux-x64-*.tgz
HOTSHOE_TEST_GGML=$PWD/package/bins/linux-x64 python -m pytest tests/zoo/test_foreign_ggml.py
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hotshoe_loader.binary import version_in
from tests.zoo.animals import BODY, GGML, WORKS
from tests.zoo.visits import Visit, Zoo
from tests.zoo.wheels import write_wheel

SUMS = [6.0, 24.0]


@pytest.fixture(scope="module")
def foreign() -> Path:
    folder = os.environ.get("HOTSHOE_TEST_GGML", "")
    if not folder:
        pytest.skip("HOTSHOE_TEST_GGML names no folder with another ggml")
    return Path(folder)


def check(visit: Visit, version: str) -> None:
    refused = [v for v in visit.report["verdicts"] if v["outcome"] == "abi-mismatch" and v["kind"] == "library"]
    assert refused
    for verdict in refused:
        assert version in verdict["reason"], "it names the version that was found …"
        assert "; " in verdict["reason"], "… and the one it would have joined"
    assert visit.report["answers"] == {"cpu": SUMS, "reference": SUMS}
    assert visit.report["changed"] == {}


def test_a_folder_of_another_ggml(new_environment, foreign, tmp_path):
    """Its libraries never reach ours: ggml's own check, one integer, would let them in."""
    home: Zoo = new_environment("foreign-folder")
    visit = home.visit(tmp_path, paths=[str(foreign)])
    check(visit, version_in(foreign / "libggml-base.so") or "no version")


def test_a_wheel_with_another_ggml(new_environment, foreign, tmp_path):
    code = (
        (BODY + GGML)
        .replace("{name}", "cpu")
        .replace('name, family, api_version = "cpu"', 'name, family, api_version = "guest"')
    )
    files = {"zoo_guest/__init__.py": code.encode()}
    for name in ("libggml-base.so", "libggml-cpu-x64.so", "libggml-cpu-haswell.so"):
        files[f"zoo_guest/{name}"] = (foreign / name).read_bytes()
    wheel = write_wheel(tmp_path, "zoo-guest", files, "[hotshoe.backends]\nguest = zoo_guest\n")
    visit = new_environment("foreign-wheel", [wheel]).visit(tmp_path)
    check(visit, version_in(foreign / "libggml-base.so") or "no version")
    (plugin,) = [v for v in visit.report["verdicts"] if v["origin"].startswith("zoo-guest")]
    assert plugin["outcome"] == "abi-mismatch"


def test_a_whole_other_set_is_adopted_or_refused_by_version(new_environment, foreign, tmp_path):
    """load_all(ggml=DIR): every library of it is judged, the best computes; or both versions are named."""
    visit = new_environment("adopted").visit(tmp_path, compute=["cpu"], ggml=str(foreign))
    (plugin,) = [v for v in visit.report["verdicts"] if v["candidate"] == "ggml-cpu"]
    if plugin["outcome"] == "abi-mismatch":
        assert (version_in(foreign / "libggml-base.so") or "no version") in plugin["reason"]
        return
    assert visit.report["answers"] == {"cpu": SUMS}
    used = [v for v in visit.report["verdicts"] if v["kind"] == "library" and v["outcome"] in WORKS]
    assert [Path(v["origin"]).parent for v in used] == [foreign]
