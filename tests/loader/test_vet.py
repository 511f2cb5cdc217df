"""Plugins and libraries that are rejected before their code runs: by name, platform, hash, version and header."""

from __future__ import annotations

import base64
import hashlib
import json
import sys

import pytest

from hotshoe_core.errors import OptionError
from hotshoe_loader import Outcome, load_all
from hotshoe_loader.binary import install_hint, read_binary
from hotshoe_loader.ggml.library_abi import version_in
from hotshoe_loader.options import Options
from tests.support.fake_plugins import GOOD, PROVIDER

GOOD_CODE = GOOD.replace("{arguments}", "")
NEVER = "raise AssertionError('its code ran')"


def verdict(registry, name="bad"):
    return next(each for each in registry.verdicts if each.candidate == name)


# -- allow --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["good", "Good", "entry"])
@pytest.mark.parametrize("way", ["argument", "environment"])
def test_allow(site, monkeypatch, name, way):
    site.install("bad", NEVER)
    site.good("good", entry="entry")
    if way == "environment":
        monkeypatch.setenv("HOTSHOE_ALLOW", f"other, {name}")
    registry = load_all(allow=name if way == "argument" else ())
    assert verdict(registry).outcome is Outcome.BLOCKED
    assert "it is not in allow= or HOTSHOE_ALLOW" in verdict(registry).reason
    assert "add 'bad' to allow=" in verdict(registry).hint
    assert [device.name for device in registry.devices] == ["npu:0", "reference"]


def test_an_allowed_plugin_can_be_blocked(site):
    site.install("bad", NEVER)
    assert verdict(load_all(allow="bad", block="bad")).outcome is Outcome.BLOCKED


def test_an_allowed_name_that_matched_nothing_is_noted(site):
    assert "'acmme' in allow= or HOTSHOE_ALLOW matches nothing" in load_all(allow="acmme").explain()


def test_a_published_plugin_is_allowed_by_its_short_name(site):
    site.install("hotshoe-ggml-vulkan", GOOD_CODE)
    site.install("bad", NEVER)
    assert verdict(load_all(allow="vulkan"), "acme").outcome is Outcome.AVAILABLE


def test_libraries_of_the_user_need_permission_too(site, natives):
    natives.variant("vulkan", None)
    registry = load_all(paths=natives.folder, allow="cpu")
    assert verdict(registry, "ggml-vulkan").outcome is Outcome.BLOCKED
    registry = load_all(paths=natives.folder, allow="vulkan")
    assert verdict(registry, "ggml-vulkan").outcome is Outcome.NOT_INSTALLED


# -- options ------------------------------------------------------------------------------------------------


def options(environ=None, **more):
    return Options.from_arguments(None, None, None, None, environ or {}, **more)


def test_timeout_and_system_and_ggml(tmp_path):
    assert options().timeout is None
    assert options().limits(named=False) == (10, 10, False)
    assert options().limits(named=True) == (10, 300, False)
    assert options(timeout=3).limits(named=True) == (3, 3, True)
    assert options({"HOTSHOE_PROBE_TIMEOUT": "2.5"}).timeout == 2.5
    assert options({"HOTSHOE_PROBE_TIMEOUT": "2.5"}, timeout=3).timeout == 3
    assert options({"HOTSHOE_SYSTEM": "1"}).system
    assert not options({"HOTSHOE_SYSTEM": "off"}).system
    assert not options({"HOTSHOE_SYSTEM": "1"}, system=False).system
    assert options({"HOTSHOE_GGML": str(tmp_path)}).ggml == str(tmp_path)
    assert options(ggml=tmp_path).ggml == str(tmp_path)


@pytest.mark.parametrize("wrong", [{"timeout": "1"}, {"timeout": True}, {"system": 1}, {"ggml": 3}, {"allow": 3}])
def test_options_of_the_wrong_type(site, wrong):
    with pytest.raises(TypeError, match=f"load_all\\({next(iter(wrong))}="):
        load_all(**wrong)


@pytest.mark.parametrize("wrong", [{"timeout": 0}, {"timeout": -1}, {"timeout": float("nan")}, {"ggml": "/no/such"}])
def test_options_out_of_range(site, wrong):
    with pytest.raises(OptionError, match=f"load_all\\({next(iter(wrong))}="):
        load_all(**wrong)


