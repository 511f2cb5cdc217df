"""At build time: find nvcc and print its path for CMake, followed by the folder of NVIDIA's wheels if it is from there.

The search goes through CUDACXX, PATH and wheels. A toolkit counts only if it has the headers of cuBLAS.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

WHEELS = (
    "nvidia-cuda-nvcc",
    "nvidia-cuda-crt",
    "nvidia-nvvm",
    "nvidia-cuda-cccl",
    "nvidia-cuda-runtime",
    "nvidia-cublas",
)
"""The wheels that pip fetches if no toolkit is installed. Before CUDA 13 no wheel had nvcc."""

_RANGE = ">=13.0,<13.1"
"""A driver takes the PTX of its own CUDA and of older ones. Most drivers in use are of CUDA 13.0 or later."""


def requirements() -> list[str]:
    """Return the requirements of a build: the wheels, or nothing if a toolkit is installed."""
    return [] if installed() else [f"{name}{_RANGE}" for name in WHEELS]


def installed() -> Path | None:
    """Return the nvcc of an installed toolkit that has all that a build needs. CUDACXX is not checked."""
    given = os.environ.get("CUDACXX")
    if given:
        return Path(shutil.which(given) or given)
    found = shutil.which("nvcc")
    return Path(found) if found and _complete(Path(found)) else None


def _complete(nvcc: Path) -> bool:
    roots = {nvcc.parent.parent, nvcc.resolve().parent.parent}
    return any((root / "include" / "cublas_v2.h").is_file() for root in roots)


def in_wheels() -> Path | None:
    """Return the nvcc of NVIDIA's wheels, which share a folder."""
    for entry in sys.path:
        for nvcc in sorted(Path(entry).glob("nvidia/cu*/bin/nvcc*"), reverse=True):
            if nvcc.stem == "nvcc" and nvcc.suffix in ("", ".exe") and _complete(nvcc):
                return nvcc
    return None


def main() -> int:
    nvcc = installed()
    if nvcc is not None:
        sys.stdout.write(nvcc.as_posix())
        return 0
    nvcc = in_wheels()
    if nvcc is not None:
        sys.stdout.write(f"{nvcc.as_posix()};{nvcc.parent.parent.as_posix()}")
        return 0
    sys.stderr.write(
        "hotshoe-ggml-cuda is compiled here, and no nvcc with cuBLAS was found: in CUDACXX, the PATH or wheels.\n"
        f"Install NVIDIA's CUDA toolkit, or its wheels: pip install {' '.join(WHEELS)}\n"
    )
    return 1


if __name__ == "__main__":
    sys.exit(main())
