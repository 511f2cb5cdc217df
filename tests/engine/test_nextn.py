"""Models with a layer that drafts tokens (NextN): its guesses next to transformers' layers, and whole texts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hotshoe.runner.nextn as nextn_module
from hotshoe.convert import convert
from hotshoe.kvcache import CausalCache
from hotshoe.runner.jobs import Generation
from hotshoe.runner.text import TextModel
from hotshoe.sampling import Sampler, SamplingParams
from tests.families.made import Made
from tests.families.rows import ROWS
from tests.support.rewrite import rewrite
from tests.support.text_models import load

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
safetensors = pytest.importorskip("safetensors.torch")

LAYER = 3  # one with attention
N_LAYERS = 5
FAMILIES = ("qwen35", "qwen35moe", "qwen3next")
PROMPT = [3, 7, 9, 11, 45, 2, 8, 100, 17, 88, 90, 31]


class WithLayer:
    """A checkpoint with a drafting layer, whose weights ``change`` may edit, and its file."""

    def __init__(self, name: str, folder: Path, change: Callable[[dict[str, Any]], None] | None = None) -> None:
        plain = Made(name, ROWS[name], folder / "plain")
        self.folder = folder / "hf"
        self.folder.mkdir()
        for path in plain.folder.iterdir():
            (self.folder / path.name).write_bytes(path.read_bytes())
        weights = safetensors.load_file(self.folder / "model.safetensors")
        dim = weights["model.norm.weight"].shape[0]
        generator = torch.Generator().manual_seed(0)

        def random(*shape: int, scale: float = 0.1) -> Any:
            return torch.randn(*shape, generator=generator) * scale

        of_layer = f"model.layers.{LAYER}."
        for key, value in list(weights.items()):
            if key.startswith(of_layer):
                noise = random(*value.shape) * value.std() if value.ndim > 1 else random(*value.shape)
                weights[f"mtp.layers.0.{key.removeprefix(of_layer)}"] = value + noise
        weights["mtp.fc.weight"] = random(dim, 2 * dim, scale=dim**-0.5)
        for norm in ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm"):
            weights[f"mtp.{norm}.weight"] = random(dim)
        if change is not None:
            change(weights)
        safetensors.save_file(weights, self.folder / "model.safetensors", {"format": "pt"})
        self.weights = weights
        self.path = convert(self.folder, folder / "nextn.gguf", "f32")


@pytest.fixture(scope="module", params=FAMILIES)
def with_layer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> WithLayer:
    return WithLayer(request.param, tmp_path_factory.mktemp(request.param))


def _is_expert(key: str, first: str) -> bool:
    """Whether a tensor is that of an expert, as ``first`` is of expert 0."""
    start, end = first.split(".0.")
    return key.startswith(f"{start}.") and key.endswith(f".{end}")


class Oracle:
    """The model and its drafting layer in transformers' classes; how they are joined follows DeepSeek-V3, 2.2."""

    def __init__(self, made: WithLayer) -> None:
        self.model = transformers.AutoModelForCausalLM.from_pretrained(made.folder, dtype=torch.float32)
        self.w = {key.removeprefix("mtp."): value for key, value in made.weights.items() if key.startswith("mtp.")}
        inner = self.model.model
        self.layer = type(inner.layers[0])(inner.config, LAYER)
        prefix = "layers.0."
        state = {key.removeprefix(prefix): value for key, value in self.w.items() if key.startswith(prefix)}
        for part in [key for key in state if "experts.0." in key and "up_proj" not in key]:
            names = [part.replace(".0.", f".{i}.") for i in range(sum(_is_expert(key, part) for key in state))]
            both = [
                torch.cat([state.pop(name), state.pop(name.replace("gate_proj", "up_proj"))])
                if "gate_proj" in name
                else state.pop(name)
                for name in names
            ]
            stem = part.split(".0.")[0]
            state[f"{stem}.{'down_proj' if 'down' in part else 'gate_up_proj'}"] = torch.stack(both)
        self.layer.load_state_dict(state)
        self.eps = inner.config.rms_norm_eps

    def norm(self, x: Any, name: str) -> Any:
        weight = 1 + self.w[f"{name}.weight"]
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * weight

    @torch.no_grad()
    def draft(self, tokens: list[int], n: int) -> list[int]:
        """Return the token that the model gives, and ``n`` guessed ones that follow it."""
        inner = self.model.model
        states = inner(torch.tensor([tokens])).last_hidden_state[0]
        first = int(self.model.lm_head(states[-1]).argmax())
        tokens = [*tokens, first]
        before = torch.cat([torch.zeros_like(states[:1]), states])
        found: list[int] = []
        for _ in range(n):
            e = self.norm(inner.embed_tokens(torch.tensor(tokens)), "pre_fc_norm_embedding")
            h = self.norm(before, "pre_fc_norm_hidden")
            x = (torch.cat([e, h], -1) @ self.w["fc.weight"].T)[None]
            positions = torch.arange(len(tokens))[None]
            ropes = inner.rotary_emb(x, positions[None].expand(3, -1, -1) if self.has_sections else positions)
            mask = torch.full((len(tokens), len(tokens)), -torch.inf).triu(1)[None, None]
            x = self.layer(x, position_embeddings=ropes, attention_mask=mask)
            x = x[0] if isinstance(x, tuple) else x
            after = self.norm(x[0], "norm")
            found.append(int(self.model.lm_head(after[-1]).argmax()))
            tokens, before = [*tokens, found[-1]], torch.cat([before, after[-1:]])
        return [first, *found]

    @property
    def has_sections(self) -> bool:
        return "mrope_section" in str(self.model.model.config.rope_parameters)