@pytest.mark.parametrize(("name", "value"), [("PROBE_TIMEOUT", "soon"), ("PROBE_TIMEOUT", "0"), ("GGML", "relative")])
def test_variables_out_of_range(site, monkeypatch, name, value):
    monkeypatch.setenv(f"HOTSHOE_{name}", value)
    with pytest.raises(OptionError, match=f"HOTSHOE_{name}"):
        load_all()


def test_system_searches_the_known_folders(site, natives, monkeypatch):
    from hotshoe_loader.ggml import known_folders as module

    natives.variant("strange", None)
    monkeypatch.setattr(
        module, "known_folders", lambda: [(natives.folder, "a package"), (natives.folder / "x", "Ollama")]
    )
    assert "ggml-strange" not in {each.candidate for each in load_all().verdicts}
    registry = load_all(system=True)
    assert verdict(registry, "ggml-strange").outcome is Outcome.NOT_INSTALLED
    assert "Ollama names this folder" in verdict(registry, str(natives.folder / "x")).reason


# -- wheels -------------------------------------------------------------------------------------------------


def wheel(site, tags: list[str]) -> None:
    text = "Wheel-Version: 1.0\n" + "".join(f"Tag: {tag}\n" for tag in tags)
    (site.path / "bad-1.0.dist-info" / "WHEEL").write_text(text)


@pytest.mark.parametrize(
    "tag",
    ["py3-none-macosx_11_0_arm64", "py3-none-win_amd64", "py3-none-manylinux_2_17_s390x", "cp36-cp36m-any"],
)
def test_a_wheel_for_another_platform(site, monkeypatch, tag):
    monkeypatch.setattr(sys, "platform", "linux")
    site.install("bad", NEVER)
    wheel(site, [tag])
    found = verdict(load_all())
    assert found.outcome is Outcome.ABI_MISMATCH
    assert tag in found.reason
    assert "linux" in found.reason


@pytest.mark.parametrize(
    "tag",
    [
        "py3-none-any",
        "py3-none-manylinux_2_17_x86_64.manylinux2014_x86_64",
        "cp38-abi3-linux_x86_64",
        f"cp{sys.version_info[0]}{sys.version_info[1]}-cp{sys.version_info[0]}{sys.version_info[1]}-musllinux_1_2_x86_64",
    ],
)
def test_a_wheel_for_this_platform(site, monkeypatch, tag):
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    site.install("bad", GOOD_CODE)
    wheel(site, ["py3-none-win32", tag])
    assert verdict(load_all(), "acme").outcome is Outcome.AVAILABLE


def record(site, *names: str) -> None:
    lines = []
    for name in names:
        data = (site.path / name).read_bytes()
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        lines.append(f"{name},sha256={digest},{len(data)}\n")
    (site.path / "bad-1.0.dist-info" / "RECORD").write_text("".join(lines) + "bad-1.0.dist-info/RECORD,,\n")


@pytest.mark.parametrize("data", [b"other", b"longer one", None])
def test_a_native_file_that_is_not_the_wheels(site, data):
    site.install("bad", NEVER)
    (site.path / "extension.abi3.so").write_bytes(b"right")
    record(site, "extension.abi3.so")
    if data is None:
        (site.path / "extension.abi3.so").unlink()
    else:
        (site.path / "extension.abi3.so").write_bytes(data)
    found = verdict(load_all())
    assert found.outcome is Outcome.UNTRUSTED
    assert "extension.abi3.so" in found.reason
    assert found.hint == "pip install --force-reinstall bad"


def test_a_changed_library_leaves_the_other_variants(site, native_plugin, natives):
    natives.variant("cpu-x64", 1)
    changed = natives.variant("cpu-zen4", 9)
    native_plugin()
    info = site.path / "hotshoe-ggml-cpu-1.0.dist-info"
    (info / "RECORD").write_text(f"../lib/{changed.name},sha256=AAAA,{changed.stat().st_size}\n")
    registry = load_all()
    assert verdict(registry, "ggml-cpu-zen4").outcome is Outcome.UNTRUSTED
    assert "sha256" in verdict(registry, "ggml-cpu-zen4").reason
    assert registry.devices[0].library == natives.folder / "libggml-cpu-x64.so"


