"""What the converter refuses, and that a refused or interrupted conversion leaves nothing behind."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from hotshoe.convert import convert
from hotshoe_core.errors import ConversionError, HotshoeError, ModelFileError, UnknownArchitectureError
from tests.support.converted import keys
from tests.support.tiny_bert import CONFIG, VOCAB, edit_json, make_tiny_bert, random_weights, write_safetensors

Edit = Callable[[Path], object]


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    return make_tiny_bert(tmp_path / "model")


def _remove(name: str) -> Edit:
    return lambda folder: (folder / name).unlink()


def _write(name: str, text: str | bytes) -> Edit:
    raw = text if isinstance(text, bytes) else text.encode()
    return lambda folder: (folder / name).write_bytes(raw)


def _config(**changes: Any) -> Edit:
    return lambda folder: edit_json(folder, "config.json", **changes)


def _weights(change: Callable[[dict[str, Any]], object]) -> Edit:
    def edit(folder: Path) -> None:
        weights: dict[str, Any] = random_weights()
        change(weights)
        write_safetensors(folder / "model.safetensors", weights)

    return edit


def _only(name: str) -> Edit:
    return lambda folder: (folder / "model.safetensors").rename(folder / name)


def _tokenizer(**changes: Any) -> Edit:
    return lambda folder: edit_json(folder, "tokenizer.json", **changes)


def _both(*edits: Edit) -> Edit:
    return lambda folder: [edit(folder) for edit in edits]


def _header(header: Any, data: bytes = b"") -> Edit:
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    return _write("model.safetensors", len(raw).to_bytes(8, "little") + raw + data)


WORD = "embeddings.word_embeddings.weight"


def _dense(**config: Any) -> Edit:
    def edit(folder: Path) -> None:
        values = {"bias": False, "activation_function": "torch.nn.modules.linear.Identity"} | config
        (folder / "2_Dense").mkdir()
        (folder / "2_Dense" / "config.json").write_text(json.dumps(values))
        write_safetensors(folder / "2_Dense" / "model.safetensors", {"linear.weight": np.ones((8, 32), np.float32)})
        modules = json.loads((folder / "modules.json").read_text())
        modules.append({"type": "sentence_transformers.models.Dense", "path": "2_Dense"})
        (folder / "modules.json").write_text(json.dumps(modules))

    return edit


BAD_FOLDERS: list[tuple[Edit, type[Exception], str]] = [
    (_remove("config.json"), ModelFileError, "has no config.json(.|\n)*hint: pass the folder"),
    (_write("config.json", "{"), ModelFileError, "config.json: is not JSON"),
    (_write("config.json", b"\xff\xfe{"), ModelFileError, "config.json: is not JSON"),
    (_write("config.json", "[" * 100_000), ModelFileError, "config.json: is not JSON"),
    (_write("config.json", "[]"), ModelFileError, "is a JSON list, expected an object"),
    (_config(architectures=["BertModle"]), UnknownArchitectureError, "a BertModle(.|\n)*did you mean 'BertModel'"),
    (_config(architectures=["GPTNeoForCausalLM"]), UnknownArchitectureError, "GPTNeoForCausalLM, which no installed"),
    (_config(architectures=["Xyz"]), UnknownArchitectureError, "hint: docs/families.md lists what hotshoe converts"),
    (_config(architectures=..., model_type=...), UnknownArchitectureError, "architecture config.json does not name"),
    (_config(hidden_size=...), ModelFileError, "hidden_size: missing; expected a whole number"),
    (_config(hidden_size="32"), ModelFileError, "hidden_size: '32'; expected a whole number"),
    (_config(num_hidden_layers=-1), ModelFileError, "num_hidden_layers: -1"),
    (_config(layer_norm_eps="tiny"), ModelFileError, "layer_norm_eps: 'tiny'; expected a number"),
    (
        _config(num_hidden_layers=10**9),
        ConversionError,
        "num_hidden_layers is 1000000000, but the checkpoint has only 37",
    ),
    (_config(vocab_size=2**31), ConversionError, "tensors of another shape"),
    (_config(layer_norm_eps=float("nan")), ModelFileError, "layer_norm_eps: nan; expected a number"),
    (_config(num_attention_heads=5), ConversionError, "hidden_size 32 is not a multiple of num_attention_heads 5"),
    (_config(hidden_act="relu"), ConversionError, "hidden_act is 'relu'"),
    (_config(position_embedding_type="relative_key"), ConversionError, "position_embedding_type is 'relative_key'"),
    (_config(is_decoder=True), ConversionError, "is_decoder is True"),
    (
        _config(num_hidden_layers=3),
        ConversionError,
        r"missing: encoder.layer.2.attention.output.LayerNorm.bias, (.|\n)* and 12 more(.|\n)*hint: check",
    ),
    (_config(num_hidden_layers=1), ConversionError, "unknown: encoder.layer.1"),
    (_config(intermediate_size=65), ConversionError, r"is \(64, 32\), expected \(65, 32\)"),
    (_tokenizer(added_tokens=[{"id": 999, "content": "x"}]), ConversionError, "'x' with id 999, but config.json says"),
    (_remove("model.safetensors"), ModelFileError, "no model.safetensors and no model.safetensors.index.json"),
    (_only("pytorch_model.bin"), ConversionError, "pytorch_model.bin(.|\n)*only safetensors(.|\n)*save_pretrained"),
    (_only("model.gguf"), ModelFileError, "model.gguf is converted already"),
    (_both(_remove("model.safetensors"), _write("model.safetensors.index.json", "{}")), ModelFileError, "weight_map"),
    (
        _both(
            _remove("model.safetensors"),
            _write("model.safetensors.index.json", '{"weight_map": {"a": "../../secret.safetensors"}}'),
        ),
        ModelFileError,
        "weight_map: expected an object of file names",
    ),
    (_weights(lambda w: w.pop(WORD)), ConversionError, "missing: embeddings.word_embeddings.weight"),
    (_weights(lambda w: w.update({"encoder.extra": np.zeros(3)})), ConversionError, "unknown: encoder.extra"),
    (_weights(lambda w: w.update({f"bert.{WORD}": w[WORD]})), ConversionError, "has token_embd.weight twice"),
    (_weights(lambda w: w.update({WORD: w[WORD].T})), ConversionError, "word_embeddings.weight is"),
    (_write("model.safetensors", b""), ModelFileError, "not a complete safetensors file"),
    (_write("model.safetensors", b"version https://git-lfs"), ModelFileError, "header claims(.|\n)*Git LFS"),
    (_header(b"nonsense"), ModelFileError, "the header is not JSON"),
    (_header([1]), ModelFileError, "the header is of type list"),
    (_header({"a": 3}), ModelFileError, "a: the header's entry is 3"),
    (_header({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}), ModelFileError, "outside the 0 bytes"),
    (_header({"a": {"dtype": "F32", "shape": [-2], "data_offsets": [0, 8]}}), ModelFileError, "the header's entry"),
    (
        _header({"a": {"dtype": "F32", "shape": [3], "data_offsets": [0, 8]}}, bytes(8)),
        ModelFileError,
        r"F32 of shape \(3,\) takes 12 bytes, but the header says 8",
    ),
    (_both(_remove("tokenizer.json"), _remove("vocab.txt")), ModelFileError, "neither tokenizer.json nor vocab.txt"),
    (_both(_remove("tokenizer.json"), _write("vocab.txt", b"\xff\xff")), ModelFileError, "cannot be read as UTF-8"),
    (_both(_remove("tokenizer.json"), _write("vocab.txt", "a\nb\n")), ConversionError, r"has no '\[UNK\]'"),
    (_tokenizer(model={"type": "BPE"}), ConversionError, "the tokenizer is 'BPE'; expected WordPiece"),
    (_tokenizer(model={"type": "WordPiece", "vocab": {"a": -1}}), ModelFileError, "model.vocab: expected an object"),
    (_tokenizer(added_tokens=[{"content": "x"}]), ModelFileError, "added tokens: expected objects with id"),
    (_tokenizer(pre_tokenizer={"type": "Whitespace"}), ConversionError, "the pre_tokenizer is 'Whitespace'"),
    (_tokenizer(normalizer={"type": "NFC"}), ConversionError, "the normalizer is 'NFC'"),
    (_write("modules.json", "{}"), ModelFileError, "modules.json: is a JSON dict, expected an array"),
    (_write("modules.json", '[{"type": "a.WordWeights", "path": ""}]'), ConversionError, "the module 'WordWeights'"),
    (_dense(bias=True), ConversionError, "a Dense module with bias True and the activation Identity"),
    (_dense(activation_function="torch.nn.Tanh"), ConversionError, "bias False and the activation Tanh"),
    (_dense(), ConversionError, r"2_Dense\.linear\.weight"),  # BERT in GGUF has no matrix after pooling
    (_write("modules.json", '[{"type": "a.Transformer", "path": "../.."}]'), ModelFileError, "expected type and path"),
    (_write("1_Pooling/config.json", "no"), ModelFileError, "is not JSON"),
]


@pytest.mark.parametrize(("edit", "error", "message"), BAD_FOLDERS, ids=[str(m) for _, _, m in BAD_FOLDERS])
def test_bad_folders(tiny: Path, tmp_path: Path, edit: Edit, error: type[Exception], message: str) -> None:
    edit(tiny)
    before = sorted(tmp_path.iterdir())
    with pytest.raises(error, match=message):
        convert(tiny, tmp_path / "m.gguf")
    assert sorted(tmp_path.iterdir()) == before


def test_integer_weights_are_refused(tmp_path: Path) -> None:
    weights = random_weights()
    folder = make_tiny_bert(tmp_path / "m", weights=weights)
    raw = (folder / "model.safetensors").read_bytes()
    # of the same length, so that only the type is wrong
    (folder / "model.safetensors").write_bytes(raw.replace(b'"F32"', b'"I32"'))
    with pytest.raises(ConversionError, match="has type I32; expected one of F64, F32, F16, BF16"):
        convert(folder, tmp_path / "m.gguf")


def test_a_tokenizer_that_gguf_cannot_express(tmp_path: Path) -> None:
    folder = make_tiny_bert(tmp_path / "m")
    tokenizer_json = json.loads((folder / "tokenizer.json").read_text())
    for token in tokenizer_json["added_tokens"]:
        token["single_word"] = True
    tokenizer_json["model"]["vocab"]["##▁hello"] = len(VOCAB)
    edit_json(folder, "config.json", vocab_size=len(VOCAB) + 1)
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer_json))
    config = CONFIG | {"vocab_size": len(VOCAB) + 1}
    write_safetensors(folder / "model.safetensors", random_weights(config))
    convert(folder, tmp_path / "fine.gguf")  # single_word changes nothing here, and the two tokens can be told apart
    tokenizer_json["post_processor"] = None
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer_json))
    edit_json(folder, "tokenizer_config.json", tokenizer_class="PreTrainedTokenizerFast")
    with pytest.raises(ConversionError, match="does something that a GGUF file cannot express"):
        convert(folder, tmp_path / "m.gguf")
    del tokenizer_json["model"]["vocab"]["##▁hello"]
    tokenizer_json["model"]["vocab"]["##▁zebra"] = len(VOCAB)
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer_json))
    with pytest.raises(ConversionError, match=r"'##▁zebra', would be equal to another"):
        convert(folder, tmp_path / "m.gguf")


def test_bad_requests(tiny: Path, tmp_path: Path) -> None:
    with pytest.raises(
        ConversionError, match=r"unknown file type 'q8'; expected one of f32, f16, bf16, q8_0(.|\n)*'q8_0'"
    ):
        convert(tiny, tmp_path / "m.gguf", "q8")
    with pytest.raises(ConversionError, match=r"the folder .* does not exist(.|\n)*mkdir -p"):
        convert(tiny, tmp_path / "nowhere" / "m.gguf")
    with pytest.raises(ConversionError, match="is a folder; expected the name"):
        convert(tiny, tmp_path)
    with pytest.raises(ModelFileError, match=r"the folder does not exist(.|\n)*hf download some/model"):
        convert("some/model", tmp_path / "m.gguf")
    with pytest.raises(ModelFileError, match="is a file; expected the folder"):
        convert(tiny / "config.json", tmp_path / "m.gguf")
    (tmp_path / "have.gguf").write_bytes(b"GGUF")
    with pytest.raises(ModelFileError, match=r"this is a GGUF file already(.|\n)*hotshoe quantize"):
        convert(tmp_path / "have.gguf", tmp_path / "n.gguf")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ModelFileError, match="it holds: nothing"):
        convert(tmp_path / "empty", tmp_path / "m.gguf")


def test_overwriting_is_asked_for(tiny: Path, tmp_path: Path) -> None:
    target = tmp_path / "m.gguf"
    target.write_bytes(b"mine")
    with pytest.raises(ConversionError, match=r"exists already(.|\n)*overwrite=True"):
        convert(tiny, target)
    assert target.read_bytes() == b"mine"
    convert(tiny, target, overwrite=True)
    assert keys(target)["general.architecture"] == "bert"


def test_a_full_disk(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(gguf.GGUFWriter, "write_tensor_data", full)
    with pytest.raises(
        ConversionError, match=r"cannot write .*: No space left on device(.|\n)*hint: check the free space"
    ):
        convert(tiny, tmp_path / "m.gguf")
    assert [p.name for p in tmp_path.iterdir()] == ["model"]


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_an_interrupted_conversion_leaves_nothing(tiny: Path, tmp_path: Path, error: type[BaseException]) -> None:
    target = tmp_path / "m.gguf"
    target.write_bytes(b"mine")

    def stop(fraction: float) -> None:
        if fraction > 0.5:
            raise error("stop")

    with pytest.raises(error, match="stop"):
        convert(tiny, target, progress=stop, overwrite=True)
    assert target.read_bytes() == b"mine"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["m.gguf", "model"]


JSON_FILES = ("config.json", "tokenizer.json", "tokenizer_config.json", "modules.json", "1_Pooling/config.json")
VALUES = (None, True, -1, 0, 2**40, 1.5, 1e300, "x", "", [], {}, [1], {"a": 1}, float("nan"), "\ud800")


def test_damaged_folders_are_refused_by_name(tiny: Path, tmp_path: Path) -> None:
    rng = random.Random(0)
    outcomes = set()
    for _ in range(300):
        path = tiny / rng.choice((*JSON_FILES, "model.safetensors"))
        original = path.read_bytes()
        if path.suffix == ".json" and rng.random() < 0.8:
            path.write_text(json.dumps(_with_one_change(json.loads(original), rng)), encoding="utf-8")
        else:
            damaged = bytearray(original)
            for _ in range(rng.choice((1, 3, 20))):
                damaged[rng.randrange(min(len(damaged), 4000))] = rng.randrange(256)
            path.write_bytes(damaged[: rng.choice((len(damaged), rng.randrange(len(damaged))))])
        try:
            convert(tiny, tmp_path / "m.gguf", overwrite=True)
            outcomes.add("converted")
        except HotshoeError as error:  # anything else fails the test
            outcomes.add(type(error).__name__ if str(tiny) in str(error) else f"without a path: {error}")
        path.write_bytes(original)
    assert outcomes == {"converted", "ModelFileError", "ConversionError", "UnknownArchitectureError"}


def _with_one_change(value: Any, rng: random.Random) -> Any:
    if isinstance(value, (dict, list)) and value and rng.random() < 0.9:
        key = rng.choice(list(value)) if isinstance(value, dict) else rng.randrange(len(value))
        value[key] = _with_one_change(value[key], rng)
        return value
    return rng.choice(VALUES)


def _pipe(path: Path) -> None:
    os.mkfifo(path)


def _zeros(path: Path) -> None:
    path.symlink_to("/dev/zero")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no FIFOs")
@pytest.mark.parametrize("make", [_pipe, _zeros])
@pytest.mark.parametrize("name", ["1_Pooling/config.json", "vocab.txt"])
def test_only_regular_files_are_read(make: Callable[[Path], None], name: str, tiny: Path, tmp_path: Path) -> None:
    """In a child, which would hang, or take all memory."""
    (tiny / "tokenizer.json").unlink()  # then vocab.txt is read
    (tiny / name).unlink()
    make(tiny / name)
    code = "import sys; from hotshoe.convert import convert; convert(*sys.argv[1:])"
    command = [sys.executable, "-c", code, str(tiny), str(tmp_path / "m.gguf")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    last = done.stderr.splitlines()[-1]
    assert last.startswith(f"hotshoe_core.errors.ModelFileError: {tiny / name}: cannot be read")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["model"]


FULL_DISK = """
import resource, signal, sys
from hotshoe.convert import convert
from hotshoe_core.errors import ConversionError

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # a write beyond the limit fails, as on a full disk
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[3]), -1))
try:
    convert(sys.argv[1], sys.argv[2], "f32")
except ConversionError as error:
    print(error)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="limits of a process are Unix's")
@pytest.mark.parametrize("room", [0, 100, 5_000, 60_000])
def test_a_full_disk_leaves_nothing_behind(tmp_path: Path, room: int) -> None:
    folder, target = make_tiny_bert(tmp_path / "m"), tmp_path / "out" / "m.gguf"
    target.parent.mkdir()
    command = [sys.executable, "-c", FULL_DISK, str(folder), str(target), str(room)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout.startswith(f"cannot write {target}: "), done.stderr
    assert "check the free space" in done.stdout
    assert list(target.parent.iterdir()) == []
