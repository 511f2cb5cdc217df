"""The rows themselves: what a tiny model must have so that a mistake in a family shows."""

from __future__ import annotations

from itertools import product

import gguf
import numpy as np
import pytest

from hotshoe_core.gguf import GGUFFile
from tests.families.made import Made
from tests.support.rewrite import rewrite


def check_window(made: Made) -> list[str]:
    """The text must be at least twice as long as the window."""
    sizes = {name: getattr(made.config, name, None) for name in ("sliding_window", "attention_chunk_size")}
    if not getattr(made.config, "use_sliding_window", True):
        sizes = {}
    return [f"{name} {size}" for name, size in sizes.items() if size and 2 * size > len(made.ids)]


def check_period(made: Made) -> list[str]:
    """The pattern of layers must begin a second time."""
    kinds = list(getattr(made.config, "layer_types", None) or [])
    repeats = any(all(a == b for a, b in zip(kinds, kinds[p:], strict=False)) for p in range(1, len(kinds)))
    return [] if repeats or not kinds else kinds


def check_kv_heads(made: Made) -> list[str]:
    """Keys must have fewer heads than queries."""
    q, kv = (getattr(made.config, f"num_{name}_heads", None) for name in ("attention", "key_value"))
    return [f"{q} heads"] if q and q == kv else []


def check_head_dim(made: Made) -> list[str]:
    """The heads together must not be as wide as the hidden state, if the config states how wide one is."""
    n, dim = (getattr(made.config, name, None) for name in ("num_attention_heads", "head_dim"))
    return [f"{n} heads of {dim}"] if n and dim and n * dim == made.config.hidden_size else []


def check_experts(made: Made) -> list[str]:
    """The router must choose: some experts, and some groups, are not used for a token."""
    names = (
        ("num_experts_per_tok", "top_k_experts", "moe_top_k"),
        ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"),
    )
    config = getattr(made.config, "ffn_config", made.config)
    pairs = [(few, getattr(config, few, None), getattr(config, many, None)) for few, many in product(*names)]
    found = [(few, max(used) if isinstance(used, list) else used, n) for few, used, n in pairs if used and n]
    problems = [f"{few} {used}" for few, used, n in found if used >= n]
    with GGUFFile(made.file()) as file:
        assert found or not any("_exps." in name for name in file.tensors), "the names of their numbers are unknown"
    groups, used = (getattr(made.config, name, None) or 1 for name in ("n_group", "topk_group"))
    return problems + ([f"topk_group {used}"] if groups > 1 and used >= groups else [])


def check_original_context(made: Made) -> list[str]:
    """RoPE that is scaled for a longer context must be used beyond the original one."""

    def found(values: object) -> list[int]:
        if not isinstance(values, dict):
            return []
        own = [values["original_max_position_embeddings"]] if "original_max_position_embeddings" in values else []
        return own + [n for value in values.values() for n in found(value)]

    return [str(n) for n in found(getattr(made.config, "rope_parameters", None)) if n >= len(made.ids)]


def check_vectors(made: Made) -> list[str]:
    """The elements of a vector must differ: those of norms and biases are 1 and 0 before training."""
    kind = gguf.GGMLQuantizationType.F32
    tensors = [t for t in gguf.GGUFReader(made.file()).tensors if t.tensor_type == kind and t.n_elements > 1]
    return [t.name for t in tensors if np.ptp(t.data) == 0]


def check_epsilon(made: Made) -> list[str]:
    """The epsilon of norms that other families have must give another result."""
    with GGUFFile(made.file()) as file:
        own = {key: value for key, value in file.metadata.items() if key.endswith("epsilon")}
    other = {key: 1e-5 if value < 5e-6 else 1e-6 for key, value in own.items()}
    ours = made.result(made.file())
    others = made.result(rewrite(made.file(), made.scratch / "epsilon.gguf", other))
    return list(own) if np.abs(ours - others).max() <= made.row.bound * np.abs(ours).max() else []


def check_weights(made: Made) -> list[str]:
    """Every weight, and every expert, must move the logits."""
    return made.weights_without_effect()


CHECKS = {
    "window": check_window,
    "period": check_period,
    "kv heads": check_kv_heads,
    "head_dim": check_head_dim,
    "experts": check_experts,
    "original context": check_original_context,
    "vectors": check_vectors,
    "epsilon": check_epsilon,
    "weights": check_weights,
}


@pytest.mark.parametrize("check", CHECKS)
def test_the_row_would_show_a_mistake(made: Made, check: str) -> None:
    problems = CHECKS[check](made)
    if check in made.row.excused:
        assert problems, f"the row need not be excused from {check!r}"
    else:
        assert not problems, f"{CHECKS[check].__doc__} Change the row, or excuse it with the reason."


def test_excuses_name_checks(made: Made) -> None:
    assert made.row.excused.keys() <= CHECKS.keys()
