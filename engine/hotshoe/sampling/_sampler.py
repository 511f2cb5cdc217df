"""Sampler: choose a token from logits, by a chain of steps and a random draw."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np

from hotshoe.sampling import _filters as filters
from hotshoe.sampling._filters import Candidates
from hotshoe.sampling._params import DeviceSampling, SamplingParams
from hotshoe.sampling._penalties import Penalties
from hotshoe_core.errors import SamplingError
from hotshoe_core.errors.arguments import described, integer, listed

__all__ = ["Constraint", "Sampled", "Sampler"]

Array = np.ndarray[Any, Any]


class Sampled(NamedTuple):
    """A chosen token."""

    id: int
    logprob: float | None = None
    """The log-probability of the token; None unless ``SamplingParams.logprobs`` is set."""
    top: tuple[tuple[int, float], ...] = ()
    """Ids and log-probabilities of the best tokens, as many as ``SamplingParams.logprobs``."""


@runtime_checkable
class Constraint(Protocol):
    """Restricts the next token. ``GrammarState`` implements it."""

    @property
    def complete(self) -> bool:
        """True if no token may follow, so that the generation ends."""

    def forbidden(self) -> Array:
        """True for each id that may not come next: bool (n,). Ids from n on are forbidden."""

    def accept(self, id: int) -> None:
        """Advance by a token. Raises GrammarError if the token is not allowed."""


class Sampler:
    """Chooses the tokens of one sequence. Not thread-safe.

    These are the steps, in order. A step without effect is skipped.

    1. logit bias
    2. the repetition penalty, then the frequency and presence penalties, over the last ``penalty_window`` tokens
    3. the mask of the grammar
    4. top-k, typical-p, top-p, min-p, each on the tokens that the previous one kept
    5. temperature, and a random draw

    The order is that of llama.cpp's default chain. Temperature comes last, so the filters see the model's own
    probabilities, and a high temperature does not admit very unlikely tokens. (transformers and vLLM apply the
    temperature first.) There is one difference: llama.cpp draws without the grammar, and draws again with the mask if
    the token does not fit. Here the mask always comes before the filters.

    A draw uses one number of NumPy's PCG64, taken from the raw bit stream, which NumPy guarantees never to change.
    """

    def __init__(self, params: SamplingParams, vocab_size: int, grammar: Constraint | None = None) -> None:
        """``vocab_size`` is the number of logits. Raises SamplingError if the parameters do not fit it."""
        if not isinstance(params, SamplingParams):
            raise SamplingError(f"params is {described(params)}; expected SamplingParams")
        if grammar is not None and not isinstance(grammar, Constraint):
            raise SamplingError(
                f"grammar is {described(grammar)}; expected GBNF text, a Grammar or a Constraint",
                hint="Grammar.from_json_schema(schema).start(vocabulary)",
            )
        vocab_size = integer("vocab_size", vocab_size, 1, SamplingError)
        outside = [i for i in (*params.logit_bias, *params.stop_tokens) if i >= vocab_size]
        if outside:
            raise SamplingError(f"token id {outside[0]} is outside the vocabulary of {vocab_size} tokens")
        if params.logprobs is not None and params.logprobs > vocab_size:
            raise SamplingError(f"logprobs is {params.logprobs}; the vocabulary has {vocab_size} tokens")
        self.params = params
        self.vocab_size = vocab_size
        self.grammar = grammar
        self.seed: int = int.from_bytes(os.urandom(8), "little") >> 1 if params.seed is None else params.seed
        self._bits: np.random.PCG64 | None = None
        self._penalties = Penalties(params) if params.penalized else None
        self._bias_ids = np.fromiter(params.logit_bias, np.int64)
        self._bias = np.fromiter(params.logit_bias.values(), np.float32)
        self._adjusts = bool(params.logit_bias) or self._penalties is not None or grammar is not None
        # if top-p is the first filter, it is applied while candidates are collected, so that few have to be sorted
        whole = not 0 < params.top_k < vocab_size
        self._nucleus = whole and params.typical_p == 1 and params.top_p < 1
        self._unfiltered = whole and params.typical_p == 1 and params.top_p == 1 and params.min_p == 0
        self._buffer: Array = np.empty(vocab_size if self._adjusts or params.logprobs is not None else 0, np.float32)

    @property
    def device_sampling(self) -> DeviceSampling | None:
        """What the device may compute instead of returning all logits; None if all logits are needed."""
        return None if self.grammar is not None else self.params.device_sampling

    @property
    def complete(self) -> bool:
        """True if the grammar allows no more tokens, so that the generation ends."""
        return self.grammar is not None and self.grammar.complete

    def observe(self, ids: Iterable[int]) -> None:
        """Add tokens that were not generated, such as the prompt. They count for penalties, but not for the grammar."""
        if self._penalties is not None:
            self._penalties.see(map(self._inside, listed("ids", ids, "token ids", SamplingError)))

    def accept(self, id: int) -> None:
        """Add the token that follows, sampled or not. Raises GrammarError if the grammar forbids it."""
        self._inside(id)
        if self.grammar is not None:
            self.grammar.accept(id)
        if self._penalties is not None:
            self._penalties.see((id,))

    def sample(self, logits: Array) -> Sampled:
        """Choose the next token from ``logits``, float32 (vocab_size,), which are not changed. Does not ``accept`` it.

        Raises SamplingError if the logits have another shape, contain NaN or inf, or if no token is possible.
        """
        with _quiet():
            raw = self._check_logits(logits, (self.vocab_size,))
            x = self._adjust(raw) if self._adjusts else raw
            if self.params.greedy:
                id = _best(x)
            elif self._unfiltered:
                id = self._draw_any(x)
            else:
                id = self._draw(self._filter(self._candidates(x), top_p=not self._nucleus))
            return Sampled(id) if self.params.logprobs is None else self._with_logprobs(id, raw)

    def sample_from(self, ids: Array, logits: Array) -> Sampled:
        """Choose the next token from the result of ``device_sampling``: ids and their logits, in any order.

        If several tokens have the same logit, the device may have chosen other ones than ``sample`` would.

        Raises SamplingError if ``device_sampling`` is None, or if the arrays are invalid.
        """
        if self.device_sampling is None:
            raise SamplingError("these parameters need the logits of the whole vocabulary; device_sampling is None")
        n = min(self.device_sampling.k, self.vocab_size)
        try:
            ids = np.asarray(ids, np.int64)
        except (TypeError, ValueError, OverflowError):
            raise SamplingError(f"ids are {described(ids)}; expected ({n},) integers") from None
        if ids.shape != (n,):
            raise SamplingError(f"ids have shape {ids.shape}; expected ({n},) for {self.device_sampling.kind}")
        is_one = n == 1 and isinstance(logits, np.ndarray) and logits.shape == (1,) and logits.dtype == np.float32
        if is_one and math.isfinite(logits[0]):  # the usual case of greedy choices
            return Sampled(int(ids[0]))
        with _quiet():
            logits = self._check_logits(logits, (n,))
            if np.isnan(logits).any():
                raise SamplingError(f"the logits from the device contain NaN; expected numbers, or -inf: {logits}")
            if n == 1:
                return Sampled(int(filters.drop_impossible(Candidates(ids, logits)).ids[0]))
            by_id = np.argsort(ids)
            found = filters.sort_candidates(ids[by_id], logits[by_id])
            return Sampled(self._draw(self._filter(filters.drop_impossible(found), top_p=True)))

    def distribution(self, logits: Array) -> tuple[Array, Array]:
        """The ids that ``sample`` could choose, int64 (n,), and their probabilities, float64 (n,), best first."""
        with _quiet():
            raw = self._check_logits(logits, (self.vocab_size,))
            x = self._adjust(raw) if self._adjusts else raw
            if self.params.greedy:
                return np.array([_best(x)]), np.ones(1)
            c = self._filter(self._candidates(x), top_p=not self._nucleus)
            if self.params.temperature == 0:
                return c.ids[:1], np.ones(1)
            weights = self._weights(c)
            return c.ids, weights / weights.sum()

    def _adjust(self, raw: Array) -> Array:
        x = self._buffer
        np.copyto(x, raw)
        if len(self._bias):
            x[self._bias_ids] += self._bias
        if self._penalties is not None:
            self._penalties.apply(x)
        if self.grammar is not None:
            forbidden = self.grammar.forbidden()
            n = min(len(forbidden), len(x))
            np.putmask(x[:n], forbidden[:n], -math.inf)
            x[n:] = -math.inf
        return x

    def _candidates(self, x: Array) -> Candidates:
        """The candidates after top-k, best first. If later filters allow it, only part of the vocabulary is sorted."""
        params = self.params
        if 0 < params.top_k < len(x):
            found = filters.largest(x, params.top_k)
        elif params.typical_p < 1 or self._unfiltered:
            found = filters.largest(x, len(x))
        elif self._nucleus:
            found = filters.nucleus(x, params.top_p)
        else:
            found = filters.reaching(x, params.min_p)
        return filters.drop_impossible(found)

    def _filter(self, c: Candidates, *, top_p: bool) -> Candidates:
        params = self.params
        if params.typical_p < 1:
            c = filters.typical_p(c, params.typical_p)
        if params.top_p < 1 and top_p:
            c = filters.top_p(c, params.top_p)
        if params.min_p > 0:
            c = filters.min_p(c, params.min_p)
        return c

    def _weights(self, c: Candidates) -> Array:
        # with a tiny temperature the quotient may overflow to -inf, and exp(-inf) is 0, as it should be
        weights: Array = np.exp((c.logits - c.logits[0]) / self.params.temperature)
        return weights

    def _draw(self, c: Candidates) -> int:
        if len(c.ids) == 1 or self.params.temperature == 0:
            return int(c.ids[0])
        return int(c.ids[self._pick(self._weights(c))])

    def _draw_any(self, x: Array) -> int:
        """Draw from the whole vocabulary in the order of ids, without sorting."""
        best = x[_best(x)]
        return self._pick(np.exp((x.astype(np.float64) - best) / self.params.temperature))

    def _pick(self, weights: Array) -> int:
        if self._bits is None:  # made late: greedy generations need not import numpy.random
            self._bits = np.random.PCG64(self.seed)
        cumulative = np.cumsum(weights)
        uniform = (int(self._bits.random_raw()) >> 11) * 2.0**-53  # in [0, 1), 53 bits
        index = int(np.searchsorted(cumulative, uniform * cumulative[-1], side="right"))
        # if the product is rounded up to the whole sum, choose the last token with a weight above 0
        return index if index < len(cumulative) else int(np.searchsorted(cumulative, cumulative[-1]))

    def _with_logprobs(self, id: int, raw: Array) -> Sampled:
        n = self.params.logprobs or 0
        x = self._buffer  # the adjusted logits in it are no longer needed
        best = raw.max()
        np.subtract(raw, best, out=x)
        np.exp(x, out=x)
        log_z = float(best) + math.log(float(x.sum(dtype=np.float64)))
        top = filters.largest(raw, n) if n else Candidates(np.empty(0, np.int64), np.empty(0))
        pairs = zip(top.ids.tolist(), (top.logits - log_z).tolist(), strict=True)
        return Sampled(id, float(raw[id]) - log_z, tuple(pairs))

    def _check_logits(self, logits: Array, shape: tuple[int, ...]) -> Array:
        try:
            x = np.asarray(logits)
        except (TypeError, ValueError):
            raise SamplingError(f"logits are {described(logits)}; expected float32 {shape}") from None
        if x.shape != shape or x.dtype.kind != "f":
            raise SamplingError(f"logits are {x.dtype} {x.shape}; expected float32 {shape}")
        return x if x.dtype == np.float32 else x.astype(np.float32)

    def _inside(self, id: int) -> int:
        id = integer("a token id", id, 0, SamplingError)
        if id >= self.vocab_size:
            raise SamplingError(f"token id {id} is outside the vocabulary of {self.vocab_size} tokens")
        return id


def _quiet() -> Any:
    """Ignore overflow and underflow, which are intended here, whatever the user has set with ``np.seterr``."""
    return np.errstate(all="ignore")


def _best(x: Array) -> int:
    id = int(x.argmax())
    if not math.isfinite(x[id]):
        filters.drop_impossible(filters.largest(x, 1))
    return id
