"""Inputs of batches, and what must hold of every output."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("starlette", reason="hotshoe[serve] is not installed")

VERSE = Path(__file__).parents[2] / "examples" / "models" / "kjv-3m-q8_0.gguf"
MODEL = (f"verse={VERSE}", "--device", "cpu", "--threads", "1")


def line(custom_id: str, body: dict[str, Any], url: str = "/v1/completions") -> str:
    return json.dumps({"custom_id": custom_id, "method": "POST", "url": url, "body": body}) + "\n"


def texts(n: int, n_tokens: int = 8) -> list[str]:
    """Requests for ``n`` texts. A greedy text depends on its prompt only, except for near ties."""
    given = {"model": "verse", "temperature": 0, "max_tokens": n_tokens}
    return [line(f"text {i}", given | {"prompt": f"And in the year {i}"}) for i in range(n)]


def write(path: Path, lines: list[str]) -> Path:
    path.write_text("".join(lines), encoding="utf-8")
    return path


def batch(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(*arguments), capture_output=True, text=True, timeout=300, check=False)


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "hotshoe", "batch", *map(str, arguments)]


def answers(path: Path) -> dict[str, dict[str, Any]]:
    """The answers by custom_id. Nothing may be there twice."""
    found = [json.loads(each) for each in path.read_text(encoding="utf-8").splitlines()]
    assert len({answer["id"] for answer in found}) == len(found)
    by_id = {answer["custom_id"]: answer for answer in found}
    assert len(by_id) == len(found)
    return by_id


def check_all(path: Path, n: int) -> None:
    """Every one of the requests of ``texts(n)`` has one answer, to its own prompt."""
    found = answers(path)
    assert set(found) == {f"text {i}" for i in range(n)}
    for answer in found.values():
        assert answer["error"] is None
        assert answer["response"]["status_code"] == 200, answer
        assert answer["response"]["body"]["usage"]["completion_tokens"] > 0
