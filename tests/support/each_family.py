"""Each tiny model that stands for a family, on other devices: it computes there what it computes on the CPU."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tests.support.text_models import load
from tests.support.tiny_text import ARCHITECTURES, MORE_ARCHITECTURES

__all__ = ["FAMILIES", "require_same_as_cpu"]

FAMILIES = (*ARCHITECTURES, *MORE_ARCHITECTURES)
IDS = np.random.default_rng(0).integers(0, 250, 24).tolist()


def require_same_as_cpu(path: Path, device: str | list[str], least: float, *, but_for: int = 0) -> None:
    """Whole and token by token, of an F32 file. least: of the largest logit.

    but_for: tokens that may differ. Where a device multiplies in half precision, it may choose another expert of two
    that are nearly as good.
    """
    with load(path, "cpu") as model:
        expected = model.logits(IDS)
    with load(path, device) as model:
        where = {each.device for each in model.memory().devices if each.weights}
        assert where == ({device} if isinstance(device, str) else set(device))
        with model.sequence() as sequence:
            for got in (model.logits(IDS), np.stack([sequence.append(i) for i in IDS])):
                errors = np.abs(got - expected).max(axis=1) / np.abs(expected).max()
                assert (errors > least).sum() <= but_for, errors
