"""What a sentence-transformers folder says around the model: ``modules.json`` and the folders it names.

GGUF has a key for pooling and none for the rest, so hotshoe adds its own:
``hotshoe.embedding.normalize`` (bool): the embedding is scaled to length 1 (the module "Normalize").
``hotshoe.embedding.max_seq_length`` (uint32): where sentence-transformers cuts a text. It is advice (the lengths the
model was trained on), often below ``{arch}.context_length``, which is what the position embeddings allow.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hotshoe.convert._json import read_list, read_object
from hotshoe_core.errors import ConversionError, ModelFileError

__all__ = ["SentenceModules", "read_sentence_modules"]

# values of gguf.PoolingType
_POOLING = {"mean": 1, "cls": 2, "lasttoken": 3}
_LEGACY = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
_OLD_LAYOUT = "0_Transformer"


@dataclass(frozen=True, slots=True)
class SentenceModules:
    """``pooling`` is a gguf.PoolingType; None where the folder says nothing, as for a plain transformers model."""

    transformer: str = ""  # folder of the model, relative to the whole
    pooling: int | None = None
    normalize: bool | None = None
    max_seq_length: int | None = None
    lowercase: bool = False  # texts are lowercased before the tokenizer sees them

    def metadata(self, arch: str) -> dict[str, Any]:
        """The GGUF keys for this."""
        keys = {
            f"{arch}.pooling_type": self.pooling,
            "hotshoe.embedding.normalize": self.normalize,
            "hotshoe.embedding.max_seq_length": self.max_seq_length,
        }
        return {key: value for key, value in keys.items() if value is not None}


def read_sentence_modules(folder: Path) -> SentenceModules:
    """Raises ConversionError for a module that hotshoe would silently leave out, ModelFileError for broken files."""
    path = folder / "modules.json"
    if not path.is_file():
        return SentenceModules(transformer=_OLD_LAYOUT if (folder / _OLD_LAYOUT / "config.json").is_file() else "")
    transformer, pooling, normalize = "", None, False
    for module in read_list(path):
        kind, place = _module(module, path)
        if kind == "Transformer":
            transformer = place
        elif kind == "Pooling":
            pooling = _pooling(folder / place / "config.json")
        elif kind == "Normalize":
            normalize = True
        elif kind != "Dropout":  # does nothing outside training
            raise ConversionError(
                f"{path} has the module {kind!r} after the model; hotshoe converts Transformer, Pooling and Normalize, "
                "and without that module the embeddings would be wrong"
            )
    settings_path = folder / transformer / "sentence_bert_config.json"
    settings = read_object(settings_path) if settings_path.is_file() else {}
    length = settings.get("max_seq_length")
    return SentenceModules(
        transformer=transformer,
        pooling=pooling,
        normalize=normalize,
        max_seq_length=length if type(length) is int and 0 < length < 2**32 else None,
        lowercase=settings.get("do_lower_case") is True,
    )


def _module(module: Any, path: Path) -> tuple[str, str]:
    kind = module.get("type") if isinstance(module, dict) else None
    place = module.get("path", "") if isinstance(module, dict) else None
    # the place is joined to the folder: it may not lead out of it
    if (
        not isinstance(kind, str)
        or not isinstance(place, str)
        or Path(place).is_absolute()
        or ".." in Path(place).parts
    ):
        raise ModelFileError(f"an entry is {str(module)[:80]}; expected type and path", path=path)
    return kind.rpartition(".")[2], place


def _pooling(path: Path) -> int:
    config = read_object(path)
    mode = config.get("pooling_mode")
    if mode is None:
        modes = [name for key, name in _LEGACY.items() if config.get(key)] or ["mean"]
        mode = modes[0] if len(modes) == 1 else modes
    if not isinstance(mode, str) or mode not in _POOLING:
        raise ConversionError(
            f"{path}: the pooling is {mode!r}; a GGUF file can say: {', '.join(sorted(_POOLING))}",
        )
    return _POOLING[mode]
