"""Read what config.json says about experts and about layers with a sliding window."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from hotshoe.convert._checkpoint import REQUIRED

if TYPE_CHECKING:
    from hotshoe.convert._checkpoint import Checkpoint

__all__ = ["expert_keys", "mixture_keys", "window_keys", "windowed_layers"]

# The key in GGUF, its type, and what DeepSeek and most later models call it in config.json
_SETTINGS: dict[str, tuple[Any, str]] = {
    "expert_feed_forward_length": (int, "moe_intermediate_size"),
    "expert_shared_count": (int, "n_shared_experts"),
    "expert_shared_feed_forward_length": (int, "shared_expert_intermediate_size"),
    "expert_group_count": (int, "n_group"),
    "expert_group_used_count": (int, "topk_group"),
    "expert_weights_scale": (float, "routed_scaling_factor"),
    "expert_weights_norm": (bool, "norm_topk_prob"),
    "leading_dense_block_count": (int, "first_k_dense_replace"),
}


def expert_keys(checkpoint: Checkpoint, count: str, *, used: int, default: Any = REQUIRED) -> dict[str, Any]:
    """The GGUF keys of the number of experts and of how many compute a token.

    count: the key in config.json of the number of experts, and ``default`` its default. used: the default of
    num_experts_per_tok.

    Raises ConversionError if num_experts_per_tok is larger than the number of experts; ModelFileError if a number is
    missing or invalid.
    """
    n, n_used = checkpoint.integer(count, default), checkpoint.integer("num_experts_per_tok", used)
    if n_used > n:
        raise checkpoint.refusal(f"num_experts_per_tok is {n_used}, but there are {n} experts")
    return {"expert_count": n, "expert_used_count": n_used}


def mixture_keys(
    checkpoint: Checkpoint,
    count: str,
    *,
    used: int,
    names: Mapping[str, str] | None = None,
    defaults: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The GGUF keys of a mixture of experts: ``expert_keys``, and those of all settings that config.json has.

    names: for keys of GGUF, what config.json calls them if not as DeepSeek does.
    defaults: values of keys of GGUF for settings that config.json lacks.

    Raises ConversionError and ModelFileError as ``expert_keys`` does.
    """
    keys = expert_keys(checkpoint, count, used=used) | dict(defaults or {})
    for key, (kind, usual) in _SETTINGS.items():
        name = (names or {}).get(key, usual)
        value: Any = checkpoint.config.get(name)
        if value is None:
            continue
        if kind is float:
            value = checkpoint.number(name)
        elif type(value) is not kind or (kind is int and not 0 <= value < 2**32):
            raise checkpoint.invalid(name, value, "true or false" if kind is bool else "a whole number of at least 0")
        keys[key] = value
    return keys


def windowed_layers(checkpoint: Checkpoint, n_layers: int, *, period: int, dense_first: bool = False) -> list[bool]:
    """Which layers have a sliding window, by ``layer_types``.

    Without layer_types, one layer in ``period`` has no window: the last one, or with ``dense_first`` the first.

    Raises ModelFileError if layer_types is invalid.
    """
    known = ("full_attention", "sliding_attention")
    usual = [known[windowed] for windowed in _usual(n_layers, period, dense_first)]
    return [kind == "sliding_attention" for kind in checkpoint.kinds("layer_types", n_layers, known, usual)]


def window_keys(checkpoint: Checkpoint, n_layers: int, *, period: int, dense_first: bool = False) -> dict[str, Any]:
    """The GGUF keys of the sliding window, from ``sliding_window`` and ``layer_types``.

    period, dense_first: what readers assume without a key: see ``windowed_layers``. Returns no keys if no layer has a
    window.

    Raises ModelFileError if a setting is invalid.
    """
    windowed = windowed_layers(checkpoint, n_layers, period=period, dense_first=dense_first)
    window = checkpoint.count("sliding_window")
    if not window or not any(windowed):
        return {}
    keys: dict[str, Any] = {"attention.sliding_window": window}
    if windowed != _usual(n_layers, period, dense_first):
        keys["attention.sliding_window_pattern"] = windowed
    return keys


def _usual(n_layers: int, period: int, dense_first: bool) -> list[bool]:
    full = 0 if dense_first else period - 1
    return [i % period != full for i in range(n_layers)]
