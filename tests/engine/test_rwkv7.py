"""RWKV-7 against RWKV's own package and llama.cpp: transformers lacks it, so it is not in the table of families."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hotshoe.convert import convert
from hotshoe.tokenizers import Tokenizer, load_tokenizer
from hotshoe_core.errors import ConversionError, GraphError, ModelFileError, TokenizerError, WeightsError
from hotshoe_core.gguf import GGUFFile
from tests.families.recorded import digests, family_keys
from tests.support.rewrite import rewrite
from tests.support.text_models import load
from tests.support.tiny_rwkv7 import IDS, TEXTS, make_rwkv7

STRIDE = 4  # of the recorded logits


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = make_rwkv7(tmp_path_factory.mktemp("rwkv7") / "hf")
    return convert(folder, folder.parent / "f32.gguf", "f32")


@pytest.fixture
def record(data: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((data / "rwkv7.json").read_text())
    return found


@pytest.fixture
def logits(data: Path) -> Any:
    """``logits["rwkv"]`` of RWKV's package, ``logits["llamacpp"]`` of llama.cpp for our file."""
    return np.load(data / "rwkv7.npz")


def near(ours: np.ndarray, expected: np.ndarray) -> None:
    assert np.abs(ours[..., ::STRIDE] - expected).max() <= 1e-5 * np.abs(expected).max()


@pytest.mark.parametrize("kind", ["f32", "f16"])
def test_the_file_is_that_of_llama_cpp(kind: str, path: Path, tmp_path: Path, record: dict[str, Any]) -> None:
    made = path if kind == "f32" else convert(path.parent / "hf", tmp_path / "f16.gguf", kind)
    assert digests(made) == record[kind]
    assert family_keys(made) == record["keys"]


def test_the_recorded_logits_agree(logits: Any) -> None:
    assert np.abs(logits["rwkv"] - logits["llamacpp"]).max() <= 3e-5 * np.abs(logits["rwkv"]).max()


def test_logits(device: str, path: Path, logits: Any) -> None:
    """Whole, in pieces, token by token; two texts at once; a fork; a text that begins like another; a truncated one."""
    expected = logits["rwkv"]
    with load(path, device, n_batch=8) as model:
        near(model.logits(IDS), expected)
        with model.sequence() as sequence:
            near(np.stack([sequence.append(i) for i in IDS[:12]]), expected[:12])
            twin = sequence.fork()
            near(twin.append(*IDS[12:25]), expected[24])
            near(sequence.append(*IDS[12:20]), expected[19])
            sequence.truncate(16)
            near(sequence.append(*IDS[16:31]), expected[30])
            twin.close()
        model.forget()
        pair = [model.sequence(), model.sequence()]
        for row, n in zip(model.extend(zip(pair, (IDS[:9], IDS[:21]), strict=True)), (9, 21), strict=True):
            near(row, expected[n - 1])
        near(model.extend((s, [IDS[n]]) for s, n in zip(pair, (9, 21), strict=True)), expected[[9, 21]])


def test_positions_are_not_shifted(path: Path) -> None:
    with load(path, "reference") as model, model.sequence() as sequence:
        sequence.append(*IDS[:12])
        with pytest.raises(GraphError, match="recurrent state"):
            sequence.shift(0, 4)


def test_the_first_layer_does_not_read_its_value_mix(path: Path, tmp_path: Path, logits: Any) -> None:
    """Some files have these tensors, others have not."""

    def without(tensors: dict[str, Any]) -> None:
        for i in range(3):
            del tensors[f"blk.0.time_mix_v{i}.weight"]

    with load(rewrite(path, tmp_path / "without.gguf", edit=without), "reference") as model:
        near(model.logits(IDS), logits["rwkv"])


def test_a_missing_tensor_is_named(path: Path, tmp_path: Path) -> None:
    def without(tensors: dict[str, Any]) -> None:
        del tensors["blk.1.time_mix_v1.weight"]

    with pytest.raises(WeightsError, match=r"missing \(1\): blk\.1\.time_mix_v1\.weight"):
        load(rewrite(path, tmp_path / "without.gguf", edit=without), "reference")


