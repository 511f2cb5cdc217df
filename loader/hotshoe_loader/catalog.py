"""The plugins this project publishes, so that one that is not installed can be named with its command.

Nothing here makes a plugin special: all are found, vetted, probed and ranked like a third party's.
"""

from __future__ import annotations

import os
import platform
import sys
from dataclasses import dataclass

from hotshoe_core.device import DeviceType

__all__ = ["CATALOG", "Known", "by_distribution", "known"]


@dataclass(frozen=True, slots=True)
class Known:
    """One published plugin. ``name`` is what a user calls it: "cuda". ``signs``: files its hardware leaves."""

    name: str
    distribution: str
    type: DeviceType
    offers: str
    platforms: tuple[str, ...]
    machines: tuple[str, ...] = ()
    signs: tuple[str, ...] = ()

    @property
    def install(self) -> str:
        return f"pip install {self.distribution}"

    @property
    def relevant(self) -> bool:
        """Whether it is made for this platform; others are not worth a line to anybody."""
        if not sys.platform.startswith(self.platforms):
            return False
        return not self.machines or platform.machine().lower() in self.machines

    @property
    def sign(self) -> str | None:
        """A file that says this machine has the hardware, if there is one."""
        return next((path for path in self.signs if os.path.exists(path)), None)


_NVIDIA = ("/dev/nvidiactl", "/proc/driver/nvidia/version")

CATALOG = (
    # In the order of preference for one physical GPU: the vendor's own interface before a general one.
    Known("cuda", "hotshoe-ggml-cuda", DeviceType.GPU, "NVIDIA GPUs", ("linux", "win32"), signs=_NVIDIA),
    Known("metal", "hotshoe-ggml-metal", DeviceType.GPU, "Apple GPUs", ("darwin",)),
    Known("mlx", "hotshoe-mlx", DeviceType.GPU, "Apple GPUs, through MLX", ("darwin",), machines=("arm64",)),
    Known(
        "vulkan",
        "hotshoe-ggml-vulkan",
        DeviceType.GPU,
        "GPUs of any vendor, through Vulkan",
        ("linux", "win32"),
        signs=("/dev/dri/renderD128",),
    ),
    Known("cpu", "hotshoe-ggml-cpu", DeviceType.CPU, "CPUs", ("linux", "darwin", "win32")),
)


def known(name: str) -> Known | None:
    """The published plugin called so, by its short name or its distribution's."""
    return next((entry for entry in CATALOG if name in (entry.name, entry.distribution)), None)


def by_distribution(distribution: str) -> Known | None:
    """The published plugin of this (normalised) distribution name."""
    return next((entry for entry in CATALOG if entry.distribution == distribution), None)
