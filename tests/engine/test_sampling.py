"""Sampling: distributions against transformers' warpers, draws that can be repeated, stop strings, refusals."""

from __future__ import annotations

import dataclasses
import math
import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hotshoe.sampling import DeviceSampling, Sampled, Sampler, SamplingParams, StopMatcher
from hotshoe.sampling._filters import largest
from hotshoe_core.errors import GrammarError, SamplingError

OFF = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}


def random_logits(n: int = 500, seed: int = 0, scale: float = 3.0) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).normal(0, scale, n).astype(np.float32)


def dense(params: SamplingParams, logits: np.ndarray[Any, Any], seen: list[int] | None = None) -> np.ndarray[Any, Any]:
    """Probability of each id."""
    sampler = Sampler(params, len(logits))
    sampler.observe(seen or [])
    ids, p = sampler.distribution(logits)
    out = np.zeros(len(logits))
    out[ids] = p
    return out


# --- against transformers


def warped(logits: np.ndarray[Any, Any], *names_and_values: tuple[str, float]) -> np.ndarray[Any, Any]:
    processors = pytest.importorskip("transformers.generation.logits_process")
    torch = pytest.importorskip("torch")
    scores = torch.tensor(logits)[None]
    for name, value in names_and_values:
        scores = getattr(processors, name)(value)(torch.zeros((1, 1), dtype=torch.long), scores)
    return scores.softmax(-1)[0].double().numpy()


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    ("params", "steps"),
    [
        ({"temperature": 0.5}, [("TemperatureLogitsWarper", 0.5)]),
        ({"top_k": 7}, [("TopKLogitsWarper", 7)]),
        ({"top_p": 0.7}, [("TopPLogitsWarper", 0.7)]),
        ({"min_p": 0.1}, [("MinPLogitsWarper", 0.1)]),
        ({"typical_p": 0.6}, [("TypicalLogitsWarper", 0.6)]),
        (
            {"top_k": 60, "top_p": 0.9, "min_p": 0.02, "temperature": 1.7},
            [
                *(("TopKLogitsWarper", 60), ("TopPLogitsWarper", 0.9), ("MinPLogitsWarper", 0.02)),
                ("TemperatureLogitsWarper", 1.7),
            ],
        ),
        (
            {"top_k": 100, "typical_p": 0.8, "top_p": 0.7, "temperature": 0.6},
            [
                *(("TopKLogitsWarper", 100), ("TypicalLogitsWarper", 0.8), ("TopPLogitsWarper", 0.7)),
                ("TemperatureLogitsWarper", 0.6),
            ],
        ),
        (
            {"typical_p": 0.8, "top_p": 0.7, "min_p": 0.05},
            [("TypicalLogitsWarper", 0.8), ("TopPLogitsWarper", 0.7), ("MinPLogitsWarper", 0.05)],
        ),
        ({"top_p": 0.9, "min_p": 0.05}, [("TopPLogitsWarper", 0.9), ("MinPLogitsWarper", 0.05)]),
    ],
    ids=lambda v: "+".join(v) if isinstance(v, dict) else "",
)
def test_filters_give_the_distributions_of_transformers(
    seed: int, params: dict[str, Any], steps: list[tuple[str, float]]
) -> None:
    logits = random_logits(seed=seed)
    np.testing.assert_allclose(dense(SamplingParams(**OFF | params), logits), warped(logits, *steps), atol=2e-6)


def test_repetition_penalty_is_that_of_transformers() -> None:
    processors = pytest.importorskip("transformers.generation.logits_process")
    torch = pytest.importorskip("torch")
    logits, seen = random_logits(), [3, 5, 5, 99]
    scores = processors.RepetitionPenaltyLogitsProcessor(1.3)(torch.tensor([seen]), torch.tensor(logits)[None])
    expected = scores.softmax(-1)[0].double().numpy()
    params = SamplingParams(**OFF, repetition_penalty=1.3)
    np.testing.assert_allclose(dense(params, logits, seen), expected, atol=2e-6)


