"""CUDA: opens the libraries that ggml's CUDA library needs, in wheels or a toolkit, before that is opened."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from hotshoe_core.errors import DeviceNotFoundError

__all__ = ["found", "prepare"]

_DRIVER = "libcuda.so.1"
_NEEDED = ("cudart", "cublasLt", "cublas")  # each needs those before it
_ROOTS = ("CUDA_PATH", "CUDA_HOME", "CONDA_PREFIX")
"""Variables that name where CUDA is installed, by NVIDIA's toolkit or by conda."""


def prepare() -> None:
    """Open CUDA's libraries where the linker does not search: it knows open libraries by name.

    The loader says where to get libraries that are still missing. Raises DeviceNotFoundError if there is no driver.
    """
    if sys.platform != "linux":
        return
    import ctypes  # 2 ms, and every ggml provider imports this module

    try:
        ctypes.CDLL(_DRIVER)
    except OSError as error:
        raise DeviceNotFoundError(
            f"there is no NVIDIA driver: {error}",
            hint="install it (Debian and Ubuntu: apt install nvidia-driver); in a container: run it with --gpus all",
        ) from error
    for library in found():
        with contextlib.suppress(OSError):  # it may belong to another version of CUDA
            ctypes.CDLL(str(library))  # it is never closed


def found(root: Path = Path("/")) -> Iterator[Path]:
    """CUDA's libraries, one of each name and version ("libcublas.so.13"), in the order to open them.

    First those in NVIDIA's wheels: since CUDA 13 in ``nvidia/cu13/lib``; before, each had a folder, such as
    ``nvidia/cublas/lib``. Then those of a toolkit or of conda. root: for tests, a folder that stands for "/".
    """
    wheels = [Path(entry) for entry in sys.path if os.path.isabs(entry)]
    given = [Path(os.environ[name]) for name in _ROOTS if os.path.isabs(os.environ.get(name, ""))]
    installed = [*given, *sorted((root / "usr" / "local").glob("cuda*"), reverse=True)]
    for name in _NEEDED:
        patterns = [(folder, f"nvidia/*/lib/lib{name}.so.*") for folder in wheels]
        patterns += [(folder, f"{part}/lib{name}.so.*") for folder in installed for part in ("lib64", "lib")]
        seen: set[str] = set()
        for folder, pattern in patterns:
            for library in sorted(folder.glob(pattern)):
                soname = ".".join(library.name.split(".")[:3])  # without the minor version
                if soname not in seen:
                    seen.add(soname)
                    yield library
