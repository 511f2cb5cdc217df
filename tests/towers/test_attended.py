"""Pictures that layers of the text model attend to: texts with and without them together, room, prefixes, errors."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hotshoe
from hotshoe.chat import ChatTemplate
from hotshoe.runner.items import EmbeddingSpan, Item
from hotshoe.runner.text import TextModel
from hotshoe_core.errors import InputTooLongError, ModelError, ShapeError, TokenizerError, WeightsError
from hotshoe_core.gguf import GGUFFile
from tests.support.rewrite import rewrite
from tests.towers.made import MadeTower
from tests.towers.row import picture
from tests.towers.rows import ROWS

BOUND = 1e-4  # sums of other lengths round differently
ONE, TWO = picture(84, 112), picture(70, 60)  # four tiles each
TEXT = [11, 25, 31, 44]


@pytest.fixture(scope="module")
def tower(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MadeTower]:
    made = MadeTower("mllama", ROWS["mllama"], tmp_path_factory.mktemp("attended"))
    made.file()  # in the folder of the text model, so that it is found
    yield made
    made.close()


def _load(tower: MadeTower, device: str, **options: Any) -> TextModel:
    return hotshoe.load_model(tower.path, device, **{"task": "text", "n_ctx": 256, "kv_dtype": "f32"} | options)


def _span(model: TextModel, image: Any) -> EmbeddingSpan:
    (span,) = model.images.items("", [image], add_special=False)  # type: ignore[union-attr]
    assert isinstance(span, EmbeddingSpan)
    assert len(span) == 1
    return span


@pytest.fixture
def model(tower: MadeTower, main_device: str) -> TextModel:
    model = tower.load(main_device)
    model.forget()
    return model


@pytest.fixture(autouse=True)
def bound(pytestconfig: pytest.Config, monkeypatch: pytest.MonkeyPatch) -> None:
    """``--bound``, for a device that rounds more."""
    monkeypatch.setattr(f"{__name__}.BOUND", max(BOUND, pytestconfig.getoption("--bound")))


def _same(a: Any, b: Any) -> None:
    assert np.abs(a - b).max() <= BOUND * np.abs(b).max()


def test_texts_without_pictures_pass_by_in_one_graph_with_others(model: TextModel) -> None:
    one, two = _span(model, ONE), _span(model, TWO)
    texts: list[list[Item]] = [[*TEXT, one, *TEXT], TEXT, [two, *TEXT, 9], [one, *TEXT]]
    alone = []
    for items in texts:
        model.forget()
        alone.append(model.logits(items)[-1])
    model.forget()
    sequences = [model.sequence() for _ in texts]
    _same(model.extend(list(zip(sequences, texts, strict=True))), np.stack(alone))
    more = [[*items, 7] for items in texts]
    together = model.extend([(sequence, [7]) for sequence in sequences])
    for logits, items in zip(together, more, strict=True):
        model.forget()
        _same(logits, model.logits(items)[-1])
    assert not np.allclose(alone[1], alone[3])
    for sequence in sequences:
        sequence.close()


def test_a_text_without_its_encoder_is_the_same_text(tower: MadeTower, model: TextModel, main_device: str) -> None:
    with _load(tower, main_device, projector=False) as blind:
        assert np.array_equal(blind.logits(TEXT), model.logits(TEXT))
        assert blind.memory().total < model.memory().total
        with pytest.raises(ShapeError, match="no layer of the model attends to an encoder's rows"):
            blind.logits([EmbeddingSpan(np.ones((3, 64)), token=312), 5])


def test_a_plan_counts_the_room_for_pictures(tower: MadeTower, main_device: str) -> None:
    options: dict[str, Any] = {"n_ctx": 256, "kv_dtype": "f32"}
    with GGUFFile(tower.file()) as file:
        encoder = sum(t.nbytes for t in file.tensors.values())
    seeing = hotshoe.plan_model(tower.path, main_device, projector=tower.file(), **options).memory
    blind = hotshoe.plan_model(tower.path, main_device, projector=False, **options).memory
    rows = 2 * 4 * 17  # two pictures of four tiles
    assert seeing.total - blind.total - encoder >= rows * 2 * 2 * 2 * 16 * 4  # two layers, two heads, keys and values


def test_a_shared_beginning_with_a_picture_is_reused(model: TextModel) -> None:
    first = model.generate("<|image|> one two", images=[ONE], max_tokens=1)
    again = model.generate("<|image|> one three", images=[ONE], max_tokens=4, temperature=0)
    other = model.generate("<|image|> one three", images=[TWO], max_tokens=4, temperature=0)
    assert first.n_cached == 0
    assert again.n_cached >= 3
    assert other.n_cached == 0
    model.forget()
    assert model.generate("<|image|> one three", images=[ONE], max_tokens=4, temperature=0).tokens == again.tokens
    assert model.generate("<|image|> one three", images=[TWO], max_tokens=4, temperature=0).tokens == other.tokens


def test_turns_of_a_conversation(model: TextModel) -> None:
    model.chat_template = ChatTemplate(
        "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content %}"
        "{% if p.type == 'image' %}<|image|>{% else %}{{ p.text }}{% endif %}{% endfor %}{% endif %}{% endfor %}"
    )
    messages: list[Any] = []
    n_computed = model.images.n_computed  # type: ignore[union-attr]
    before = 2
    for shown in (ONE, None, TWO, None):
        content: list[Any] = [{"type": "text", "text": "the quick brown fox"}]
        if shown is not None:
            content.insert(0, {"type": "image", "image": shown})
        messages.append({"role": "user", "content": content})
        answer = model.chat(messages, max_tokens=5, temperature=0)
        assert answer.n_cached >= before - 2
        before = answer.n_prompt
        model.forget()
        assert model.chat(messages, max_tokens=5, temperature=0).tokens == answer.tokens
        messages.append({"role": "assistant", "content": answer.text})
    assert model.images.n_computed <= n_computed + 2  # type: ignore[union-attr]


def test_earlier_pictures_make_room_and_come_back(tower: MadeTower, main_device: str) -> None:
    """Room for two pictures; the text has four, and is cut back to the second one."""
    with _load(tower, main_device) as model:
        shown = [_span(model, picture(84, 112 + i)) for i in range(4)]
        items: list[Item] = [i for span in shown for i in (span, *TEXT)]
        with model.sequence() as sequence:
            logits = sequence.append(*items)
            sequence.truncate(8)
            back = sequence.append(3, 4)
            other = model.logits([*items[:8], 3, 4])[-1]
        model.forget()
        _same(logits, model.logits(items)[-1])
        _same(back, other)
        model.forget()
        _same(back, model.logits([*items[:8], 3, 4])[-1])


def test_a_text_with_many_pictures_goes_on_together_with_others(tower: MadeTower, main_device: str) -> None:
    """Room for two pictures. One text has four, but stores them one after the other."""
    with _load(tower, main_device) as model:
        items: list[Item] = [i for k in range(4) for i in (_span(model, picture(84, 112 + k)), *TEXT)]
        expected = model.logits(items)[-1]
        model.forget()
        talking = model.stream(TEXT, max_tokens=40, temperature=0)
        talking.advance()
        many = model.stream(items, max_tokens=20, temperature=0)
        many.start()
        for _ in range(6):
            talking.advance()
        assert many._generation.sequence.n_computed >= len(items)
        many.advance()
        assert many.completion.tokens[0] == expected.argmax()


def test_a_shift_to_a_picture_that_made_room(tower: MadeTower, main_device: str) -> None:
    """Room for two pictures; the last two of three are removed, so that later rows attend to the first one."""
    with _load(tower, main_device) as model:
        items: list[Item] = [i for k in range(3) for i in (_span(model, picture(84, 112 + k)), *TEXT)]
        with model.sequence() as sequence:
            sequence.append(*items, 3)
            sequence.shift(5, 10)
            logits = sequence.append(4)
        model.forget()
        _same(logits, model.logits([*items[:5], 3, 4])[-1])


def test_too_many_pictures_at_once(tower: MadeTower, main_device: str) -> None:
    with _load(tower, main_device) as model:
        items: list[Item] = [*(_span(model, picture(84, 112 + i)) for i in range(3)), *TEXT]
        with pytest.raises(InputTooLongError, match=r"follow each other directly have 204 rows; .* room for 136"):
            model.logits(items)
        assert np.isfinite(model.logits(items[1:])).all()
        with model.sequence(items[:2]) as sequence:
            sequence.append()
            with pytest.raises(InputTooLongError, match="204 rows"):
                sequence.append(items[2])
            assert np.isfinite(sequence.append(5, items[2])).all()
        with pytest.raises(InputTooLongError, match="have 200 rows; the cache has room for 136"):
            model.logits([EmbeddingSpan(np.ones((200, 64)), token=312)])


@pytest.mark.parametrize("kept", ["memory", "disk"])
def test_beginnings_that_left_the_cache_come_back(
    tower: MadeTower, main_device: str, tmp_path: Path, kept: str
) -> None:
    options: dict[str, Any] = {"prefix_memory": 1 << 24} if kept == "memory" else {}
    if kept == "disk":
        options = {"prefix_disk": 1 << 26, "prefix_folder": str(tmp_path)}
    prompt = [*range(20, 100)]
    with _load(tower, main_device, max_sequences=1, **options) as model:
        one = _span(model, ONE)
        expected = model.generate([*prompt, one, *prompt[:40]], max_tokens=4, temperature=0).tokens
        model.generate([3, 4, 5] * 20, max_tokens=1)
        again = model.generate([*prompt, one, *prompt[:40]], max_tokens=4, temperature=0)
        assert again.n_cached > 81
        assert again.tokens == expected
        other = model.generate([*prompt, _span(model, TWO), *prompt[:40]], max_tokens=1)
        assert other.n_cached == 80
    if kept == "disk":
        with _load(tower, main_device, max_sequences=1, **options) as model:
            found = model.generate([*prompt, _span(model, ONE), *prompt[:40]], max_tokens=4, temperature=0)
            assert found.n_cached > 81
            assert found.tokens == expected


def test_beginnings_of_texts_that_were_kept_without_the_encoder(
    tower: MadeTower, main_device: str, tmp_path: Path
) -> None:
    options: dict[str, Any] = {"prefix_disk": 1 << 26, "prefix_folder": str(tmp_path)}
    prompt = [*range(20, 200)]
    with _load(tower, main_device, projector=False, **options) as model:
        expected = model.generate(prompt, max_tokens=4, temperature=0).tokens
    with _load(tower, main_device, **options) as model:
        assert model.generate(prompt, max_tokens=4, temperature=0).tokens == expected


def test_the_token_of_pictures_may_stand_in_a_text(model: TextModel) -> None:
    """It has an embedding, but no logit."""
    assert model.logits([312, 5]).shape == (2, 312)
    with pytest.raises(TokenizerError, match="313"):
        model.logits([313])
    with pytest.raises(TokenizerError, match="token id 999 is outside"):
        model.logits([EmbeddingSpan(np.ones((3, 64)), token=999)])


def test_invalid_spans() -> None:
    with pytest.raises(ShapeError, match="one token stands for has positions of its own"):
        EmbeddingSpan(np.ones((2, 4)), token=3, bidirectional=True)
    with pytest.raises(TokenizerError, match="not a token id"):
        EmbeddingSpan(np.ones((2, 4)), token="x")  # type: ignore[arg-type]


def test_a_file_that_asks_for_more_global_layers_than_others(tower: MadeTower, tmp_path: Path) -> None:
    odd = rewrite(tower.file(), tmp_path / "odd.gguf", {"clip.vision.global.block_count": 9})
    with pytest.raises(WeightsError, match=r"tensors are missing \(70\): v\.global\.blk\.2\.attn_gate"):
        hotshoe.load_model(tower.path, "reference", projector=odd)


def test_a_vocabulary_without_the_token(tower: MadeTower, tmp_path: Path) -> None:
    import gguf

    tokens = gguf.GGUFReader(tower.path).fields["tokenizer.ggml.tokens"].contents()
    changed = rewrite(tower.path, tmp_path / "odd.gguf", {"tokenizer.ggml.tokens": [*tokens[:-1], "<|other|>"]})
    with pytest.raises(ModelError, match=r"vocabulary has no token '<\|image\|>', which stands for a picture"):
        hotshoe.load_model(changed, "reference", projector=tower.file())
