"""A converter and a tokenizer from somebody else's distribution, by entry point and by public names only."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import hotshoe.convert
from hotshoe import families
from hotshoe.convert import convert
from hotshoe.tokenizers import load_tokenizer
from hotshoe_core.errors import ModelError, TokenizerError, UnknownArchitectureError
from hotshoe_core.gguf import GGUFFile
from tests.support.converted import keys, tensors
from tests.support.tiny_bert import edit_json
from tests.support.tiny_text import make_tiny

# a Llama whose heads are left as they are
MODULE = """
from hotshoe import nn
from hotshoe.convert import Checkpoint, FileLayout, make_layout, read_rope, read_sizes
from hotshoe.families import Family
from hotshoe.tokenizers import SentencePieceDecoder, Tokenizer, Vocabulary, add_tokens, find_roles, hidden_ids


class Block(nn.TransformerBlock):
    attention: nn.Attention = nn.submodule()
    mlp: nn.GatedMLP = nn.submodule()


class Model(nn.Decoder):
    config: nn.TextConfig
    blocks: list[Block] = nn.layers("blk")

    def unused_keys(self) -> dict[str, str]:
        return {"spice": "for the taste only"}


family = Family(Model)


def describe(checkpoint: Checkpoint) -> FileLayout:
    checkpoint.require("hidden_act", "silu", "silu")
    sizes, rope = read_sizes(checkpoint), read_rope(checkpoint, "yarn")
    return make_layout(checkpoint, "mine", sizes.keys() | rope.keys() | {"spice": 3}, vocab=sizes.vocab)


def words(vocabulary: Vocabulary) -> Tokenizer:
    from tokenizers import Tokenizer as Inner, models, pre_tokenizers

    tokens, ids = vocabulary.numbered()
    roles = find_roles(vocabulary, ids)
    inner = Inner(models.WordLevel(ids, tokens[0]))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    add_tokens(inner, vocabulary, tokens, roles.types)
    decoder = SentencePieceDecoder(tokens, roles.types, strip=False)
    return Tokenizer(inner, tokens, roles.special, decoder, hidden=hidden_ids(roles.types), stop_ids=roles.stop_ids)


def nothing(_):
    return None
"""
WORDS = {
    "tokenizer.ggml.model": "words",
    "tokenizer.ggml.tokens": ["<unk>", "hot", "shoe", "</s>"],
    "tokenizer.ggml.token_type": [2, 1, 1, 3],
    "tokenizer.ggml.eos_token_id": 3,
}


class Site:
    """A folder on sys.path, into which distributions are installed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        (path / "mine_hotshoe.py").write_text(MODULE)

    def install(self, distribution: str, group: str, name: str, value: str) -> None:
        info = self.path / f"{distribution}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[{group}]\n{name} = {value}\n")


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    path = tmp_path / "site"
    path.mkdir()
    monkeypatch.syspath_prepend(path)
    monkeypatch.delitem(sys.modules, "mine_hotshoe", raising=False)
    return Site(path)


def llama(folder: Path, **config: object) -> Path:
    make_tiny("LlamaForCausalLM", folder, num_hidden_layers=1)
    edit_json(folder, "config.json", **config)
    return folder


def test_a_converter_of_another_distribution(site: Site, tmp_path: Path) -> None:
    folder = llama(tmp_path / "m", architectures=["MineForCausalLM"])
    with pytest.raises(UnknownArchitectureError, match="holds a MineForCausalLM, which no installed package converts"):
        convert(folder, tmp_path / "m.gguf")
    site.install("mine", families.CONVERTERS, "MineForCausalLM", "mine_hotshoe:describe")
    with pytest.raises(UnknownArchitectureError, match="no model implements the architecture 'mine'"):
        convert(folder, tmp_path / "m.gguf")
    site.install("mine-model", families.MODELS, "mine", "mine_hotshoe:family")
    path = convert(folder, tmp_path / "m.gguf")
    metadata = keys(path)
    assert metadata["general.architecture"] == "mine"
    assert metadata["mine.spice"] == 3
    assert metadata["mine.block_count"] == 1
    assert tensors(path)["blk.0.attn_q.weight"][1].shape == (64, 64)
    with GGUFFile(path) as file:
        assert load_tokenizer(file.metadata).decode(load_tokenizer(file.metadata).encode("the camera")) == "the camera"