def record_guesses(model: TextModel, n: int) -> list[tuple[list[Any], list[int]]]:
    """Let the layer guess ``n`` tokens each time; the list gets the rows of the text and the guesses."""
    nextn, found = model.engine.nextn, list[tuple[list[Any], list[int]]]()
    assert nextn is not None
    draft = nextn.draft

    def recorded(slot: int, items: Any, hidden: Any, _: int) -> list[int]:
        guesses = draft(slot, items, hidden, n)
        found.append((list(items.rows), guesses))
        return guesses

    nextn.draft = recorded  # type: ignore[method-assign]
    return found


def test_the_layer_guesses_as_in_transformers(with_layer: WithLayer) -> None:
    """Three tokens in a row, each from the guess before, after guesses that were right and wrong."""
    oracle = Oracle(with_layer)
    with load(with_layer.path, "cpu", n_ctx=128, kv_dtype="f32") as model:
        texts = record_guesses(model, 3)
        model.generate(PROMPT, max_tokens=12, temperature=0)
    assert len(texts) > 5
    for rows, guesses in texts:
        assert [rows[-1], *guesses] == oracle.draft(rows[:-1], 3)


@pytest.mark.parametrize("temperature", [0, 1.0])
def test_the_text_is_the_same(with_layer: WithLayer, temperature: float) -> None:
    found = {}
    for max_draft in (0, None):
        with load(with_layer.path, "cpu", n_ctx=256, max_draft=max_draft) as model:
            done = model.generate(PROMPT, max_tokens=100, temperature=temperature, seed=3, stop_tokens=[])
            found[max_draft] = done.tokens
            assert (done.n_drafted > 0) == (max_draft is None)
    assert found[0] == found[None]


@pytest.fixture(scope="module")
def prophetic(tmp_path_factory: pytest.TempPathFactory) -> WithLayer:
    """A model whose next token depends on the last one alone, so that its drafting layer can know it."""

    def change(weights: dict[str, Any]) -> None:
        for name, value in weights.items():
            if name.endswith(("o_proj.weight", "out_proj.weight", "down_proj.weight")):
                value.zero_()  # each layer adds nothing
        dim = weights["model.norm.weight"].shape[0]
        weights["mtp.fc.weight"] = torch.cat([torch.eye(dim), torch.zeros(dim, dim)], 1)
        weights["mtp.pre_fc_norm_embedding.weight"] = torch.zeros(dim)
        weights["mtp.norm.weight"] = weights["model.norm.weight"].clone()

    return WithLayer("qwen35", tmp_path_factory.mktemp("prophetic"), change)


def test_right_guesses_give_several_tokens_a_step(prophetic: WithLayer) -> None:
    with load(prophetic.path, "cpu", n_ctx=128) as model:
        done = model.generate(PROMPT, max_tokens=30, temperature=0, stop_tokens=[])
    assert done.n_drafted == done.n_accepted
    n_steps = len(done.tokens) - done.n_accepted
    assert n_steps <= 11  # 3 guesses, or 2 at the beginning, are computed with the next token


def test_wrong_guesses_stop_for_a_while(with_layer: WithLayer) -> None:
    with load(with_layer.path, "cpu", n_ctx=256) as model:
        done = model.generate(PROMPT, max_tokens=240, temperature=1, seed=5, stop_tokens=[])
        assert 0 < done.n_drafted < 100  # of random weights: wrong


