"""Beginnings of texts that the cache had no more room for: in memory, on the disk, and back."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hotshoe
from hotshoe.runner import prefixes, slots
from hotshoe.runner.items import EmbeddingSpan, Row, SpanRow
from hotshoe.runner.prefixes import PrefixStore
from hotshoe.runner.text import TextModel
from hotshoe.sampling import SamplingParams
from tests.support.text_models import load

RNG = np.random.default_rng(11)
GREEDY = SamplingParams(temperature=0.0, max_tokens=4)
VERSE = Path(__file__).parents[2] / "examples" / "models" / "kjv-3m-q8_0.gguf"
FAMILIES = ("LlamaForCausalLM", "Gemma3ForCausalLM", "Lfm2ForCausalLM", "Mamba2ForCausalLM", "DeepseekV3ForCausalLM")


def tokens(n: int) -> list[int]:
    return [int(i) for i in RNG.integers(3, 250, n)]


def evict(model: TextModel) -> None:
    """Fill the cache with other texts."""
    for _ in range(3):
        model.generate(tokens(200), GREEDY)


def store_of(model: TextModel) -> PrefixStore:
    store = model.engine._slots.store
    assert store is not None
    return store


@pytest.mark.parametrize("family", FAMILIES)
def test_a_prefix_comes_back_as_it_was(family: str, gguf: Callable[..., Path], device: str) -> None:
    prompt = tokens(150)
    with load(gguf(family), device, n_ctx=256, prefix_memory=1 << 28, max_sequences=2) as model:
        first = model.generate(prompt, GREEDY)
        logits = model.sequence(prompt).append(7)
        evict(model)
        again = model.generate(prompt, GREEDY)
        assert again.tokens == first.tokens
        assert again.n_cached >= 128
        np.testing.assert_allclose(model.sequence(prompt).append(7), logits, atol=2e-4, rtol=1e-3)


@pytest.mark.parametrize("kv_dtype", ["f16", "f32", "q8_0", "bf16"])
def test_every_bit_comes_back(kv_dtype: str) -> None:
    prompt = tokens(200)
    with load(VERSE, "reference", n_ctx=256, prefix_memory=1 << 28, kv_dtype=kv_dtype) as model:
        model.generate(prompt, GREEDY)
        (slot,) = [s for s in model.engine._slots._slots if s.rows]
        before = model._cache.save(slot.number, 0, 200)
        evict(model)
        assert model.generate(prompt, GREEDY).n_cached == 199
        slot = next(s for s in model.engine._slots._slots if s.rows[:200] == prompt)
        after = model._cache.save(slot.number, 0, 199)
        for name, array in before.items():
            np.testing.assert_array_equal(array[:199], after[name], err_msg=name)


def test_another_text_uses_the_beginning_only(gguf: Callable[..., Path]) -> None:
    shared, own, other = tokens(100), tokens(50), tokens(50)
    with load(gguf("LlamaForCausalLM"), "reference", n_ctx=256) as model:
        expected = model.generate([*shared, *other], GREEDY)
    with load(gguf("LlamaForCausalLM"), "reference", n_ctx=256, prefix_memory=1 << 28) as model:
        model.generate([*shared, *own], GREEDY)
        evict(model)
        found = model.generate([*shared, *other], GREEDY)
        assert found.n_cached == 100
        assert found.tokens == expected.tokens
        assert found.nearest == (100, own[0])


def test_it_comes_back_after_the_model_was_loaded_again(
    gguf: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompt = tokens(200)
    options: dict[str, Any] = {"n_ctx": 256, "prefix_disk": 1 << 28, "prefix_folder": str(tmp_path)}
    path = gguf("Lfm2ForCausalLM")
    with load(path, "reference", **options) as model:
        first = model.generate(prompt, GREEDY)
    assert (next(tmp_path.iterdir()).stat().st_mode & 0o77) == 0  # prompts are nobody else's business
    with load(path, "reference", **options) as model:
        again = model.generate(prompt, GREEDY)
        assert again.tokens == first.tokens
        assert again.n_cached == 128
    with load(path, "reference", **options | {"kv_dtype": "f16"}) as model:  # other settings, other contents
        assert model.generate(prompt, GREEDY).n_cached == 0
    with load(gguf("LlamaForCausalLM"), "reference", **options) as model:
        assert model.generate(prompt, GREEDY).n_cached == 0
    monkeypatch.setattr(hotshoe, "__version__", "0.0.1")  # another version may compute them in another way
    with load(path, "reference", **options) as model:
        assert model.generate(prompt, GREEDY).n_cached == 0


def test_damaged_files_are_not_used(gguf: Callable[..., Path], tmp_path: Path) -> None:
    prompt = tokens(200)
    options: dict[str, Any] = {"n_ctx": 256, "prefix_disk": 1 << 28, "prefix_folder": str(tmp_path)}
    with load(gguf("LlamaForCausalLM"), "reference", **options) as model:
        first = model.generate(prompt, GREEDY)
    (path,) = list(tmp_path.glob("*/*"))
    whole = path.read_bytes()
    for damaged in (whole[:-100], whole[:-40] + bytes([whole[-40] ^ 1]) + whole[-39:], b"", b"hotshoe prefix 1"):
        path.write_bytes(damaged)
        with load(gguf("LlamaForCausalLM"), "reference", **options) as model:
            found = model.generate(prompt, GREEDY)
            assert (found.tokens, found.n_cached) == (first.tokens, 0)
    assert path.read_bytes()[:16] == b"hotshoe prefix 1"  # the last one wrote it again
    (path.parent / "0123.abcd").write_bytes(whole)  # left by a process that was killed
    PrefixStore(b"", 0, 1 << 20, tmp_path)
    with load(gguf("LlamaForCausalLM"), "reference", **options) as model:
        assert model.generate(prompt, GREEDY).n_cached == 199
    assert not (path.parent / "0123.abcd").exists()


def test_a_folder_that_cannot_be_made(gguf: Callable[..., Path], tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(hotshoe.errors.OptionError, match="cannot keep prefixes in"):
        load(gguf("LlamaForCausalLM"), "reference", prefix_disk=1000, prefix_folder=str(tmp_path / "file"))
    with pytest.raises(hotshoe.errors.ModelError, match="without prefix_folder"):
        load(gguf("LlamaForCausalLM"), "reference", prefix_disk=1000)


def block(store: PrefixStore, rows: list[Any], nbytes: int = 400) -> None:
    for place in store.missing(rows, 0, lambda first, last: nbytes):
        store.put(rows, place, {"x": np.full(nbytes, place.first % 100, np.uint8)})


def test_memory_and_disk_are_bounded(tmp_path: Path) -> None:
    store = PrefixStore(b"a", 4000, 12_000, tmp_path)
    texts = [[i] * 100 for i in range(30)]
    for text in texts:
        block(store, text)
        assert store.memory_bytes <= 4000
        assert store.disk_bytes <= 12_000
        assert sum(p.stat().st_size for p in tmp_path.glob("*/*")) == store.disk_bytes
    assert [store.match(text).n for text in (texts[0], texts[-1])] == [0, 100]
    kept = [text for text in texts if store.match(text).n]
    assert 15 < len(kept) < 30
    assert all(store.get(store.match(text).keys[0]) is not None for text in kept)
    again = PrefixStore(b"a", 4000, 12_000, tmp_path)
    assert [text for text in texts if again.match(text).n] == kept[:-10]  # those in memory were not written
    store.flush()
    again = PrefixStore(b"a", 0, 12_000, tmp_path)
    assert [text for text in texts if again.match(text).n] == kept[10 - len(kept) :][-len(again._files) :]
    assert again.match(texts[-1]).n == 100
    assert PrefixStore(b"b", 4000, 12_000, tmp_path).match(texts[-1]).n == 0


def test_files_of_all_models_are_bounded_when_a_model_is_loaded(tmp_path: Path) -> None:
    """A model with another context has files of its own; nobody may load the old one again."""
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_bytes(b"x" * 20_000)
    for name in (b"a", b"b", b"c"):
        store = PrefixStore(name, 100_000, 12_000, tmp_path)
        for i in range(15):
            block(store, [i] * 100)
        store.flush()
    before = list(tmp_path.glob("*/*"))
    PrefixStore(b"d", 0, 12_000, tmp_path)
    after = [path for path in tmp_path.glob("*/*") if path.suffix != ".txt"]
    assert 6000 < sum(path.stat().st_size for path in after) <= 12_000
    assert len(before) > len(after)
    assert store._folder is not None
    assert len({path.parent for path in after} - {store._folder}) <= 1, "the newest stay"
    assert store._folder in {path.parent for path in after}
    assert (tmp_path / "mine" / "notes.txt").exists()


def test_blocks_are_shared_by_texts_that_begin_alike() -> None:
    store = PrefixStore(b"a", 1 << 20)
    shared = list(range(600))
    block(store, [*shared, *([1] * 50)])
    n = store.memory_bytes
    block(store, [*shared, *([2] * 50)])
    assert store.memory_bytes == n + 400
    assert store.match([*shared, 2, 2, 3])[::2] == (602, 2)
    assert store.match(shared[:300]).n == 300
    assert store.match([*shared[:300], 9])[::2] == (300, 300)
    assert store.missing(shared[:512], 0, lambda first, last: 400) == []
    more = store.missing(shared[:512], 0, lambda first, last: 500)  # more is held now
    assert [(place.first, place.last) for place in more] == [(256, 512), (0, 256)]


def test_the_end_of_a_text_goes_before_its_beginning() -> None:
    store = PrefixStore(b"a", 1600)  # four blocks
    texts = [[i] * 600 for i in (1, 2)]
    for text in texts:
        block(store, text)
    assert [store.match(text).n for text in texts] == [256, 600]


def test_spans_have_keys_too(tmp_path: Path) -> None:
    store = PrefixStore(b"a", 0, 1 << 20, tmp_path)
    span = EmbeddingSpan(np.ones((3, 4), np.float32), b"picture")
    rows: list[Row] = [1, *(SpanRow(span.hash, False, i) for i in range(3)), *([2] * 70)]
    block(store, rows)
    store = PrefixStore(b"a", 0, 1 << 20, tmp_path)
    assert store.match(rows).n == 74
    assert store.match([1, SpanRow(b"another", False, 0)]).n == 1


def test_a_long_text_leaves_and_comes_back_in_pieces(
    gguf: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others wait for each piece only: a text of 16,000 tokens would take more than a second at once."""
    for module in (prefixes, slots):
        monkeypatch.setattr(module, "BLOCK", 16)
    monkeypatch.setattr(slots, "_FEWEST_STORED", 8)
    prompt = tokens(200)
    with load(gguf("LlamaForCausalLM"), "reference", n_ctx=256, n_sequences=2, prefix_memory=1 << 28) as model:
        first = model.generate(prompt, GREEDY)
        store = store_of(model)
        model.generate(tokens(240), GREEDY)
        model.generate(tokens(100), GREEDY)  # needs the room of the last blocks only
        (slot,) = [s for s in model.engine._slots._slots if s.rows[:100] == prompt[:100]]
        assert len(slot.rows) == 160
        assert store.match(prompt).n == 0  # the beginning is still in the cache
        evict(model)
        assert store.match(prompt).n >= 192
        talking = model.stream(tokens(5), GREEDY)
        talking.advance()
        back = model.stream(prompt, GREEDY)
        back.start()
        seen = []
        for _ in range(3):
            talking.advance()  # it goes on
            seen.append(back._generation.sequence.n_computed)
        assert seen[:2] == [64, 128]  # 4 blocks in a step
        assert "".join(back) == first.text
        assert back.completion.tokens == first.tokens
        assert back.completion.n_cached >= 192
        evict(model)
        left = model.stream(prompt, GREEDY)
        left.start()
        model.engine.step()
        assert left._generation.sequence.n_computed == 64
        left.close()
        assert model.generate(prompt, GREEDY).tokens == first.tokens


