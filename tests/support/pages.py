"""Packages that documents show: their files, built and installed by pip, and command lines that see them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

__all__ = ["install_page", "run"]


def run(*arguments: str, path: Path) -> subprocess.CompletedProcess[str]:
    """A command line of a fresh process that has ``path`` on sys.path."""
    return subprocess.run(
        [sys.executable, "-m", *arguments],
        env={**os.environ, "PYTHONPATH": str(path)},
        capture_output=True,
        text=True,
        timeout=300,
    )


def install_page(page: Path, package: str, modules: tuple[str, ...], scratch: Path) -> Path:
    """Build the package of a page, and install it into a folder, which is returned.

    modules: the names of the package's files that the page shows, after pyproject.toml. Skips without setuptools.
    """
    pytest.importorskip("setuptools", reason="the page's package is built by setuptools")
    source, target = scratch / "source", scratch / "site"
    blocks = re.findall(r"```(?:toml|python)\n# ([\w./]+)\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    assert [name for name, _ in blocks] == ["pyproject.toml", *(f"{package}/{name}" for name in modules)]
    (source / package).mkdir(parents=True)
    (source / package / "__init__.py").touch()
    for name, text in blocks:
        (source / name).write_text(text, encoding="utf-8")
    options = ("--quiet", "--no-deps", "--no-index", "--no-build-isolation", "--disable-pip-version-check")
    done = run("pip", "install", *options, "--target", str(target), str(source), path=target)
    assert done.returncode == 0, done.stderr
    return target
