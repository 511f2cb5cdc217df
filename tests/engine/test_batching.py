"""Several texts at once: shared prefixes, shared steps, and a cache that is too small for all."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hotshoe.runner.text import TextModel
from hotshoe.sampling import SamplingParams
from hotshoe_core import Context
from hotshoe_core.errors import (
    BackendError,
    ClosedError,
    GraphError,
    HotshoeError,
    InputTooLongError,
    SamplingError,
    TokenizerError,
)
from hotshoe_core.gguf import GGUFFile
from tests.support.text_models import assert_close, load

RNG = np.random.default_rng(1)
PROMPTS = [RNG.integers(0, 250, n).tolist() for n in (5, 17, 9, 30, 1)]
GREEDY = {"temperature": 0.0, "max_tokens": 12}


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Record the number of tokens of each graph that is computed."""
    counted: list[int] = []
    start = Context.start

    def counting(self: Context, feeds: Any = None) -> Any:
        counted.extend(len(v) for t, v in feeds.items() if t.name == "tokens")
        return start(self, feeds)

    monkeypatch.setattr(Context, "start", counting)
    return counted


@pytest.mark.parametrize("architecture", ["LlamaForCausalLM", "Gemma3ForCausalLM"])
def test_many_are_as_one_by_one(architecture: str, device: str, gguf: Callable[..., Path], steps: list[int]) -> None:
    with load(gguf(architecture), device) as model:
        alone = [model.generate(p, **GREEDY) for p in PROMPTS]
    with load(gguf(architecture), device, max_draft=0) as model:
        steps.clear()
        together = model.generate(PROMPTS, **GREEDY)
        assert len(steps) == max(len(a.tokens) for a in alone)  # one graph for a token of all
        few = model.generate(PROMPTS, batch_size=2, **GREEDY)
    for some in (together, few):
        assert [c.tokens for c in some] == [c.tokens for c in alone]
        assert [c.text for c in some] == [c.text for c in alone]
        assert [(c.n_prompt, c.finish_reason) for c in some] == [(c.n_prompt, c.finish_reason) for c in alone]


@pytest.mark.parametrize(("n_batch", "n_ubatch"), [(7, None), (7, 3), (64, 5), (1, 1), (3, 1)])
def test_prompts_in_pieces_leave_room_for_others(
    n_batch: int, n_ubatch: int | None, model: TextModel, steps: list[int]
) -> None:
    expected = [model.generate(p, **GREEDY).tokens for p in PROMPTS]
    with load(Path(model._file.path), model.device.name, n_batch=n_batch, n_ubatch=n_ubatch) as other:
        steps.clear()
        assert [c.tokens for c in other.generate(PROMPTS, **GREEDY)] == expected
        assert max(steps) == (n_ubatch or n_batch)


@pytest.mark.parametrize("n_ctx", [44, 48, 64])
def test_when_the_cache_is_too_small_for_all(n_ctx: int, gguf: Callable[..., Path], device: str) -> None:
    with load(gguf("LlamaForCausalLM"), device, n_ctx=128) as model:
        expected = [model.generate(p, **GREEDY).tokens for p in PROMPTS]
    with load(gguf("LlamaForCausalLM"), device, n_ctx=n_ctx) as model:
        assert [c.tokens for c in model.generate(PROMPTS, **GREEDY)] == expected
    with load(gguf("LlamaForCausalLM"), device, n_ctx=n_ctx, n_sequences=3) as larger:
        assert larger.memory().total > model.memory().total
        assert [c.tokens for c in larger.generate(PROMPTS, **GREEDY)] == expected


def test_a_common_beginning_is_computed_once(model: TextModel, steps: list[int]) -> None:
    system = PROMPTS[3]
    first = model.generate([*system, 7], **GREEDY)
    steps.clear()
    both = model.generate([[*system, 7, 8], [*system, 9]], **GREEDY)
    assert [c.n_cached for c in both] == [len(system) + 1, len(system)]
    assert steps[0] == 2
    again = model.generate([*system, 7], **GREEDY)
    assert (again.tokens, again.n_cached) == (first.tokens, len(system))


def test_streams_by_turns_share_the_steps(model: TextModel, steps: list[int]) -> None:
    expected = [model.generate(p, **GREEDY).text for p in PROMPTS]
    streams = [model.stream(p, **GREEDY) for p in PROMPTS]
    for stream in streams:
        stream.start()
    steps.clear()
    texts = [""] * len(streams)
    while any(s.completion.finish_reason is None for s in streams):
        for i, stream in enumerate(streams):
            texts[i] += stream.advance()
    assert texts == expected
    assert len(steps) == 12


def test_threads_get_what_they_would_alone(model: TextModel) -> None:
    expected = [model.generate(p, **GREEDY).tokens for p in PROMPTS]
    got: dict[int, list[int]] = {}

    def work(i: int) -> None:
        got[i] = model.generate(PROMPTS[i], **GREEDY).tokens

    threads = [threading.Thread(target=work, args=(i,)) for i in range(len(PROMPTS))]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert [got[i] for i in range(len(PROMPTS))] == expected