# -- manifests ----------------------------------------------------------------------------------------------


def manifest(folder, **fields) -> None:
    folder.mkdir(exist_ok=True, parents=True)
    (folder / "hotshoe-plugin.json").write_text(json.dumps({"format": 1, **fields}))


@pytest.mark.parametrize(
    ("api", "expected", "hint"),
    [
        (9, "version 9", "--upgrade hotshoe"),
        ([7, 9], "versions 7 to 9", "--upgrade hotshoe"),
        ([0, 0], "version 0", "--upgrade bad"),
    ],
)
def test_the_contract_is_compared_before_the_import(site, api, expected, hint):
    site.install("bad", None)
    manifest(site.path / "bad", api=api)
    (site.path / "bad" / "__init__.py").write_text(NEVER)
    found = verdict(load_all())
    assert found.outcome is Outcome.INCOMPATIBLE_API
    assert expected in found.reason
    assert hint in found.hint


def test_a_manifest_of_an_editable_installation(site, tmp_path, monkeypatch):
    site.install("bad", None)
    manifest(tmp_path / "source" / "bad", api=9)
    (tmp_path / "source" / "bad" / "__init__.py").write_text(NEVER)
    monkeypatch.syspath_prepend(str(tmp_path / "source"))
    assert verdict(load_all()).outcome is Outcome.INCOMPATIBLE_API


@pytest.mark.parametrize("text", ["{", "[]", '{"format": 2}', '{"format": 1, "api": "x"}', '{"format": 1, "ggml": {}}'])
def test_a_damaged_manifest(site, text):
    site.install("bad", None)
    (site.path / "bad").mkdir()
    (site.path / "bad" / "__init__.py").write_text(NEVER)
    (site.path / "bad" / "hotshoe-plugin.json").write_text(text)
    found = verdict(load_all())
    assert found.outcome is Outcome.INCOMPATIBLE_API
    assert "hotshoe-plugin.json cannot be used" in found.reason


# -- which ggml ---------------------------------------------------------------------------------------------


@pytest.fixture
def ours(native_plugin, natives):
    """A plugin of ggml 0.20.2, and a folder for foreign libraries."""
    natives.variant("cpu-x64", 1)
    manifest(natives.folder, ggml={"version": "0.20.2", "abi": "aaaaaaaaaa"})
    native_plugin()
    return natives


def foreign_library(natives, folder, **ggml):
    path = natives.variant("cpu-zen4", 9, folder=folder)
    if ggml:
        manifest(folder, ggml=ggml)
    return path


def verdict_and_library(folder):
    registry = load_all(paths=folder)
    return verdict(registry, "ggml-cpu-zen4"), registry.devices[0].library


def test_a_library_of_the_same_ggml_joins(ours, tmp_path):
    path = foreign_library(ours, tmp_path / "a", version="0.20.2", abi="aaaaaaaaaa")
    assert verdict_and_library(tmp_path / "a")[1] == path
    path = foreign_library(ours, tmp_path / "b", version="0.20.2")
    assert verdict_and_library(tmp_path / "b")[1] == path


@pytest.mark.parametrize("ggml", [{"version": "0.9.11"}, {"version": "0.20.2", "abi": "bbbbbbbbbb"}])
def test_a_library_of_another_ggml_is_refused_with_both_versions(ours, tmp_path, ggml):
    foreign_library(ours, tmp_path / "a", **ggml)
    found, used = verdict_and_library(tmp_path / "a")
    assert found.outcome is Outcome.ABI_MISMATCH
    assert ggml["version"] in found.reason
    assert "0.20.2 (aaaaaaaa)" in found.reason
    assert used == ours.folder / "libggml-cpu-x64.so"


