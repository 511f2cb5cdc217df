"""Vulkan: a part of the conformance kit (vulkan_kit.py has the whole kit), models, and devices that fail."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("hotshoe_ggml", reason="hotshoe-ggml-cpu is not installed")

import hotshoe
from hotshoe.runner.embedder import EmbeddingModel
from hotshoe.runner.text import TextModel
from hotshoe_core.contract.device import BackendParams, DeviceType
from hotshoe_core.errors import DeviceLostError, DeviceNotFoundError, InsufficientMemoryError
from hotshoe_core.ops import linear, roll
from hotshoe_core.tensors.dtypes import DType
from hotshoe_core.testing import MultiDeviceConformance, OpConformance
from hotshoe_core.testing.run import AnyCase
from hotshoe_ggml import unit
from hotshoe_loader import load_all
from tests.support.fixtures import minilm_folder, minilm_gguf  # noqa: F401  (fixtures)
from tests.support.vulkan import OnVulkan, require_vulkan

SHIPPED = Path(__file__).parents[2] / "examples" / "models" / "kjv-3m-q8_0.gguf"
PROMPT = "In the beginning"


@pytest.fixture(autouse=True)
def vulkan() -> str:
    return require_vulkan()


class TestGraphs(OnVulkan, OpConformance):
    """Several ops at once, as in layers, and ops that ggml's shaders compute wrong, or that end the process."""

    params = BackendParams(n_threads=1)

    @classmethod
    def cases(cls) -> Sequence[AnyCase]:
        by_themselves = ("argmax", "roll", "rwkv_wkv6")
        return [case for case in super().cases() if not case.op or (case.op in by_themselves and "nan" not in case.id)]


class TestWithTheCpu(OnVulkan, MultiDeviceConformance):
    devices = ("vulkan:0", "cpu")


def test_a_software_device_says_so_and_is_never_the_default() -> None:
    registry = load_all()
    for device in registry.devices:
        if device.provider == "ggml-vulkan":
            software = "a software device: it computes on the CPU" in device.description
            assert (device.type is DeviceType.ACCEL) == software
            assert software or device.type in (DeviceType.GPU, DeviceType.IGPU)
            assert device.memory_total > 0
    assert registry.select(None)[0].type is not DeviceType.ACCEL


@pytest.mark.parametrize("device", ["vulkan:0", ["vulkan:0", "cpu"]], ids=str)
def test_a_model_computes_what_it_computes_on_the_cpu(device: str | list[str]) -> None:
    with hotshoe.load_model(SHIPPED, "cpu") as model:
        assert isinstance(model, TextModel)
        ids = model.tokenizer.encode(PROMPT)
        expected = model.logits(ids)
    with hotshoe.load_model(SHIPPED, device) as model:
        assert isinstance(model, TextModel)
        where = {d.device for d in model.memory().devices if d.weights}
        assert where == ({device} if isinstance(device, str) else set(device))
        got = model.logits(ids)
        assert np.abs(got - expected).max() <= 2e-2 * np.abs(expected).max()  # 8-bit products, rounded in two ways
        with model.sequence() as sequence:  # token by token: graphs that are computed again
            steps = [sequence.append(token) for token in ids]
        assert np.abs(np.stack(steps) - got).max() <= 2e-2 * np.abs(expected).max()


def test_an_encoder(minilm_gguf: Callable[[str], Path]) -> None:  # noqa: F811
    texts = ["a cat sleeps", "stocks fell", "the feline naps"]
    vectors = []
    for device in ("cpu", "vulkan:0", ["vulkan:0", "cpu"]):
        with hotshoe.load_model(minilm_gguf("f16"), device) as model:
            assert isinstance(model, EmbeddingModel)
            vectors.append(model.embed(texts))
    for others in vectors[1:]:
        assert (vectors[0] * others).sum(1).min() > 0.9999


def test_a_state_without_memory_is_an_error() -> None:
    with load_all().open("vulkan:0") as backend:
        for size in (1 << 20, 1 << 28):  # 4 TiB and 1 PiB
            with pytest.raises(InsufficientMemoryError, match="vulkan:0"):
                backend.state((size, 1 << 20), DType.F32, "absurd")
        x = (ctx := backend.new_context()).input("x", (3,))
        y = x + 1.0
        assert ctx.forward(y).compute({x: np.zeros(3)}).read(y).tolist() == [1, 1, 1]


