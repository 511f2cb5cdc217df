"""SamplingParams: how the next token is chosen, and when a generation ends."""

from __future__ import annotations

import math
import operator
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from hotshoe_core.errors import SamplingError
from hotshoe_core.errors.arguments import described
from hotshoe_core.errors.text import shown

__all__ = ["DeviceSampling", "SamplingParams"]


class DeviceSampling(NamedTuple):
    """An operation that the device can compute, so that it need not return the logits of the whole vocabulary."""

    kind: Literal["argmax", "top_k"]
    k: int
    """The number of tokens that it returns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How to choose tokens, and when to stop. The defaults of the filters are those of llama.cpp.

        SamplingParams(temperature=0.7, top_k=0, min_p=0.1, max_tokens=200, seed=1)

    To turn a filter or penalty off, set ``top_p``, ``typical_p`` or ``repetition_penalty`` to 1, and the others to 0.

    Raises SamplingError if a value is out of range or of the wrong type.
    """

    temperature: float = 0.8
    """Divide the logits by this, after all filters, as in llama.cpp. 0 always chooses the best token."""

    top_k: int = 40
    """Keep only the k best tokens; 0 keeps all. Unlike the other filters, it also makes the choice faster."""

    top_p: float = 0.95
    """Keep the fewest best tokens whose probabilities sum to at least this. Source: arXiv:1904.09751."""

    min_p: float = 0.05
    """Keep tokens with at least this probability relative to the best token. Source: arXiv:2407.01082."""

    typical_p: float = 1.0
    """Keep the fewest tokens with information nearest to the entropy whose probabilities sum to at least this.
    Source: arXiv:2202.00666."""

    repetition_penalty: float = 1.0
    """For each token in the window, divide its logit by this if it is positive, otherwise multiply it.
    Source: arXiv:1909.05858."""

    presence_penalty: float = 0.0
    """Subtract this from the logit of each token in the window."""

    frequency_penalty: float = 0.0
    """Subtract this from the logit of each token in the window, times the number of its occurrences."""

    penalty_window: int | None = 64
    """The number of last tokens, including the prompt, that the three penalties consider; None for all."""

    logit_bias: Mapping[int, float] = field(default_factory=dict, hash=False)
    """Add these numbers to the logits of these ids, before all other steps. ``-math.inf`` bans a token. Do not change
    the mapping later."""

    seed: int | None = None
    """The same seed and the same logits give the same tokens on every platform. None: a random seed
    (``Sampler.seed``)."""

    max_tokens: int | None = None
    """The maximum number of tokens to generate; None for as many as the context holds."""

    context_shift: int | None = None
    """What to do when the context is full. None: the generation ends, with ``finish_reason`` "context". A number: keep
    this many tokens at the start, forget the older half of the others, and go on."""

    stop: Sequence[str] = ()
    """Texts that end the generation; they are not part of the result. A single string is one text."""

    stop_tokens: Collection[int] = ()
    """Ids that end the generation, in addition to those of the model's vocabulary."""

    logprobs: int | None = None
    """Report the log-probabilities of the chosen token and of this many best tokens. None reports none, and is faster.

    They are those of the model, before bias, penalties, grammar, filters and temperature.
    """

    def __post_init__(self) -> None:
        self._number("temperature", 0.0)
        self._number("top_p", 0.0, 1.0, open=True)
        self._number("min_p", 0.0, 1.0)
        self._number("typical_p", 0.0, 1.0, open=True)
        self._number("repetition_penalty", 0.0, open=True)
        self._number("presence_penalty")
        self._number("frequency_penalty")
        self._count("top_k", 0)
        for name, least in (
            ("penalty_window", 0),
            ("max_tokens", 1),
            ("logprobs", 0),
            ("seed", 0),
            ("context_shift", 0),
        ):
            if getattr(self, name) is not None:
                self._count(name, least)
        if self.seed is not None and self.seed >= 2**64:
            raise SamplingError(f"seed is {shown(self.seed)}; expected less than 2**64")
        self._set("logit_bias", _biases(self.logit_bias))
        self._set("stop", _texts(self.stop))
        self._set("stop_tokens", _ids("stop_tokens", self.stop_tokens))

    @property
    def greedy(self) -> bool:
        """True if the best token is always chosen. (``typical_p`` may remove the best token.)"""
        return self.top_k == 1 or (self.temperature == 0 and self.typical_p == 1)

    @property
    def penalized(self) -> bool:
        """True if earlier tokens change the logits."""
        neutral = self.repetition_penalty == 1 and self.presence_penalty == 0 and self.frequency_penalty == 0
        return not neutral and self.penalty_window != 0

    @property
    def device_sampling(self) -> DeviceSampling | None:
        """What the device has to compute for ``Sampler.sample_from``; None if all logits are needed.

        Runners should use ``Sampler.device_sampling``, which takes a grammar into account.
        """
        if self.penalized or self.logit_bias or self.logprobs is not None:
            return None
        if self.greedy:
            return DeviceSampling("argmax", 1)
        return DeviceSampling("top_k", self.top_k) if self.top_k else None

    def _set(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)

    def _number(self, name: str, minimum: float = -math.inf, maximum: float = math.inf, *, open: bool = False) -> None:
        value = getattr(self, name)
        try:
            number = float(value)
        except (TypeError, ValueError, OverflowError):
            number = math.nan
        inside = minimum <= number <= maximum and not (open and number == minimum)
        if isinstance(value, (bool, str)) or not math.isfinite(number) or not inside:
            expected = _range(minimum, maximum, open)
            raise SamplingError(f"{name} is {shown(value)}; expected {expected}", hint=_OFF.get(name))
        self._set(name, number)

    def _count(self, name: str, minimum: int) -> None:
        value = getattr(self, name)
        number = _integer(name, value)
        if number < minimum:
            raise SamplingError(f"{name} is {shown(value)}; expected {minimum} or more", hint=_OFF.get(name))
        self._set(name, number)


