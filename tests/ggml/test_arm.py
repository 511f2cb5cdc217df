"""Our products on ARM, by an emulator: they give the same bits as on this CPU."""

from __future__ import annotations

import shutil
import struct
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("hotshoe_ggml", reason="hotshoe-ggml-cpu is not installed")

import hotshoe_ggml
from hotshoe_core.tensors.dtypes import DType
from hotshoe_ggml.cpu.packed import QuantizedWeight
from hotshoe_ggml.native import kernels

from .test_linear_kernel import ready, run
from .test_quants_kernel import TYPES, activations, weight

ROOT = Path(__file__).parents[2]
COMPILER = shutil.which("aarch64-linux-gnu-gcc")
EMULATOR = shutil.which("qemu-aarch64-static") or shutil.which("qemu-aarch64")
KINDS = ("arm_products", "hotshoe_isa", "hotshoe_quants", "prefetch_choice")
"""The files that the program needs. The others are compiled only."""
K, M = 2304, 83

pytestmark = [
    pytest.mark.skipif(
        COMPILER is None or EMULATOR is None,
        reason="needs an emulator of ARM and a compiler: apt install qemu-user-static gcc-aarch64-linux-gnu",
    ),
    pytest.mark.skipif(
        not kernels().hotshoe_quants_has(DType.Q4_0.id, 32), reason="this CPU has no products of ours to compare with"
    ),
]


@pytest.fixture(name="program", scope="module")
def _program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """tests/support/arm_products.c with all our kernels, compiled for ARM."""
    folder, native = tmp_path_factory.mktemp("arm"), ROOT / "plugins/ggml-cpu/native"
    # a system's folder: our warnings are not for ggml's headers
    include = ["-isystem", Path(hotshoe_ggml.__file__).parent / "include", f"-I{native}"]
    flags = ["-O2", "-std=c11", "-D_DEFAULT_SOURCE", "-fno-math-errno", "-ffp-contract=fast", "-Wall", "-Werror"]
    objects = []
    for source in [*native.glob("*.c"), ROOT / "tests/support/arm_products.c"]:
        own = ["-march=armv8.2-a+dotprod"] if source.stem.endswith("dotprod") else []  # as in kernels.cmake
        objects.append(folder / f"{source.stem}.o")
        subprocess.run([COMPILER, *flags, *include, *own, "-c", source, "-o", objects[-1]], check=True)
    linked = [object for object in objects if object.stem.startswith(KINDS)]
    subprocess.run([COMPILER, "-static", *linked, "-o", folder / "products", "-lm"], check=True)
    return folder / "products"


def on_arm(
    program: Path, dtype: DType, rows: list[np.ndarray], *, outliers: bool = False, cpu: str = "neoverse-n1"
) -> bytes:
    """What the program writes for the products of some rows with the weight of this type."""
    data, _ = weight(dtype, M, K)
    cases = b""
    for x in rows:
        cases += struct.pack("<2i4q", dtype.id, outliers, K, M, len(x), data.data.nbytes)
        cases += data.data.tobytes() + x.tobytes()
    assert EMULATOR is not None
    return subprocess.run([EMULATOR, "-cpu", cpu, program], input=cases, stdout=subprocess.PIPE, check=True).stdout


@pytest.mark.parametrize("dtype", TYPES, ids=lambda d: d.name)
def test_dot_products_give_the_same_bits(dtype: DType, program: Path) -> None:
    data, _ = weight(dtype, M, K)
    rows = [activations(n, K) for n in (1, 2, 3, 4, 9, 30)]
    expected = b"".join(run(ready(QuantizedWeight(data)), x).tobytes() for x in rows)
    assert on_arm(program, dtype, rows) == expected


def test_outliers_give_the_same_bits(program: Path) -> None:
    data, _ = weight(DType.Q4_0, M, K)
    x = activations(5, K)
    x[1, 7], x[3, 300] = 50, -80
    packed = ready(QuantizedWeight(replace(data, compute_bound=True)))
    assert packed.separate_outliers
    assert on_arm(program, DType.Q4_0, [x], outliers=True) == run(packed, x).tobytes()


@pytest.mark.parametrize("cpu", ["cortex-a53", "max"])
def test_a_cpu_with_neither_or_with_faster_ones_uses_those_of_ggml(cpu: str, program: Path) -> None:
    """The first has no dot products, the second also has I8MM."""
    assert on_arm(program, DType.Q4_0, [activations(2, K)], cpu=cpu) == b""
