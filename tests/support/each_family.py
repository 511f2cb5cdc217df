"""Each tiny model that stands for a family, on other devices: it computes there what it computes on the CPU."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tests.support.text_models import assert_close, load
from tests.support.tiny_text import ARCHITECTURES, MORE_ARCHITECTURES

__all__ = ["FAMILIES", "require_same_as_cpu"]

FAMILIES = (*ARCHITECTURES, *MORE_ARCHITECTURES)
IDS = np.random.default_rng(0).integers(0, 250, 24).tolist()


def require_same_as_cpu(path: Path, device: str | list[str], least: float) -> None:
    """Whole and token by token, of an F32 file. least: of the largest logit."""
    with load(path, "cpu") as model:
        expected = model.logits(IDS)
    with load(path, device) as model:
        where = {each.device for each in model.memory().devices if each.weights}
        assert where == ({device} if isinstance(device, str) else set(device))
        assert_close(model.logits(IDS), expected, least)
        with model.sequence() as sequence:
            assert_close(np.stack([sequence.append(i) for i in IDS]), expected, least)
