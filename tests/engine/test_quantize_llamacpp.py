"""Our quantizer against llama.cpp's, on the same models: every file byte by byte.

The records are of x86-64, where ggml's quantizers are compiled without fused multiply-adds; other CPUs may round
elsewhere, and are compared by the types of the tensors.
"""

from __future__ import annotations

import hashlib
import json
import platform
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hotshoe.quantize import (
    FILE_TYPES,
    Importance,
    ImportanceMatrix,
    QuantizationPlan,
    QuantizeParams,
    plan_quantization,
    quantize_model,
)
from hotshoe_core.errors import ConversionError
from hotshoe_core.gguf import GGUFFile
from tests.support.quantized import MODELS, OPTIONS, importance_of, make

pytest.importorskip("hotshoe_ggml", reason="hotshoe-ggml-cpu is not installed")

SAME_BYTES = platform.machine().lower() in ("x86_64", "amd64")
TABLES = ("IQ1_", "IQ2_", "IQ3_")
RECORDED: dict[str, Any] = json.loads((Path(__file__).parents[1] / "data" / "quantized.json").read_text())


def described(path: Path) -> str:
    """As the records say it."""
    with GGUFFile(path) as file:
        types = Counter(info.dtype.name for info in file.tensors.values())
    digest = hashlib.sha256(path.read_bytes()).hexdigest()[:16]
    return " ".join([digest, *(f"{name}:{n}" for name, n in sorted(types.items()))])


def require_same(found: str, recorded: str, what: str) -> None:
    if not SAME_BYTES:
        found, recorded = found[16:], recorded[16:]
    assert found.startswith(recorded), what  # where the gguf package did not know a type, the record has no types


def matrix(name: str) -> ImportanceMatrix:
    weights = {k: Importance(v, np.ones(len(v), np.float32)) for k, v in importance_of(name).items()}
    return ImportanceMatrix(weights, ("texts.txt",), 3, 512, Path("imatrix.gguf"))


def test_the_records_are_of_every_type() -> None:
    for name in MODELS:
        assert {key.removesuffix(" imatrix") for key in RECORDED["files"][name]} == set(FILE_TYPES)


def types_of(plan: QuantizationPlan) -> str:
    types = Counter(c.new.name for c in plan.changes)
    return " ".join(f"{name}:{n}" for name, n in sorted(types.items()))


def kinds_of(name: str) -> Iterator[tuple[str, str, QuantizeParams, str]]:
    """Of each record that is a file: its key, the type of the file, how it is made, and what it is."""
    weights = matrix(name)
    for key, recorded in RECORDED["files"][name].items():
        if recorded is not None:
            params = QuantizeParams(imatrix=weights if key.endswith(" imatrix") else None)
            yield key, key.removesuffix(" imatrix"), params, recorded


@pytest.mark.parametrize("name", MODELS)
def test_the_same_types(name: str, tmp_path: Path) -> None:
    source = make(name, tmp_path / "in.gguf")
    for key, kind, params, recorded in kinds_of(name):
        found = types_of(plan_quantization(source, kind, params))
        assert recorded[17:] in (found, ""), key  # none where the gguf package does not know one of them


@pytest.mark.parametrize("name", MODELS)
def test_the_same_file(name: str, tmp_path: Path) -> None:
    """All types except those of the next test, whose tables take ggml longer to make than all the rest."""
    source = make(name, tmp_path / "in.gguf")
    n = 0
    for key, kind, params, recorded in kinds_of(name):
        if name == "70b" and kind not in ("q3_k_m", "q4_k_s"):
            continue  # what is particular in it are the types
        if not any(table in recorded for table in TABLES) and kind != "f32":
            path = quantize_model(source, tmp_path / "out.gguf", kind, params, n_threads=1, overwrite=True)
            require_same(described(path), recorded, f"{name} as {key}")
            n += 1
    assert n >= (4 if name == "70b" else 34)


@pytest.mark.parametrize("table", TABLES)
def test_the_same_file_of_the_smallest_types(table: str, tmp_path: Path) -> None:
    source = make("eight-experts", tmp_path / "in.gguf")
    n = 0
    for key, kind, params, recorded in kinds_of("eight-experts"):
        if next((t for t in TABLES if f" {t}" in recorded), None) == table:
            path = quantize_model(source, tmp_path / "out.gguf", kind, params, overwrite=True)
            require_same(described(path), recorded, key)
            n += 1
    assert n


@pytest.mark.parametrize("name", MODELS)
def test_what_llamacpp_refuses_is_refused(name: str, tmp_path: Path) -> None:
    source = make(name, tmp_path / "in.gguf")
    for key, recorded in RECORDED["files"][name].items():
        if recorded is None:
            params = QuantizeParams(imatrix=matrix(name) if key.endswith(" imatrix") else None)
            with pytest.raises(ConversionError, match=r"needs an importance matrix|cannot be q1_0: its rows"):
                quantize_model(source, tmp_path / "out.gguf", key.removesuffix(" imatrix"), params)
    assert not (tmp_path / "out.gguf").exists()


@pytest.mark.parametrize("what", OPTIONS)
def test_the_same_file_with_options(what: str, tmp_path: Path) -> None:
    params = QuantizeParams(**OPTIONS[what])
    path = quantize_model(make("dense", tmp_path / "in.gguf"), tmp_path / "out.gguf", "q4_k_m", params)
    require_same(described(path), RECORDED["options"][what], what)


@pytest.mark.parametrize("name", MODELS)
def test_a_dry_run_shows_what_is_written(name: str, tmp_path: Path) -> None:
    source = make(name, tmp_path / "in.gguf")
    plan = plan_quantization(source, "q4_k_m")
    with GGUFFile(quantize_model(source, tmp_path / "out.gguf", "q4_k_m")) as file:
        assert [(c.name, c.shape, c.new, c.nbytes_new) for c in plan.changes] == [
            (info.name, info.shape, info.dtype, info.nbytes) for info in file.tensors.values()
        ]
    assert plan.nbytes_new < plan.nbytes_old
