"""The Metal plugin without a Mac: its build, its messages on other systems, and its devices."""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("hotshoe_ggml", reason="hotshoe-ggml-cpu is not installed")

import hotshoe_loader.binary as binary
from hotshoe_core.contract.device import DeviceType
from hotshoe_core.errors import DeviceNotFoundError
from hotshoe_ggml import native
from hotshoe_ggml.native import DeviceFacts, build_info

ROOT = Path(__file__).parents[2]
PLUGIN = ROOT / "plugins" / "ggml-metal"
HEAD = ROOT / "tests" / "data" / "libggml-metal-0.20.2-arm64.head"
SIZE = 896096  # of the whole file


@pytest.fixture
def provider(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(PLUGIN / "src"))
    from hotshoe_ggml_metal import hotshoe_providers

    (made,) = hotshoe_providers()
    return made


def configure(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    for tool in ("cmake", "ninja", "cc", "c++"):
        if shutil.which(tool) is None:
            pytest.skip(f"needs {tool}")
    command = ["cmake", "-G", "Ninja", "-S", str(PLUGIN), "-B", str(folder), f"-DPython_EXECUTABLE={sys.executable}"]
    return subprocess.run([*command, *options], capture_output=True, text=True)


@pytest.mark.skipif(sys.platform == "darwin", reason="on a Mac it is built")
def test_on_other_systems_the_build_says_what_to_take(tmp_path: Path) -> None:
    done = configure(tmp_path)
    assert done.returncode != 0
    words = " ".join(done.stderr.split())
    assert "hotshoe-ggml-metal is for macOS, and this is" in words
    assert "plugins/ggml-vulkan" in words


@pytest.mark.skipif(sys.platform != "linux", reason="what a Mac would do is looked at from Linux")
def test_what_a_mac_would_build(tmp_path: Path) -> None:
    """One module that contains its shaders, and searches libggml-base in hotshoe-ggml-cpu."""
    framework = tmp_path / "framework"
    framework.touch()
    mac = {"CMAKE_SYSTEM_NAME": "Darwin", "CMAKE_SYSTEM_PROCESSOR": "arm64"}
    # what CMake detects on a Mac: the linker's option for search paths
    mac |= {
        f"CMAKE_SHARED_{kind}_RUNTIME_{lang}_FLAG": "-Wl,-rpath,"
        for kind in ("LIBRARY", "MODULE")
        for lang in ("C", "CXX")
    }
    mac |= {"CMAKE_INSTALL_NAME_TOOL": "/bin/true", "CMAKE_TRY_COMPILE_TARGET_TYPE": "STATIC_LIBRARY"}
    mac |= dict.fromkeys(("FOUNDATION_LIBRARY", "METAL_FRAMEWORK", "METALKIT_FRAMEWORK"), str(framework))
    build = tmp_path / "build"
    done = configure(build, *(f"-D{key}={value}" for key, value in mac.items()))
    if "could not be downloaded" in done.stderr:
        pytest.skip("needs ggml's source, which pip cannot get")
    assert done.returncode == 0, done.stderr
    targets = subprocess.run(["ninja", "-C", build, "-t", "commands", "hotshoe_native"], capture_output=True, text=True)
    *_, link = targets.stdout.strip().splitlines()
    assert "-bundle" in link
    assert "-rpath,@loader_path/../../hotshoe_ggml/lib" in link
    assert "libggml-base.0.dylib" in link
    assert "ggml-metal-embed.s.o" in link
    assert "-DGGML_METAL_EMBED_LIBRARY" in targets.stdout
    manifest = json.loads((build / "hotshoe-plugin.json").read_text())
    assert manifest["ggml"]["abi"] == build_info().abi_fingerprint, "that of the CPU's libraries"


@pytest.mark.skipif(sys.platform == "darwin", reason="this is a Mac")
def test_on_other_systems_there_is_no_device(provider: Any) -> None:
    with pytest.raises(
        DeviceNotFoundError, match=f"wrong platform: Metal is part of macOS, and this is {sys.platform}"
    ):
        provider.native()


class Library:
    """The device that ggml's Metal library lists on a Mac with an M2 Pro, according to its source."""

    def devices(self) -> list[DeviceFacts]:
        free, total = 11453071360, 11453246122
        return [
            DeviceFacts(
                None,
                "MTL0",
                "Apple M2 Pro",
                1,
                None,
                free,
                total,
                host_buffer=False,
                buffer_from_host_ptr=True,
                asynchronous=True,
            )
        ]

    def features(self) -> dict[str, str]:
        return {"EMBED_LIBRARY": "1"}


def test_the_gpu_of_a_mac(provider: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    files = provider.native()
    assert (files["kind"], files["name"]) == ("ggml", "metal")
    monkeypatch.setattr(native, "load_backend", lambda path: Library())
    (device,) = provider.devices(Path("/x/libggml-metal.so"))
    assert (device.name, device.type, device.description) == ("metal:0", DeviceType.GPU, "Apple M2 Pro")
    assert (device.provider, device.family) == ("ggml-metal", "ggml")
    assert device.memory_total == 11453246122


# -- what the loader reads of a real Metal library ------------------------------------------------------------


@pytest.fixture
def library(tmp_path: Path) -> Path:
    """The file of libggml-python's wheel for macOS: its header, filled with zeros to its size."""
    path = tmp_path / "libggml-metal.dylib"
    path.write_bytes(HEAD.read_bytes() + bytes(SIZE - HEAD.stat().st_size))
    return path


def test_a_metal_library_is_read(library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = binary.read_binary(library)
    assert (found.format, found.machine) == ("Mach-O", "arm64")
    assert "@loader_path/libggml-base.0.dylib" in found.needed
    assert "/System/Library/Frameworks/Metal.framework/Versions/A/Metal" in found.needed
    for platform, machine, fits in (("darwin", "arm64", True), ("darwin", "x86_64", False), ("linux", "arm64", False)):
        monkeypatch.setattr(binary.sys, "platform", platform)  # type: ignore[attr-defined]
        monkeypatch.setattr(binary.platform, "machine", lambda machine=machine: machine)  # type: ignore[attr-defined]
        assert found.fits is fits, (platform, machine)
    assert "built for arm64 (Mach-O)" in found.misfit


def test_a_truncated_library_is_an_error(library: Path) -> None:
    library.write_bytes(library.read_bytes()[:-1])
    with pytest.raises(
        binary.BadLibrary, match=f"it is truncated: its header says {SIZE} bytes, but it has {SIZE - 1}"
    ):
        binary.read_binary(library)
    library.write_bytes(HEAD.read_bytes()[:1000])
    with pytest.raises(binary.BadLibrary, match="truncated"):
        binary.read_binary(library)


@pytest.mark.parametrize("kind", [1, 2, 10])
def test_a_program_is_not_a_library(library: Path, kind: int) -> None:
    data = bytearray(library.read_bytes())
    data[12:16] = kind.to_bytes(4, "little")
    library.write_bytes(data)
    with pytest.raises(binary.BadLibrary, match=f"of type {kind}; expected a library"):
        binary.read_binary(library)


def test_random_damage_is_an_answer_or_badlibrary(library: Path) -> None:
    """Any change of the header gives an answer or BadLibrary, no other error and no hang."""
    import random

    rng, data = random.Random(0), library.read_bytes()
    for _ in range(2000):
        damaged = bytearray(data[:4096])
        for _ in range(rng.randint(1, 6)):
            damaged[rng.randrange(4, 3000)] = rng.randrange(256)
        library.write_bytes(damaged)
        with contextlib.suppress(binary.BadLibrary):
            assert binary.read_binary(library).format == "Mach-O"