# --- steps


def test_penalties_count_within_the_window() -> None:
    logits = np.zeros(8, np.float32)
    params = SamplingParams(**OFF, frequency_penalty=0.5, presence_penalty=0.25, penalty_window=4)
    sampler = Sampler(params, 8)
    sampler.observe([7, 7, 7])
    for id in (1, 1, 2, 3):  # the sevens have left the window
        sampler.accept(id)
    expected = np.array([0, -1.25, -0.75, -0.75, 0, 0, 0, 0])
    ids, p = sampler.distribution(logits)
    np.testing.assert_allclose(p[np.argsort(ids)], np.exp(expected) / np.exp(expected).sum(), rtol=1e-6)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 5), max_size=40), st.one_of(st.none(), st.integers(1, 12)))
def test_the_window_holds_the_last_tokens(seen: list[int], window: int | None) -> None:
    sampler = Sampler(SamplingParams(frequency_penalty=1, penalty_window=window), 6)
    sampler.observe(seen)
    assert sampler._penalties is not None
    last = seen if window is None else seen[-window:]
    assert sampler._penalties._counts == {i: last.count(i) for i in set(last)}


def test_bias_comes_before_penalties_and_bans() -> None:
    logits = np.array([1, 1, 1], np.float32)
    params = SamplingParams(**OFF, logit_bias={0: 3.0, 2: -math.inf}, repetition_penalty=2.0)
    sampler = Sampler(params, 3)
    sampler.observe([0])
    ids, p = sampler.distribution(logits)
    assert ids.tolist() == [0, 1]
    assert p[0] / p[1] == pytest.approx(math.exp((1 + 3) / 2 - 1))
    assert logits.tolist() == [1, 1, 1]  # the caller's


def test_the_filters_do_not_see_the_temperature() -> None:
    logits = np.log(np.array([0.6, 0.3, 0.1], np.float32))
    assert len(Sampler(SamplingParams(**OFF | {"top_p": 0.7, "temperature": 100}), 3).distribution(logits)[0]) == 2


class Only:
    """A constraint that allows some ids, and is complete after the first."""

    def __init__(self, n: int, allowed: list[int]) -> None:
        self.mask = np.ones(n, np.bool_)
        self.mask[allowed] = False
        self.complete = False

    def forbidden(self) -> np.ndarray[Any, Any]:
        return self.mask

    def accept(self, id: int) -> None:
        if self.mask[id]:
            raise GrammarError("no")
        self.complete = True


@pytest.mark.parametrize("params", [{"temperature": 0}, {}, OFF, OFF | {"top_p": 0.9}, OFF | {"min_p": 0.1}])
def test_a_constraint_masks_first(params: dict[str, Any]) -> None:
    logits = random_logits(600)
    only = Only(590, [4, 8, 15])  # a vocabulary with padding: ids from 590 on are forbidden too
    logits[590:] = 100
    sampler = Sampler(SamplingParams(**params), 600, only)
    assert sampler.device_sampling is None
    drawn = {sampler.sample(logits).id for _ in range(50)}
    assert drawn <= {4, 8, 15}
    assert not sampler.complete
    with pytest.raises(GrammarError):
        sampler.accept(5)
    sampler.accept(drawn.pop())
    assert sampler.complete


# --- properties

logits_lists = st.lists(st.floats(-30, 30, width=32), min_size=1, max_size=60)


@settings(max_examples=150, deadline=None)
@given(logits_lists, st.floats(0.01, 1.0), st.booleans())
def test_top_p_keeps_the_least_set_and_never_drops_the_best(values: list[float], p: float, limited: bool) -> None:
    logits = np.array(values, np.float32)
    params = SamplingParams(**OFF | {"top_p": p, "top_k": max(1, len(values) - 1) if limited else 0})
    ids, _ = Sampler(params, len(values)).distribution(logits)
    order = np.argsort(-logits, kind="stable")
    assert ids.tolist() == order[: len(ids)].tolist()
    pool = order[: params.top_k] if params.top_k else order
    all_p = np.exp(logits[pool].astype(np.float64) - logits.max())
    all_p /= all_p.sum()
    assert len(ids) == len(pool) or all_p[: len(ids)].sum() >= p - 1e-12
    assert len(ids) == 1 or all_p[: len(ids) - 1].sum() < p + 1e-12


