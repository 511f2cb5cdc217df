"""Another ggml than ours, a real one: from the environment, or out of a wheel on the package index."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

__all__ = ["other_ggml"]

WHEEL = "pywhispercpp==1.5.1"  # carries ggml 0.13.1


@pytest.fixture(scope="session")
def other_ggml(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with another ggml's libraries. Skips where pip cannot get the wheel.

    HOTSHOE_TEST_GGML names another folder instead, such as that of a newer ggml, which can be adopted:

        npm pack @node-llama-cpp/linux-x64 && tar xzf node-llama-cpp-linux-x64-*.tgz
        HOTSHOE_TEST_GGML=$PWD/package/bins/linux-x64 python -m pytest tests/zoo tests/ggml

    or ``llama_cpp/lib`` of an installed llama-cpp-python.
    """
    given = os.environ.get("HOTSHOE_TEST_GGML", "")
    if given:
        return Path(given)
    folder = tmp_path_factory.mktemp("other-ggml")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:", WHEEL]
    done = subprocess.run([*command, "-d", str(folder)], capture_output=True, text=True, check=False)
    wheels = list(folder.glob("*.whl"))
    if done.returncode or not wheels:
        pytest.skip(f"pip has no {WHEEL} for this Python and platform, which carries another ggml")
    with zipfile.ZipFile(wheels[0]) as wheel:
        names = [name for name in wheel.namelist() if name in ("libggml-base.so", "libggml-cpu.so")]
        if len(names) < 2:
            pytest.skip(f"{WHEEL} carries no libggml-base.so and libggml-cpu.so on this platform")
        for name in names:
            with wheel.open(name) as source, open(folder / name, "wb") as target:
                shutil.copyfileobj(source, target)
    return folder
