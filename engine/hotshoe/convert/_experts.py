"""The experts of a layer, which checkpoints keep apart or together, and GGUF in one tensor for each part."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from hotshoe.convert._recipes import Recipe, as_is, half_of, has, stacked
from hotshoe_core.errors import ConversionError

if TYPE_CHECKING:
    from hotshoe.convert._checkpoint import Checkpoint

__all__ = ["experts", "experts_used"]

_PARTS = {"gate": "gate_proj", "up": "up_proj", "down": "down_proj"}


def experts(
    checkpoint: Checkpoint, block: str, source: str, n: int, ff: int, dim: int, parts: Mapping[str, str] = _PARTS
) -> list[Recipe]:
    """The ``n`` experts ``source.0``, ``source.1``, … as one tensor for each of gate, up and down, named by ``parts``.

    They are also found as transformers 5 keeps them in memory: ``source.gate_up_proj`` and ``source.down_proj``.
    Raises ConversionError for more experts than the checkpoint has tensors.
    """
    if has(checkpoint, f"{source}.gate_up_proj"):
        return [
            half_of(f"{block}.ffn_gate_exps.weight", f"{source}.gate_up_proj", (n, ff, dim), 0),
            half_of(f"{block}.ffn_up_exps.weight", f"{source}.gate_up_proj", (n, ff, dim), 1),
            as_is(f"{block}.ffn_down_exps.weight", f"{source}.down_proj", (n, dim, ff)),
        ]
    if n > len(checkpoint.tensors):
        # before a list of so many names is made
        raise ConversionError(
            f"{checkpoint.model / 'config.json'} says {n} experts, and the weights are "
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
    """num_experts_per_tok. Raises ConversionError for more than there are."""
    n_used = checkpoint.integer("num_experts_per_tok", default)
    if n_used > n_experts:
        raise ConversionError(
            f"{checkpoint.model / 'config.json'}: num_experts_per_tok is {n_used}, and there are {n_experts} experts"
        )
    return n_used