def test_a_text_that_changes_while_it_comes_back(gguf: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (prefixes, slots):
        monkeypatch.setattr(module, "BLOCK", 16)
    monkeypatch.setattr(slots, "_FEWEST_STORED", 8)
    prompt, other = tokens(200), tokens(100)
    with load(gguf("LlamaForCausalLM"), "reference", n_ctx=256, n_sequences=2, prefix_memory=1 << 28) as model:
        expected = model.sequence([*prompt[:100], *other]).append(7)
        model.forget()
        model.generate(prompt, GREEDY)
        evict(model)
        assert store_of(model).match(prompt).n >= 192

        def step(*_: Any) -> None:
            model.engine.step()
            raise KeyboardInterrupt

        def restore(*args: Any) -> None:
            original(*args)
            if len(model.engine._slots._slots[args[0]].rows) == 16:  # the second block
                raise KeyboardInterrupt

        cache = model.engine._slots.cache
        original = cache.restore
        for where, name, replaced, n in ((model.engine, "_wait_for", step, 64), (cache, "restore", restore, 0)):
            with model.sequence(prompt[:100]) as sequence:
                with monkeypatch.context() as patched:
                    patched.setattr(where, name, replaced)
                    with pytest.raises(KeyboardInterrupt):
                        sequence.append(*prompt[100:])
                assert sequence.n_computed == n  # a step brings 4 blocks of 16 rows
                np.testing.assert_allclose(sequence.append(*other, 7), expected, atol=2e-4, rtol=1e-3)
            evict(model)
