"""Two real ggmls of different versions on one machine."""

from __future__ import annotations

from pathlib import Path

from hotshoe_loader.ggml.library_abi import version_in
from tests.support.other_ggml import other_ggml as foreign
from tests.zoo.species import BODY, GGML, WORKS
from tests.zoo.visits import Visit, Zoo
from tests.zoo.wheels import write_wheel

__all__ = ["foreign"]

SUMS = [6.0, 24.0]


def check(visit: Visit, version: str) -> None:
    refused = [v for v in visit.report["verdicts"] if v["outcome"] == "abi-mismatch" and v["kind"] == "library"]
    assert refused
    for verdict in refused:
        assert version in verdict["reason"], "it names the version that was found …"
        assert "; " in verdict["reason"], "… and the one it would have joined"
    assert visit.report["answers"] == {"cpu": SUMS, "reference": SUMS}
    assert visit.report["changed"] == {}


def test_a_folder_of_another_ggml(new_environment, foreign, tmp_path):
    """Its libraries are never loaded with ours, although ggml's own check, one integer, would accept them."""
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
    for library in (foreign / "libggml-base.so", *sorted(foreign.glob("libggml-cpu*.so"))[:2]):
        files[f"zoo_guest/{library.name}"] = library.read_bytes()
    wheel = write_wheel(tmp_path, "zoo-guest", files, "[hotshoe.backends]\nguest = zoo_guest\n")
    visit = new_environment("foreign-wheel", [wheel]).visit(tmp_path)
    check(visit, version_in(foreign / "libggml-base.so") or "no version")
    (plugin,) = [v for v in visit.report["verdicts"] if v["origin"].startswith("zoo-guest")]
    assert plugin["outcome"] == "abi-mismatch"


def test_a_whole_other_set_is_adopted_or_refused_by_version(new_environment, foreign, tmp_path):
    """load_all(ggml=DIR): every library gets a verdict, and the best computes, or the verdict names both versions."""
    visit = new_environment("adopted").visit(tmp_path, compute=["cpu"], ggml=str(foreign))
    plugins = [v for v in visit.report["verdicts"] if v["kind"] == "plugin"]
    (plugin,) = [v for v in plugins if v["candidate"] == "ggml-cpu"]  # the name of a library too, if it has no variants
    if plugin["outcome"] == "abi-mismatch":
        assert (version_in(foreign / "libggml-base.so") or "no version") in plugin["reason"]
        return
    assert visit.report["answers"] == {"cpu": SUMS}
    used = [v for v in visit.report["verdicts"] if v["kind"] == "library" and v["outcome"] in WORKS]
    assert [Path(v["origin"]).parent for v in used] == [foreign]