def test_a_stream_that_was_left_takes_no_part(model: TextModel, steps: list[int]) -> None:
    left = model.stream(PROMPTS[0], temperature=0)
    next(left)
    del left
    gc.collect()
    steps.clear()
    model.generate(PROMPTS[1], **GREEDY)
    assert set(steps[1:]) == {1}
    with model.stream(PROMPTS[0], temperature=0) as closed:
        next(closed)
    assert closed.completion.finish_reason == "cancelled"
    assert model.engine.jobs == ()


class Refuses:
    """A constraint that allows no token."""

    complete = False

    def forbidden(self) -> np.ndarray:
        return np.ones(1000, bool)

    def accept(self, id: int) -> None: ...


def test_one_that_goes_wrong_does_not_hurt_the_others(model: TextModel) -> None:
    expected = model.generate(PROMPTS[1], **GREEDY).tokens
    bad, good = model.stream(PROMPTS[0], grammar=Refuses(), **GREEDY), model.stream(PROMPTS[1], **GREEDY)
    bad.start()
    "".join(good)
    assert good.completion.tokens == expected
    with pytest.raises(SamplingError):
        next(bad)
    with pytest.raises(SamplingError):
        model.generate([PROMPTS[0], PROMPTS[1]], grammar=[Refuses(), None], **GREEDY)
    assert model.generate(PROMPTS[1], **GREEDY).tokens == expected


def damaged_at_7(data: Path, folder: Path) -> Path:
    """A model whose embedding of token 7 is NaN."""
    path = folder / "m.gguf"
    path.write_bytes((data / "llamacpp" / "LlamaForCausalLM.gguf").read_bytes())
    with GGUFFile(path) as file:
        table = file.tensors["token_embd.weight"]
        row = table.nbytes // table.shape[0]
    with path.open("r+b") as raw:
        raw.seek(table.offset + 7 * row)
        raw.write(b"\xff" * row)
    return path


@pytest.mark.parametrize("options", [{"flash_attention": "on"}, {"flash_attention": "off"}], ids=str)
def test_nan_does_not_stay_in_the_cache(device: str, options: dict[str, Any], data: Path, tmp_path: Path) -> None:
    """One token's embedding is NaN. Its text fails; nothing of it stays in the cells that other texts read too.

    A healthy text in the same graph may fail too, with an error, and works when it is repeated.
    """
    healthy, damaged = [3, 4, 5, 6], [3, 4, 7, 8]
    with load(damaged_at_7(data, tmp_path), device, **options) as model:
        expected = model.logits([*healthy, 9])
        model.forget()
        with model.sequence(healthy) as before:
            before.append()
            with model.sequence(damaged) as sequence:
                with pytest.raises(BackendError, match=f"gave NaN or infinity on {device}"):
                    sequence.append()
                assert len(sequence) == 4
            with pytest.raises(SamplingError, match="NaN"):
                model.generate(damaged, max_tokens=2, temperature=0)
            with pytest.raises(BackendError, match="gave NaN or infinity"):
                model.logits(damaged)
            assert_close(before.append(9), expected[-1])
        assert_close(model.logits([*healthy, 9]), expected)