def test_the_base_next_to_a_library_tells_its_version(ours, tmp_path):
    foreign_library(ours, tmp_path / "a")
    for version, outcome in (("0.20.2", Outcome.AVAILABLE), ("0.21.0", Outcome.ABI_MISMATCH)):
        base = ours.library("libggml-base.so.0", f'const char version[] = "{version}";', folder=tmp_path / "a")
        assert version_in(base) == version
        assert verdict_and_library(tmp_path / "a")[0].outcome is outcome
        from hotshoe_loader import load

        load._surveys.clear(), load._registries.clear()


def test_a_library_of_unknown_version_is_untrusted(ours, tmp_path):
    foreign_library(ours, tmp_path / "a")
    found, _ = verdict_and_library(tmp_path / "a")
    assert found.outcome is Outcome.UNTRUSTED
    assert '"version": "0.20.2"' in found.hint, "what to write to vouch for it"


def test_the_same_library_twice_is_shadowed_with_both_origins(native_plugin, natives, tmp_path):
    natives.variant("cpu-x64", 1)
    mine = natives.variant("cpu-x64", 1, folder=tmp_path / "mine")
    native_plugin()
    found = [each for each in load_all(paths=tmp_path / "mine").verdicts if each.candidate == "ggml-cpu-x64"]
    assert [each.outcome for each in found] == [Outcome.AVAILABLE, Outcome.SHADOWED]
    assert str(mine) in found[1].reason
    assert found[1].origin == str(natives.folder / "libggml-cpu-x64.so")


ADOPTS = (
    PROVIDER
    + """
from pathlib import Path

class Native(Provider):
    folder = Path("{folder}")
    def native(self):
        return {"kind": "ggml", "name": "cpu", "directories": [self.folder], "core": self.folder / "libggml-base.so"}

@hookimpl
def hotshoe_providers():
    return [Native("own", "ggml", ("cpu",), DeviceType.CPU)]

@hookimpl
def hotshoe_adopt(folder):
    Native.folder = folder
    return [Native("adopted", "ggml", ("cpu",), DeviceType.CPU)]
"""
)


@pytest.fixture
def adopting(site, natives):
    natives.variant("cpu-x64", 1)
    code = ADOPTS.replace("{folder}", str(natives.folder))
    site.install("hotshoe-ggml-cpu", None)
    manifest(site.path / "hotshoe_ggml_cpu", ggml={"version": "0.20.2", "adopts": ["0.20.2", "0.25.1"]})
    (site.path / "hotshoe_ggml_cpu" / "__init__.py").write_text(code)
    manifest(natives.folder, ggml={"version": "0.20.2"})
    return natives


@pytest.mark.parametrize("version", ["0.20.2", "0.25.1", "0.21.9"])
def test_a_whole_foreign_set_is_adopted(adopting, tmp_path, version):
    best = adopting.variant("cpu-zen4", 9, folder=tmp_path / "set")
    adopting.library("libggml-base.so", f'const char version[] = "{version}";', folder=tmp_path / "set")
    registry = load_all(ggml=tmp_path / "set")
    assert registry.devices[0].library == best
    with registry.open("cpu") as backend:
        assert backend.opened_by == "adopted"


@pytest.mark.parametrize("version", ["0.9.11", "0.25.2", "1.0.0"])
def test_a_foreign_set_of_another_version_is_refused(adopting, tmp_path, version):
    adopting.variant("cpu-zen4", 9, folder=tmp_path / "set")
    adopting.library("libggml-base.so", f'const char version[] = "{version}";', folder=tmp_path / "set")
    found = verdict(load_all(ggml=tmp_path / "set"), "hotshoe-ggml-cpu")
    assert found.outcome is Outcome.ABI_MISMATCH
    assert f"is ggml {version}" in found.reason
    assert "built from 0.20.2 and was tested with 0.20.2 to 0.25.1" in found.reason


def test_a_folder_without_a_complete_set(adopting, tmp_path):
    adopting.variant("cpu-zen4", 9, folder=tmp_path / "set")
    found = verdict(load_all(ggml=tmp_path / "set"), "hotshoe-ggml-cpu")
    assert found.outcome is Outcome.MISSING_DEPENDENCY
    assert "no libggml-base" in found.reason or "without a libggml-base" in found.reason