@settings(max_examples=150, deadline=None)
@given(logits_lists, st.integers(1, 70))
def test_largest_is_a_stable_sort(values: list[float], k: int) -> None:
    repeated = np.tile(np.round(np.array(values, np.float32)), 20)  # ties, and enough columns for the shortcut
    found = largest(repeated, min(k, len(repeated)))
    assert found.ids.tolist() == np.argsort(-repeated, kind="stable")[:k].tolist()
    assert found.logits.tolist() == repeated[found.ids].tolist()


@settings(max_examples=100, deadline=None)
@given(
    logits_lists,
    st.integers(0, 5),
    st.floats(0.05, 1),
    st.floats(0, 1),
    st.floats(0.05, 1),
    st.sampled_from([0.0, 1e-300, 0.7, 50.0]),
)
def test_every_chain_gives_a_distribution(
    values: list[float], k: int, top_p: float, min_p: float, typical: float, temperature: float
) -> None:
    logits = np.array(values, np.float32)
    params = SamplingParams(
        temperature=temperature, top_k=k, top_p=top_p, min_p=min_p, typical_p=typical, seed=len(values)
    )
    sampler = Sampler(params, len(values))
    ids, p = sampler.distribution(logits)
    assert p.sum() == pytest.approx(1)
    assert len(set(ids.tolist())) == len(ids) >= 1
    assert (np.diff(logits[ids]) <= 0).all()
    if typical == 1:
        assert ids[0] == logits.argmax()
    assert sampler.sample(logits).id in ids


# --- draws


@pytest.mark.parametrize(
    "params",
    [
        {"temperature": 0},
        {"temperature": 1e-30, "top_k": 0, "top_p": 1, "min_p": 0},
        {"temperature": 1e-30},
        {"top_k": 0},
        {"typical_p": 0.5},
        {"logit_bias": {3: 3e38, 4: -math.inf}, "repetition_penalty": 1e30},
        {"logprobs": 3},
    ],
)
def test_a_users_seterr_changes_nothing(params: dict[str, Any]) -> None:
    def some(n: int = 5) -> list[Sampled]:
        sampler = Sampler(SamplingParams(seed=1, **params), 8)
        sampler.observe([1, 3])
        return [sampler.sample(np.array([1e38, 1e-44, -3e38, 2, 3, -np.inf, 5, 6], np.float32)) for _ in range(n)]

    with np.errstate(all="ignore"):
        expected = some()
    with np.errstate(all="raise"):
        assert some() == expected


def test_the_same_seed_gives_the_same_tokens() -> None:
    """Recorded once: another platform, NumPy or release must give the same."""
    sampler = Sampler(SamplingParams(seed=42, temperature=1.0), 1000)
    logits = (np.arange(1000) * 379 % 1000).astype(np.float32) / 125
    recorded = [649, 496, 992, 306, 124, 897, 868, 649]
    assert [sampler.sample(logits).id for _ in range(8)] == recorded
    again = Sampler(SamplingParams(seed=42, temperature=1.0), 1000)
    assert [again.sample(logits).id for _ in range(8)] == recorded


def test_a_draw_follows_the_distribution() -> None:
    """The draws of evenly spread numbers are the distribution itself, to within their spacing."""
    logits = np.log(np.array([0.5, 0.3, 0.15, 0.05], np.float32))
    for params in (SamplingParams(**OFF), SamplingParams(**OFF | {"top_k": 4, "min_p": 0.01})):
        sampler = Sampler(params, 4)

        class Even:
            n = -1

            def random_raw(self) -> int:
                self.n += 1
                return int((self.n + 0.5) / 1000 * 2**64)

        sampler._bits = Even()  # type: ignore[assignment]
        counts = np.bincount([sampler.sample(logits).id for _ in range(1000)], minlength=4)
        assert np.abs(counts - [500, 300, 150, 50]).max() <= 1


