"""The CUDA plugin without a GPU: the driver, NVIDIA's wheels, verdicts, and the architectures it is built for.

A library that stands in for ggml's is linked to libcudart.so.13, libcublas.so.13 and libcuda.so.1, as that is.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("hotshoe_ggml", reason="hotshoe-ggml-cpu is not installed")

from tests.support.ggml_libraries import compile_acme, says_which_ggml

ROOT = Path(__file__).parents[2]
PLUGIN = ROOT / "plugins" / "ggml-cuda"

PROGRAM = """
import json, sys
import hotshoe
registry = hotshoe.load_all(timeout=60)
print(json.dumps({
    "verdicts": [verdict.to_json() for verdict in registry.verdicts if "cuda" in verdict.candidate],
    "devices": [device.name for device in registry.devices],
}))
"""


class Machine:
    """The folders that a user's program sees: site-packages with the plugin, and the linker's search path."""

    def __init__(self, folder: Path) -> None:
        self.site, self.linker, self.libraries = folder / "site", folder / "linker", folder / "libraries"
        for each in (self.site, self.linker, self.libraries):
            each.mkdir()

    def library(self, folder: Path, soname: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._compile(folder / soname, f"-Wl,-soname,{soname}", "-x", "c", "/dev/null")

    def driver(self) -> None:
        self.library(self.linker, "libcuda.so.1")

    def wheels(self, *folders: str, cuda: int = 13) -> None:
        """NVIDIA's wheels: libraries in these folders under ``nvidia``: cudart in the first, cuBLAS in the last."""
        self.library(self.site / "nvidia" / folders[0] / "lib", f"libcudart.so.{cuda}")
        for name in ("cublasLt", "cublas"):
            self.library(self.site / "nvidia" / folders[-1] / "lib", f"lib{name}.so.{cuda}")

    def plugin(self, cuda: int = 13, **macros: int) -> None:
        """hotshoe-ggml-cuda as pip installs it, with a fake of ggml's library."""
        self.acme(self.site / "hotshoe_ggml_cuda" / "lib", cuda, **macros)
        package = self.site / "hotshoe_ggml_cuda"
        shutil.copy(PLUGIN / "src" / "hotshoe_ggml_cuda" / "__init__.py", package)
        says_which_ggml(package)
        info = self.site / "hotshoe_ggml_cuda-0.1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: hotshoe-ggml-cuda\nVersion: 0.1.0\n")
        (info / "entry_points.txt").write_text("[hotshoe.backends]\nggml-cuda = hotshoe_ggml_cuda\n")

    def acme(self, folder: Path, cuda: int = 13, **macros: int) -> None:
        stubs = self.site.parent / "stubs"
        for soname in (f"libcudart.so.{cuda}", f"libcublas.so.{cuda}", "libcuda.so.1"):
            self.library(stubs, soname)
        linked = ["-Wl,--no-as-needed", *(str(each) for each in sorted(stubs.iterdir()))]
        compile_acme(folder, "cuda", linked=linked, **macros)

    def look(self, **variables: str) -> dict[str, Any]:
        environment = {k: v for k, v in os.environ.items() if not k.startswith("HOTSHOE")} | variables
        environment |= {"PYTHONPATH": str(self.site), "LD_LIBRARY_PATH": str(self.linker), "HOTSHOE_CACHE_DIR": "off"}
        done = subprocess.run([sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    def verdict(self, **variables: str) -> dict[str, Any]:
        found = [each for each in self.look(**variables)["verdicts"] if each["candidate"] == "ggml-cuda"]
        verdict: dict[str, Any] = found[0]
        return verdict

    @staticmethod
    def _compile(library: Path, *arguments: str) -> None:
        subprocess.run([shutil.which("gcc") or "cc", "-shared", "-o", library, *arguments], check=True)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    if sys.platform != "linux" or not shutil.which("gcc"):
        pytest.skip("needs gcc on Linux")
    if Path("/proc/driver/nvidia").exists():
        pytest.skip("this machine has NVIDIA's driver: what is tested is a machine without")
    return Machine(tmp_path)


def test_without_a_driver_there_is_no_device(machine: Machine) -> None:
    machine.plugin()
    verdict = machine.verdict()
    assert verdict["outcome"] == "no-device"
    assert "libcuda.so.1" in verdict["reason"]
    assert "--gpus all" in verdict["hint"]


def require_no_cublas() -> None:
    if importlib.util.find_spec("nvidia"):
        pytest.skip("NVIDIA's wheels are installed here: what is tested is an environment without")


def test_a_wheel_that_is_missing_is_named(machine: Machine) -> None:
    require_no_cublas()
    machine.driver()
    machine.plugin()
    verdict = machine.verdict()
    assert verdict["outcome"] == "missing-dependency"
    assert "libcublas.so.13" in verdict["reason"]
    assert "pip install nvidia-cublas" in verdict["hint"]


@pytest.mark.parametrize(("cuda", "folders"), [(13, ["cu13"]), (12, ["cuda_runtime", "cublas"])])
def test_cuda_comes_from_the_wheels(machine: Machine, cuda: int, folders: list[str]) -> None:
    """The linker does not search their folders."""
    machine.driver()
    machine.wheels(*folders, cuda=cuda)
    machine.plugin(cuda)
    found = machine.look()
    assert "cuda:0" in found["devices"]
    assert found["verdicts"][0]["outcome"] == "available"


@pytest.mark.parametrize("variable", ["CUDA_PATH", "CUDA_HOME", "CONDA_PREFIX"])
def test_cuda_comes_from_a_toolkit_or_from_conda(machine: Machine, tmp_path: Path, variable: str) -> None:
    require_no_cublas()
    machine.driver()
    root = tmp_path / "toolkit"
    for soname in ("libcudart.so.13", "libcublasLt.so.13", "libcublas.so.13"):
        machine.library(root / ("lib" if variable == "CONDA_PREFIX" else "lib64"), soname)
    machine.plugin()
    assert machine.verdict()["outcome"] == "missing-dependency"
    assert "cuda:0" in machine.look(**{variable: str(root)})["devices"]


def test_one_library_of_each_name_is_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of the wheels first, then what a variable names, then what is installed in the usual folder."""
    from hotshoe_ggml.quirks import nvidia

    for folder, names in {
        "site/nvidia/cu13/lib": ["libcublas.so.13", "libcudart.so.13"],
        "site/nvidia/cublas/lib": ["libcublas.so.12"],
        "second/nvidia/cu13/lib": ["libcublas.so.13"],
        "conda/lib": ["libcublas.so.13", "libcublas.so.13.0.2", "libcublasLt.so.13.0.2"],
        "usr/local/cuda-13.0/lib64": ["libcublasLt.so.13", "libcublas.so.11"],
        "usr/local/cuda-12/lib64": ["libcublasLt.so.12"],
    }.items():
        (tmp_path / folder).mkdir(parents=True)
        for name in names:
            (tmp_path / folder / name).touch()
    monkeypatch.setattr(sys, "path", [str(tmp_path / "site"), str(tmp_path / "second")])
    for name in ("CUDA_PATH", "CUDA_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("CONDA_PREFIX", str(tmp_path / "conda"))
    assert [str(path.relative_to(tmp_path)) for path in nvidia.found(tmp_path)] == [
        "site/nvidia/cu13/lib/libcudart.so.13",
        "conda/lib/libcublasLt.so.13.0.2",
        "usr/local/cuda-12/lib64/libcublasLt.so.12",
        "site/nvidia/cu13/lib/libcublas.so.13",
        "site/nvidia/cublas/lib/libcublas.so.12",
        "usr/local/cuda-13.0/lib64/libcublas.so.11",
    ]


def test_wheels_of_another_cuda_do_not_help(machine: Machine) -> None:
    require_no_cublas()
    machine.driver()
    machine.wheels("cuda_runtime", "cublas", cuda=12)
    machine.plugin(13)
    assert machine.verdict()["outcome"] == "missing-dependency"


def test_a_driver_that_lists_no_gpu(machine: Machine) -> None:
    machine.driver()
    machine.wheels("cu13")
    machine.plugin(DEVICES=0)
    verdict = machine.verdict()
    assert verdict["outcome"] == "no-device"
    assert "finds no device" in verdict["reason"]


def test_an_adopted_library_gets_the_wheels_too(machine: Machine) -> None:
    machine.driver()
    machine.wheels("cu13")
    machine.acme(machine.libraries)
    says_which_ggml(machine.libraries)
    assert "cuda:0" in machine.look(HOTSHOE_PATH=str(machine.libraries))["devices"]


# -- the build ------------------------------------------------------------------------------------------------


def chosen(wanted: str, path: str, folder: Path) -> tuple[int, str]:
    """The architectures that CMake derives from HOTSHOE_CUDA_ARCHITECTURES with this PATH."""
    text = (PLUGIN / "cmake" / "toolkit.cmake").read_text()
    script = folder / "choose.cmake"
    script.write_text(
        "set(HOTSHOE_RELEASE"
        + text.split("set(HOTSHOE_RELEASE")[1]
        + f'\nhotshoe_choose_architectures("{wanted}" chosen)'
        '\nmessage("${chosen}")\n'
    )
    cmake = shutil.which("cmake")
    if cmake is None:
        pytest.skip("needs cmake")
    done = subprocess.run([cmake, "-P", script], env={"PATH": path}, capture_output=True, text=True)
    return done.returncode, done.stderr.strip()


def test_which_gpus_it_is_built_for(tmp_path: Path) -> None:
    smi = tmp_path / "bin" / "nvidia-smi"
    smi.parent.mkdir()
    smi.write_text("#!/bin/sh\nprintf '8.6\\n9.0\\n8.6\\n'\n")
    smi.chmod(0o755)
    assert chosen("native", str(smi.parent), tmp_path) == (0, "86-real;90-real")
    code, release = chosen("release", str(smi.parent), tmp_path)
    assert code == 0
    assert [name for name in release.split(";") if not name.endswith("-real")] == ["90"], "PTX of one"
    assert [re.sub("[^0-9].*", "", name) for name in release.split(";")] == "75 80 86 89 90 100 120".split()
    assert chosen("native", str(tmp_path), tmp_path) == (0, release), "no GPU: for all of them"
    assert chosen("80-real;90", str(tmp_path), tmp_path) == (0, "80-real;90")
    code, words = chosen("86-real;fast", str(tmp_path), tmp_path)
    assert code != 0
    assert "names 'fast'" in words


def find(*folders: Path, path: str = "", **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": path, "PYTHONPATH": os.pathsep.join(map(str, folders)), **variables}
    command = [sys.executable, "-S", PLUGIN / "cmake" / "toolkit.py"]
    return subprocess.run(command, env=environment, capture_output=True, text=True)


def toolkit(root: Path, whole: bool = True) -> Path:
    for name in ("bin/nvcc", "include/cublas_v2.h") if whole else ("bin/nvcc",):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()
        (root / name).chmod(0o755)
    return root / "bin" / "nvcc"


def test_the_toolkit_is_an_installed_one_or_that_of_the_wheels(tmp_path: Path) -> None:
    wheel = toolkit(tmp_path / "site" / "nvidia" / "cu13")
    own, half = toolkit(tmp_path / "cuda"), toolkit(tmp_path / "half", whole=False)
    site = tmp_path / "site"
    assert find(site, path=str(own.parent)).stdout == str(own)
    assert find(site, path=str(half.parent)).stdout == f"{wheel};{wheel.parent.parent}", (
        "without cuBLAS it is of no use"
    )
    assert find(site, path=str(own.parent), CUDACXX=str(half)).stdout == str(half), "what is named is taken"
    script = "import runpy, sys; print(*runpy.run_path(sys.argv[1])['requirements']())"
    command = [sys.executable, "-S", "-c", script, str(PLUGIN / "cmake" / "toolkit.py")]
    required = subprocess.run(command, env={"PATH": ""}, capture_output=True, text=True, check=True).stdout
    assert len(required.split()) > 2
    assert all(name.endswith(">=13.0,<13.1") for name in required.split()), "PTX that drivers of CUDA 13.0 take"
    nothing = find(tmp_path)
    assert nothing.returncode == 1
    assert "pip install nvidia-cuda-nvcc" in nothing.stderr
