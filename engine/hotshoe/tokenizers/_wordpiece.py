"""WordPiece (``tokenizer.ggml.model`` "bert"): the vocabularies of BERT and models derived from it.

GGUF does not store WordPiece tokens as in BERT's ``vocab.txt``. "##x", the inside of a word, is stored as "x"; and "x",
the start of a word, as "▁x" (U+2581). Control tokens are stored unchanged, and files written before 2025 store every
token in brackets ("[unused7]") unchanged too. ``phantom`` converts a token to this form; ``restore`` converts back.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, final

from hotshoe.tokenizers._tokenizer import Affixes, SpecialIds, Tokenizer
from hotshoe.tokenizers._vocabulary import TokenType, Vocabulary
from hotshoe_core.errors import TokenizerError, did_you_mean

if TYPE_CHECKING:
    import tokenizers.decoders

__all__ = ["build", "phantom", "restore"]

SPACE = "\u2581"
INSIDE = "##"

# WordPiece has only one pre-tokenizer, BERT's; llama.cpp's converter has used these names for it
_PRE_TOKENIZERS = frozenset({"default", "bert-bge", "bert-bge-large", "jina-v2-en"})

# Keys that hotshoe.convert writes, only if the value differs from the default here; see docs/gguf-keys.md.
KEY_LOWERCASE = "tokenizer.ggml.normalizer.lowercase"
KEY_STRIP_ACCENTS = "tokenizer.ggml.normalizer.strip_accents"
KEY_CLEAN_TEXT = "hotshoe.tokenizer.clean_text"
KEY_SPLIT_CHINESE = "hotshoe.tokenizer.split_chinese_characters"
KEY_MAX_WORD = "hotshoe.tokenizer.max_characters_per_word"
KEY_VERBATIM = "hotshoe.tokenizer.verbatim_ids"  # user-defined tokens that are found before the text is normalized
DEFAULT_WORD_LENGTH = 100  # characters; a longer word becomes the unknown token
MAX_WORD_LENGTH = 1000  # the time to split a word grows with up to the cube of its characters


def phantom(token: str, kind: int) -> str:
    """Convert a token of ``vocab.txt`` to the form that GGUF stores."""
    if kind == TokenType.CONTROL:
        return token
    return token[len(INSIDE) :] if token.startswith(INSIDE) else SPACE + token


def restore(tokens: Sequence[str], types: Sequence[int]) -> list[str]:
    """Convert all tokens of a GGUF file to the form in ``vocab.txt``."""
    restored: list[str] = []
    seen: set[str] = set()
    for stored, kind in zip(tokens, types, strict=True):
        if kind == TokenType.CONTROL or (stored.startswith("[") and stored.endswith("]")):
            token = stored
        elif len(stored) > 1 and stored.startswith(SPACE) and stored[1:] not in seen:
            token = stored[1:]
        else:
            # "▁" alone is the inside of a word, and so is the second of two equal tokens
            token = INSIDE + stored
        seen.add(token)
        restored.append(token)
    return restored


def build(vocabulary: Vocabulary) -> Tokenizer:
    """Build the tokenizer.

    Raises TokenizerError if the pre-tokenizer is unknown, two tokens are equal, or [CLS], [SEP] or [UNK] is missing.
    """
    import tokenizers
    from tokenizers import decoders, models, normalizers, pre_tokenizers

    if vocabulary.pre not in _PRE_TOKENIZERS:
        raise TokenizerError(
            f"tokenizer.ggml.pre is {vocabulary.pre[:60]!r}, an unknown pre-tokenizer for WordPiece; "
            f"known: {', '.join(sorted(_PRE_TOKENIZERS))}",
            hint=did_you_mean(vocabulary.pre, _PRE_TOKENIZERS),
        )
    tokens = restore(vocabulary.tokens, vocabulary.types)
    ids = vocabulary.ids_of(tokens)

    def find(text: str, *names: str) -> int | None:
        found = vocabulary.special_id(*names)
        return ids.get(text) if found is None else found

    def require(text: str, *names: str) -> int:
        found = find(text, *names)
        if found is None:
            raise TokenizerError(
                f"the vocabulary of {len(tokens)} tokens has no {text}, and the file has no key "
                f"tokenizer.ggml.{names[0]}_token_id; WordPiece needs one of them",
                hint="convert the model again from its Hugging Face folder: hotshoe convert FOLDER",
            )
        return found

    cls = require("[CLS]", "cls", "bos")
    sep = require("[SEP]", "seperator", "eos")  # the spelling in GGUF
    unk = require("[UNK]", "unknown")
    special = SpecialIds(
        bos=vocabulary.special_id("bos"),
        eos=vocabulary.special_id("eos"),
        cls=cls,
        sep=sep,
        pad=find("[PAD]", "padding"),
        unk=unk,
        mask=find("[MASK]", "mask"),
    )

    lowercase = vocabulary.flag(KEY_LOWERCASE, True)
    max_word = vocabulary.integer(KEY_MAX_WORD, DEFAULT_WORD_LENGTH)
    if max_word > MAX_WORD_LENGTH:
        raise TokenizerError(f"{KEY_MAX_WORD} is {max_word}; expected at most {MAX_WORD_LENGTH}")
    inner = tokenizers.Tokenizer(models.WordPiece(ids, unk_token=tokens[unk], max_input_chars_per_word=max_word))
    inner.normalizer = normalizers.BertNormalizer(
        clean_text=vocabulary.flag(KEY_CLEAN_TEXT, True),
        handle_chinese_chars=vocabulary.flag(KEY_SPLIT_CHINESE, True),
        strip_accents=vocabulary.flag(KEY_STRIP_ACCENTS, lowercase),
        lowercase=lowercase,
    )
    inner.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    verbatim = vocabulary.ids(KEY_VERBATIM)
    control = {i for i, kind in enumerate(vocabulary.types) if kind == TokenType.CONTROL}
    control.update(i for i in special if i is not None)  # some converters do not mark control tokens
    user = [i for i, kind in enumerate(vocabulary.types) if kind == TokenType.USER_DEFINED and i not in control]
    vocabulary.refuse_long_literals(tokens[i] for i in (*control, *user))
    added = tokenizers.AddedToken
    inner.add_special_tokens([added(tokens[i], special=True, normalized=False) for i in sorted(control)])
    inner.add_tokens([added(tokens[i], special=False, normalized=i not in verbatim) for i in user])
    decoder = _WordPieceDecoder(tokens, decoders.WordPiece(prefix=INSIDE, cleanup=True))
    return Tokenizer(inner, tokens, special, decoder, hidden=control, affixes=_affixes(vocabulary, cls, sep))


def _affixes(vocabulary: Vocabulary, cls: int, sep: int) -> Affixes:
    has_types = vocabulary.integer("tokenizer.ggml.token_type_count", 2) > 1
    separator = [sep] if vocabulary.flag("tokenizer.ggml.add_sep_token", False) else []
    return Affixes((cls,), (sep,), separator, second_type=int(has_types))


@final
class _WordPieceDecoder:
    """Decodes words with spaces between them, as Hugging Face's decoder joins them."""

    __slots__ = ("_decoder", "_tokens")

    def __init__(self, tokens: Sequence[str], decoder: tokenizers.decoders.WordPiece) -> None:
        self._tokens = tokens
        self._decoder = decoder

    def first(self, id: int) -> bytes:
        return self._decoder.decode([self._tokens[id]]).encode()

    def next(self, id: int) -> bytes:
        # after an empty token, because the decoder treats the first token of a list differently
        return self._decoder.decode(["", self._tokens[id]]).encode()
