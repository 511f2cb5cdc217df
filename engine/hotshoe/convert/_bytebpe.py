"""Read byte-level BPE vocabularies (``tokenizer.ggml.model`` "gpt2"): Llama 3, Qwen, Mistral Nemo, Phi-4, …"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hotshoe.convert._pre import recognize
from hotshoe.convert._tokenfiles import Vocab, parts
from hotshoe.tokenizers._vocabulary import TokenType
from hotshoe_core.errors import ConversionError

if TYPE_CHECKING:
    from hotshoe.convert._tokenfiles import TextTokenizer

__all__ = ["is_byte_level", "read_bytes"]

_SPACE_LETTER = "\u0120"  # GPT-2's letter for the byte of a space


def is_byte_level(files: TextTokenizer) -> bool:
    """True if tokenizer.json writes tokens in GPT-2's letters for bytes."""
    return "ByteLevel" in {part.get("type") for part in parts(files.tokenizer.get("pre_tokenizer"))}


def read_bytes(files: TextTokenizer) -> Vocab:
    """Read the vocabulary.

    Raises ModelFileError if tokenizer.json is damaged; ConversionError if GGUF cannot express the tokenizer.
    """
    model = files.model
    if model.get("type", "BPE") != "BPE":
        raise ConversionError(
            f"{files.path}: the tokenizer is {model.get('type')!r} on bytes; a GGUF file can only express BPE"
        )
    for key in ("continuing_subword_prefix", "end_of_word_suffix", "dropout"):
        if model.get(key):
            raise ConversionError(f"{files.path}: {key} is {model[key]!r}; a GGUF file cannot express that")
    for part in parts(files.tokenizer.get("normalizer")):
        if part.get("type") not in ("NFC", "Sequence"):
            raise ConversionError(
                f"{files.path}: the normalizer is {part.get('type')!r}; a GGUF file cannot express a normalizer here"
            )
    vocab = files.vocab()
    tokens = {i: token for token, i in vocab.items()}
    types = dict.fromkeys(tokens, TokenType.NORMAL)
    for added in files.added:
        tokens[added.id], types[added.id] = added.stored, added.type
    # a space separates the two tokens of a merge, so a space inside a token is written as its letter
    merges = [" ".join(part.replace(" ", _SPACE_LETTER) for part in pair) for pair in files.merges()]
    if not merges:
        raise ConversionError(
            f"{files.path}: the tokenizer has no merges, so it cannot join bytes to tokens",
            hint="the files of the tokenizer are incomplete: download tokenizer.json again",
        )
    return Vocab(tokens, types, {"model": "gpt2", "pre": recognize(files), "merges": merges})
