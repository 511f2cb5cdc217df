"""ggml's selective scan has an inexact softplus of small steps: the lowering computes it beforehand."""

from __future__ import annotations

import numpy as np
import pytest

import hotshoe
from hotshoe_core import ops


@pytest.mark.parametrize("dt", [-12.0, -4.0, 3.0, 30.0])
def test_small_steps_keep_their_digits(dt: float) -> None:
    registry = hotshoe.load_all()
    if "cpu" not in [d.name for d in registry.devices]:
        pytest.skip("no device 'cpu': hotshoe-ggml-cpu is not installed")
    draw = np.random.default_rng(0).standard_normal
    x, b, c = draw((1, 1, 4, 16)), draw((1, 1, 1, 16)), draw((1, 1, 1, 16))
    arrays = [x, np.full((1, 1, 4), dt), -np.ones((4, 1)), b, c, np.zeros((1, 4, 16, 16))]
    arrays = [a.astype(np.float32) for a in arrays]
    expected = arrays[0] * np.log1p(np.exp(np.float64(dt))) * (arrays[3] * arrays[4]).sum(dtype=np.float64)
    with registry.open("cpu") as backend, backend.new_context() as ctx:
        inputs = [ctx.input(str(i), a.shape) for i, a in enumerate(arrays)]
        y, _ = ops.ssm_scan(*inputs, dt_softplus=True)
        ctx.forward(y).compute(dict(zip(inputs, arrays, strict=True)))
        assert "native" in {p.how for p in ctx.placements() if p.op == "ssm_scan"}
        assert np.abs(y.read() - expected).max() <= 1e-6 * np.abs(expected).max()
