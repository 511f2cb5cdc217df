"""A complete foreign set of ggml's libraries, load_all(ggml=DIR), with its GPU devices, on Mesa's software Vulkan."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("hotshoe_ggml", reason="hotshoe-ggml-cpu is not installed")

import hotshoe
from hotshoe.runner.text import TextModel
from tests.support.vulkan_set import vulkan_set

__all__ = ["vulkan_set"]

SHIPPED = Path(__file__).parents[2] / "examples" / "models" / "kjv-3m-q8_0.gguf"
TEXT = "In the beginning God created the heaven and the earth."

# In another process: each has one ggml, and that of the tests has hotshoe's.
PROGRAM = """
import json, sys
import hotshoe
from hotshoe_core.contract.mapped_libraries import mapped_libraries

path, device, text = sys.argv[1:]
registry = hotshoe.load_all(timeout=120)
with hotshoe.load_model(path, device) as model:
    logits = model.logits(model.tokenizer.encode(text))
    written = model.generate(text, max_tokens=8, temperature=0).text
    where = [each.device for each in model.memory().devices if each.weights]
print(json.dumps({
    "devices": {device.name: device.description for device in registry.devices},
    "verdicts": [(each.candidate, each.kind, each.outcome.value, each.reason) for each in registry.verdicts],
    "logits": logits.tolist(), "written": written, "where": where,
    "mapped": list(mapped_libraries("ggml-base")) + list(mapped_libraries("ggml-cpu")),
}))
"""


def run(device: str, folder: Path, tmp_path: Path) -> dict[str, Any]:
    environment = {**os.environ, "HOTSHOE_GGML": str(folder), "HOTSHOE_CACHE_DIR": str(tmp_path)}
    environment["GGML_VK_VISIBLE_DEVICES"] = "0"  # without it ggml lists no software device
    # If ggml's Vulkan backend changes the order of the ops, the queue thread of Mesa 22.3's software Vulkan frees a
    # resource twice: glibc says so in 3 processes of 16. With the order of the graph it is 0 of 40.
    environment["GGML_VK_DISABLE_GRAPH_OPTIMIZE"] = "1"
    command = [sys.executable, "-c", PROGRAM, str(SHIPPED), device, TEXT]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_a_model_on_the_vulkan_device_of_a_foreign_set(vulkan_set: Path, tmp_path: Path) -> None:
    found = run("vulkan:0", vulkan_set, tmp_path)
    assert "llvmpipe" in found["devices"]["vulkan:0"]
    assert found["where"] == ["vulkan:0"]
    # one ggml in the process, and the CPU that helps the GPU belongs to the same set
    assert {Path(path).parent for path in found["mapped"]} == {vulkan_set}
    assert any("ggml-cpu" in path for path in found["mapped"])
    with hotshoe.load_model(SHIPPED, "cpu") as model:
        assert isinstance(model, TextModel)
        expected = model.logits(model.tokenizer.encode(TEXT))
        written = model.generate(TEXT, max_tokens=8, temperature=0).text
    got = np.array(found["logits"])
    assert (
        np.abs(got - expected).max() <= 3e-2 * np.abs(expected).max()
    )  # products of 8-bit weights, which are rounded differently
    assert found["written"] == written