@pytest.mark.parametrize("params", [OFF, OFF | {"top_k": 3}, OFF | {"top_p": 0.99}])
def test_the_largest_random_number_draws_a_possible_token(params: dict[str, Any]) -> None:
    class Top:
        def random_raw(self) -> int:
            return 2**64 - 1

    logits = np.array([0.1, -math.inf, 0.3, -math.inf], np.float32)
    sampler = Sampler(SamplingParams(**params), 4)
    sampler._bits = Top()  # type: ignore[assignment]
    assert sampler.sample(logits).id in (0, 2)


def test_without_a_seed_the_one_used_is_known() -> None:
    logits = random_logits()
    sampler = Sampler(SamplingParams(), 500)
    drawn = [sampler.sample(logits).id for _ in range(5)]
    again = Sampler(SamplingParams(seed=sampler.seed), 500)
    assert [again.sample(logits).id for _ in range(5)] == drawn
    assert Sampler(SamplingParams(), 500).seed != sampler.seed


@pytest.mark.parametrize("params", [{"temperature": 0}, {"top_k": 1}, {"temperature": 0, "typical_p": 0.5}])
def test_greedy_takes_the_best_and_the_first_of_equals(params: dict[str, Any]) -> None:
    logits = np.zeros(300, np.float32)
    logits[[17, 200]] = 5
    assert Sampler(SamplingParams(**params), 300).sample(logits) == Sampled(17)


# --- log-probabilities


def test_logprobs_are_of_the_unmodified_distribution() -> None:
    logits = random_logits()
    params = SamplingParams(temperature=0, logprobs=3, logit_bias={7: 100.0}, presence_penalty=1)
    sampler = Sampler(params, 500)
    sampler.observe([1, 2, 3])
    found = sampler.sample(logits)
    exact = logits.astype(np.float64) - np.log(np.exp(logits.astype(np.float64)).sum())
    assert found.id == 7
    assert found.logprob == pytest.approx(exact[7], abs=1e-5)
    assert [i for i, _ in found.top] == np.argsort(-logits)[:3].tolist()
    assert [p for _, p in found.top] == pytest.approx(sorted(exact)[:-4:-1], abs=1e-5)


def test_logprobs_zero_is_the_chosen_token_only() -> None:
    found = Sampler(SamplingParams(logprobs=0), 500).sample(random_logits())
    assert found.logprob is not None
    assert found.logprob < 0
    assert found.top == ()
    assert Sampler(SamplingParams(), 500).sample(random_logits()).logprob is None


# --- on the device


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        ({"temperature": 0}, ("argmax", 1)),
        ({"top_k": 1, "temperature": 2}, ("argmax", 1)),
        ({}, ("top_k", 40)),
        ({"temperature": 0, "typical_p": 0.5}, ("top_k", 40)),
        ({"top_k": 0}, None),
        ({"temperature": 0, "logprobs": 0}, None),
        ({"temperature": 0, "logit_bias": {1: 1}}, None),
        ({"temperature": 0, "repetition_penalty": 1.1}, None),
        ({"temperature": 0, "repetition_penalty": 1.1, "penalty_window": 0}, ("argmax", 1)),
    ],
)
def test_what_a_device_may_compute(params: dict[str, Any], expected: DeviceSampling | None) -> None:
    assert SamplingParams(**params).device_sampling == expected
    assert Sampler(SamplingParams(**params), 500).device_sampling == expected


