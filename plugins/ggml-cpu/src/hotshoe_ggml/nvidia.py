"""NVIDIA's GPUs: before a library for them is opened, the CUDA libraries that it may need, out of NVIDIA's wheels."""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from hotshoe_core.errors import DeviceNotFoundError

__all__ = ["in_wheels", "prepare"]

_DRIVER = "libcuda.so.1"
_NEEDED = ("cudart", "cublasLt", "cublas")  # each needs those before it


def prepare() -> None:
    """Opens what wheels have of CUDA, so that the linker, which does not look there, has it by name.

    Of what it still does not find the loader says where to get it. Raises DeviceNotFoundError without a driver.
    """
    if sys.platform != "linux":
        return
    try:
        ctypes.CDLL(_DRIVER)
    except OSError as error:
        raise DeviceNotFoundError(
            f"there is no NVIDIA driver: {error}",
            hint="install it (Debian and Ubuntu: apt install nvidia-driver); in a container: run it with --gpus all",
        ) from error
    for library in in_wheels():
        with contextlib.suppress(OSError):  # of another CUDA, perhaps, than the one that is needed
            ctypes.CDLL(str(library))  # and never closed


def in_wheels() -> Iterator[Path]:
    """CUDA's libraries in NVIDIA's wheels, in the order to open them.

    They lie in ``nvidia/cu13/lib`` since CUDA 13, and before in a folder for each, ``nvidia/cublas/lib``.
    """
    folders = [Path(entry) for entry in sys.path if os.path.isabs(entry)]
    for name in _NEEDED:
        for folder in folders:
            yield from sorted(folder.glob(f"nvidia/*/lib/lib{name}.so.*"))
