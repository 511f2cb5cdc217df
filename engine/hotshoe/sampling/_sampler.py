"""Sampler: logits in, one token out. The chain of steps, and the draw."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np

from hotshoe.sampling import _filters as filters
from hotshoe.sampling._filters import Candidates
from hotshoe.sampling._params import DeviceOp, SamplingParams
from hotshoe.sampling._penalties import Penalties
from hotshoe_core.errors import SamplingError
from hotshoe_core.errors.arguments import described, integer, listed

__all__ = ["Constraint", "Sampled", "Sampler"]

Array = np.ndarray[Any, Any]


class Sampled(NamedTuple):
    """A chosen token. ``logprob`` is None and ``top`` empty unless ``SamplingParams.logprobs`` asks for them."""

    id: int
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()


@runtime_checkable
class Constraint(Protocol):
    """What restricts the next token; ``GrammarState`` is one."""

    @property
    def complete(self) -> bool:
        """Whether nothing may follow, so that the generation is over."""

    def forbidden(self) -> Array:
        """True for the ids that may not come next: bool (n,). Ids from n on are forbidden."""

    def accept(self, id: int) -> None:
        """This token came. Raises GrammarError if it may not."""


class Sampler:
    """Chooses the tokens of one sequence. Not for several threads.

    The steps, in order; each is left out where it changes nothing:

    1. logit bias
    2. repetition, then frequency and presence penalties, over the last ``penalty_window`` tokens
    3. the grammar's mask
    4. top-k, typical-p, top-p, min-p, each on what the one before has left
    5. temperature, and a draw

    The order is that of llama.cpp's default chain, temperature last included: the filters see the model's own
    probabilities, so a high temperature does not let in tokens that the model thinks absurd. transformers and vLLM
    divide by the temperature first. One thing differs: llama.cpp draws first and draws again under the grammar if
    the token does not fit; here the mask always comes first, which is the distribution that the filters mean.

    A draw takes one number of NumPy's PCG64, straight from the bit stream, which NumPy keeps the same for ever.
    """

    def __init__(self, params: SamplingParams, vocab_size: int, grammar: Constraint | None = None) -> None:
        """``vocab_size`` is the number of logits. Raises SamplingError if the parameters do not fit it."""
        if not isinstance(params, SamplingParams):
            raise SamplingError(f"params is {described(params)}; expected SamplingParams")
        if grammar is not None and not isinstance(grammar, Constraint):
            raise SamplingError(
                f"grammar is {described(grammar)}; expected what restricts tokens one by one",
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
        # top-p of the whole vocabulary is taken while looking for candidates: not all of them have to be sorted
        whole = not 0 < params.top_k < vocab_size
        self._nucleus = whole and params.typical_p == 1 and params.top_p < 1
        self._unfiltered = whole and params.typical_p == 1 and params.top_p == 1 and params.min_p == 0
        self._buffer: Array = np.empty(vocab_size if self._adjusts or params.logprobs is not None else 0, np.float32)

    @property
    def device_op(self) -> DeviceOp | None:
        """What a device may compute instead of handing over all logits; None if they are needed."""
        return None if self.grammar is not None else self.params.device_op

    @property
    def complete(self) -> bool:
        """Whether the grammar allows nothing more, so that the generation is over."""
        return self.grammar is not None and self.grammar.complete

    def observe(self, ids: Iterable[int]) -> None:
        """Tokens that were not generated, such as the prompt: they count for the penalties, not for the grammar."""
        if self._penalties is not None:
            self._penalties.see(map(self._inside, listed("what was observed", ids, "token ids", SamplingError)))

    def accept(self, id: int) -> None:
        """The token that follows, whether it was sampled or not. Raises GrammarError if the grammar forbids it."""
        self._inside(id)
        if self.grammar is not None:
            self.grammar.accept(id)
        if self._penalties is not None:
            self._penalties.see((id,))

    def sample(self, logits: Array) -> Sampled:
        """The next token. ``logits`` (float32 (vocab_size,)) are not changed; nothing is accepted.

        Raises SamplingError if they are of another shape, hold NaN or inf, or leave no token possible.
        """
        with _quiet():
            raw = self._checked(logits, (self.vocab_size,))
            x = self._adjusted(raw) if self._adjusts else raw
            if self.params.greedy:
                id = _best(x)
            elif self._unfiltered:
                id = self._draw_any(x)
            else:
                id = self._draw(self._filtered(self._candidates(x), top_p=not self._nucleus))
            return Sampled(id) if self.params.logprobs is None else self._with_logprobs(id, raw)

    def sample_from(self, ids: Array, logits: Array) -> Sampled:
        """As ``sample``, from what the device computed for ``device_op``: ids and their logits, in any order.

        Of tokens with equal logits the device may have chosen others than ``sample`` would.
        """
        if self.device_op is None:
            raise SamplingError("these parameters need the logits of the whole vocabulary; device_op is None")
        n = min(self.device_op.k, self.vocab_size)
        try:
            ids = np.asarray(ids, np.int64)
        except (TypeError, ValueError, OverflowError):
            raise SamplingError(f"ids are {described(ids)}; expected ({n},) integers") from None
        if ids.shape != (n,):
            raise SamplingError(f"ids have shape {ids.shape}; expected ({n},) for {self.device_op.op}")
        with _quiet():
            logits = self._checked(logits, (n,))
            if np.isnan(logits).any():
                raise SamplingError(f"the logits of the device hold NaN; expected numbers, or -inf: {logits}")
            if n == 1:
                return Sampled(int(filters.drop_impossible(Candidates(ids, logits)).ids[0]))
            by_id = np.argsort(ids)
            found = filters.ordered(ids[by_id], logits[by_id])
            return Sampled(self._draw(self._filtered(filters.drop_impossible(found), top_p=True)))

    def distribution(self, logits: Array) -> tuple[Array, Array]:
        """Ids that ``sample`` may choose now, and their probabilities: int64 (n,) and float64 (n,), best first."""
        with _quiet():
            raw = self._checked(logits, (self.vocab_size,))
            x = self._adjusted(raw) if self._adjusts else raw
            if self.params.greedy:
                return np.array([_best(x)]), np.ones(1)
            c = self._filtered(self._candidates(x), top_p=not self._nucleus)
            if self.params.temperature == 0:
                return c.ids[:1], np.ones(1)
            weights = self._weights(c)
            return c.ids, weights / weights.sum()

    def _adjusted(self, raw: Array) -> Array:
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
        """Best first, after top-k; the filters that follow see the rest of the vocabulary only if they must."""
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

    def _filtered(self, c: Candidates, *, top_p: bool) -> Candidates:
        params = self.params
        if params.typical_p < 1:
            c = filters.typical_p(c, params.typical_p)
        if params.top_p < 1 and top_p:
            c = filters.top_p(c, params.top_p)
        if params.min_p > 0:
            c = filters.min_p(c, params.min_p)
        return c

    def _weights(self, c: Candidates) -> Array:
        # a tiny temperature may overflow the quotient: exp(-inf) is then 0, as it should be
        weights: Array = np.exp((c.logits - c.logits[0]) / self.params.temperature)
        return weights

    def _draw(self, c: Candidates) -> int:
        if len(c.ids) == 1 or self.params.temperature == 0:
            return int(c.ids[0])
        return int(c.ids[self._pick(self._weights(c))])

    def _draw_any(self, x: Array) -> int:
        """Out of the whole vocabulary, in the order of ids: nothing has to be sorted."""
        best = x[_best(x)]
        return self._pick(np.exp((x.astype(np.float64) - best) / self.params.temperature))

    def _pick(self, weights: Array) -> int:
        if self._bits is None:  # made late: greedy generations need not import numpy.random
            self._bits = np.random.PCG64(self.seed)
        cumulative = np.cumsum(weights)
        uniform = (int(self._bits.random_raw()) >> 11) * 2.0**-53  # in [0, 1), 53 bits
        at = int(np.searchsorted(cumulative, uniform * cumulative[-1], side="right"))
        # the product may be rounded up to the whole sum: then it is the last token that has any weight
        return at if at < len(cumulative) else int(np.searchsorted(cumulative, cumulative[-1]))

    def _with_logprobs(self, id: int, raw: Array) -> Sampled:
        n = self.params.logprobs or 0
        x = self._buffer  # what was adjusted in it has served
        best = raw.max()
        np.subtract(raw, best, out=x)
        np.exp(x, out=x)
        log_z = float(best) + math.log(float(x.sum(dtype=np.float64)))
        top = filters.largest(raw, n) if n else Candidates(np.empty(0, np.int64), np.empty(0))
        pairs = zip(top.ids.tolist(), (top.logits - log_z).tolist(), strict=True)
        return Sampled(id, float(raw[id]) - log_z, tuple(pairs))

    def _checked(self, logits: Array, shape: tuple[int, ...]) -> Array:
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
    """Numbers that become 0 or infinity here are meant to, whatever the user's ``np.seterr`` makes of them."""
    return np.errstate(all="ignore")


def _best(x: Array) -> int:
    id = int(x.argmax())
    if not math.isfinite(x[id]):
        filters.drop_impossible(filters.largest(x, 1))
    return id