@pytest.mark.parametrize("params", [{"temperature": 0}, {}, {"top_k": 9, "typical_p": 0.7}, {"top_k": 600, "min_p": 0}])
def test_sampling_from_the_best_is_sampling_from_all(params: dict[str, Any]) -> None:
    whole, best = (Sampler(SamplingParams(seed=5, **params), 500) for _ in range(2))
    for seed in range(20):
        logits = random_logits(seed=seed)
        sampling = best.device_sampling
        assert sampling is not None
        ids = np.random.default_rng(seed).permutation(np.argsort(-logits)[: sampling.k])
        assert best.sample_from(ids, logits[ids]) == whole.sample(logits)


def test_sampling_from_the_best_refuses_what_does_not_fit() -> None:
    with pytest.raises(SamplingError, match="whole vocabulary"):
        Sampler(SamplingParams(top_k=0), 5).sample_from(np.arange(5), np.zeros(5, np.float32))
    with pytest.raises(SamplingError, match=r"\(3,\); expected \(4,\) for top_k"):
        Sampler(SamplingParams(top_k=4), 5).sample_from(np.arange(3), np.zeros(3, np.float32))
    with pytest.raises(SamplingError, match="NaN"):
        Sampler(SamplingParams(temperature=0), 5).sample_from(np.arange(1), np.full(1, np.nan, np.float32))


# --- refusals


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"temperature": -1}, "temperature is -1; expected a finite number of at least 0"),
        ({"temperature": math.nan}, "temperature is nan"),
        *(({"temperature": wrong}, f"temperature is {wrong!r}") for wrong in ("hot", True)),
        ({"top_k": -1}, "top_k=0 turns the filter off"),
        ({"top_k": 1.5}, r"top_k is 1.5 \(float\); expected an integer"),
        ({"top_p": 0}, "top_p is 0; expected a number above 0 and up to 1"),
        ({"top_p": 1.1}, "top_p is 1.1"),
        ({"min_p": -0.1}, "min_p is -0.1; expected a number from 0 to 1"),
        ({"typical_p": 0}, "typical_p is 0"),
        ({"repetition_penalty": 0}, "repetition_penalty is 0; expected a finite number above 0"),
        ({"presence_penalty": math.inf}, "presence_penalty is inf; expected a finite number"),
        ({"penalty_window": -1}, "penalty_window=None looks at all tokens"),
        ({"max_tokens": 0}, "max_tokens is 0; expected 1 or more"),
        ({"seed": -1}, "seed is -1"),
        ({"seed": 2**64}, "expected less than"),
        ({"logprobs": -1}, "logprobs is -1"),
        ({"logit_bias": {-1: 1.0}}, "logit_bias holds -1"),
        ({"logit_bias": {1: math.inf}}, "use a grammar"),
        ({"logit_bias": {1: "x"}}, r"logit_bias\[1\] is 'x'"),
        ({"logit_bias": [1]}, "expected a mapping"),
        ({"stop": ["a", ""]}, "stop holds ''"),
        ({"stop": 5}, r"stop is 5 \(int\); expected a string or a list of strings"),
        ({"stop_tokens": "x"}, "stop_tokens is str"),
        *(({name: 10**400}, rf"{name} is 10+…; expected a") for name in ("temperature", "top_p", "presence_penalty")),
        *(({name: -(10**5000)}, f"{name} is of type int, and cannot be shown") for name in ("min_p", "top_k", "stop")),
        *(({"logit_bias": {5: n * 10**400}}, r"logit_bias\[5\] is -?10+…; expected a finite") for n in (1, -1)),
    ],
)
def test_parameters_are_checked_when_made(wrong: dict[str, Any], says: str) -> None:
    with pytest.raises(SamplingError, match=says):
        SamplingParams(**wrong)


def test_parameters_are_plain_values() -> None:
    params = SamplingParams(stop="END", stop_tokens=[1, 1], logit_bias={np.int64(3): 1}, top_k=np.int32(5))
    assert (params.stop, params.stop_tokens, params.logit_bias, params.top_k) == (("END",), {1}, {3: 1.0}, 5)
    assert pickle.loads(pickle.dumps(params)) == params
    assert dataclasses.replace(params, top_k=6) != params
    assert hash(params) == hash(dataclasses.replace(params))


