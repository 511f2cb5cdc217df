"""Tensors of experts: checkpoints store them separately or stacked; GGUF stacks each of gate, up and down."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from hotshoe.convert._sources import TensorSource, as_is, half_of, has, stacked
from hotshoe_core.errors import ConversionError

if TYPE_CHECKING:
    from hotshoe.convert._checkpoint import Checkpoint

__all__ = ["experts", "experts_used"]

_PARTS = {"gate": "gate_proj", "up": "up_proj", "down": "down_proj"}


def experts(
    checkpoint: Checkpoint, block: str, source: str, n: int, ff: int, dim: int, parts: Mapping[str, str] = _PARTS
) -> list[TensorSource]:
    """Stack ``n`` experts into one tensor each for gate, up and down.

    The inputs are ``source.0.<name>``, ``source.1.<name>``, …, with names from ``parts``; or ``source.gate_up_proj``
    and ``source.down_proj``, the format that transformers 5 uses in memory.

    Raises ConversionError if ``n`` is larger than the number of tensors in the checkpoint.
    """
    if has(checkpoint, f"{source}.gate_up_proj"):
        return [
            half_of(f"{block}.ffn_gate_exps.weight", f"{source}.gate_up_proj", (n, ff, dim), 0),
            half_of(f"{block}.ffn_up_exps.weight", f"{source}.gate_up_proj", (n, ff, dim), 1),
            as_is(f"{block}.ffn_down_exps.weight", f"{source}.down_proj", (n, dim, ff)),
        ]
    if n > len(checkpoint.tensors):
        # checked before a list of n names is made
        raise ConversionError(
            f"{checkpoint.model / 'config.json'} says {n} experts, but the checkpoint has only "
            f"{len(checkpoint.tensors)} tensors",
            hint="check that the weights belong to this config.json, and that no file is missing",
        )
    return [
        stacked(
            f"{block}.ffn_{part}_exps.weight",
            [f"{source}.{expert}.{name}.weight" for expert in range(n)],
            (dim, ff) if part == "down" else (ff, dim),
        )
        for part, name in parts.items()
    ]


def experts_used(checkpoint: Checkpoint, n_experts: int, default: int) -> int:
    """Read num_experts_per_tok. Raises ConversionError if it is larger than ``n_experts``."""
    n_used = checkpoint.integer("num_experts_per_tok", default)
    if n_used > n_experts:
        raise ConversionError(
            f"{checkpoint.model / 'config.json'}: num_experts_per_tok is {n_used}, but there are {n_experts} experts"
        )
    return n_used