def test_if_the_cache_cannot_be_cleared_after_nan_its_text_gets_the_error(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(cache: object) -> None:
        raise BackendError("no memory")

    with load(damaged_at_7(data, tmp_path), "reference") as model:
        monkeypatch.setattr(type(model._cache), "scrub", refuse)
        stream = model.stream([3, 4, 7, 8], **GREEDY)
        stream.start()
        (event,) = model.engine.step()  # of a thread that waits for another text
        assert str(event.error) == "no memory"
        with pytest.raises(BackendError, match="no memory"):
            next(stream)


def test_seeds_and_parameters_of_each(model: TextModel) -> None:
    options = {"temperature": 1.5, "min_p": 0.0, "max_tokens": 8}
    many = model.generate([PROMPTS[0]] * 3, seed=5, **options)
    assert [c.seed for c in many] == [5, 6, 7]
    assert len({tuple(c.tokens) for c in many}) > 1
    assert many[1].tokens == model.generate(PROMPTS[0], seed=6, **options).tokens
    params = [SamplingParams(max_tokens=n, temperature=0) for n in (2, 5)]
    assert [len(c.tokens) for c in model.generate(PROMPTS[:2], params)] == [2, 5]
    texts = model.generate(["the quick", "hello"], **GREEDY)
    assert texts[1].text == model.generate("hello", **GREEDY).text
    with pytest.raises(SamplingError, match="2 params were given for 3 prompts"):
        model.generate(PROMPTS[:3], params)
    with pytest.raises(SamplingError, match=r"one Refuses was given for 2 prompts(.|\n)*give a Grammar, or a list"):
        model.generate(PROMPTS[:2], grammar=Refuses())
    with pytest.raises(SamplingError, match=r"grammar is .*object.*; expected GBNF text, a Grammar or a Constraint"):
        model.generate(PROMPTS[0], grammar=object())
    with pytest.raises(SamplingError, match="batch_size is 0"):
        model.generate(PROMPTS[:2], batch_size=0)
    with pytest.raises(InputTooLongError):
        model.generate([PROMPTS[0], [1] * 200], **GREEDY)
    with pytest.raises(HotshoeError, match="n_sequences is 0"):
        load(Path(model._file.path), "reference", n_sequences=0)


def test_top_k_on_the_device_is_that_of_the_host(device: str, gguf: Callable[..., Path]) -> None:
    with load(gguf("LlamaForCausalLM"), device) as model:
        options = {"seed": 3, "max_tokens": 10, "temperature": 1.2}
        expected = [c.tokens for c in model.generate(PROMPTS, **options)]
        model.engine._pipeline._sample_on_device = True
        assert [c.tokens for c in model.generate(PROMPTS, **options)] == expected
        assert {s.sampling.kind for s in model._forward.contexts.signatures if s.sampling} == {"top_k"}
        mixed = model.generate(PROMPTS[:2], [SamplingParams(seed=1, max_tokens=5), SamplingParams(**GREEDY)])
        assert mixed[1].tokens == model.generate(PROMPTS[1], **GREEDY).tokens[:12]


@pytest.mark.parametrize("n", [20, 66])
def test_more_sequences_than_the_cache_has_slots(gguf: Callable[..., Path], n: int) -> None:
    with load(gguf("LlamaForCausalLM"), "reference", max_sequences=n) as model:
        held = [model.sequence([i]) for i in range(70)]
        first = [s.append() for s in held]
        assert sum(s.n_computed for s in held) == n  # the others lost their slots
        assert_close(held[0].append(9), model.logits([0, 9])[-1], 1e-4)
        assert_close(model.extend((s, []) for s in held[1:n]), np.stack(first[1:n]), 1e-4)


def test_a_prompt_of_several_pieces(device: str, gguf: Callable[..., Path]) -> None:
    with load(gguf("LlamaForCausalLM"), device) as model:
        expected = model.logits(PROMPTS[3])[-1]
    with load(gguf("LlamaForCausalLM"), device, n_batch=7) as model:
        assert_close(model.sequence(PROMPTS[3]).append(), expected, 1e-4)


def test_long_texts_of_windowed_layers_go_together(gguf: Callable[..., Path], steps: list[int]) -> None:
    """A window of 16 keeps few of the 60 tokens of each text; there is room for two texts, but not for three."""
    prompts = [RNG.integers(0, 250, 60).tolist() for _ in range(3)]
    options = {"temperature": 0.0, "max_tokens": 20, "logit_bias": {1: -100.0}}
    with load(gguf("Gemma3ForCausalLM"), "reference", n_ctx=100, n_batch=8) as model:
        expected = [model.generate(p, **options).tokens for p in prompts]
        alone = len(steps)
    with load(gguf("Gemma3ForCausalLM"), "reference", n_ctx=100, n_batch=8, n_sequences=2) as model:
        steps.clear()
        assert [c.tokens for c in model.generate(prompts[:2], **options)] == expected[:2]
        assert len(steps) < 2 * alone / 3
        assert [c.tokens for c in model.generate(prompts, **options)] == expected


def test_what_is_no_token_is_refused_before_it_meets_others(model: TextModel) -> None:
    for wrong in ([5, 9999], [-1]):
        for use in (model.stream, model.sequence, model.logits, model.sequence([1]).append):
            with pytest.raises(TokenizerError, match=str(wrong[-1])):
                use(wrong) if use.__name__ != "append" else use(*wrong)
    sequence = model.sequence([1, 2, 3])
    for call in (lambda: sequence.truncate(-1), lambda: sequence.truncate(4), lambda: sequence.shift(2, 2)):
        with pytest.raises(GraphError, match=r"3 tokens|-1; expected 0 or more"):
            call()
    assert len(sequence.append(4)) == model._forward.n_vocab
    model.close()
    with pytest.raises(ClosedError):
        sequence.append(5)


@pytest.mark.parametrize("n_batch", [512, 20])
def test_sequences_extended_together(n_batch: int, device: str, gguf: Callable[..., Path]) -> None:
    with load(gguf("LlamaForCausalLM"), device, n_ctx=64, n_batch=n_batch) as model:
        expected = [model.logits([*p, 3])[-1] for p in PROMPTS]
        for _ in range(2):
            many = [model.sequence() for _ in PROMPTS]
            model.extend(zip(many, PROMPTS, strict=True))
            assert_close(model.extend((s, [3]) for s in many), np.stack(expected), 1e-4)
        with pytest.raises(GraphError, match="twice"):
            model.extend([(many[0], [1]), (many[0], [2])])
        with pytest.raises(InputTooLongError):
            model.extend([(many[0], [1]), (many[1], [2] * 64)])
        assert [s.ids for s in many] == [[*p, 3] for p in PROMPTS]
