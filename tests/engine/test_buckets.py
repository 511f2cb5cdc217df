"""Backends that compile each graph for long: they ask for few lengths, and get the same numbers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import hotshoe
from hotshoe_core import BackendParams, CacheConfig, Device, DeviceType, DType
from hotshoe_core.eager.adapter import EagerBackend
from hotshoe_core.eager.reference import numpy_library, reference_device
from hotshoe_core.errors import BackendError
from tests.support.text_models import assert_close, load

IDS = np.random.default_rng(5).integers(2, 250, 120).tolist()
LENGTHS = range(2, 60)


def config(monkeypatch: pytest.MonkeyPatch, per_octave: int | None) -> None:
    monkeypatch.setattr(EagerBackend, "cache_config", lambda self: CacheConfig(8, DType.F32, per_octave))


@pytest.mark.parametrize(
    ("per_octave", "rows"), [(1, {2, 4, 8, 16, 32, 64}), (2, {2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64})]
)
def test_prompts_of_any_length_need_few_graphs(
    gguf: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, per_octave: int, rows: set[int]
) -> None:
    with load(gguf("LlamaForCausalLM"), "reference", n_ctx=128) as model:
        expected = model.logits(IDS)
    config(monkeypatch, per_octave)
    with load(gguf("LlamaForCausalLM"), "reference", n_ctx=128) as model:
        for n in LENGTHS:
            model.forget()
            with model.sequence() as text:
                assert_close(text.append(*IDS[:n]), expected[n - 1])
                assert_close(text.append(IDS[n]), expected[n])
        signatures = model._forward.contexts.signatures
        assert {s.n_rows for s in signatures} - {1} == rows
        assert {s.n_outputs for s in signatures} == {1}
        lengths = {s.sizes[0] for s in signatures}
        assert len(lengths) < 7
        assert all(length in (8 * n for n in (*rows, 1)) for length in lengths)
        assert model._forward.contexts.n_built <= 3 * len(rows)
        assert_close(model.logits(IDS), expected)  # more outputs than one, and a full cache


def test_recurrent_models_cut_prompts_into_these_sizes(
    gguf: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    with load(gguf("Mamba2ForCausalLM"), "reference", n_ctx=128) as model:
        expected = model.logits(IDS[:55])
    config(monkeypatch, 1)
    with load(gguf("Mamba2ForCausalLM"), "reference", n_ctx=128) as model:
        assert_close(model.logits(IDS[:55]), expected)
        assert {s.n_rows for s in model._forward.contexts.signatures} <= {1, 2, 4, 8, 16, 32}


def test_texts_of_an_encoder_are_padded_to_these_lengths(
    minilm_gguf: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = [" word" * n for n in (1, 3, 6, 7, 12, 13, 14)]
    with hotshoe.load_model(minilm_gguf("f16"), "reference") as model:
        expected = model.embed(texts)
        states, hidden = model.states_of([101, 102, 103]), model.hidden_states("word")
    config(monkeypatch, 1)
    with hotshoe.load_model(minilm_gguf("f16"), "reference") as model:
        for text, vector in zip(texts, expected):
            np.testing.assert_allclose(model.embed(text), vector, atol=1e-5)
        np.testing.assert_allclose(model.states_of([101, 102, 103]), states, atol=1e-4)
        np.testing.assert_allclose(model.hidden_states("word"), hidden, atol=1e-4)
        assert {s.n_tokens for s in model._contexts.signatures} == {4, 8, 16}


def test_a_backend_says_how_many_lengths_and_the_coarsest_counts() -> None:
    for wrong in (0, 3, 32, 1.5, "2", True, 1.0, np.array([1, 2])):
        with pytest.raises(BackendError, match=r"lengths_per_octave is .*; expected None, 1, 2, 4, 8 or 16"):
            CacheConfig(lengths_per_octave=wrong)  # type: ignore[arg-type]
    with pytest.raises(BackendError, match="padding is 0; expected 1 or more"):
        CacheConfig(padding=0)
    with pytest.raises(BackendError, match="n_rows is 0; expected 1 or more"):
        CacheConfig(n_rows=0)
    with pytest.raises(BackendError, match=r"mask_dtype is 'f32' .*; expected a DType"):
        CacheConfig(mask_dtype="f32")  # type: ignore[arg-type]
    merged = _over([CacheConfig(64), CacheConfig(32, DType.F16, 4), CacheConfig(16, DType.F32, 2)])
    assert merged == CacheConfig(64, DType.F32, 2)
    assert _over([CacheConfig(64), CacheConfig(256)]) == CacheConfig(256)
    assert _over([CacheConfig(n_rows=2048), CacheConfig(n_rows=256)]).n_rows == 256


@pytest.mark.parametrize(("options", "n_rows"), [({}, 48), ({"n_batch": 96}, 96), ({"n_ubatch": 32}, 32)])
def test_a_backend_may_choose_the_rows_of_a_step(
    gguf: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, options: dict[str, int], n_rows: int
) -> None:
    monkeypatch.setattr(EagerBackend, "cache_config", lambda self: CacheConfig(8, n_rows=48))
    with load(gguf("LlamaForCausalLM"), "reference", n_ctx=128, **options) as model:
        assert model.params.max_graph_rows == n_rows
        with model.sequence() as text:
            text.append(*IDS[:100])
        assert max(signature.n_rows for signature in model._forward.contexts.signatures) <= n_rows


def test_a_plan_counts_the_large_steps_of_a_large_gpu(gguf: Callable[..., Path]) -> None:
    graphs = []
    for gib in (24, 80):
        gpu = Device("gpu:0", DeviceType.GPU, "acme", "acme", "Acme", gib << 30, gib << 30)
        plan = hotshoe.plan_model(gguf("LlamaForCausalLM"), simulate=[gpu], n_ctx=128, n_sequences=32)
        graphs.append(plan.memory.on("gpu:0").graph.size)
    assert 3.5 < graphs[1] / graphs[0] < 4.5  # 2048 and 512 rows


def _over(configs: list[CacheConfig]) -> CacheConfig:
    devices = [replace(reference_device(), name=f"reference:{i}") for i in range(len(configs))]
    libraries = [replace(numpy_library(), cache_config=c) for c in configs]
    return EagerBackend("reference", devices, BackendParams(), libraries).cache_config()