def test_other_libraries_do_not_join_an_adopted_set(adopting, native_plugin, site, tmp_path):
    adopting.variant("cpu-zen4", 9, folder=tmp_path / "set")
    adopting.library("libggml-base.so", 'const char version[] = "0.25.1";', folder=tmp_path / "set")
    adopting.variant("cuda", None)
    native_plugin("cuda")
    found = verdict(load_all(ggml=tmp_path / "set"), "ggml-cuda")
    assert found.outcome is Outcome.ABI_MISMATCH
    assert "this process uses the ggml in" in found.reason


def test_two_ggmls_cannot_be_used_one_after_the_other(adopting, tmp_path):
    from hotshoe_core.errors import PluginError

    adopting.variant("cpu-zen4", 9, folder=tmp_path / "set")
    adopting.library("libggml-base.so", 'const char version[] = "0.25.1";', folder=tmp_path / "set")
    load_all().open("cpu").close()
    with pytest.raises(PluginError, match="a process can use only one"):
        load_all(ggml=tmp_path / "set").open("cpu")


# -- headers ------------------------------------------------------------------------------------------------


def test_what_an_elf_header_says(natives, tmp_path):
    needed = natives.library("libneeded.so.3", "int n;", "-Wl,-soname,libneeded.so.3")
    flags = (f"{needed}", "-Wl,--no-as-needed", "-Wl,-soname,libmine.so.1", "-Wl,-rpath,$ORIGIN/deps")
    found = read_binary(natives.library("libmine.so", "extern int n; int *f(void) { return &n; }", *flags))
    assert found.format == "ELF"
    assert found.soname == "libmine.so.1"
    assert found.needed[0] == "libneeded.so.3"
    assert found.paths == (f"{natives.folder}/deps",)
    assert found.fits


def test_what_other_headers_say(tmp_path, monkeypatch):
    library = tmp_path / "libggml-x.so"
    arm, intel = (0x0100000C).to_bytes(4, "big"), (0x01000007).to_bytes(4, "big")
    monkeypatch.setattr("platform.machine", lambda: "arm64")
    library.write_bytes(b"\xca\xfe\xba\xbe" + (2).to_bytes(4, "big") + intel + bytes(16) + arm + bytes(16))
    assert read_binary(library).machine is None, "one of several is ours"
    library.write_bytes(b"\xca\xfe\xba\xbe" + (1).to_bytes(4, "big") + intel + bytes(16))
    assert read_binary(library).machine == "x86_64"
    library.write_bytes(b"MZ" + bytes(58) + b"\x40\0\0\0PE\0\0\x64\xaa")
    assert (read_binary(library).format, read_binary(library).machine) == ("PE", "arm64")


def test_every_missing_library_is_named_with_its_package(native_plugin, natives):
    folder = str(natives.folder)
    missing = [
        natives.library(name, f"int s{place};", f"-Wl,-soname,{name}")
        for place, name in enumerate(("libcudart.so.97", "libnowhere_such.so.1"))
    ]
    code = "extern int s0, s1; void *ggml_backend_init(void) { return &s0 + s1; }"
    natives.library("libggml-cuda.so", code, f"-L{folder}", *map(str, missing))
    for path in missing:
        path.unlink()
    native_plugin("cuda")
    found = verdict(load_all(), "ggml-cuda")
    assert found.outcome is Outcome.MISSING_DEPENDENCY
    library = next(each for each in load_all().verdicts if each.kind == "library")
    assert "libcudart.so.97, libnowhere_such.so.1" in library.reason
    assert "pip install nvidia-cuda-runtime; install the package that contains libnowhere_such.so.1" in library.hint


@pytest.mark.parametrize(
    ("name", "command"),
    [
        ("libcudart.so.13", "pip install nvidia-cuda-runtime"),
        ("libcublas.so.12", "pip install nvidia-cublas-cu12"),
        ("libvulkan.so.1", "apt install libvulkan1"),
        ("libgomp.so.1", "apt install libgomp1"),
        ("/opt/lib/libomp.so.5", "apt install libomp5"),
    ],
)
def test_commands(name, command):
    assert install_hint(name).startswith(command)


def test_an_unknown_name():
    assert install_hint("libacme.so.1") is None
