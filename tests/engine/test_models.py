"""Models that the table of tests/families does not have: embedding models of decoders, rerankers; and tasks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import hotshoe
from hotshoe.convert import convert
from hotshoe.kvcache import UncachedView
from hotshoe.nn.batch import Batch
from hotshoe.tasks import Task
from hotshoe_core import DType
from tests.support.forward import Forward
from tests.support.recorded import make_recorded

IDS = np.random.default_rng(2).integers(0, 250, 21).tolist()
BOUND = 1e-5  # of the largest logit, in f32


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of transformers that a recorded file was converted from, made once."""
    made: dict[str, Path] = {}

    def get(name: str) -> Path:
        if name not in made:
            made[name] = make_recorded(name, tmp_path_factory.mktemp("recorded") / "hf")
        return made[name]

    return get


def near(ours: np.ndarray, expected: np.ndarray) -> None:
    assert ours.shape == expected.shape
    assert np.abs(ours - expected).max() <= BOUND * np.abs(expected).max()


def test_mixtral_is_a_llama_with_experts(data: Path) -> None:
    with Forward(data / "llamacpp" / "MixtralForCausalLM.gguf", "reference") as mixtral:
        assert type(mixtral.model).__module__ == "hotshoe.models.mixtral"
    with Forward(data / "llamacpp" / "LlamaForCausalLM.gguf", "reference") as llama:
        assert type(llama.model).__module__ == "hotshoe.models.llama"


def test_what_layers_keep(data: Path) -> None:
    """The latent of DeepSeek is kept once, for all heads; LFM2 keeps two kinds of things."""
    with Forward(data / "llamacpp" / "DeepseekV3ForCausalLM.gguf", "reference") as forward:
        assert [(s.n_kv_heads, s.k_dim, s.v_in_k, s.rope_start) for s in forward.spec] == [(1, 24, 16, 16)] * 2
    with Forward(data / "llamacpp" / "Lfm2ForCausalLM.gguf", "reference") as forward:
        kinds = [type(s).__name__ for s in forward.spec]
        assert kinds == ["RecurrentSpec", "AttentionSpec", "RecurrentSpec"]
        assert forward.spec[0].states == {"conv": (2, 32)}


def padded(forward: Forward, texts: list[list[int]], types: list[list[int]] | None = None) -> np.ndarray:
    """Hidden states of texts padded to one length, by a view that keeps nothing: (b, n, dim)."""
    n = max(map(len, texts))
    inside = np.arange(n) < np.array([len(t) for t in texts])[:, None]
    mask = np.where(inside, 0, -np.inf).astype(np.float32)[:, None, None, :]
    if forward.model.causal:
        mask = mask + np.triu(np.full((n, n), -np.inf, np.float32), 1)
    filled = [[*t, *[0] * (n - len(t))] for t in texts]
    with forward.backend.new_context() as ctx:
        tokens = ctx.input("tokens", inside.shape, DType.I32)
        positions = ctx.input("positions", (n,), DType.I32)
        seen = ctx.input("mask", mask.shape)
        feeds = {tokens: np.array(filled), positions: np.arange(n), seen: mask}
        token_types = None
        if types is not None:
            token_types = ctx.input("token_types", inside.shape, DType.I32)
            feeds[token_types] = np.array([[*t, *[0] * (n - len(t))] for t in types])
        view = UncachedView(seen, positions)
        y = forward.model(Batch(tokens, positions, token_types=token_types), [view] * len(forward.model.blocks))
        if forward.model.task is Task.RERANK:
            y = forward.model.score(y[:, 0])
        ctx.forward(y).compute(feeds)
        return y.read()


def test_an_embedding_model_is_told_by_the_metadata(device: str, recorded: Callable[[str], Path], data: Path) -> None:
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    oracle = transformers.AutoModel.from_pretrained(recorded("Qwen3Embedding"), dtype=torch.float32).eval()
    texts = [IDS, IDS[3:10], IDS[5:6]]
    with Forward(data / "llamacpp" / "Qwen3Embedding.gguf", device) as forward:
        assert (forward.model.task, forward.model.causal) == (Task.EMBEDDING, True)
        states = padded(forward, texts)
        for text, ours in zip(texts, states, strict=True):
            with torch.no_grad():
                expected = oracle(torch.tensor([text])).last_hidden_state[0].numpy()
            near(ours[: len(text)], expected)


def test_a_reranker_s_scores(device: str, recorded: Callable[[str], Path], tmp_path: Path) -> None:
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    folder = recorded("BertForSequenceClassification")
    oracle = transformers.AutoModelForSequenceClassification.from_pretrained(folder, dtype=torch.float32).eval()
    pairs = [[2, 17, 80, 3, 33, 41, 90, 3], [2, 17, 80, 3, 60, 3], [2, 5, 3, 5, 3]]
    types = [[0, 0, 0, 0, 1, 1, 1, 1], [0, 0, 0, 0, 1, 1], [0, 0, 0, 1, 1]]
    with Forward(convert(folder, tmp_path / "m.gguf", "f32"), device) as forward:
        assert forward.model.task is Task.RERANK
        with torch.no_grad():
            expected = [
                oracle(torch.tensor([pair]), token_type_ids=torch.tensor([kind])).logits[0].numpy()
                for pair, kind in zip(pairs, types, strict=True)
            ]
        near(padded(forward, pairs, types), np.stack(expected))


def test_a_task_that_does_not_fit(data: Path) -> None:
    with pytest.raises(hotshoe.errors.ModelError, match=r"an embedding model; expected a text model[\s\S]*embed"):
        hotshoe.load_model(data / "llamacpp" / "Qwen3Embedding.gguf", "reference", task="text")
    with pytest.raises(hotshoe.errors.ModelError, match=r"a text model; expected a reranker[\s\S]*hotshoe run"):
        hotshoe.load_model(data / "llamacpp" / "LlamaForCausalLM.gguf", "reference", task="rerank")
    with pytest.raises(hotshoe.errors.ModelError, match=r"unknown task 'txt'[\s\S]*did you mean 'text'"):
        hotshoe.load_model(data / "llamacpp" / "LlamaForCausalLM.gguf", "reference", task="txt")
