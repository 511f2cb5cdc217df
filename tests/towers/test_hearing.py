"""Sounds in prompts and conversations: markers, kept rows, long sounds, both encoders in one file, errors."""

from __future__ import annotations

import io
import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hotshoe
from hotshoe.chat import ChatTemplate
from hotshoe.cli import main
from hotshoe.runner.items import EmbeddingSpan
from hotshoe.runner.text import TextModel
from hotshoe_core.errors import AudioError, ImageError, ModelFileError, WeightsError
from tests.engine.test_audio import wav
from tests.support.rewrite import rewrite
from tests.towers.made import MadeTower
from tests.towers.row import picture, sound
from tests.towers.rows import ROWS
from tests.towers.sounds import SOUNDS, MadeSound

PARTS = (
    "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content %}"
    "{% if p.type == 'audio' %}<|audio_bos|><|AUDIO|><|audio_eos|>{% else %}{{ p.text }}{% endif %}"
    "{% endfor %}{% endif %}{% endfor %}"
)
TEXTS = "{% for m in messages %}{{ m.content }}{% endfor %}"
ONE, TWO = (sound(1.0), 16_000), (sound(1.5), 16_000)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MadeTower]:
    made = MadeSound("qwen2-audio", SOUNDS["qwen2-audio"], tmp_path_factory.mktemp("tiny"))
    yield made
    made.close()


@pytest.fixture
def model(tiny: MadeTower, main_device: str) -> TextModel:
    return tiny.load(main_device)


def _n_rows(model: TextModel, source: Any) -> int:
    items = model.audio.items("", [source], add_special=False)  # type: ignore[union-attr]
    return sum(len(item) for item in items if isinstance(item, EmbeddingSpan))


def test_sounds_are_computed_once_and_their_beginnings_reused(model: TextModel) -> None:
    encoder = model.audio
    assert encoder is not None
    assert model.hears
    assert not model.sees
    mine = (sound(0.777), 16_000)
    before = encoder.n_computed
    model.forget()
    first = model.generate("<|AUDIO|> one", audio=[mine], max_tokens=2, temperature=0)
    again = model.generate("<|AUDIO|> two", audio=[mine], max_tokens=2, temperature=0)
    assert encoder.n_computed == before + 1
    assert encoder.kept_bytes > 0
    assert first.n_cached == 0
    assert again.n_cached >= again.n_prompt - 4
    other = model.generate("<|AUDIO|> two", audio=[TWO], max_tokens=2, temperature=0)
    assert other.n_cached == 0


@pytest.mark.parametrize("source", [PARTS, TEXTS])
def test_chat(model: TextModel, source: str) -> None:
    model.chat_template = ChatTemplate(source)
    content = [{"type": "audio", "audio": ONE}, {"type": "text", "text": "what is <|AUDIO|>?"}]
    chat = model.prepare_chat([{"role": "user", "content": content}])
    line = "" if source == PARTS else "\n"
    assert model.audio.show_markers(chat.text) == f"<|audio_bos|><|AUDIO|><|audio_eos|>{line}what is <|AUDIO|>?"  # type: ignore[union-attr]
    assert sum(isinstance(item, EmbeddingSpan) for item in chat.items) == 1
    assert model.chat([{"role": "user", "content": content}], max_tokens=3, temperature=0).n_prompt == chat.n_tokens


def test_a_long_sound_is_read_in_windows(model: TextModel) -> None:
    assert _n_rows(model, (sound(30.0), 16_000)) == 750
    assert _n_rows(model, (sound(30.01), 16_000)) == 750  # the rest is too short for a row
    assert _n_rows(model, (sound(32.0), 16_000)) == 750 + 50


