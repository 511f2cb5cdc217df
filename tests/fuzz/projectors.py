"""Files of encoders of pictures (mmproj) with something changed: loaded and computed, or refused in words."""

from __future__ import annotations

import random
import tempfile
import warnings
from pathlib import Path

import numpy as np

import hotshoe
from tests.fuzz import files
from tests.fuzz.fault import Fault
from tests.fuzz.gguf_parts import Key, Parts, Row
from tests.towers.made import MadeTower
from tests.towers.row import picture
from tests.towers.rows import ROWS

__all__ = ["SEEDS", "SHARE", "run", "setup"]

SEEDS = (1000281,)  # a sliding window: untyped
SHARE = 60
NAMES = ("qwen2.5-vl", "gemma3")
ATTENDED = "mllama"

_made: dict[str, tuple[Path, Parts]] = {}
_folder: list[tempfile.TemporaryDirectory[str]] = []


def setup() -> None:
    files.setup()
    for folder in _folder:  # of an earlier target in this process
        folder.cleanup()
    _folder[:] = [tempfile.TemporaryDirectory(prefix="fuzz-projectors-")]
    for name in (*NAMES, ATTENDED):
        made = MadeTower(name, ROWS[name], Path(_folder[0].name) / name)
        _made[name] = made.path, Parts.of(made.file("f16"))


def run(seed: int) -> str:
    rng = random.Random(seed)
    model, whole = _made[ATTENDED if seed % 3 == 2 else rng.choice(NAMES)]
    parts = Parts(
        [Key(k.name, k.type, k.payload) for k in whole.keys],
        [Row(r.name, list(r.dims), r.type, r.data) for r in whole.rows],
    )
    path = Path(_folder[0].name) / "changed.gguf"
    path.write_bytes(files.damaged(parts, rng))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return files.measured(lambda: _use(model, path, "reference" if rng.random() < 0.3 else "cpu"))


def _use(model: Path, path: Path, device: str) -> str:
    with hotshoe.load_model(model, device, task="text", n_ctx=128, projector=path) as loaded:
        logits = loaded.logits(loaded.images.items("the", [picture(56, 84)], add_special=False))  # type: ignore[union-attr]
        if not np.isfinite(logits.max(axis=1)).all():
            raise Fault("different", "NaN or infinite logits")
    return "answered"
