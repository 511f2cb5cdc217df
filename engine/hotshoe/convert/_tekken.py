"""Read Mistral's own tokenizer file, ``tekken.json``, which some of its checkpoints have instead of tokenizer.json.

It lists the bytes of each token in the order of their ranks. The first ids belong to special tokens, and the id of
another token is its rank plus their number. The merges follow from the ranks, as those of tiktoken do.
"""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

from hotshoe.convert._json import read_object
from hotshoe.convert._tiktoken import LONGEST, named_by_rank, require_bytes
from hotshoe.convert._tokenfiles import TEKKEN, Vocab
from hotshoe.tokenizers import TokenType
from hotshoe.tokenizers._pretokenizers import PRE_TOKENIZERS
from hotshoe_core.errors import ConversionError, ModelFileError

if TYPE_CHECKING:
    from pathlib import Path

    from hotshoe.convert._tokenfiles import TextTokenizer

__all__ = ["is_tekken", "read_tekken"]

_MOST = 1 << 22  # tokens
# the first special tokens of files that do not list them
_SPECIAL = (
    *("<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_RESULTS]"),
    *("[/TOOL_RESULTS]", "[TOOL_CALLS]", "[IMG]", "<pad>", "[IMG_BREAK]", "[IMG_END]", "[PREFIX]", "[MIDDLE]"),
    *("[SUFFIX]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "[TOOL_CONTENT]"),
)
_ROLES = {"bos": "<s>", "eos": "</s>", "unknown": "<unk>"}


def is_tekken(files: TextTokenizer) -> bool:
    """True if the folder has Mistral's file and no tokenizer.json. It comes before an older tokenizer.model."""
    return not files.tokenizer and (files.folder / TEKKEN).is_file()


def read_tekken(files: TextTokenizer) -> Vocab:
    """Read the vocabulary.

    Raises ModelFileError if the file is damaged; ConversionError if it splits texts in a way that GGUF does not name.
    """
    path = files.folder / TEKKEN
    content = read_object(path)
    config = content.get("config")
    config = config if isinstance(config, dict) else {}
    if (config.get("pattern"),) != PRE_TOKENIZERS["tekken"].splits:
        raise ConversionError(
            f"{path}: the pattern that splits a text into words is {config.get('pattern')!r}; GGUF has a name only for "
            "that of the published models"
        )
    n_special, n_all = (_count(config, key, path) for key in ("default_num_special_tokens", "default_vocab_size"))
    ranks = _ranks(content.get("vocab"), n_all - n_special, path)
    named, merges = named_by_rank(ranks)
    tokens = {rank + n_special: named[token] for token, rank in ranks.items()}
    types = dict.fromkeys(tokens, TokenType.NORMAL)
    for i, token in enumerate(_special(content.get("special_tokens"), n_special, path)):
        tokens[i], types[i] = token, TokenType.CONTROL
    ids = {token: i for i, token in tokens.items() if i < n_special}
    roles = {f"{role}_token_id": ids[token] for role, token in _ROLES.items() if token in ids}
    keys = {"model": "gpt2", "pre": "tekken", "merges": merges, "add_bos_token": True, "add_eos_token": False, **roles}
    return Vocab(tokens, types, keys, exact=False)


def _count(config: dict[str, Any], key: str, path: Path) -> int:
    n = config.get(key)
    if type(n) is not int or not 0 < n <= _MOST:
        raise ModelFileError(f"is {n!r}; expected a number of tokens", path=path, field=f"config.{key}")
    return n


def _ranks(entries: Any, n: int, path: Path) -> dict[bytes, int]:
    """The ranks of the first ``n`` tokens: the file may list more than the model has."""
    ranks: dict[bytes, int] = {}
    for entry in entries[: max(n, 0)] if isinstance(entries, list) else []:
        try:
            token = base64.b64decode(entry["token_bytes"], validate=True)
            fine = entry["rank"] == len(ranks) and 0 < len(token) <= LONGEST and token not in ranks
        except (KeyError, TypeError, ValueError):
            fine = False
        if not fine:
            raise ModelFileError(
                f"has {str(entry)[:80]}; expected the bytes of a new token, and rank {len(ranks)}",
                path=path,
                field="vocab",
            )
        ranks[token] = len(ranks)
    require_bytes(ranks, path)
    return ranks


def _special(entries: Any, n: int, path: Path) -> list[str]:
    """The names of the ``n`` special tokens. Those that the file does not name are reserved."""
    names = [f"<SPECIAL_{i}>" for i in range(n)]
    if entries is None:
        return [*_SPECIAL[:n], *names[len(_SPECIAL) :]]
    for entry in entries if isinstance(entries, list) else [entries]:
        rank, name = (entry.get("rank"), entry.get("token_str")) if isinstance(entry, dict) else (None, None)
        if not isinstance(rank, int) or not 0 <= rank < n or not isinstance(name, str):
            raise ModelFileError(
                f"has {str(entry)[:80]}; expected a name and a rank below {n}", path=path, field="special_tokens"
            )
        names[rank] = name
    return names