@pytest.fixture(scope="module")
def failing(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fake of Vulkan's loader that can make a device fail: see failing_vulkan.c."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None or not sys.platform.startswith("linux"):
        pytest.skip("needs a C compiler on Linux")
    library = tmp_path_factory.mktemp("vulkan") / "libfailing.so"
    source = Path(__file__).with_name("failing_vulkan.c")
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", library, source, "-ldl"], check=True)
    return library


def run(failing: Path, test: Callable[[ctypes.CDLL], None]) -> None:
    """Run a function of this module in a new process with the fake loader."""
    code = (
        f"import ctypes, tests.ggml.test_vulkan as t; t.{test.__name__}(ctypes.CDLL({str(failing)!r})); "
        "print('whole', flush=True)"
    )
    environment = {**os.environ, "LD_PRELOAD": str(failing), "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, timeout=600)
    assert (done.returncode, done.stdout) == (0, "whole\n"), done.stderr


def switch(library: ctypes.CDLL, name: str, on: bool) -> None:
    ctypes.c_int.in_dll(library, name).value = on


def lose_a_device(library: ctypes.CDLL) -> None:
    model, idle = (hotshoe.load_model(SHIPPED, "vulkan:0") for _ in range(2))
    assert isinstance(model, TextModel)
    assert isinstance(idle, TextModel)
    stream = model.stream(PROMPT, max_tokens=200, temperature=0)
    for _ in range(3):
        next(stream)
    time.sleep(1)  # until the graph that was started is computed: a software device does not stop when it is lost
    switch(library, "lost", True)
    with pytest.raises(hotshoe.HotshoeError, match=r"vulkan:0 .*was lost[\s\S]*load the model again") as caught:
        list(stream)
    assert type(caught.value).__name__ == "DeviceLostError"
    with pytest.raises(hotshoe.HotshoeError, match="lost"):
        idle.generate(PROMPT, max_tokens=2)
    model.close()
    with pytest.raises(hotshoe.HotshoeError):  # it is not back yet
        hotshoe.load_model(SHIPPED, "vulkan:0").generate(PROMPT, max_tokens=2)
    with hotshoe.load_model(SHIPPED, "cpu") as other:  # the process still works
        assert isinstance(other, TextModel)
        expected = other.generate(PROMPT, max_tokens=4, temperature=0).text
    switch(library, "lost", False)
    with hotshoe.load_model(SHIPPED, "vulkan:0") as back:
        assert isinstance(back, TextModel)
        with pytest.raises(hotshoe.HotshoeError, match="lost"):  # its memory there is lost
            idle.generate(PROMPT, max_tokens=2)
        idle.close()
        assert back.generate(PROMPT, max_tokens=4, temperature=0).text == expected


def fill_a_device(library: ctypes.CDLL) -> None:
    switch(library, "full", True)
    with pytest.raises(InsufficientMemoryError, match="vulkan:0"):
        hotshoe.load_model(SHIPPED, "vulkan:0")
    switch(library, "full", False)
    with load_all().open("vulkan:0") as backend:
        ctx = backend.new_context()
        x = ctx.input("x", (64, 256))
        # a view with gaps between rows: the product allocates memory for a copy, in the step
        w = ctx.input("w", (8, 256), DType.F16)
        y = linear(x[:, :128], w[:, :128])
        ctx.forward(y).reserve()
        feeds = {x: np.ones((64, 256)), w: np.ones((8, 256))}
        switch(library, "full", True)
        with pytest.raises(InsufficientMemoryError, match="ran out of memory in a step"):
            ctx.compute(feeds)
        switch(library, "full", False)
        assert np.all(ctx.compute(feeds).read(y) == 128)


def assert_in_a_device(library: ctypes.CDLL) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(unit, "fails", lambda claims, node: False)
        with load_all().open("vulkan:0") as backend:
            ctx = backend.new_context()
            x = ctx.input("x", (3, 4), DType.I64)
            ctx.forward(y := roll(x, shift=1, axis=1))
            with pytest.raises(DeviceLostError, match=r"GGML_ASSERT\(.*ggml_type_size\(src->type\) == 4\) failed"):
                ctx.compute({x: np.zeros((3, 4), np.int64)}).read(y)


def test_a_failed_assertion_of_a_device_is_an_error(failing: Path) -> None:
    run(failing, assert_in_a_device)


def test_a_device_that_is_lost_in_mid_generation(failing: Path) -> None:
    run(failing, lose_a_device)


def test_a_device_without_memory(failing: Path) -> None:
    run(failing, fill_a_device)


def test_without_a_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VK_ICD_FILENAMES", "/nowhere.json")
    monkeypatch.setenv("VK_DRIVER_FILES", "/nowhere.json")
    with pytest.raises(DeviceNotFoundError, match=r"Vulkan lists no device: .*IncompatibleDriver[\s\S]*apt install"):
        load_all(refresh=True).open("vulkan:0")
    assert "cpu" in {d.name for d in load_all().devices}
    monkeypatch.undo()
    load_all(refresh=True)