def test_max_draft_0_does_not_load_the_layer(with_layer: WithLayer) -> None:
    names = {}
    for max_draft in (0, 1):
        with load(with_layer.path, "cpu", max_draft=max_draft) as model:
            names[max_draft] = {name for name in model.weights if name.startswith(f"blk.{N_LAYERS}.")}
    assert not names[0]
    assert f"blk.{N_LAYERS}.nextn.eh_proj.weight" in names[1]


def test_the_log_says_what_becomes_of_the_layer(with_layer: WithLayer, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "hotshoe.drafting")
    for options, expected in (
        ({}, "guesses tokens"),
        ({"max_draft": 0}, "is not loaded: max_draft is 0"),
        ({"flash_attention": "on"}, "is not loaded: guesses could change the text here"),
    ):
        caplog.clear()
        with load(with_layer.path, "cpu", **options):
            assert f"the drafting layer (MTP, NextN) {expected}" in caplog.text


@pytest.mark.parametrize("missing", ["nextn.enorm.weight", "attn_q.weight"])
def test_half_a_layer_is_passed_over(
    with_layer: WithLayer, tmp_path: Path, missing: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "hotshoe.drafting")
    path = without(with_layer, missing, tmp_path)
    with load(path, "cpu") as model, load(with_layer.path, "cpu", max_draft=0) as other:
        assert model.engine.nextn is None
        assert f"is not loaded: the file lacks blk.{N_LAYERS}.{missing}" in caplog.text
        np.testing.assert_array_equal(model.logits(PROMPT), other.logits(PROMPT))


def test_a_layer_with_a_vocabulary_of_its_own_is_passed_over(with_layer: WithLayer, tmp_path: Path) -> None:
    def add(tensors: dict[str, Any]) -> None:
        tensors[f"blk.{N_LAYERS}.nextn.shared_head_head.weight"] = tensors["token_embd.weight"]

    path = rewrite(with_layer.path, tmp_path / "own.gguf", edit=add)
    with load(path, "cpu") as model:
        assert model.engine.nextn is None


def test_no_layer_where_guesses_could_change_the_text(with_layer: WithLayer) -> None:
    with load(with_layer.path, "cpu", flash_attention="on") as model:
        assert model.engine.nextn is None
    with load(with_layer.path, "cpu", flash_attention="on", max_draft=3) as model:
        assert model.engine.nextn is not None


def test_texts_that_begin_alike_share_what_the_layer_keeps(with_layer: WithLayer) -> None:
    """A second text goes on from the cache of the first; its guesses attend to the shared rows."""
    oracle = Oracle(with_layer)
    with load(with_layer.path, "cpu", n_ctx=128, kv_dtype="f32") as model:
        first = model.generate(PROMPT, max_tokens=6, temperature=0)
        texts = record_guesses(model, 2)
        done = model.generate([*PROMPT, *first.tokens], max_tokens=6, temperature=0, stop_tokens=[])
        assert done.n_cached >= len(PROMPT)
    for rows, guesses in texts:
        assert [rows[-1], *guesses] == oracle.draft(rows[:-1], 2)


def test_two_texts_at_once_are_what_they_are_alone(with_layer: WithLayer) -> None:
    """The layer guesses for a single text, and stores what it needs of both."""
    with load(with_layer.path, "cpu", n_ctx=128, n_sequences=2) as model:
        alone = [model.generate(p, max_tokens=20, temperature=0).tokens for p in (PROMPT, PROMPT[::-1])]
        model.forget()
        together = model.generate([PROMPT, PROMPT[::-1]], max_tokens=20, temperature=0)
        assert [done.tokens for done in together] == alone


def test_a_full_context_ends_the_text(with_layer: WithLayer) -> None:
    with load(with_layer.path, "cpu", n_ctx=40) as model:
        done = model.generate(PROMPT, temperature=0, stop_tokens=[])
        assert done.finish_reason in ("context", "stop")
        assert len(PROMPT) + len(done.tokens) <= 41


def test_the_cache_is_empty_behind_a_text(with_layer: WithLayer) -> None:
    """Cells of guesses are given back, those of wrong ones too."""
    with load(with_layer.path, "cpu", n_ctx=128) as model:
        with model.stream(PROMPT, max_tokens=50, temperature=0, stop_tokens=[]) as stream:
            for _ in range(9):
                stream.advance()
            slots = model.engine._slots
            lengths = [slots.cache.length(slot.number) for slot in slots._slots]
            rows = [max(len(slot.rows), slot.n_held) for slot in slots._slots]
            assert lengths == rows
        model.generate(PROMPT[:3], max_tokens=1)
        assert [slots.cache.length(s.number) for s in slots._slots] == [len(s.rows) for s in slots._slots]


