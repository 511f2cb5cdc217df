"""Every kind of cache through the runner, against transformers: chunks, forks, prefixes, batches, shifts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hotshoe.runner.text import TextModel
from hotshoe_core.errors import GraphError, SamplingError
from tests.support.recorded import make_recorded
from tests.support.text_models import load, transformers_logits

KINDS = {
    "DeepseekV3ForCausalLM": "values inside keys",
    "Mamba2ForCausalLM": "recurrent",
    "Lfm2ForCausalLM": "hybrid",
    "Gemma3ForCausalLM": "windows",
}
RECURRENT = ("Mamba2ForCausalLM", "Lfm2ForCausalLM")
IDS = np.random.default_rng(4).integers(0, 250, 37).tolist()
GREEDY: dict[str, Any] = {"temperature": 0.0, "max_tokens": 6, "logit_bias": {1: -100.0}}


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, list[int]], np.ndarray]:
    """Return transformers' logits after the last of these tokens: (vocab,)."""
    folders: dict[str, Path] = {}
    known: dict[tuple[str, tuple[int, ...]], np.ndarray] = {}

    def get(name: str, ids: list[int]) -> np.ndarray:
        if name not in folders:
            folders[name] = make_recorded(name, tmp_path_factory.mktemp("recorded") / "hf")
        key = (name, tuple(ids))
        if key not in known:
            known[key] = transformers_logits(folders[name], ids)[-1]
        return known[key]

    return get


def near(ours: np.ndarray, theirs: np.ndarray) -> None:
    n = min(len(ours), len(theirs))  # for Gemma the converter leaves out the rows of ids that no token has
    assert np.abs(ours[:n] - theirs[:n]).max() <= 1e-4 * np.abs(theirs).max()


@pytest.mark.parametrize("name", KINDS)
def test_pieces_forks_and_prefixes(name: str, device: str, data: Path, expected: Callable[..., np.ndarray]) -> None:
    with load(data / "llamacpp" / f"{name}.gguf", device, n_batch=8, n_ctx=64) as model:
        with model.sequence() as sequence:
            near(sequence.append(*IDS[:20]), expected(name, IDS[:20]))
            near(sequence.append(IDS[20]), expected(name, IDS[:21]))
            twin = sequence.fork()
            near(twin.append(7), expected(name, [*IDS[:21], 7]))  # who writes first leaves the other as it was
            near(sequence.append(*IDS[21:23]), expected(name, IDS[:23]))
            near(twin.append(8), expected(name, [*IDS[:21], 7, 8]))
            sequence.truncate(18)
            near(sequence.append(9), expected(name, [*IDS[:18], 9]))
            twin.close()
        near(model.sequence([*IDS[:20], 5]).append(), expected(name, [*IDS[:20], 5]))
        near(model.logits(IDS[:11])[-1], expected(name, IDS[:11]))
        many = [model.sequence() for _ in range(3)]
        texts = [IDS[:9], IDS[3:30], IDS[5:6]]
        for logits, text in zip(model.extend(zip(many, texts, strict=True)), texts, strict=True):
            near(logits, expected(name, text))
        for row, (logits, text) in enumerate(zip(model.extend((s, [3 + i]) for i, s in enumerate(many)), texts)):
            near(logits, expected(name, [*text, 3 + row]))


@pytest.mark.parametrize("name", KINDS)
def test_many_are_as_one_by_one(name: str, data: Path) -> None:
    prompts = [IDS[:9], IDS[3:30], IDS[5:6], IDS[:12]]
    with load(data / "llamacpp" / f"{name}.gguf", "reference", n_batch=16, n_ctx=64, n_sequences=2) as model:
        alone = [model.generate(p, **GREEDY).tokens for p in prompts]
        model.forget()
        assert [c.tokens for c in model.generate(prompts, **GREEDY)] == alone


@pytest.mark.parametrize("name", RECURRENT)
def test_a_state_is_resumed_only_where_one_was_kept(name: str, data: Path) -> None:
    with load(data / "llamacpp" / f"{name}.gguf", "reference", n_batch=8, n_ctx=64) as model:
        first = model.generate(IDS[:20], **GREEDY)
        again = model.generate(IDS[:20], **GREEDY)
        assert (first.n_cached, again.n_cached, again.tokens) == (0, 14, first.tokens)  # pieces of 7, 7 and 6
        model.forget()
        with model.sequence(IDS[:20]) as sequence:
            sequence.append()
            with model.sequence([*IDS[:20], 4]) as longer:  # goes on exactly there
                longer.append()
                assert model.engine._slots._longest_prefix(longer.items, 20)[1] == 20


@pytest.mark.parametrize("name", RECURRENT)
def test_a_state_cannot_be_shifted_and_says_why(name: str, data: Path) -> None:
    with load(data / "llamacpp" / f"{name}.gguf", "reference", n_ctx=32) as model:
        with model.sequence(IDS[:12]) as sequence:
            before = sequence.append(5)
            with pytest.raises(GraphError, match="recurrent state"):
                sequence.shift(0, 4)
            assert len(sequence) == 13
            sequence.truncate(12)
            np.testing.assert_allclose(sequence.append(5), before, atol=1e-5)
        with pytest.raises(SamplingError, match=r"context_shift=0 is not possible: .*recurrent state"):
            model.stream(IDS[:12], context_shift=0)


def test_a_latent_is_shifted_behind_its_start(device: str, data: Path) -> None:
    """With one layer, a shift is exact: as if the tokens had never been there. Only part of a key is rotated here."""
    with load(data / "llamacpp" / "DeepseekV3ForCausalLM.gguf", device, n_ctx=64) as model:
        cut_to_one_layer(model)
        with model.sequence() as sequence:
            sequence.append(*IDS[:20])
            sequence.shift(3, 6)
            after = sequence.append(*IDS[20:25])
            near(after, model.logits([*IDS[:3], *IDS[9:25]])[-1])


def cut_to_one_layer(model: TextModel) -> None:
    """Only the first layer is computed."""
    module: Any = model._model
    forward = model._forward
    module.blocks = module.blocks[:1]
    views = model._cache.views
    forward._cache.views = lambda *args: views(*args)[:1]  # type: ignore[method-assign]
