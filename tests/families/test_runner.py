"""The runner and its caches, for every row: batches, forks, shared beginnings, truncation, shift, pieces of a step."""

from __future__ import annotations

import numpy as np
import pytest

import hotshoe
from hotshoe_core.errors import GraphError, SamplingError
from tests.families.made import Made
from tests.families.rows import TEXT

ROWS = TEXT


def test_two_texts_at_once(made: Made, main_device: str) -> None:
    """They have different lengths, and go on together and alone."""
    model, ids = made.model(main_device), made.ids
    other = [*ids[:3], *reversed(ids[3:])]
    one_expected, two_expected = made.expected(ids), made.expected(other)
    with model.sequence() as one, model.sequence(other[:4]) as two:
        made.near(model.extend([(one, ids[:9])]), one_expected[[8]])
        made.near(model.extend([(one, ids[9:14]), (two, other[4:7])]), np.stack([one_expected[13], two_expected[6]]))
        made.near(model.extend([(two, [other[7]]), (one, [ids[14]])]), np.stack([two_expected[7], one_expected[14]]))
        made.near(one.append(*ids[15:]), one_expected[-1])


def test_a_fork_goes_its_own_way(made: Made, main_device: str) -> None:
    model, ids = made.model(main_device), made.ids
    other = [*ids[:10], *reversed(ids[10:])]
    expected, other_expected = made.expected(ids), made.expected(other)
    with model.sequence() as one:
        one.append(*ids[:10])
        with one.fork() as two:
            made.near(two.append(other[10]), other_expected[10])
            made.near(one.append(ids[10]), expected[10])
            made.near(two.append(*other[11:]), other_expected[-1])
            made.near(one.append(*ids[11:]), expected[-1])


def test_a_shared_beginning_is_not_computed_again(made: Made, main_device: str) -> None:
    """In pieces of at most 8, as recurrent states are kept only at the end of a piece. Pieces are about equal."""
    ids = made.ids
    other = [*ids[:12], *reversed(ids[12:])]
    with made.load(main_device, n_batch=8) as model:
        n_cached = []
        for text in (ids, ids, other):
            n_cached.append(model.generate(text, temperature=0, max_tokens=1, stop_tokens=[]).n_cached)
            with model.sequence(text) as sequence:
                # transformers rounds, too: of one text of kimi-linear our reference is 1.0e-5 from it
                made.near(sequence.append(), made.expected(text)[-1], 2e-5)
    assert n_cached[0] == 0
    piece = -(-len(ids) // -(-len(ids) // 8))
    assert piece <= n_cached[1] < len(ids)
    has_window = "sliding_attention" in (getattr(made.config, "layer_types", None) or ())
    assert (0 if has_window else piece) <= n_cached[2] <= 12


def test_a_truncated_text_goes_on(made: Made, main_device: str) -> None:
    model, ids = made.model(main_device), made.ids
    other = [*ids[:6], *reversed(ids[6:])]
    expected = made.expected(other)
    with model.sequence() as sequence:
        sequence.append(*ids)
        sequence.truncate(6)
        made.near(sequence.append(other[6]), expected[6])
        made.near(sequence.append(*other[7:]), expected[-1])


def test_a_shift_or_a_refusal(made: Made, main_device: str) -> None:
    """With one layer a shift is exact; with more, later layers keep what they took from the removed tokens."""
    model, ids = made.model(main_device), made.ids
    with model.sequence() as sequence:
        sequence.append(*ids)
        if made.row.no_shift:
            with pytest.raises(GraphError, match=made.row.no_shift):
                sequence.shift(2, 5)
            with pytest.raises(SamplingError, match=made.row.no_shift):
                model.stream(ids, context_shift=0)
            return
        sequence.shift(0, 5)
        assert sequence.ids == ids[5:]
        shifted = sequence.append(7)
        assert sequence.n_computed == len(ids) - 4
    made.near(shifted, made.expected_after_shift(5, 7))


@pytest.mark.parametrize("n_ubatch", [1, 3])
def test_graphs_of_few_rows(made: Made, main_device: str, n_ubatch: int) -> None:
    with made.load(main_device, n_batch=8, n_ubatch=n_ubatch) as model:
        made.near(model.logits(made.ids), made.expected(made.ids))


@pytest.mark.parametrize("kind", ["f32", "q8_0"])
def test_a_text_has_the_same_bits_in_company(made: Made, kind: str) -> None:
    """On the CPU: whatever else is computed with a text, and however it is cut into pieces."""
    if "cpu" not in [d.name for d in hotshoe.load_all().devices]:
        pytest.skip("no device 'cpu': hotshoe-ggml-cpu is not installed")
    if made.name == "jamba":
        pytest.skip("a state of 8 is computed in chunks, whose sums depend on their lengths; the real models have 16")
    ids = made.ids
    other = [*ids[:3], *reversed(ids[3:])]
    with hotshoe.load_model(made.file(kind), device="cpu", n_ctx=256, n_sequences=4) as model:
        assert model.backend.batch_invariant or not model.backend.cache_config().reads_lists
        with model.sequence() as one:
            alone = [one.append(*ids[:9]), one.append(*ids[9:14]), one.append(ids[14]), one.append(*ids[15:])]
        with model.sequence() as one, model.sequence(other[:4]) as two, model.sequence(other[:7]) as three:
            _, first = model.extend([(two, other[4:6]), (one, ids[:9])])
            second, *_ = model.extend([(one, ids[9:14]), (three, other[7:9]), (two, other[6:7])])
            _, third = model.extend([(two, [other[7]]), (one, [ids[14]])])
            last, _ = model.extend([(one, ids[15:]), (two, [other[8]])])
        with model.sequence() as one:
            *_, by_token = (one.append(i) for i in ids)
        with model.sequence(ids) as one:
            whole = one.append()
        assert [np.array_equal(a, b) for a, b in zip(alone, (first, second, third, last))] == [True] * 4
        assert np.array_equal(by_token, alone[-1])
        assert np.array_equal(whole, alone[-1])


def test_guessed_tokens_do_not_change_a_text(made: Made) -> None:
    """Of few tokens, so that pairs of them come again. Guesses are right and wrong, and windows are passed."""
    if "cpu" not in [d.name for d in hotshoe.load_all().devices]:
        pytest.skip("no device 'cpu': hotshoe-ggml-cpu is not installed")
    if made.name == "jamba":
        pytest.skip("a state of 8 is computed in chunks, whose sums depend on their lengths; the real models have 16")
    few = {"logit_bias": dict.fromkeys((1, 2, 3, 5), 1000.0), "top_k": 4, "top_p": 1.0, "min_p": 0.0}
    sampling = few | {"seed": 7, "temperature": 50.0, "max_tokens": 60}
    texts = []
    for max_draft in (0, 15):
        with hotshoe.load_model(made.file("f32"), device="cpu", n_ctx=96, max_draft=max_draft) as model:
            texts.append(model.generate(made.ids, stop_tokens=[], **sampling))
    plain, guessed = texts
    assert plain.tokens == guessed.tokens
    assert plain.finish_reason == guessed.finish_reason
    if len(plain.tokens) > 40:
        assert 0 < guessed.n_accepted < guessed.n_drafted