def test_an_interrupt_while_guessing_loses_nothing(with_layer: WithLayer) -> None:
    with load(with_layer.path, "cpu", n_ctx=128) as model:
        expected = model.generate(PROMPT, max_tokens=30, temperature=0, stop_tokens=[]).tokens
        model.forget()
        nextn = model.engine.nextn
        assert nextn is not None
        compute, calls = nextn._contexts.get, 0

        def interrupted(signature: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == 4:
                raise KeyboardInterrupt
            return compute(signature)

        nextn._contexts.get = interrupted  # type: ignore[method-assign]
        with pytest.raises(KeyboardInterrupt):
            model.generate(PROMPT, max_tokens=30, temperature=0, stop_tokens=[])
        assert model.generate(PROMPT, max_tokens=30, temperature=0, stop_tokens=[]).tokens == expected


def test_all_tokens_are_guessed_in_a_text_of_rare_ones(with_layer: WithLayer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise only the first tokens of the vocabulary are, which are the frequent ones."""
    monkeypatch.setattr(nextn_module, "_FEWEST_TOKENS", 32)
    with load(with_layer.path, "cpu", n_ctx=128, kv_dtype="f32") as model:
        n = model.engine.nextn._n_frequent  # type: ignore[union-attr]
        texts = record_guesses(model, 3)
        model.generate([i % n for i in PROMPT], max_tokens=8, temperature=0, stop_tokens=[])
        frequent = [guess for _, guesses in texts for guess in guesses]
        texts.clear()
        model.generate([n + i for i in range(40)], max_tokens=8, temperature=0, stop_tokens=[])
        all_of_them = [guess for _, guesses in texts for guess in guesses]
    assert max(frequent) < n <= max(all_of_them)


@pytest.mark.parametrize("has_layer", [False, True])
def test_rows_that_come_again_after_wrong_predictions(with_layer: WithLayer, tmp_path: Path, has_layer: bool) -> None:
    """A recurrent model goes back to the state before a wrong guess; no cell is there twice."""
    path = with_layer.path if has_layer else without(with_layer, "nextn.enorm.weight", tmp_path)
    params = SamplingParams(temperature=1, seed=3, max_tokens=60)
    with load(path, "cpu", n_ctx=256, max_draft=0) as model:
        expected = model.generate(PROMPT, params, stop_tokens=[]).tokens
    predicted = [token + 1 if i % 6 == 5 else token for i, token in enumerate(expected)]
    with load(path, "cpu", n_ctx=256) as model:
        sequence = model.sequence(PROMPT)
        sampler = Sampler(params, model.tokenizer.vocab_size)
        text = Generation(sequence, sampler, frozenset(), max_draft=15, predicted=predicted, nextn=has_layer)
        slots, found = model.engine._slots, []
        while (token := model.engine.next(text)) is not None:
            found.append(token.sampled.id)
            for cells in (part for part in slots.cache.caches if isinstance(part, CausalCache)):  # type: ignore[attr-defined]
                for each in cells.cells.values():
                    positions = each.positions[each.held_by(0)]
                    assert len(set(positions)) == len(positions)
        assert found == expected
        assert text.n_accepted > 10


def without(made: WithLayer, name: str, folder: Path) -> Path:
    """The file without this tensor of the drafting layer, so that the layer is passed over."""

    def remove(tensors: dict[str, Any]) -> None:
        del tensors[f"blk.{N_LAYERS}.{name}"]

    return rewrite(made.path, folder / "without.gguf", edit=remove)


def test_a_text_that_ends_while_its_tokens_are_guessed(with_layer: WithLayer) -> None:
    """Another thread ends it, and a third wants a slot: not this one before the guesses' cells are given back."""
    with load(with_layer.path, "cpu", n_ctx=128, max_sequences=2) as model:
        other = model.sequence(PROMPT[::-1])
        other.append(5)
        stream = model.stream(PROMPT, max_tokens=50, temperature=0, stop_tokens=[])
        nextn = model.engine.nextn
        assert nextn is not None
        draft, copies = nextn.draft, []

        def ended(*args: Any) -> list[int]:
            stream.cancel()
            model.engine.detach(stream._generation.sequence)
            copies.append(other.fork())
            return draft(*args)

        nextn.draft = ended  # type: ignore[method-assign]
        while stream.completion.finish_reason is None:
            stream.advance()
        (copy,) = copies
        np.testing.assert_array_equal(copy.append(7), other.append(7))
