"""Read the RoPE settings of config.json, as written by any version of transformers, and convert them to GGUF metadata.

transformers 5 writes ``rope_parameters``, for some models one set for each kind of layer. Earlier versions wrote
``rope_theta``, ``rope_scaling`` and, for the sliding-window layers of Gemma 3, ``rope_local_base_freq``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from hotshoe.convert._match import Array

if TYPE_CHECKING:
    from hotshoe.convert._checkpoint import Checkpoint

__all__ = ["Rope", "read_rope"]

# YaRN's settings: the names in transformers, and the name in GGUF
_YARN = (
    (("extrapolation_factor",), "yarn_ext_factor"),
    (("attention_factor", "attn_factor"), "yarn_attn_factor"),
    (("beta_fast",), "yarn_beta_fast"),
    (("beta_slow",), "yarn_beta_slow"),
)


@dataclass(frozen=True)
class Rope:
    """The RoPE settings of a checkpoint."""

    checkpoint: Checkpoint
    kind: str
    """``rope_type`` of transformers: "default", "linear", "llama3", "longrope" or "yarn"."""
    theta: float
    """The frequency base."""
    local_theta: float | None
    """The frequency base of layers with a sliding window, if it differs."""
    settings: Mapping[str, Any]
    """All settings, by their names in transformers."""
    sliding: Rope | None = None
    """The RoPE of layers with a sliding window, if config.json gives it apart."""

    def number(self, key: str, default: float | None = None) -> float:
        """Read a positive number from the settings. Raises ModelFileError if it is missing or invalid."""
        value = self.settings.get(key, default)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < 3e38:
            raise self.checkpoint.invalid(f"rope {key}", value, "a number above 0")
        return value

    def numbers(self, key: str, n: int) -> Array:
        """Read a list of ``n`` positive numbers from the settings. Raises ModelFileError if missing or invalid."""
        value = self.settings.get(key)
        fine = isinstance(value, list) and all(type(v) in (int, float) and 0 < v < 3e38 for v in value)
        if not fine or len(value) != n:  # type: ignore[arg-type]
            raise self.checkpoint.invalid(f"rope {key}", value, f"a list of {n} numbers above 0")
        return np.array(value, np.float32)

    def sections(self, *default: int, interleaved: bool) -> list[int]:
        """The four sections of M-RoPE, whose last is empty.

        Raises ModelFileError if they are invalid; ConversionError if they have another layout than the architecture's.
        """
        if self.settings.get("mrope_interleaved", interleaved) is not interleaved:
            raise self.checkpoint.refusal(f"mrope_interleaved is {not interleaved}; expected {interleaved}")
        value = self.settings.get("mrope_section") or list(default)
        if not isinstance(value, list) or len(value) != 3 or any(type(n) is not int or n < 0 for n in value):
            raise self.checkpoint.invalid("rope mrope_section", value, "a list of 3 whole numbers")
        return [*value, 0]

    def original_context(self) -> int:
        """The context length, in tokens, that the model was trained for before its RoPE was scaled."""
        default = self.checkpoint.config.get("original_max_position_embeddings")
        if default is None:
            default = self.checkpoint.integer("max_position_embeddings")
        n = self.number("original_max_position_embeddings", default)
        if not 1 <= n < 2**32:
            raise self.checkpoint.invalid("rope original_max_position_embeddings", n, "a number of tokens")
        return int(n)

    def n_rotated(self, head_dim: int, share: float = 1.0) -> int:
        """The elements of a head that rotate. ``share``: their part of the head, if config.json does not give it."""
        stated = self.checkpoint.number("partial_rotary_factor", share)
        return int(head_dim * self.share(stated))

    def share(self, default: float = 1.0) -> float:
        """The part of a head that rotates. Raises ModelFileError unless it is above 0 and at most 1."""
        value = self.number("partial_rotary_factor", default)
        if value > 1:
            raise self.checkpoint.invalid("rope partial_rotary_factor", value, "a number up to 1")
        return value

    def keys(self, *, known_base: float | None = None) -> dict[str, Any]:
        """The GGUF keys. The kinds llama3 and longrope need tensors as well.

        known_base: a base that readers take without a key, so that none is written for it.
        """
        keys: dict[str, Any] = {} if self.theta == known_base else {"rope.freq_base": self.theta}
        if self.local_theta is not None:
            keys["rope.freq_base_swa"] = self.local_theta
        if self.kind in ("linear", "yarn"):
            keys["rope.scaling.type"] = self.kind
            keys["rope.scaling.factor"] = float(self.number("factor"))
        if self.kind == "yarn":
            keys["rope.scaling.original_context_length"] = self.original_context()
            for names, key in _YARN:
                name = next((n for n in names if self.settings.get(n) is not None), None)
                if name is not None:
                    keys[f"rope.scaling.{key}"] = float(self.number(name))
            if self.settings.get("truncate") is False:  # llama.cpp always rounds, and has no key
                keys["hotshoe.rope.yarn_truncate"] = False
        return keys

    def llama3_factors(self, head_dim: int) -> dict[str, Array]:
        """``rope_freqs.weight`` of Llama 3.1 and later: the divisor of each frequency. Empty for other kinds.

        Source: Llama 3.1, as in transformers' ``modeling_rope_utils``.
        """
        if self.kind != "llama3":
            return {}
        factor, low = self.number("factor", 8.0), self.number("low_freq_factor", 1.0)
        high, old = self.number("high_freq_factor", 4.0), self.number("original_max_position_embeddings", 8192)
        # computed in float32, as in transformers
        exponents = np.arange(0, head_dim, 2, dtype=np.float32) / np.float32(head_dim)
        frequency = (1 / np.float32(self.theta) ** exponents).astype(np.float32)
        wavelength = np.float32(2 * math.pi) / frequency
        smooth = (np.float32(old) / wavelength - np.float32(low)) / np.float32(high - low or 1)
        # long wavelengths are scaled by the factor, short ones unchanged, those between are interpolated
        with np.errstate(divide="ignore"):
            between = 1 / ((1 - smooth) / np.float32(factor) + smooth)
        factors = np.where(wavelength < old / high, 1.0, np.where(wavelength > old / low, factor, between))
        return {"rope_freqs.weight": factors.astype(np.float32)}

    def longrope_factors(self, n_rotated: int) -> dict[str, Array]:
        """``rope_factors_long.weight`` and ``rope_factors_short.weight``: divisors of the frequencies, for texts longer
        than the original context, and for others. Empty for other kinds. Raises ModelFileError if they are invalid.

        n_rotated: the elements of a head that RoPE rotates.
        """
        if self.kind != "longrope":
            return {}
        return {f"rope_factors_{n}.weight": self.numbers(f"{n}_factor", n_rotated // 2) for n in ("long", "short")}


def read_rope(checkpoint: Checkpoint, *kinds: str, theta: float = 10_000.0, local_theta: float | None = None) -> Rope:
    """Read the RoPE settings.

    kinds: scalings that GGUF can express for this architecture, besides "default".
    theta, local_theta: the architecture's defaults, if config.json does not give them.

    Raises ConversionError if the scaling is not one of ``kinds``; ModelFileError if a setting is invalid.
    """
    stated, older = checkpoint.config.get("rope_parameters"), checkpoint.config.get("rope_scaling")
    if stated and older and not _covers(stated, older):
        raise checkpoint.refusal("it has rope_parameters and rope_scaling, and they differ", hint="remove one of them")
    stated = stated or older or {}
    sets = [stated]
    if isinstance(stated, dict) and ("full_attention" in stated or "sliding_attention" in stated):
        sets = [stated.get("full_attention") or {}, stated.get("sliding_attention") or {}]
    if not all(isinstance(settings, dict) for settings in sets):
        raise checkpoint.invalid("rope_parameters", stated, "an object")
    settings = sets[0]
    kind, *local_kind = (_kind(s) for s in sets)
    for found, known in ((kind, kinds), *((k, ()) for k in local_kind)):
        if found != "default" and found not in known:
            raise checkpoint.refusal(
                f"the RoPE scaling is {found!r}; for this architecture a GGUF file can only express: "
                + (", ".join(kinds) if kinds else "none")
                + ("" if known is kinds else ", and none in layers with a sliding window")
            )
    rope, sliding = Rope(checkpoint, kind, 0.0, None, settings), None
    base = float(rope.number("rope_theta", checkpoint.number("rope_theta", theta)))
    if len(sets) > 1:
        sliding = Rope(checkpoint, "default", 0.0, None, sets[1])
        local_theta = float(
            sliding.number("rope_theta", checkpoint.number("rope_local_base_freq", local_theta or theta))
        )
    elif local_theta is not None:
        local_theta = checkpoint.number("rope_local_base_freq", local_theta)
    return Rope(checkpoint, kind, base, local_theta, settings, sliding)


def _covers(stated: Any, older: Any) -> bool:
    """Whether ``stated`` says all that ``older`` says, and has the same kind."""
    if not isinstance(stated, dict) or not isinstance(older, dict):
        return False
    said = {key: older.get(key) for key in older if key not in ("type", "rope_type")}  # get: they count as read
    return _kind(stated) == _kind(older) and all(value in (None, stated.get(key)) for key, value in said.items())


def _kind(settings: Mapping[str, Any]) -> str:
    kind = settings.get("rope_type") or settings.get("type") or "default"
    return {"su": "longrope", "mrope": "default"}.get(str(kind), str(kind))
