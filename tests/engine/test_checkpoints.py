"""Checkpoints of recurrent states: texts that begin alike go on where their beginnings part."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import hotshoe
from hotshoe.kvcache.checkpoints import checkpoints
from hotshoe.runner.text import TextModel
from hotshoe.sampling import SamplingParams
from tests.support.text_models import load

RNG = np.random.default_rng(7)
GREEDY = SamplingParams(temperature=0.0, max_tokens=3)


def tokens(n: int) -> list[int]:
    return [int(i) for i in RNG.integers(3, 250, n)]


@pytest.fixture(params=["Lfm2ForCausalLM", "Mamba2ForCausalLM"])
def model(request: pytest.FixtureRequest, gguf: Callable[..., Path]) -> Iterator[TextModel]:
    with load(gguf(request.param), "reference", n_ctx=256, n_sequences=3) as opened:
        yield opened


def test_the_positions() -> None:
    assert checkpoints([1] * 700, 0, ()) == [64, 128, 256, 512]
    assert checkpoints([1] * 700, 100, ()) == [28, 156, 412]
    rows = [9 if i % 10 == 4 else 1 for i in range(60)]
    assert checkpoints(rows, 0, {9}) == [5, 25, 35, 45, 55]
    assert checkpoints([1, 9], 0, {9}) == []  # the end of the text has a state anyway


def test_a_shared_beginning_is_reused(model: TextModel) -> None:
    """Of two texts of 143 tokens that share 140, the second one computed all 143."""
    shared = tokens(140)
    texts = [shared + tokens(3) for _ in range(2)]
    first, second = (model.generate(text, GREEDY) for text in texts)
    assert (first.n_cached, second.n_cached) == (0, 128)
    model.forget()
    assert model.generate(texts[1], GREEDY).tokens == second.tokens


def test_the_ends_of_messages_are_kept(model: TextModel) -> None:
    (stop,) = list(model.tokenizer.stop_ids)[:1]
    system, question = [*tokens(40), stop], [*tokens(20), stop]
    model.generate([*system, *question, *tokens(9)], GREEDY)
    assert model.generate([*system, *question, *tokens(9)], GREEDY).n_cached == 62
    assert model.generate([*system, *tokens(9)], GREEDY).n_cached == 41


def test_a_long_answer_has_checkpoints_too(model: TextModel) -> None:
    prompt = tokens(60)
    answer = model.generate(
        prompt, temperature=0.0, max_tokens=90, logit_bias=dict.fromkeys(model.tokenizer.stop_ids, -100.0)
    )
    again = model.generate([*prompt, *answer.tokens[:80], 5], GREEDY)
    assert again.n_cached == 128


def test_checkpoints_are_bounded_in_bytes_and_counted(gguf: Callable[..., Path]) -> None:
    sizes = []
    for nbytes in (0 + 1, 1 << 20):
        with load(gguf("Lfm2ForCausalLM"), "reference", n_ctx=128, checkpoint_bytes=nbytes) as model:
            sizes.append(model.memory().total)
    assert 0.7 * 2**20 < sizes[1] - sizes[0] <= 2**20
    with pytest.raises(hotshoe.errors.ModelError, match="checkpoint_bytes is -1"):
        hotshoe.load_model(gguf("Lfm2ForCausalLM"), "reference", checkpoint_bytes=-1)


def test_few_checkpoints_are_spread_over_a_long_text(gguf: Callable[..., Path]) -> None:
    """With room for few, those go first that save few tokens for their age."""
    with load(gguf("Lfm2ForCausalLM"), "reference", n_ctx=256, checkpoint_bytes=1) as model:
        text = tokens(250)
        model.generate(text, GREEDY)
        (slot,) = [s for s in model.engine._slots._slots if s.rows]
        kept = [n for n in range(1, 250) if model._cache.can_resume(slot.number, n)]
        assert len(kept) == 3
        assert max(np.diff([0, *kept, 250])) <= 128