def test_a_tokenizer_of_another_distribution(site: Site) -> None:
    with pytest.raises(TokenizerError, match=r"model is 'words'; hotshoe has tokenizers for: bert, gemma4, gpt2"):
        load_tokenizer(WORDS)
    site.install("mine", families.TOKENIZERS, "words", "mine_hotshoe:words")
    tokenizer = load_tokenizer(WORDS)
    assert tokenizer.encode("hot shoe cold</s>") == [1, 2, 0, 3]
    assert tokenizer.eos == 3
    assert tokenizer.stop_ids == {3}


def test_ours_never_silently_win(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = llama(tmp_path / "m")
    site.install("mine", families.CONVERTERS, "LlamaForCausalLM", "mine_hotshoe:describe")
    with pytest.raises(ModelError, match=r"claimed by 2 distributions: (.*mine.*hotshoe|.*hotshoe.*mine)"):
        convert(folder, tmp_path / "m.gguf")
    monkeypatch.setenv("HOTSHOE_BLOCK", "mine")
    assert keys(convert(folder, tmp_path / "m.gguf"))["general.architecture"] == "llama"


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        (
            "MineForCausalLM",
            "mine_hotshoe:nothing",
            "returned NoneType; expected a FileLayout",
        ),
        ("MineForCausalLM", "mine_hotshoe:absent", "has no attribute 'absent'"),
        ("MineForCausalLM", "no_such_module:describe", "No module named 'no_such_module'"),
    ],
)
def test_an_entry_point_that_is_not_a_converter(
    site: Site, tmp_path: Path, name: str, value: str, message: str
) -> None:
    folder = llama(tmp_path / "m", architectures=[name])
    site.install("mine", families.CONVERTERS, name, value)
    with pytest.raises(ModelError, match=message):
        convert(folder, tmp_path / "m.gguf")


def test_an_entry_point_that_is_not_a_tokenizer(site: Site) -> None:
    site.install("mine", families.TOKENIZERS, "words", "mine_hotshoe:nothing")
    with pytest.raises(
        TokenizerError, match=r"tokenizer of 'words' .* returned NoneType; expected a hotshoe.tokenizers.Tokenizer"
    ):
        load_tokenizer(WORDS)


def test_a_folder_that_states_its_model_type_only(tmp_path: Path) -> None:
    folder = llama(tmp_path / "m", architectures=...)
    assert keys(convert(folder, tmp_path / "m.gguf"))["general.architecture"] == "llama"
    edit_json(folder, "config.json", model_type="lama")
    with pytest.raises(UnknownArchitectureError, match=r"holds a lama, (.|\n)*did you mean 'llama'"):
        convert(folder, tmp_path / "n.gguf")
    edit_json(folder, "config.json", model_type=...)
    with pytest.raises(UnknownArchitectureError, match=r"holds a model whose architecture config.json does not name"):
        convert(folder, tmp_path / "n.gguf")


def test_every_name_that_is_promised_is_there() -> None:
    for name in hotshoe.convert.__all__:
        assert getattr(hotshoe.convert, name) is not None
    assert set(hotshoe.convert.__all__) <= set(dir(hotshoe.convert))
    with pytest.raises(AttributeError, match="has no attribute 'source'"):
        hotshoe.convert.source  # noqa: B018


def test_every_entry_point_of_ours_leads_somewhere() -> None:
    for group in (families.CONVERTERS, families.TOKENIZERS):
        for name in families.names(group):
            assert callable(families.find(group, name)), name
