"""Tell a user who chose ``matmul_precision`` where it has no effect."""

from __future__ import annotations

from collections.abc import Sequence

from hotshoe_core.contract.backend import WeightData
from hotshoe_core.contract.device import BackendParams
from hotshoe_ggml.native.log import logger
from hotshoe_ggml.unit import Unit

__all__ = ["CONVOLUTIONS", "warn_of_precision"]

CONVOLUTIONS = ("conv1d", "conv2d", "conv3d")
_NAMES = {
    "linear": "matrices",
    "linear_experts": "experts",
    "matmul": "other matrices",
    **dict.fromkeys(CONVOLUTIONS, "convolutions"),
}
"""The ops that multiply by a weight, and what such weights are called."""


def warn_of_precision(weights: Sequence[tuple[Unit, WeightData]], params: BackendParams) -> None:
    """Log a warning if ``params.matmul_precision`` has no effect, or not on all weights.

    weights: each with the unit that multiplies by it.
    """
    if params.matmul_precision == "bf16" and not any(unit.rounds(weight) for unit, weight in weights):
        why = "this model has no weights that it would affect (F16, or F32 of an encoder, on the CPU)"
        logger.warning("matmul_precision='bf16' has no effect: %s", why)
    if params.matmul_precision == "f32":
        factors = [(unit, weight) for unit, weight in weights if _NAMES.keys() & weight.uses]
        others = [weight for unit, weight in factors if not unit.multiplies_in_f32(weight)]
        if others:
            kinds = {f"{w.dtype.name} {_NAMES[use]}" for w in others for use in _NAMES.keys() & w.uses}
            logger.warning(
                "matmul_precision='f32' has no effect on %d of %d weights (%s), which are computed as with 'stored'. "
                "It is for matrices of F16 and BF16, on an x86 CPU with AVX2 and with repack=True; not for quantized "
                "weights, experts and convolutions",
                len(others),
                len(factors),
                ", ".join(sorted(kinds)),
            )
