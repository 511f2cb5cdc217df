"""The plugins of this project, so that one that is not installed can be named with its command.

All are found, vetted, probed and ranked like a third party's. One thing is special: their names are theirs (see names).
"""

from __future__ import annotations

import os
import platform
import sys
from dataclasses import dataclass

from hotshoe_core.contract.device import DeviceType

__all__ = ["CATALOG", "Known", "by_distribution", "known", "owner_of_device", "owner_of_provider"]


@dataclass(frozen=True, slots=True)
class Known:
    """One plugin of this project. ``name`` is what a user calls it: "cuda".

    published: whether it can be installed by its name; else from a checkout of hotshoe, which is all there is of it.
    vendors: whose GPUs it drives, as Machine names them. signs: files its hardware leaves. least_driver: the oldest
    major version of NVIDIA's driver that it runs with. proposed: whether who lacks it hears of it unasked.
    """

    name: str
    distribution: str
    type: DeviceType
    offers: str
    platforms: tuple[str, ...]
    machines: tuple[str, ...] = ()
    signs: tuple[str, ...] = ()
    vendors: tuple[str, ...] = ()
    least_driver: int = 0
    published: bool = False
    proposed: bool = True

    @property
    def provider(self) -> str:
        """What its provider is called: "ggml-cuda"."""
        return self.distribution.removeprefix("hotshoe-")

    @property
    def install(self) -> str:
        """The command."""
        if not self.published:
            own = f"pip install ./plugins/{self.provider}"
            return f"{own}, in a checkout of hotshoe: {self.distribution} is not published yet"
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
    Known(
        "cuda",
        "hotshoe-ggml-cuda",
        DeviceType.GPU,
        "NVIDIA GPUs",
        ("linux", "win32"),
        signs=_NVIDIA,
        vendors=("NVIDIA",),
        least_driver=580,  # CUDA 13's
    ),
    Known("metal", "hotshoe-ggml-metal", DeviceType.GPU, "Apple GPUs", ("darwin",), vendors=("Apple",)),
    Known(
        "mlx",
        "hotshoe-mlx",
        DeviceType.GPU,
        "Apple GPUs, through MLX",
        ("darwin",),
        machines=("arm64",),
        vendors=("Apple",),
    ),
    Known(
        "vulkan",
        "hotshoe-ggml-vulkan",
        DeviceType.GPU,
        "GPUs of any vendor, through Vulkan",
        ("linux", "win32"),
        signs=("/dev/dri/renderD128",),
        vendors=("NVIDIA", "AMD", "Intel"),
    ),
    Known(
        "rpc",
        "hotshoe-ggml-rpc",
        DeviceType.ACCEL,
        "devices of other machines, through ggml's RPC",
        ("linux", "darwin", "win32"),
        proposed=False,
    ),
    Known("cpu", "hotshoe-ggml-cpu", DeviceType.CPU, "CPUs", ("linux", "darwin", "win32"), published=True),
)


def known(name: str) -> Known | None:
    """The plugin called so, by its short name or its distribution's."""
    return next((entry for entry in CATALOG if name in (entry.name, entry.distribution)), None)


def by_distribution(distribution: str) -> Known | None:
    """The plugin of this (normalised) distribution name."""
    return next((entry for entry in CATALOG if entry.distribution == distribution), None)


def owner_of_provider(name: str) -> Known | None:
    """The plugin whose provider has this (normalised) name, or whose short name it is."""
    return next((entry for entry in CATALOG if name in (entry.name, entry.provider, entry.distribution)), None)


def owner_of_device(name: str) -> Known | None:
    """The plugin whose devices are called so: "cuda:0" is one of "cuda"."""
    return next((entry for entry in CATALOG if entry.name == name.partition(":")[0]), None)