def test_other_rates_have_as_many_rows(model: TextModel) -> None:
    assert _n_rows(model, (sound(1.0), 8000)) == _n_rows(model, (sound(2.0), 16_000))


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        (lambda m: m.generate("<|AUDIO|>", audio=[ONE, TWO]), AudioError, "1 places for sounds .* 2 sounds"),
        (lambda m: m.generate([1, 2], audio=[ONE]), AudioError, "with audio, expected a text"),
        (lambda m: m.generate(["a", "b"], audio=[ONE]), AudioError, "sounds were given for 2 prompts"),
        (lambda m: m.generate("a", audio=17), AudioError, "audio is 17"),
        (lambda m: m.generate("a", images=[picture(60, 60)]), ImageError, "reads texts and sounds only"),
    ],
)
def test_errors(model: TextModel, given: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        given(model)


def test_a_model_that_does_not_hear(tiny: MadeTower, main_device: str) -> None:
    with hotshoe.load_model(tiny.path, main_device, task="text", projector=False, n_ctx=256) as deaf:
        assert not deaf.hears
        with pytest.raises(AudioError, match="without an encoder of sounds, so it reads texts only"):
            deaf.generate("a", audio=[ONE])


def test_memory_and_plans_count_the_encoder(tiny: MadeTower, model: TextModel) -> None:
    model.generate("a", audio=[ONE], max_tokens=1)
    encoder = model.audio
    assert encoder is not None
    weights = sum(device.sizes[0] for device in encoder.backend.memory().devices)
    both, text = model.memory(), model.backend.memory()
    assert both.devices[0].input_weights.size == text.devices[0].input_weights.size + weights > weights
    assert both.total >= text.total + weights + encoder.kept_bytes
    options: dict[str, Any] = {"n_ctx": 256, "kv_dtype": "f32"}
    with_encoder = hotshoe.plan_model(tiny.path, model.device.name, projector=tiny.file(), **options).memory
    without = hotshoe.plan_model(tiny.path, model.device.name, projector=False, **options).memory
    assert with_encoder.total - without.total == sum(t.nbytes for t in encoder.file.tensors.values())
    assert f"sounds: {tiny.file().name} on {model.device.name}" in model.why


def test_an_encoder_that_nobody_has_is_named(tmp_path: Path, main_device: str) -> None:
    """A file with two encoders, of which one is unknown: the other one is used, and the error says why."""
    made = MadeTower("gemma3", ROWS["gemma3"], tmp_path)
    values = {"clip.has_audio_encoder": True, "clip.audio.projector_type": "unheard", "clip.audio.block_count": 2}
    both = rewrite(made.file(), tmp_path / "both.gguf", values)
    with hotshoe.load_model(made.path, main_device, task="text", n_ctx=64, projector=both) as model:
        assert model.sees
        assert not model.hears
        why = r"reads texts and pictures only; the encoder of sounds in both\.gguf is not used: .*'unheard'"
        with pytest.raises(AudioError, match=why):
            model.generate("a", audio=[ONE])


def test_a_file_that_says_the_wrong_medium(tiny: MadeTower, tmp_path: Path) -> None:
    values = {"clip.has_audio_encoder": False, "clip.has_vision_encoder": True}
    wrong = rewrite(tiny.file(), tmp_path / "wrong.gguf", values)
    with pytest.raises(
        ModelFileError, match="'qwen2a' reads sounds, but the file says that its encoder reads pictures"
    ):
        hotshoe.load_model(tiny.path, "reference", projector=wrong)


def test_a_tensor_that_the_encoder_does_not_use(tiny: MadeTower, tmp_path: Path) -> None:
    name = "a.blk.0.unknown.weight"
    more = rewrite(tiny.file(), tmp_path / "more.gguf", add={name: np.ones((2, 2), np.float32)})
    with pytest.raises(WeightsError, match=rf"does not use some tensors \(1\): {re.escape(name)}"):
        hotshoe.load_model(tiny.path, "reference", projector=more)


def test_the_page(
    tiny: MadeTower, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The code of docs/audio.md, with a model that has a chat format."""
    page = (Path(__file__).parents[2] / "docs" / "audio.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    rewrite(tiny.path, tmp_path / "model.gguf", {"tokenizer.chat_template": PARTS})
    shutil.copy(tiny.file(), tmp_path / "mmproj-model.gguf")
    (tmp_path / "speech.wav").write_bytes(wav(sound(1.0)))
    monkeypatch.chdir(tmp_path)
    exec(compile(code, "audio.md", "exec"), {})
    assert capsys.readouterr().out.rstrip().endswith("True <|AUDIO|>")


def test_commands(tiny: MadeTower, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = rewrite(tiny.path, tmp_path / "model.gguf", {"tokenizer.chat_template": PARTS})
    (tmp_path / "a.wav").write_bytes(wav(sound(1.0)))
    options = ["--device", "reference", "--temperature", "0", "--max-tokens", "2"]
    run = ["run", str(path), "what", *options, "--audio", str(tmp_path / "a.wav")]
    assert main([*run, "--mmproj", str(tiny.file()), "-v"]) == 0
    assert f"sounds: {tiny.file().name} on reference" in capsys.readouterr().err
    assert main([*run, "--no-mmproj"]) != 0
    assert "reads texts only" in capsys.readouterr().err


def test_chat_command(
    tiny: MadeTower, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = rewrite(tiny.path, tmp_path / "model.gguf", {"tokenizer.chat_template": PARTS})
    heard = tmp_path / "a.wav"
    heard.write_bytes(wav(sound(1.0)))
    saved = tmp_path / "talk.json"
    lines = [
        f"/audio {heard}",
        "what is said?",
        f"and here? {heard}",
        f"/save {saved}",
        f"/load {saved}",
        "/image a.png",
    ]
    monkeypatch.setattr("sys.stdin", io.StringIO("\n".join([*lines, "/quit"]) + "\n"))
    options = ["--device", "reference", "--temperature", "0", "--max-tokens", "2", "--mmproj", str(tiny.file())]
    assert main(["chat", str(path), *options]) == 0
    printed = "".join(capsys.readouterr())
    assert printed.count("a.wav: 1.0 s; it goes with your next message") == 2
    assert "this model reads no pictures" in printed
    users = [m for m in json.loads(saved.read_text())["messages"] if m["role"] == "user"]
    assert [m["audio"] for m in users] == [[str(heard)], [str(heard)]]
    assert [m["content"] for m in users] == ["what is said?", "and here?"]


def test_the_pictures_of_omni_are_refused_by_name(tmp_path: Path, main_device: str) -> None:
    """Its file has two encoders, of which only the one of sounds is implemented."""
    made = MadeSound("qwen2.5-omni", SOUNDS["qwen2.5-omni"], tmp_path)
    model = made.load(main_device)
    assert model.hears
    assert not model.sees
    with pytest.raises(
        ImageError, match=r"reads texts and sounds only; the encoder of pictures in .*'qwen2\.5o\.pictures'"
    ):
        model.generate("a", images=[picture(60, 60)])
    made.close()
