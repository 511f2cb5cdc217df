"""Runs a program that calls load_all in a separate environment, and collects the result."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.zoo.species import TIME_LIMIT, Animal

__all__ = ["Visit", "Zoo"]

VISITOR = Path(__file__).with_name("visitor.py")


@dataclass(frozen=True)
class Visit:
    """The result of a program that called load_all: its report, and what it left."""

    report: dict[str, Any]
    code: int
    left: list[str]  # files in its directory, home and temporary folder
    alive: list[str]  # processes that outlive it

    def about(self, animal: Animal) -> list[dict[str, Any]]:
        """The verdicts on an animal's plugin and its libraries."""
        return [
            verdict
            for verdict in self.report["verdicts"]
            if verdict["origin"].startswith(f"{animal.distribution} ") or f"/{animal.module}/" in verdict["origin"]
        ]


@dataclass(frozen=True)
class Zoo:
    """An environment: its interpreter, and the folder of its packages."""

    python: Path
    site: Path

    def visit(self, folder: Path, compute: Sequence[str] = ("cpu", "reference"), **options: Any) -> Visit:
        """Runs a visitor in ``folder`` with these options of load_all; it then computes on some devices."""
        places = {name: folder / name for name in ("home", "tmp", "cwd", "cache")}
        for place in places.values():
            place.mkdir(parents=True, exist_ok=True)
        token = str(folder)
        hidden = ("HOTSHOE", "PYTHON", "PYTEST")
        environ = {key: value for key, value in os.environ.items() if not key.startswith(hidden)}
        environ |= {"HOME": str(places["home"]), "TMPDIR": str(places["tmp"]), "ZOO_TOKEN": token}
        environ |= {"XDG_CACHE_HOME": str(places["cache"]), "PYTHONDONTWRITEBYTECODE": "1"}
        report = folder / "report.json"
        report.unlink(missing_ok=True)
        asked = {"timeout": TIME_LIMIT, "compute": compute, **options}
        with open(folder / "stdout", "wb+") as stdout, open(folder / "stderr", "wb+") as stderr:
            done = subprocess.run(
                [self.python, VISITOR, report, json.dumps(asked)],
                cwd=places["cwd"],
                env=environ,
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                timeout=300,
            )
        words = (folder / "stderr").read_text(errors="replace")[-4000:]
        assert report.exists(), f"the user's process ended with {done.returncode}:\n{words}"
        left = [str(path) for name in ("home", "tmp", "cwd") for path in places[name].rglob("*")]
        return Visit(json.loads(report.read_text()), done.returncode, sorted(left), _end_all(token))


def _end_all(token: str) -> list[str]:
    """End the processes that outlive the program, found by its token in their environment; return their commands."""
    found = []
    for environ in Path("/proc").glob("[0-9]*/environ"):
        try:
            if token.encode() in environ.read_bytes():
                found.append(environ.with_name("cmdline").read_bytes().replace(b"\0", b" ").decode())
                os.kill(int(environ.parent.name), signal.SIGKILL)
        except OSError:  # it ended meanwhile, or is not ours
            continue
    return found
