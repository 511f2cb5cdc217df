"""CUDA: opens the libraries in NVIDIA's wheels that ggml's CUDA library may need, before that is opened."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from hotshoe_core.errors import DeviceNotFoundError

__all__ = ["in_wheels", "prepare"]

_DRIVER = "libcuda.so.1"
_NEEDED = ("cudart", "cublasLt", "cublas")  # each needs those before it


def prepare() -> None:
    """Open CUDA's libraries in NVIDIA's wheels: the linker does not search there, but knows open libraries by name.

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
    for library in in_wheels():
        with contextlib.suppress(OSError):  # it may belong to another version of CUDA
            ctypes.CDLL(str(library))  # it is never closed


def in_wheels() -> Iterator[Path]:
    """CUDA's libraries in NVIDIA's wheels, in the order to open them.

    Since CUDA 13 they are in ``nvidia/cu13/lib``; before, each had a folder, such as ``nvidia/cublas/lib``.
    """
    folders = [Path(entry) for entry in sys.path if os.path.isabs(entry)]
    for name in _NEEDED:
        for folder in folders:
            yield from sorted(folder.glob(f"nvidia/*/lib/lib{name}.so.*"))