# The vocabulary


@pytest.fixture
def tokenizer(path: Path) -> Tokenizer:
    with GGUFFile(path) as file:
        return load_tokenizer(file.metadata)


def test_ids_are_those_of_rwkv_and_llama_cpp(tokenizer: Tokenizer, record: dict[str, Any]) -> None:
    assert record["ids"] == record["llamacpp_ids"]
    assert tokenizer.encode_batch(TEXTS) == record["ids"]
    assert [tokenizer.decode(ids) for ids in record["ids"]] == TEXTS


def test_tokens_with_a_role(tokenizer: Tokenizer) -> None:
    assert (tokenizer.bos, tokenizer.eos, tokenizer.eot) == (0, 0, 261)
    assert tokenizer.stop_ids == {0, 261}
    assert tokenizer.encode("a<s>b") == [98, 0, 99]
    assert tokenizer.encode("a<s>b", parse_special=False) == [98, 61, 116, 63, 99]
    assert tokenizer.decode([98, 0, 99]) == "ab"
    assert tokenizer.encode("[PAD280]") == tokenizer.encode("[PAD280]", parse_special=False)
    assert tokenizer.encode("\ud800") == tokenizer.encode("\ufffd")


def vocabulary(*tokens: str, types: dict[int, int] | None = None) -> dict[str, Any]:
    of_bytes = [repr(bytes([i]))[2:-1] for i in range(256)]
    kinds = [(types or {}).get(i, 1) for i in range(256 + len(tokens))]
    return {
        "tokenizer.ggml.model": "rwkv",
        "tokenizer.ggml.tokens": [*of_bytes, *tokens],
        "tokenizer.ggml.token_type": kinds,
    }


def test_the_longest_token_wins_even_if_the_rest_has_none() -> None:
    """No merges: "abc" then "d", although "ab" and "cd" are tokens."""
    tokenizer = load_tokenizer(vocabulary("ab", "cd", "abc", "abcdefgh"))
    assert tokenizer.encode("abcdabcdefgxab") == [258, 100, 258, 100, 101, 102, 103, 120, 256]


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        (vocabulary("\\x4"), r"tokens\[256\] is '\\\\x4', which has an invalid escape"),
        (vocabulary("a\\"), "invalid escape"),
        (vocabulary(types={65: 3}), "none for the byte 0x41"),
        (vocabulary("a" * 5000), "5000 characters"),
        (vocabulary("\\x61"), "tokens 97 and 256 are both b'a'"),
    ],
)
def test_invalid_vocabularies(metadata: dict[str, Any], message: str) -> None:
    with pytest.raises(TokenizerError, match=message):
        load_tokenizer(metadata)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("1 'a' 2", "line 1 is"),
        ("2 'a' 1", "line 1 is"),
        ("1 a 1", "line 1 is"),
        ("1", "line 1 is"),
        ("1 1 1", "line 1 is"),
    ],
)
def test_invalid_vocabulary_files(line: str, message: str, tmp_path: Path) -> None:
    folder = make_rwkv7(tmp_path / "hf")
    (folder / "rwkv_vocab_v20230424.txt").write_text(line)
    with pytest.raises(ModelFileError, match=message):
        convert(folder, tmp_path / "x.gguf")


def test_settings_that_the_file_cannot_express(tmp_path: Path) -> None:
    with pytest.raises(ConversionError, match="attn is"):
        convert(make_rwkv7(tmp_path / "hf", attn={"layers": [1]}), tmp_path / "x.gguf")
    folder = make_rwkv7(tmp_path / "larger")
    lines = [f"{i} 'x{i}' {len(str(i)) + 1}\n" for i in range(1, 301)]
    (folder / "rwkv_vocab_v20230424.txt").write_text("".join(lines))
    with pytest.raises(ConversionError, match=r"vocab_size is 300, but rwkv_vocab_v20230424\.txt has 300 tokens"):
        convert(folder, tmp_path / "x.gguf")
