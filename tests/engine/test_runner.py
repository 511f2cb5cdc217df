"""The runner: reuse of graphs, parameters, errors of users and of model authors, and forks."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hotshoe
from hotshoe.kvcache import make_cache
from hotshoe.models import llama
from hotshoe.runner.items import EmbeddingSpan
from hotshoe.runner.params import RunnerParams
from hotshoe.runner.text import TextModel
from hotshoe.sampling import Sampler, SamplingParams
from hotshoe_core import BackendParams, Context, DType, Tensor, ops
from hotshoe_core.errors import (
    BackendError,
    ClosedError,
    DTypeError,
    ForkedProcessError,
    GraphError,
    HotshoeError,
    ModelDefinitionError,
    ModelError,
    SamplingError,
    ShapeError,
    TokenizerError,
    WeightsError,
)
from tests.support.rewrite import rewrite
from tests.support.text_models import assert_close, load

IDS = np.random.default_rng(5).integers(2, 250, 120).tolist()


def test_mixed_steps_find_their_graphs_again(gguf: Callable[..., Path]) -> None:
    """200 steps of texts that start and end, with prompts of any length."""
    rng = np.random.default_rng(0)
    with load(gguf("LlamaForCausalLM"), "reference", n_ctx=256, n_batch=64, n_sequences=4) as model:
        running: list[Any] = []
        n_steps = 0
        while n_steps < 200:
            if len(running) < 4 and rng.random() < 0.3:
                prompt = rng.integers(2, 250, rng.integers(1, 120)).tolist()
                running.append(model.stream(prompt, max_tokens=int(rng.integers(4, 30)), temperature=0))
                running[-1].start()
            for stream in running[:1]:
                stream.advance()
                n_steps += 1
            running = [s for s in running if s.completion.finish_reason is None]
        for stream in running:
            stream.close()
        assert model.engine._n_steps >= 100
        # 4 decode graphs, mixed ones by bucket of rows, outputs 0 to 4 and a few lengths of the cache
        assert model._forward.contexts.n_built <= model.engine._n_steps * 0.6
        rows = {s.n_rows for s in model._forward.contexts.signatures}
        assert all(n < 32 or n % 2 == 0 for n in rows)


def test_what_is_padded_and_what_is_not(gguf: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    shapes: list[tuple[int, int]] = []
    start = Context.start

    def counting(self: Context, feeds: Any = None) -> Any:
        named = {t.name: v for t, v in feeds.items()}
        shapes.append((len(named["tokens"]), len(named["outputs"])))
        return start(self, feeds)

    with load(gguf("LlamaForCausalLM"), "reference", n_ctx=256, n_sequences=3) as model:
        expected = model.logits(IDS)
        model.forget()
        monkeypatch.setattr(Context, "start", counting)
        with model.sequence() as one:
            assert_close(one.append(*IDS[:100]), expected[99])  # 100 = 25 * 4
            assert_close(one.append(*IDS[100:102]), expected[101])
            one.append(3)
        with model.sequence() as one:
            assert_close(one.append(*IDS[:101], 9)[None], model.logits([*IDS[:101], 9])[-1:])
        many = [model.sequence() for _ in range(8)]
        model.extend((s, [50 + i]) for i, s in enumerate(many))
        assert (8, 8) in shapes
        assert shapes[:3] == [(100, 1), (2, 1), (1, 1)]
        shapes.clear()
        forty = [model.sequence([20 + i]) for i in range(41)]
        together = model.extend((s, []) for s in forty)
        assert shapes == [(42, 42)]
        assert_close(together, np.stack([model.logits([20 + i])[-1] for i in range(41)]))


def test_runner_params() -> None:
    for wrong in (
        *({"n_batch": 0}, {"n_ubatch": 0}, {"max_sequences": 1025}, {"n_sequences": -1}, {"n_batch": True}),
        *({"max_step_seconds": 0}, {"max_step_seconds": float("nan")}, {"max_step_seconds": True}),
        *({"n_sequences": 2**63}, {"n_batch": 2**31}, {"n_ubatch": 10**5000}, {"max_sequences": 10**5000}),
    ):
        with pytest.raises(ModelError, match=next(iter(wrong))):
            RunnerParams(**wrong)
    with pytest.raises(ModelError, match="n_ubatch is 600, but a step computes n_batch=512"):
        RunnerParams(n_ubatch=600)
    for dtype in ("q9_0", "i32"):
        with pytest.raises(DTypeError, match=dtype):
            RunnerParams(kv_dtype=dtype)
    assert RunnerParams(n_batch=100).max_graph_rows == 100


def test_a_cache_of_more_cells_than_graphs_can_number(gguf: Callable[..., Path]) -> None:
    with load(gguf("LlamaForCausalLM"), "reference") as model:
        spec, backend = model._model.cache_spec(), model.backend
        with pytest.raises(ModelError, match="has 4611686018427387904 cells; expected at most 2147483647"):
            make_cache(backend, spec, n_tokens=2**31, n_sequences=2**31, n_ubatch=1, dtype=DType.F16)


def test_max_sequences_is_honoured(gguf: Callable[..., Path]) -> None:
    with load(gguf("LlamaForCausalLM"), "reference", max_sequences=2) as model:
        held = [model.sequence([i + 2]) for i in range(4)]
        logits = [s.append() for s in held]
        assert sum(s.n_computed for s in held) == 2
        assert_close(model.extend((s, []) for s in held), np.stack(logits), 1e-4)
        prompts = [IDS[i : i + 9] for i in range(5)]
        alone = [model.generate(p, max_tokens=4, temperature=0).tokens for p in prompts]
        assert [c.tokens for c in model.generate(prompts, max_tokens=4, temperature=0)] == alone


# Mistakes


def test_invalid_prompts(model: TextModel, gguf: Callable[..., Path]) -> None:
    with pytest.raises(SamplingError, match=r"params is of type dict; expected SamplingParams[\s\S]*temperature=0"):
        model.generate("a", {"temperature": 0})  # type: ignore[call-overload]
    for wrong in ([1.5], b"text", [None], [True], np.array([1.0, 2.0])):
        for use in (model.generate, model.stream, model.sequence, model.logits):
            with pytest.raises(TokenizerError, match="expected"):
                use(wrong)  # type: ignore[operator]
    with pytest.raises(TokenizerError):
        model.sequence([1]).append("a")  # type: ignore[arg-type]
    assert model.generate(np.array([1, 2]), max_tokens=1).n_prompt == 2  # type: ignore[call-overload]


def test_invalid_arguments(model: TextModel, gguf: Callable[..., Path]) -> None:
    wrong: list[tuple[Any, type[Exception], str]] = [
        (lambda: model.generate(3), TokenizerError, r"the prompt is 3 \(int\); expected a text or token ids"),
        (lambda: model.generate(["a", 5]), TokenizerError, r"prompts\[1\] is 5 \(int\); expected a text or token ids"),
        (lambda: model.sequence(3), TokenizerError, r"a sequence is 3 \(int\); expected token ids"),  # type: ignore[arg-type]
        (lambda: model.generate(np.array("x")), TokenizerError, "the prompt is array"),
        (lambda: model.generate(b"x"), TokenizerError, r"the prompt is b'x' \(bytes\); expected a text or token ids"),
        (lambda: model.generate("the", batch_size=None), SamplingError, "batch_size is None"),
        (lambda: model.extend(3), GraphError, "pairs is 3"),
        (lambda: model.extend(iter([5])), GraphError, "one of them is 5"),
        (lambda: model.sequence([5, 6]).truncate(0.5), GraphError, "rows that truncate keeps is 0.5"),
        (lambda: model.sequence([5, 6]).shift(1, [1]), GraphError, r"n of a shift is \[1\]"),
        (lambda: EmbeddingSpan([[1], [1, 2]]), ShapeError, "a span of embeddings is"),  # type: ignore[arg-type]
        (lambda: EmbeddingSpan(np.ones((2, 3)), hash=3), TokenizerError, "the hash of a span is 3"),  # type: ignore[arg-type]
        (lambda: Sampler({}, 8), SamplingError, "params is {}"),  # type: ignore[arg-type]
        (lambda: Sampler(SamplingParams(), 8.5), SamplingError, "vocab_size is 8.5"),  # type: ignore[arg-type]
        (lambda: Sampler(SamplingParams(), 8).accept("a"), SamplingError, "a token id is 'a'"),  # type: ignore[arg-type]
        (lambda: RunnerParams(kv_dtype=3), DTypeError, "is 3"),  # type: ignore[arg-type]
        (lambda: BackendParams(mmap="no"), BackendError, "mmap is 'no'"),  # type: ignore[arg-type]
        (lambda: BackendParams(n_threads=1.5), BackendError, "n_threads is 1.5"),  # type: ignore[arg-type]
    ]
    path = gguf("LlamaForCausalLM")
    options: list[tuple[dict[str, Any], str]] = [
        ({"path": 3}, "the path of a model is 3"),
        ({"device": 3}, "device is 3"),
        ({"n_ctx": "8"}, "n_ctx is '8'"),
        ({"kv_dtype": 3}, "kv_dtype is 3"),
        ({"runner": 3}, "there is no option 'runner'"),
        ({"progress": 3}, "progress is 3"),
    ]
    for given, says in options:
        wrong.append((lambda given=given: hotshoe.load_model(**{"path": path} | given), HotshoeError, says))
    for call, error, says in wrong:
        with pytest.raises(error, match=says):
            call()
    assert model.generate(iter([5, 6]), max_tokens=1).n_prompt == 2  # type: ignore[call-overload]


def test_a_closed_sequence_refuses_further_calls(model: TextModel) -> None:
    sequence = model.sequence([5, 6])
    expected = sequence.append(7)
    sequence.close()
    sequence.close()
    for call in (
        lambda: sequence.append(8),
        sequence.append,
        sequence.fork,
        lambda: sequence.truncate(1),
        lambda: sequence.shift(0, 1),
        lambda: model.extend([(sequence, [8])]),
    ):
        with pytest.raises(ClosedError, match=r"the sequence is closed\n  hint: make another one"):
            call()
    assert sequence.ids == [5, 6, 7]
    with model.sequence(sequence.ids) as other:
        np.testing.assert_allclose(other.append(), expected, rtol=1e-3, atol=1e-3)


def test_another_models_sequence(model: TextModel, gguf: Callable[..., Path]) -> None:
    with load(gguf("LlamaForCausalLM"), "reference") as other:
        sequence, foreign = model.sequence([1]), other.sequence([1])
        with pytest.raises(GraphError, match="belongs to another loaded model"):
            model.extend([(sequence, [2]), (foreign, [2])])
        with pytest.raises(GraphError, match=r"expected a TokenSequence; got 3 \(int\)"):
            model.extend([(3, [2])])  # type: ignore[list-item]
        with pytest.raises(GraphError, match="no sequence was given"):
            model.extend([])
        assert (sequence.ids, foreign.ids) == ([1], [1])


def test_a_tensor_that_does_not_fit_is_named_with_its_file(data: Path, tmp_path: Path) -> None:
    source = data / "llamacpp" / "LlamaForCausalLM.gguf"
    path = rewrite(source, tmp_path / "m.gguf", transpose="blk.0.ffn_up.weight")
    with pytest.raises(WeightsError, match=r"blk\.0\.ffn_up\.weight"):
        hotshoe.load_model(path, "reference")


def test_an_authors_mistake_is_raised_where_it_was_made(
    gguf: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def wrong(self: Any, x: Tensor) -> Tensor:
        return ops.concat(x, x.reshape(-1), axis=0)  # the author's own line

    monkeypatch.setattr(llama.Model, "logits", wrong)
    with pytest.raises(ShapeError) as caught:
        load(gguf("LlamaForCausalLM"), "reference")
    assert not isinstance(caught.value, WeightsError)
    lines = [str(entry.statement) for entry in caught.traceback]
    assert any("the author's own line" in line for line in lines)
    monkeypatch.setattr(llama.Model, "logits", lambda self, x: x.reshape(-1))
    with pytest.raises(ModelDefinitionError, match=r"expected \(outputs, vocab\)"):
        load(gguf("LlamaForCausalLM"), "reference")
    monkeypatch.setattr(llama.Model, "cache_spec", lambda self: (None, None, None))
    with pytest.raises(ModelDefinitionError, match="no layer keeps anything"):
        load(gguf("LlamaForCausalLM"), "reference")


def test_nan_of_an_encoder_is_an_error(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with hotshoe.load_model(data / "bert-tiny-llamacpp.gguf", "reference") as model:
        assert np.isfinite(model.embed(["the cat", "a"])).all()
        read = Context.read

        def broken(self: Context, *args: Any, **kwargs: Any) -> np.ndarray:
            out = read(self, *args, **kwargs)
            out[-1] = np.inf
            return out

        monkeypatch.setattr(Context, "read", broken)
        for call in (lambda: model.embed(["the cat", "a"]), lambda: model.hidden_states("the cat")):
            with pytest.raises(BackendError, match="NaN or infinity on reference"):
                call()


# Forks


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are forked on POSIX only")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_is_refused_while_the_parent_computes(
    gguf: Callable[..., Path], data: Path, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside, go = threading.Event(), threading.Event()
    start = Context.start

    def held(self: Context, feeds: Any = None) -> Any:
        inside.set()
        assert go.wait(60)
        return start(self, feeds)

    encoder = hotshoe.load_model(data / "bert-tiny-llamacpp.gguf", device)
    with load(gguf("LlamaForCausalLM"), device) as model, encoder:
        sequence, stream = model.sequence([5]), model.stream([5, 6], max_tokens=2)
        monkeypatch.setattr(Context, "start", held)
        threads = [threading.Thread(target=f) for f in (lambda: model.logits(IDS), lambda: encoder.embed("the cat"))]
        for thread in threads:
            thread.start()
        assert inside.wait(60)
        refused = [
            lambda: model.generate([1, 2]),
            lambda: model.generate("the"),
            lambda: model.stream("the"),
            lambda: next(stream),
            lambda: model.logits([1]),
            lambda: model.score("the quick"),
            lambda: model.sequence([1]),
            lambda: model.extend([(sequence, [1])]),
            lambda: sequence.append(1),
            sequence.fork,
            model.forget,
            lambda: encoder.embed("the cat"),
        ]
        pid = os.fork()
        if pid == 0:  # nothing but os._exit may end the child
            signal.alarm(60)
            code = 1
            try:
                for call in refused:
                    with pytest.raises(ForkedProcessError):
                        call()
                stream.close()
                sequence.close()
                encoder.close()
                model.close()
                code = 0
            finally:
                os._exit(code)
        _, status = os.waitpid(pid, 0)
        go.set()
        for thread in threads:
            thread.join(60)
        assert os.waitstatus_to_exitcode(status) == 0
        assert len(sequence.append(6)) == model._forward.n_vocab
