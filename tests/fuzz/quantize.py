"""Quantizing damaged files with damaged importance matrices: a file that can be read, or an error in words."""

from __future__ import annotations

import random
import struct
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from hotshoe.quantize import (
    FILE_TYPES,
    Importance,
    ImportanceMatrix,
    QuantizeParams,
    plan_quantization,
    quantize_model,
)
from hotshoe_core.errors import HotshoeError
from hotshoe_core.gguf import GGUFFile
from tests.fuzz import files
from tests.fuzz.fault import Fault
from tests.fuzz.gguf_parts import Parts
from tests.fuzz.targets import load

__all__ = ["SEEDS", "SHARE", "run", "setup"]

SEEDS = ()
SHARE = 60
SECONDS = 10.0  # of one case

_folder: list[tempfile.TemporaryDirectory[str]] = []
_NUMBERS = (0.0, 1.0, -1.0, 1e-30, 1e30, 3e38, float("nan"), float("inf"))
_COUNTS = (0, 1, 2, 3, 64, 128, 2**31 - 1, -1)
_TYPES = ("q4_k_m", "q8_0", "q4_0", "f16", "q2_k", "iq2_xs", "iq3_s", "q6_k", "bf16", "f32", "tq1_0", "mxfp4")
_DTYPES = ("q8_0", "f16", "q6_k", "q2_k", "iq1_s", "f32", "i8", "", "q99", None, 5)
_PATTERNS = ("attn_v", r"blk\.\d", ".*", "(", "token_embd", "norm", "", 5)


def setup() -> None:
    load("files")
    _folder[:] = [tempfile.TemporaryDirectory(prefix="fuzz-quantize-")]


def run(seed: int) -> str:
    rng = random.Random(seed)
    folder = Path(_folder[0].name)
    source, target, imatrix = folder / "in.gguf", folder / "out.gguf", folder / "imatrix"
    kind = rng.randrange(3)  # what is damaged: the model, the importance matrix, or the options
    base = files.base(rng)
    source.write_bytes(files.damaged(base, rng) if kind == 0 else base.bytes())
    target.write_bytes(b"old")
    begun = time.process_time()
    try:
        with_imatrix = kind == 1 or rng.random() < 0.4
        if with_imatrix:
            _write_imatrix(imatrix, base, rng, damaged=kind == 1)
        params = QuantizeParams(imatrix=imatrix if with_imatrix else None, **_options(rng, odd=kind == 2))
        file_type = rng.choice(_TYPES if rng.random() < 0.8 else tuple(FILE_TYPES))
        plan = plan_quantization(source, file_type, params)
        quantize_model(source, target, file_type, params, n_threads=1, overwrite=True)
        outcome = _check(target, {c.name: (c.shape, c.new) for c in plan.changes})
    except HotshoeError as error:
        outcome = "refused"
        files.check_message(error)
        if target.read_bytes() != b"old":
            raise Fault("different", f"{target} was changed although it was refused: {error.message}") from None
    left = {path.name for path in folder.iterdir()} - {"in.gguf", "out.gguf", "imatrix"}
    if left:
        raise Fault("leak", f"{left} was left")
    if (seconds := time.process_time() - begun) > SECONDS:
        raise Fault("slow", f"{seconds:.1f} s until {outcome}")
    return outcome


def _check(target: Path, expected: dict[str, Any]) -> str:
    with GGUFFile(target) as file:
        found = {name: (info.shape, info.dtype) for name, info in file.tensors.items()}
        if found != expected:
            raise Fault("different", "the new file does not hold what was planned")
        for name, (_, dtype) in expected.items():
            if dtype.is_float and dtype.numpy is not None and not np.isfinite(file.array(name)).all():
                raise Fault("different", f"{name} holds values that are not numbers")
    return "answered"


def _options(rng: random.Random, *, odd: bool) -> dict[str, Any]:
    found: dict[str, Any] = {"allow_requantize": rng.random() < 0.9}
    if odd:
        for name in ("output_type", "token_embedding_type"):
            if rng.random() < 0.4:
                found[name] = rng.choice(_DTYPES)
        if rng.random() < 0.5:
            pair = (rng.choice(_PATTERNS), rng.choice(_DTYPES))
            found["tensor_types"] = rng.choice(([pair], [pair, pair], [pair[0]], pair, 5, "x"))
        for name in ("pure", "leave_output", "allow_requantize"):
            if rng.random() < 0.2:
                found[name] = rng.choice((True, False, 1, None, "no"))
    return found


def _write_imatrix(path: Path, model: Parts, rng: random.Random, *, damaged: bool) -> None:
    """An importance matrix of the model in either format, with some numbers, sizes and bytes changed."""
    weights = {}
    for row in model.rows:
        if len(row.dims) < 2:
            continue
        n, k = (row.dims[2] if len(row.dims) > 2 else 1), row.dims[0]
        if damaged and rng.random() < 0.05:
            n, k = rng.choice((n, n + 1, 0)), rng.choice((k, k + 1, 1, 2 * k, 0))
        sums = np.full((n, k), rng.random(), np.float32)
        counts = np.full(n, rng.choice((1, 5)), np.float32)
        for array in (sums, counts) if damaged and rng.random() < 0.05 else ():
            if array.size:
                array.reshape(-1)[rng.randrange(array.size)] = rng.choice(_NUMBERS)
        weights[row.name] = Importance(sums, counts)
    if rng.random() < 0.5:
        ImportanceMatrix(weights, ("text",), 3, 128).write(path)
    else:
        raw = struct.pack("<i", len(weights) if not damaged or rng.random() < 0.9 else rng.choice(_COUNTS))
        for name, (sums, _) in weights.items():
            text = name.encode()
            calls, size = (rng.choice(_COUNTS), sums.size) if damaged and rng.random() < 0.02 else (1, sums.size)
            raw += struct.pack("<i", len(text)) + text + struct.pack("<ii", calls, size) + sums.tobytes()
        path.write_bytes(raw + struct.pack("<ii", 3, 4) + b"text")
    if damaged and rng.random() < 0.5:
        path.write_bytes(files.damaged_bytes(path.read_bytes(), rng))
