"""Guessed tokens: which ones, and that a text is the same with them, whatever happens to it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hotshoe
from hotshoe.runner.drafting import MAX_DRAFT, NOT_A_TOKEN, Drafter
from hotshoe.runner.jobs import Generation
from hotshoe.sampling import Sampler, SamplingParams
from hotshoe_core import BackendParams, DType
from hotshoe_core.contract.backend import WeightData
from hotshoe_core.errors import GrammarError, InputTypeError, ModelError, SamplingError
from tests.support.as_f16 import as_f16
from tests.support.engine_rig import N_VOCAB, Rig, expected
from tests.support.text_models import load

VERSE = Path(__file__).parents[2] / "examples" / "models" / "kjv-3m-q8_0.gguf"
SENTENCE = [3, 14, 15, 9, 2, 6, 5, 35, 8, 97, 93, 23, 84]


def copying(rows: Sequence[Any]) -> int:
    """The token 17 places before, but not always."""
    n = len(rows)
    return (int(rows[n - 17]) + (n % 23 == 0) + (n % 31 == 0)) % N_VOCAB if n >= 17 else (7 * n + 3) % N_VOCAB


def drafted(tokens: Sequence[int], most: int = MAX_DRAFT) -> list[int]:
    return Drafter(tokens).draft(most)


# What is guessed


def test_what_followed_the_last_two_tokens_is_guessed() -> None:
    assert drafted([*SENTENCE, 50, *SENTENCE[:2]]) == SENTENCE[2:5]
    assert drafted([*SENTENCE, 50, *SENTENCE[:2]], 1) == SENTENCE[2:3]
    assert drafted([*SENTENCE, 50, SENTENCE[0]]) == []
    assert drafted([1, 2, 3, 4, 5, 6]) == []
    for short in ([], [1], [1, 1], [1, 2, 1]):
        assert drafted(short) == []


def test_a_place_near_the_end_goes_on_with_the_guess_itself() -> None:
    assert drafted([1, 1, 1]) == [1, 1, 1]
    assert drafted([7, 1, 2, 1, 2]) == [1, 2, 1]


def test_of_several_places_the_most_alike_counts_then_the_latest() -> None:
    assert drafted([1, 2, 3, 40, 41, 42, 2, 3, 50, 51, 52, 1, 2, 3]) == [40, 41, 42]
    assert drafted([1, 2, 3, 40, 41, 42, 1, 2, 3, 50, 51, 52, 1, 2, 3]) == [50, 51, 52]


def test_right_guesses_make_drafts_longer_and_wrong_ones_shorter() -> None:
    long = list(range(200))
    drafter = Drafter([*long, 900, *long[:2]])
    lengths = []
    for token in long[2:60]:
        lengths.append(len(drafter.draft(MAX_DRAFT)))
        drafter.add(token)
    assert sorted(set(lengths)) == [3, 7, 15]
    assert lengths == sorted(lengths)
    for i in range(100):  # a pair is known, and what follows is another token each time
        drafter.add(5)
        drafter.add(6)
        drafter.add(1000 + i)
    drafter.add(5)
    drafter.add(6)
    assert drafter.draft(MAX_DRAFT) == []
    assert not drafter.guesses
    for token in long * 2:  # and it learns again
        drafter.add(token)
    assert len(drafter.draft(MAX_DRAFT)) == MAX_DRAFT


@given(st.lists(st.integers(0, 3), max_size=60), st.lists(st.integers(0, 3), max_size=300), st.integers(0, 20))
@settings(max_examples=60, deadline=None)
def test_a_guess_stands_in_the_text(before: list[int], after: list[int], most: int) -> None:
    drafter, text = Drafter(before), list(before)
    for token in after:
        drafter.add(token)
        text.append(token)
        draft = drafter.draft(most)
        assert len(draft) <= most
        if draft:
            whole = [*text, *draft]
            n = len(draft) + 2
            assert any(whole[i : i + n] == whole[-n:] for i in range(len(text) - 2))
            assert drafter.guesses


# A text is the same with drafts


def rig_of(**options: Any) -> Rig:
    return Rig(next_token=copying, **options)


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("uniform", [False, True])
def test_a_text_is_the_same_in_fewer_steps(uniform: bool, asynchronous: bool) -> None:
    rig = rig_of(uniform=uniform, asynchronous=asynchronous)
    prompt = expected([], 40, copying)
    generation = rig.generation(prompt, 300, max_draft=MAX_DRAFT)
    assert rig.read(generation) == expected(prompt, 300, copying)
    assert generation.finish == "length"
    assert len(rig.forward.graphs) < (150 if uniform else 120)  # two tokens a step, though some guesses are wrong
    assert 150 < generation.n_accepted < generation.n_drafted
    assert rig.cache.length(0) == 339  # the last token is not computed, and no guess stays
    for other in (prompt, [*prompt, *expected(prompt, 77, copying), 5]):  # what the cache has is right
        assert rig.read(rig.generation(other, 20)) == expected(other, 20, copying)


@pytest.mark.parametrize("uniform", [False, True])
def test_several_texts(uniform: bool) -> None:
    rig = rig_of(uniform=uniform)
    prompts = [expected([i], 20 + 3 * i, copying) for i in range(5)]
    texts = [rig.generation(prompt, 100, max_draft=MAX_DRAFT) for prompt in prompts]
    for text in texts:
        rig.engine.add(text)
    for text, prompt in zip(texts, prompts, strict=True):
        assert rig.read(text) == expected(prompt, 100, copying)
    assert max(rig.forward.graphs[10:]) <= 16
    if not uniform:  # a recurrent cache serves one text with guesses, or several without
        assert sum(text.n_accepted for text in texts) > 150


@pytest.mark.parametrize("n", range(1, 24))
def test_the_end_of_a_text_may_be_among_the_guesses(n: int) -> None:
    prompt = expected([], 60, copying)
    tokens = expected(prompt, 60, copying)
    rig = rig_of()
    assert rig.read(rig.generation(prompt, n, max_draft=MAX_DRAFT)) == tokens[:n]
    stop = tokens[n]
    generation = rig.generation(prompt, 60, stop=stop, max_draft=MAX_DRAFT)
    assert rig.read(generation) == tokens[: tokens.index(stop)]
    assert generation.finish == "stop"
    assert rig.read(rig.generation([*prompt, *tokens[:n], 1])) == expected([*prompt, *tokens[:n], 1], 5, copying)


def test_the_context_ends_among_the_guesses() -> None:
    prompt = expected([], 40, copying)
    rig = rig_of(n_ctx=100)
    generation = rig.generation(prompt, None, max_draft=MAX_DRAFT)
    assert rig.read(generation) == expected(prompt, 61, copying)  # as without guesses: the last one is not computed
    assert generation.finish == "context"
    plain = rig.generation(prompt, None)
    assert len(rig.read(plain)) == 61


def test_guesses_do_not_drive_other_texts_out_of_the_cache() -> None:
    rig = rig_of(n_ctx=150)  # 300 cells
    prompt = expected([], 40, copying)
    tokens = expected(prompt, 100, copying)
    n = next(i for i in range(30, 100) if tokens[i] not in tokens[:i])
    other = rig.sequence(expected([1], 300 - len(prompt) - n, copying)[:-1])
    other.append(0)
    text = rig.generation(prompt, None, stop=tokens[n], max_draft=MAX_DRAFT)
    assert rig.read(text) == tokens[:n]
    assert text.n_accepted > 10
    assert other.n_computed == len(other)  # the cache is full now


def test_a_text_goes_on_after_an_interrupt() -> None:
    """Ctrl-C in the thread that runs a step: the texts of other readers lose no token, and get none twice."""
    prompt = expected([], 40, copying)
    rig, grammar = rig_of(), Counting()
    sampler = Sampler(SamplingParams(temperature=0, max_tokens=200), N_VOCAB, grammar)
    text = Generation(rig.sequence(prompt), sampler, frozenset(), max_draft=MAX_DRAFT)
    read = []
    deliver, publish = rig.engine._pipeline.deliver, text._deliver
    left = 0

    def publish_some(sampled: Any) -> Any:
        nonlocal left
        left -= 1
        return publish(sampled) if left >= 0 else interrupt()

    for i in range(60):
        when = i % 4
        if when == 0:
            rig.forward.gate = interrupt
        elif when == 1:
            rig.engine._pipeline.deliver = interrupt  # type: ignore[method-assign]
        elif when == 2:
            left = i % 5
            text._deliver = publish_some  # type: ignore[method-assign]
        try:
            token = rig.engine.next(text)
            assert token is not None
            read.append(token.sampled.id)
        except KeyboardInterrupt:
            pass
        rig.forward.gate = lambda n: None
        rig.engine._pipeline.deliver = deliver  # type: ignore[method-assign]
        text._deliver = publish  # type: ignore[method-assign]
    assert read + rig.read(text) == grammar.accepted == expected(prompt, 200, copying)
    assert text.n_accepted > 100


def interrupt(*_: object) -> Any:
    raise KeyboardInterrupt


class Counting:
    """A grammar that allows everything, and accepts each token once, in order. It fails at ``bad``."""

    complete = False

    def __init__(self, bad: int = -1) -> None:
        self.accepted: list[int] = []
        self.bad = bad

    def forbidden(self) -> np.ndarray:
        return np.zeros(N_VOCAB, bool)

    def accept(self, id: int) -> None:
        if len(self.accepted) == self.bad:
            raise GrammarError("not this one")
        self.accepted.append(id)


def test_a_grammar_sees_each_token_once() -> None:
    prompt = expected([], 40, copying)
    grammar = Counting()
    text = Generation(
        (rig := rig_of()).sequence(prompt),
        Sampler(SamplingParams(temperature=0, max_tokens=100), N_VOCAB, grammar),
        frozenset(),
        max_draft=MAX_DRAFT,
    )
    assert rig.read(text) == grammar.accepted == expected(prompt, 100, copying)
    assert text.n_accepted > 50


@pytest.mark.parametrize("bad", range(8))
def test_an_error_comes_after_the_tokens_before_it(bad: int) -> None:
    prompt = expected([], 60, copying)
    rig = rig_of()
    sampler = Sampler(SamplingParams(temperature=0, max_tokens=100), N_VOCAB, Counting(bad))
    text = Generation(rig.sequence(prompt), sampler, frozenset(), max_draft=MAX_DRAFT)
    tokens = expected(prompt, 100, copying)[:bad]
    assert [token.sampled.id for _ in range(bad) if (token := rig.engine.next(text)) is not None] == tokens
    with pytest.raises(GrammarError, match="not this one"):
        rig.engine.next(text)


def test_a_cancelled_text_gives_no_more_tokens() -> None:
    rig = rig_of(asynchronous=True)
    text = rig.generation(expected([], 60, copying), 100, max_draft=MAX_DRAFT)
    for _ in range(20):
        rig.engine.next(text)
    n = len(text.ready_results)
    text.finish = "cancelled"
    rig.engine.step()
    assert len(text.ready_results) == n


def test_what_is_predicted_is_guessed() -> None:
    prompt, prediction = [1, 2, 3, 4], expected([1, 2, 3, 4], 100, copying)
    graphs = []
    for predicted in ((), prediction, [48, 49, *prediction[5:]]):  # the last one is found where the text repeats it
        rig = rig_of()
        text = rig.generation(prompt, 16, max_draft=MAX_DRAFT, predicted=predicted)
        assert rig.read(text) == prediction[:16]
        graphs.append(rig.forward.graphs)
    assert graphs[:2] == [[4, *[1] * 15], [4, 4, 8, 3]]
    assert 5 < len(graphs[2]) < 12


def test_a_picture_is_not_guessed() -> None:
    assert drafted([5, 6, NOT_A_TOKEN, 9, 5, 6]) == []
    assert drafted([5, 6, 7, NOT_A_TOKEN, 9, 5, 6]) == [7]
    assert drafted([5, 6, 7, NOT_A_TOKEN, 5, 6]) == [7]


def test_an_interrupt_does_not_lose_the_tokens_before_an_error() -> None:
    prompt = expected([], 60, copying)
    rig, grammar = rig_of(), Counting(6)
    sampler = Sampler(SamplingParams(temperature=0, max_tokens=100), N_VOCAB, grammar)
    text = Generation(rig.sequence(prompt), sampler, frozenset(), max_draft=MAX_DRAFT)
    read, deliver = [], rig.engine._pipeline.deliver
    for i in range(20):
        rig.engine._pipeline.deliver = interrupt if i % 2 else deliver  # type: ignore[method-assign]
        try:
            token = rig.engine.next(text)
        except KeyboardInterrupt:
            continue
        except GrammarError:
            break
        assert token is not None
        read.append(token.sampled.id)
    assert read == grammar.accepted == expected(prompt, 100, copying)[:6]


def test_a_step_that_fails_by_a_draft_does_not_fail_for_ever() -> None:
    prompt = expected([], 60, copying)
    rig = rig_of()
    text = rig.generation(prompt, 100, max_draft=MAX_DRAFT)
    read = [rig.engine.next(text) for _ in range(12)]
    while not text.sequence.draft or text.ready_results:
        read.append(rig.engine.next(text))
    rig.forward.failure = ValueError("a row that no model computes")
    with pytest.raises(ValueError, match="no model"):
        rig.engine.next(text)
    assert text.sequence.draft == []
    assert [token.sampled.id for token in read if token] + rig.read(text) == expected(prompt, 100, copying)


@pytest.mark.parametrize("n_idle", [0, 1, 2, 3])
def test_a_wrong_guess_finds_the_state_before_it(n_idle: int) -> None:
    """Though other conversations hold all states that are left."""
    rig = rig_of(uniform=True, n_states=4)
    for i in range(n_idle):
        rig.read(rig.generation(expected([i], 30, copying), 2))
    prompt = expected([7], 200, copying)
    n = sum(rig.forward.graphs)
    text = rig.generation(prompt, 100, max_draft=MAX_DRAFT)
    assert rig.read(text) == expected(prompt, 100, copying)
    assert 0 < text.n_accepted < text.n_drafted
    assert sum(rig.forward.graphs) - n < 200 + 100 + 2 * text.n_drafted


# With models


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": 0},
        {"seed": 3},
        {"seed": 4, "temperature": 1.5, "top_k": 0, "repetition_penalty": 1.2, "frequency_penalty": 0.1},
        {"temperature": 0, "logprobs": 2},
        {"seed": 5, "regex": r"(the (king|queen) (said|came), )+amen"},
        {"seed": 6, "context_shift": 4},
    ],
    ids=["greedy", "seeded", "penalties", "logprobs", "grammar", "shift"],
)
def test_a_real_text_is_the_same(options: dict[str, Any]) -> None:
    verse = "And the king said, Let him come in. And the queen said, Let him come in. And the king"
    found = []
    for max_draft in (0, None):
        with load(VERSE, "cpu", n_ctx=96, n_sequences=2, max_draft=max_draft) as model:
            done = model.generate(verse, max_tokens=110, **options)
            found.append((done.tokens, done.finish_reason, done.logprobs, done.seed if "seed" in options else None))
            assert (done.n_drafted > 0) == (max_draft is None)
            assert done.n_accepted <= done.n_drafted
    assert found[0] == found[1]


def test_a_prediction() -> None:
    with load(VERSE, "cpu", n_ctx=256, max_draft=0) as model:
        expected_text = model.generate("In the beginning", max_tokens=60, temperature=0)
    with load(VERSE, "cpu", n_ctx=256) as model:
        text = model.generate("In the beginning", max_tokens=60, temperature=0, prediction=expected_text.text)
        assert text.tokens == expected_text.tokens
        assert text.n_accepted > 40
    with load(VERSE, "reference", n_ctx=64) as model:
        assert model.generate("In the", max_tokens=20, temperature=0).n_drafted == 0
        assert model.generate("In the", max_tokens=20, temperature=0, prediction=expected_text.text).n_drafted > 0


def test_there_are_no_guesses_where_they_could_change_a_text(tmp_path: Path) -> None:
    def n_drafted(path: Path, **options: Any) -> int:
        with load(path, "cpu", kv_dtype="f16", n_ctx=256, **options) as model:
            return model.generate("And the king said, And the king said, And the", max_tokens=30, seed=1).n_drafted

    half = as_f16(VERSE, tmp_path / "f16.gguf")
    assert n_drafted(VERSE) > 0
    assert n_drafted(half) > 0
    assert n_drafted(half, matmul_precision="bf16") > 0
    assert n_drafted(VERSE, flash_attention="on") == n_drafted(VERSE, repack=False) == 0
    assert n_drafted(VERSE, repack="engine") == 0
    assert n_drafted(VERSE, flash_attention="on", max_draft=7) > 0


def test_a_product_of_ggml_is_not_batch_invariant() -> None:
    """It adds up one row in another order than several."""

    def is_invariant(dtype: DType, uses: tuple[str, ...] = ("linear",)) -> bool:
        data = np.zeros(dtype.nbytes((2049, 2048)), np.uint8)
        with hotshoe.load_all().open("cpu", BackendParams(allocate=False)) as backend:
            backend.load([WeightData("w", (2049, 2048), dtype, data, uses)])
            return backend.batch_invariant

    for dtype in (DType.F32, DType.F16, DType.BF16, DType.Q8_0):
        assert is_invariant(dtype)
        assert is_invariant(dtype, ("take", "linear"))
    assert not is_invariant(DType.IQ2_XXS)
    assert is_invariant(DType.IQ2_XXS, ("take",))
    assert not is_invariant(DType.IQ2_XXS, ("take", "linear"))


def test_a_prediction_is_for_one_prompt() -> None:
    with load(VERSE, "reference") as model:
        with pytest.raises(SamplingError, match="a prediction was given for 2 prompts; expected one prompt"):
            model.generate(["In", "the"], prediction="beginning")
        with pytest.raises(InputTypeError, match="expected str"):
            model.generate("In", prediction=[1, 2])


@pytest.mark.parametrize("wrong", [-1, 16, True, 1.0, "7"])
def test_a_wrong_limit(wrong: object) -> None:
    with pytest.raises(ModelError, match=r"max_draft is .*; expected an integer from 0 to 15"):
        load(VERSE, "cpu", max_draft=wrong)
