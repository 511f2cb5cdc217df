"""Pictures in prompts and conversations: markers, templates, the kept rows, the file next to the model, errors."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import pytest

import hotshoe
from hotshoe.chat import ChatTemplate
from hotshoe.images import read_image
from hotshoe.runner.items import EmbeddingSpan, Item
from hotshoe.runner.media_encoder import MediaEncoder
from hotshoe.runner.text import TextModel
from hotshoe_core.errors import (
    ChatTemplateError,
    HotshoeError,
    ImageError,
    ModelDefinitionError,
    ModelError,
    WeightsError,
)
from tests.towers.made import MadeTower
from tests.towers.row import picture
from tests.towers.rows import ROWS

PARTS = (
    "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content %}"
    "{% if p.type == 'image' %}<|vision_start|><|image_pad|><|vision_end|>{% else %}{{ p.text }}{% endif %}"
    "{% endfor %}{% endif %}{% endfor %}"
)
TEXTS = "{% for m in messages %}{{ m.content }}{% endfor %}"
ONE, TWO = picture(60, 70), picture(70, 60)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MadeTower]:
    made = MadeTower("qwen2-vl", ROWS["qwen2-vl"], tmp_path_factory.mktemp("tiny"))
    yield made
    made.close()


@pytest.fixture
def model(tiny: MadeTower, main_device: str) -> TextModel:
    return tiny.load(main_device)


def _encoder(model: TextModel) -> MediaEncoder:
    assert model.images is not None
    return model.images


def _shape(items: list[Item]) -> list[int | str]:
    return [f"{len(i)} rows" if isinstance(i, EmbeddingSpan) else i for i in items]


def test_a_prompt_with_markers(model: TextModel) -> None:
    encoder, encode = _encoder(model), model.tokenizer.encode
    items = encoder.items("a <|image_pad|> b <|image_pad|>", [ONE, TWO], add_special=False)
    expected = encode("a <|image_pad|> b <|image_pad|>", add_special=False)
    spans = [item for item in items if isinstance(item, EmbeddingSpan)]
    assert len(spans) == 2
    (marker,) = encode("<|image_pad|>", add_special=False)
    assert [marker if isinstance(item, EmbeddingSpan) else item for item in items] == expected
    first = encoder.items("<|image_pad|>", [ONE], add_special=False)[0]
    assert isinstance(first, EmbeddingSpan)
    assert first.hash == spans[0].hash != spans[1].hash


def test_pictures_come_first_in_a_prompt_without_markers(model: TextModel) -> None:
    whole = _encoder(model).items("<|vision_start|><|image_pad|><|vision_end|>a", [ONE], add_special=False)
    assert _shape(_encoder(model).items("a", [ONE], add_special=False)) == _shape(whole)
    a = model.generate("the fox", images=[ONE], max_tokens=5, temperature=0)
    b = model.generate("the fox", images=[TWO], max_tokens=5, temperature=0)
    assert a.n_prompt == len(whole) - 1 + len(model.tokenizer.encode("the fox")) + len(whole[1]) - 1  # type: ignore[arg-type]
    assert a.tokens != b.tokens


def test_a_picture_is_computed_once(model: TextModel) -> None:
    encoder = _encoder(model)
    before = encoder.n_computed
    mine = np.random.default_rng(9).integers(0, 256, (60, 60, 3), dtype=np.uint8)
    for _ in range(2):
        model.generate("a", images=[mine], max_tokens=1)
    encoder.items("", [PIL.Image.fromarray(mine)], add_special=False)
    assert encoder.n_computed == before + 1
    assert encoder.kept_bytes > 0


def test_a_shared_beginning_with_a_picture_is_reused(model: TextModel) -> None:
    model.forget()
    first = model.generate("<|image_pad|> one", images=[ONE], max_tokens=1)
    again = model.generate("<|image_pad|> two", images=[ONE], max_tokens=1)
    other = model.generate("<|image_pad|> two", images=[TWO], max_tokens=1)
    assert first.n_cached == 0
    assert again.n_cached >= again.n_prompt - 4
    assert other.n_cached == 0


@pytest.mark.parametrize("source", [PARTS, TEXTS])
def test_chat(model: TextModel, source: str) -> None:
    model.chat_template = ChatTemplate(source)
    content = [{"type": "image", "image": ONE}, {"type": "text", "text": "what is this?"}]
    chat = model.prepare_chat([{"role": "user", "content": content}])
    line = "" if source == PARTS else "\n"
    assert chat.text == f"<|vision_start|><|image_pad|><|vision_end|>{line}what is this?"
    assert chat.n_tokens == len(chat.items) - 1 + len(chat.items[1])  # type: ignore[arg-type]
    whole = model.chat([{"role": "user", "content": content}], max_tokens=4, temperature=0)
    assert whole.n_prompt == chat.n_tokens


@pytest.mark.parametrize("source", [PARTS, TEXTS])
def test_a_marker_in_the_text_of_a_user_is_not_a_picture(model: TextModel, source: str) -> None:
    model.chat_template = ChatTemplate(source)
    content = [{"type": "text", "text": "say <|image_pad|>"}, {"type": "image", "image": ONE}]
    items = model.prepare_chat([{"role": "user", "content": content}]).items
    (marker,) = model.tokenizer.encode("<|image_pad|>", add_special=False)
    assert sum(isinstance(item, EmbeddingSpan) for item in items) == 1
    spans = [i for i, item in enumerate(items) if isinstance(item, EmbeddingSpan)]
    assert items.index(marker) < spans[0]


def test_a_template_that_drops_pictures(model: TextModel) -> None:
    model.chat_template = ChatTemplate("{{ messages[-1].content if messages[-1].content is string else 'x' }}")
    with pytest.raises(ChatTemplateError, match="0 places for 1 pictures"):
        model.prepare_chat(
            [{"role": "user", "content": [{"type": "image", "image": ONE}]}, {"role": "assistant", "content": "b"}]
        )


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (lambda m: m.generate("<|image_pad|>", images=[ONE, TWO]), "1 places for pictures .* 2 pictures"),
        (lambda m: m.generate("<|image_pad|>", images=[]), "1 places for pictures .* 0 pictures"),
        (lambda m: m.generate([1, 2], images=[ONE]), "expected a text"),
        (lambda m: m.generate(["a", "b"], images=[ONE]), "pictures were given for 2 prompts"),
        (lambda m: m.generate("a", images=17), "images is 17"),
        (lambda m: m.generate("a", images=[b"nothing"]), "not a picture"),
        (lambda m: m.generate("a", images=[np.zeros((2, 500, 3), np.uint8)]), "at most 200 times"),
    ],
)
def test_errors(model: TextModel, given: Any, message: str) -> None:
    with pytest.raises(ImageError, match=message):
        given(model)


def test_a_picture_that_is_longer_than_the_context(model: TextModel) -> None:
    with pytest.raises(HotshoeError, match="the context holds 256"):
        model.generate("a", images=[picture(600, 600)])


def test_several_conversations_at_once(model: TextModel) -> None:
    prompts = [("<|image_pad|> a", [ONE]), ("b <|image_pad|>", [TWO]), ("only text", None)]
    alone = [model.generate(text, images=images, max_tokens=6, temperature=0).tokens for text, images in prompts]
    streams = [model.stream(text, images=images, max_tokens=6, temperature=0) for text, images in prompts]
    while any(s.completion.finish_reason is None for s in streams):
        for s in streams:
            if s.completion.finish_reason is None:
                s.advance()
    assert [s.completion.tokens for s in streams] == alone


def test_the_encoder_next_to_the_model(tiny: MadeTower, tmp_path: Path, main_device: str) -> None:
    path = Path(shutil.copy(tiny.path, tmp_path / "model.gguf"))
    with hotshoe.load_model(path, main_device, task="text") as blind:
        assert not blind.sees
        with pytest.raises(ImageError, match="was loaded without an encoder of pictures"):
            blind.generate("a", images=[ONE])
    shutil.copy(tiny.file(), tmp_path / "mmproj-model-f32.gguf")
    shutil.copy(tiny.file("f16"), tmp_path / "mmproj-model-F16.gguf")
    (tmp_path / "mmproj-broken.gguf").write_bytes(b"nothing")
    with hotshoe.load_model(path, main_device, task="text") as seeing:
        assert seeing.sees
        assert _encoder(seeing).file.path.name == "mmproj-model-F16.gguf"
    with hotshoe.load_model(path, main_device, task="text", projector=False) as blind:
        assert not blind.sees
    for encoder in tmp_path.glob("mmproj-model-*.gguf"):
        encoder.unlink()
    with (
        hotshoe.load_model(path, main_device, task="text") as blind,
        pytest.raises(ImageError, match=r"reads texts only; mmproj-broken\.gguf is not used: .*"),
    ):
        blind.generate("a", images=[ONE])


def test_rows_of_another_encoder_are_other_rows(tiny: MadeTower, model: TextModel, main_device: str) -> None:
    """The keys and values made from them may be kept on the disk."""
    with hotshoe.load_model(tiny.path, main_device, task="text", projector=tiny.file("f16")) as other:
        hashes = []
        for each in (model, other, model):
            items = _encoder(each).items("", [ONE], add_special=False)
            hashes.append([item.hash for item in items if isinstance(item, EmbeddingSpan)])
    assert hashes[0] == hashes[2] != hashes[1]


def test_a_projector_that_does_not_belong_to_the_model(tiny: MadeTower, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="is a 'qwen2vl' model; expected an encoder of pictures or sounds"):
        hotshoe.load_model(tiny.path, "reference", projector=tiny.path)
    with pytest.raises(ModelError, match=r"none\.gguf: the file does not exist"):
        hotshoe.load_model(tiny.path, "reference", projector=tmp_path / "none.gguf")
    with pytest.raises(ModelError, match="it is the encoder of pictures or sounds for another model"):
        hotshoe.load_model(tiny.file(), "reference")


def test_a_file_of_an_encoder_without_a_tensor(tiny: MadeTower, tmp_path: Path) -> None:
    import gguf

    reader = gguf.GGUFReader(tiny.file())
    writer = gguf.GGUFWriter(tmp_path / "mmproj.gguf", "clip")
    for field in reader.fields.values():
        if not field.name.startswith(("GGUF.", "general.architecture")):
            kind = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(field.name, field.contents(), field.types[0], sub_type=kind)
    for tensor in reader.tensors:
        if tensor.name == "v.post_ln.weight":
            continue
        writer.add_tensor(tensor.name, tensor.data)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(WeightsError, match=r"missing .*v\.post_ln\.weight"):
        hotshoe.load_model(tiny.path, "reference", projector=tmp_path / "mmproj.gguf")


def test_a_key_that_the_encoder_does_not_read(tiny: MadeTower) -> None:
    from hotshoe.load_tower import _open, tower_of
    from hotshoe.media import IMAGE
    from hotshoe.unread_keys import check_all_read
    from hotshoe_core.errors import ModelFileError

    with _open(tiny.file()) as file:
        tower = tower_of(file, IMAGE)
        file.metadata._values["clip.vision.unknown"] = 3
        file.metadata._values["clip.audio.unknown"] = 3
        with pytest.raises(ModelFileError, match=r"vision\.unknown': is 3, but the model does not read this key"):
            check_all_read(file.metadata, tower)


def test_memory_and_plans_count_the_encoder(tiny: MadeTower, model: TextModel) -> None:
    model.generate("a", images=[ONE], max_tokens=1)
    encoder = _encoder(model)
    weights = sum(device.sizes[0] for device in encoder.backend.memory().devices)
    assert weights > 0
    both, text = model.memory(), model.backend.memory()
    assert both.devices[0].input_weights.size == text.devices[0].input_weights.size + weights
    assert both.total >= text.total + weights + encoder.kept_bytes
    options: dict[str, Any] = {"n_ctx": 256, "kv_dtype": "f32"}
    with_encoder = hotshoe.plan_model(tiny.path, model.device.name, projector=tiny.file(), **options).memory
    without = hotshoe.plan_model(tiny.path, model.device.name, projector=False, **options).memory
    assert with_encoder.total - without.total == sum(t.nbytes for t in encoder.file.tensors.values())
    assert f"pictures: {tiny.file().name} on {model.device.name}" in model.why


def test_a_tower_with_an_error_of_its_author(model: TextModel, monkeypatch: pytest.MonkeyPatch) -> None:
    tower = _encoder(model).tower
    new = picture(64, 65)
    monkeypatch.setattr(tower, "expand", lambda rows, notes: rows)
    with pytest.raises(ModelDefinitionError, match=r"Qwen2VL\.expand returned .*; expected a list of texts and Rows"):
        model.generate("a", images=[new])
    prepared = tower.prepare(read_image(new))
    doubled = {name: array.astype(np.float64) for name, array in prepared.inputs.items()}
    monkeypatch.setattr(tower, "prepare", lambda image: prepared._replace(inputs=doubled))
    with pytest.raises(ModelDefinitionError, match=r"Qwen2VL\.prepare: the input 'pixels' is float64"):
        model.generate("a", images=[new])
