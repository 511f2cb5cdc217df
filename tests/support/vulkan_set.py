"""A whole set of ggml's libraries that somebody else has built, with a Vulkan backend: node-llama-cpp's, from npm."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

__all__ = ["vulkan_set"]

PACKAGE = "@node-llama-cpp/linux-x64-vulkan@3.22.1"  # carries ggml 0.25.1
DRIVERS = ("/usr/share/vulkan/icd.d", "/etc/vulkan/icd.d")


@pytest.fixture(scope="session")
def vulkan_set(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the set. Skips where npm does not get it, or no Vulkan driver is there.

    HOTSHOE_TEST_VULKAN_SET names a folder instead.
    """
    if not any(list(Path(folder).glob("*.json")) for folder in DRIVERS if Path(folder).is_dir()):
        pytest.skip("needs a Vulkan driver; Mesa's, in software: apt install mesa-vulkan-drivers")
    if given := os.environ.get("HOTSHOE_TEST_VULKAN_SET"):
        return Path(given)
    if (sys.platform, platform.machine()) != ("linux", "x86_64"):
        pytest.skip(f"{PACKAGE} is for Linux on x86_64")
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip(f"needs npm, which gets {PACKAGE}")
    folder = tmp_path_factory.mktemp("vulkan-set")
    done = subprocess.run([npm, "pack", "--silent", PACKAGE], cwd=folder, capture_output=True, text=True, timeout=300)
    archive = next(folder.glob("*.tgz"), None)
    if done.returncode or archive is None:
        pytest.skip(f"npm cannot get {PACKAGE}: {done.stderr.strip().splitlines()[-1:]}")
    with tarfile.open(archive) as tar:
        for member in tar:
            name, data = Path(member.name).name, tar.extractfile(member)
            if data is not None and name.startswith("libggml-"):
                (folder / name).write_bytes(data.read())
    return folder
