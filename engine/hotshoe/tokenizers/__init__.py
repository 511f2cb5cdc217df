"""Text to token ids and back, from the vocabulary in a GGUF file.

``load_tokenizer(metadata)`` reads the ``tokenizer.ggml.*`` keys and builds a ``Tokenizer`` around an object of
the ``tokenizers`` package. Each kind of vocabulary (``tokenizer.ggml.model``) has a module of its own beside this
one, with a function ``build(vocabulary) -> Tokenizer``; it is imported when a file asks for it.
``Tokenizer.stream()`` decodes one token after another.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

from hotshoe.tokenizers._pieces import StreamDecoder
from hotshoe.tokenizers._tokenizer import SpecialIds, Tokenizer
from hotshoe.tokenizers._vocabulary import Vocabulary
from hotshoe_core.errors import TokenizerError, did_you_mean

__all__ = ["SpecialIds", "StreamDecoder", "Tokenizer", "load_tokenizer"]

_MODELS = {
    "bert": "hotshoe.tokenizers._wordpiece",
    "gemma4": "hotshoe.tokenizers._bpe",
    "gpt2": "hotshoe.tokenizers._bpe",
    "llama": "hotshoe.tokenizers._sentencepiece",
    "t5": "hotshoe.tokenizers._unigram",
    "whitespace": "hotshoe.tokenizers._bpe",
}


def load_tokenizer(metadata: Mapping[str, Any]) -> Tokenizer:
    """The tokenizer a GGUF file describes. ``metadata`` maps the file's keys to plain values.

    Raises TokenizerError for a kind of vocabulary or pre-tokenizer that hotshoe does not know, and for a
    vocabulary that is not consistent; the message names the key.
    """
    vocabulary = Vocabulary.from_metadata(metadata)
    try:
        module = importlib.import_module(_MODELS[vocabulary.model])
    except KeyError:
        raise TokenizerError(
            f"tokenizer.ggml.model is {vocabulary.model!r}; hotshoe has tokenizers for: {', '.join(sorted(_MODELS))}",
            hint=did_you_mean(vocabulary.model, _MODELS),
        ) from None
    tokenizer: Tokenizer = module.build(vocabulary)
    return tokenizer
