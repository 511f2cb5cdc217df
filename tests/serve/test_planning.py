"""The context with which a model is planned, with plans that are numbers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("starlette", reason="hotshoe[serve] is not installed")

from hotshoe.serve import wire
from hotshoe.serve.planning import _largest


@pytest.mark.parametrize("trained", [4000, 4096, 131_072])
@pytest.mark.parametrize("fits", [2048, 3000, 3700, 4000, 100_000])
def test_the_largest_context(trained: int, fits: int) -> None:
    n_plans = 0

    def plan(n_ctx: int, n: int, free: Any = None) -> Any:
        nonlocal n_plans
        n_plans += 1
        assert n_plans < 50, "it goes on for ever"
        return SimpleNamespace(fits=n_ctx * n <= fits, devices=(), placement=SimpleNamespace(layers=()))

    load = wire.Load("m", None, None, {})
    n_ctx, n = _largest(plan(2048, 1), {}, load, plan, trained, 2048, (2, 1))
    assert n_ctx * n <= fits
    assert n_ctx == trained or n_ctx > fits - max(512, trained // 64)