_OFF = {
    "top_k": "top_k=0 turns the filter off",
    "top_p": "top_p=1 turns the filter off",
    "min_p": "min_p=0 turns the filter off",
    "typical_p": "typical_p=1 turns the filter off",
    "temperature": "temperature=0 always chooses the best token",
    "repetition_penalty": "repetition_penalty=1 turns the penalty off",
    "penalty_window": "penalty_window=None looks at all tokens",
    "max_tokens": "leave max_tokens out for no limit",
}


def _range(minimum: float, maximum: float, open: bool) -> str:
    if maximum < math.inf:
        return f"a number {'above' if open else 'from'} {minimum:g} {'and up to' if open else 'to'} {maximum:g}"
    if minimum > -math.inf:
        return f"a finite number {'above' if open else 'of at least'} {minimum:g}"
    return "a finite number"


def _integer(name: str, value: Any) -> int:
    try:
        if isinstance(value, bool):
            raise TypeError
        return operator.index(value)
    except TypeError:
        raise SamplingError(f"{name} is {described(value)}; expected an integer") from None


def _ids(name: str, ids: Any) -> frozenset[int]:
    if isinstance(ids, (str, bytes)) or not isinstance(ids, Collection):
        raise SamplingError(f"{name} is {type(ids).__name__}; expected a collection of token ids")
    numbers = frozenset(_integer(f"an id in {name}", i) for i in ids)
    if numbers and min(numbers) < 0:
        raise SamplingError(f"{name} holds {shown(min(numbers))}; token ids are 0 or more")
    return numbers


def _biases(biases: Any) -> dict[int, float]:
    if not isinstance(biases, Mapping):
        raise SamplingError(f"logit_bias is {type(biases).__name__}; expected a mapping of token ids to numbers")
    _ids("logit_bias", biases.keys())
    checked: dict[int, float] = {}
    for i, value in biases.items():
        if isinstance(value, (bool, str)) or not isinstance(value, (int, float)):
            raise SamplingError(f"logit_bias[{shown(i)}] is {shown(value)}; expected a number")
        try:
            bias = float(value)
        except OverflowError:
            bias = math.inf
        if math.isnan(bias) or bias == math.inf:
            raise SamplingError(
                f"logit_bias[{shown(i)}] is {shown(value)}; expected a finite number, or -inf to ban the token",
                hint="to allow certain tokens only, use a grammar",
            )
        checked[operator.index(i)] = bias
    return checked


def _texts(texts: Any) -> tuple[str, ...]:
    if isinstance(texts, str):
        texts = (texts,)
    if not isinstance(texts, Collection):
        raise SamplingError(f"stop is {described(texts)}; expected a string or a list of strings")
    for text in texts:
        if not isinstance(text, str) or not text:
            raise SamplingError(f"stop holds {described(text)}; expected strings of at least one character")
    return tuple(texts)