def test_parameters_must_fit_the_vocabulary() -> None:
    with pytest.raises(SamplingError, match="token id 9 is outside the vocabulary of 9 tokens"):
        Sampler(SamplingParams(logit_bias={9: 1.0}), 9)
    with pytest.raises(SamplingError, match="logprobs is 10"):
        Sampler(SamplingParams(logprobs=10), 9)
    with pytest.raises(SamplingError, match="token id 9"):
        Sampler(SamplingParams(), 9).accept(9)


@pytest.mark.parametrize(
    "params", [{"temperature": 0}, {}, OFF, OFF | {"top_p": 0.5}, OFF | {"min_p": 0.5}, OFF | {"typical_p": 0.5}]
)
@pytest.mark.parametrize(
    ("value", "says"), [(math.nan, "NaN, the first at id 499"), (math.inf, "the logit of id 499 is inf")]
)
def test_logits_that_are_not_numbers(params: dict[str, Any], value: float, says: str) -> None:
    logits = random_logits()
    logits[499] = value
    with pytest.raises(SamplingError, match=says):
        Sampler(SamplingParams(**params), 500).sample(logits)
    with pytest.raises(SamplingError, match="no token is possible"):
        Sampler(SamplingParams(**params), 500).sample(np.full(500, -np.inf, np.float32))


def test_logits_of_another_shape_are_refused() -> None:
    with pytest.raises(SamplingError, match=r"float32 \(1, 5\); expected float32 \(5,\)"):
        Sampler(SamplingParams(), 5).sample(np.zeros((1, 5), np.float32))
    with pytest.raises(SamplingError, match="int64"):
        Sampler(SamplingParams(), 5).sample(np.zeros(5, np.int64))


# --- stop strings


def shown(stops: list[str], pieces: list[str]) -> tuple[str, str | None]:
    matcher = StopMatcher(stops)
    out = "".join(matcher.add(piece) for piece in pieces)
    matched = matcher.matched
    return out + matcher.flush(), matched


def test_a_stop_string_is_found_over_pieces() -> None:
    matcher = StopMatcher(["<|end|>", "STOP"])
    assert [matcher.add(p) for p in ["Hello <", "|en", "d of it", " S", "TOP and more"]] == [
        *("Hello ", "", "<|end of it", " ", "")
    ]
    assert matcher.matched == "STOP"
    assert matcher.add("nothing comes after it") == ""


def test_what_was_held_back_comes_at_the_end() -> None:
    matcher = StopMatcher(["abc"])
    assert (matcher.add("xab"), matcher.flush(), matcher.matched) == ("x", "ab", None)
    assert (matcher.add("c"), matcher.flush()) == ("c", "")
    assert shown([], ["a", "b"]) == ("ab", None)
    assert shown(["🦙é"], ["x🦙", "éy"]) == ("x", "🦙é")


@settings(max_examples=300, deadline=None)
@given(st.lists(st.text("ab", min_size=1, max_size=4), max_size=3), st.text("abc", max_size=20), st.data())
def test_pieces_do_not_matter(stops: list[str], text: str, data: st.DataObject) -> None:
    whole = shown(stops, [text])
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert shown(stops, pieces) == whole
    out, matched = whole
    assert text.startswith(out + (matched or ""))
    assert matched in stops if matched else out == text


@pytest.mark.parametrize("stops", [[""], [1]])
def test_stop_strings_are_checked(stops: list[Any]) -> None:
    with pytest.raises(SamplingError, match="at least one character"):
        StopMatcher(stops)


@pytest.mark.parametrize("grammar", [False, "x", 1.5, [None]])
def test_a_grammar_of_another_type(grammar: Any) -> None:
    with pytest.raises(SamplingError, match=r"grammar is .*; expected GBNF text, a Grammar or a Constraint"):
        Sampler(SamplingParams(), 8, grammar)
