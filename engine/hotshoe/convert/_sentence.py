"""Read the files that sentence-transformers adds to a model: ``modules.json`` and the folders it names.

GGUF has a key for pooling but not for the other settings, so hotshoe adds keys:
``hotshoe.embedding.normalize`` (bool): embeddings are scaled to length 1 (the module "Normalize").
``hotshoe.embedding.max_seq_length`` (uint32): sentence-transformers truncates texts to this many tokens. It is advice:
the length that the model was trained with, often less than ``{arch}.context_length``, the limit of its positions.
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
    """The settings of a sentence-transformers folder; the defaults are those of a plain transformers folder."""

    transformer: str = ""
    """The folder of the model, relative to the whole folder."""
    pooling: int | None = None
    """A gguf.PoolingType, or None if the folder does not say."""
    normalize: bool | None = None
    """True if embeddings are scaled to length 1; None if the folder does not say."""
    max_seq_length: int | None = None
    dense: tuple[str, ...] = ()
    """The folders of the matrices after pooling."""
    lowercase: bool = False
    """True if texts are lowercased before they are tokenized."""

    def metadata(self, arch: str) -> dict[str, Any]:
        """The GGUF keys of these settings."""
        keys = {
            f"{arch}.pooling_type": self.pooling,
            "hotshoe.embedding.normalize": self.normalize,
            "hotshoe.embedding.max_seq_length": self.max_seq_length,
        }
        return {key: value for key, value in keys.items() if value is not None}


def read_sentence_modules(folder: Path) -> SentenceModules:
    """Read modules.json, if the folder has one.

    Raises ConversionError if it names a module that hotshoe does not convert; ModelFileError if a file is damaged.
    """
    path = folder / "modules.json"
    if not path.is_file():
        return SentenceModules(transformer=_OLD_LAYOUT if (folder / _OLD_LAYOUT / "config.json").is_file() else "")
    transformer, pooling, normalize, dense = "", None, False, list[str]()
    for module in read_list(path):
        kind, subfolder = _module(module, path)
        if kind == "Transformer":
            transformer = subfolder
        elif kind == "Pooling":
            pooling = _pooling(folder / subfolder / "config.json")
        elif kind == "Normalize":
            normalize = True
        elif kind == "Dense":
            _check_dense(folder / subfolder / "config.json")
            dense.append(subfolder)
        elif kind != "Dropout":  # has no effect outside training
            raise ConversionError(
                f"{path} has the module {kind!r} after the model; hotshoe converts only Transformer, Pooling, "
                "Dense and Normalize, and without that module the embeddings would be wrong"
            )
    settings_path = folder / transformer / "sentence_bert_config.json"
    settings = read_object(settings_path) if settings_path.is_file() else {}
    length = settings.get("max_seq_length")
    return SentenceModules(
        transformer=transformer,
        pooling=pooling,
        normalize=normalize,
        max_seq_length=length if type(length) is int and 0 < length < 2**32 else None,
        dense=tuple(dense),
        lowercase=settings.get("do_lower_case") is True,
    )


def _module(module: Any, path: Path) -> tuple[str, str]:
    kind = module.get("type") if isinstance(module, dict) else None
    subfolder = module.get("path", "") if isinstance(module, dict) else None
    # the path is joined to the folder, so it must not lead out of it
    if (
        not isinstance(kind, str)
        or not isinstance(subfolder, str)
        or Path(subfolder).is_absolute()
        or ".." in Path(subfolder).parts
    ):
        raise ModelFileError(f"an entry is {str(module)[:80]}; expected type and path", path=path)
    return kind.rpartition(".")[2], subfolder


def _check_dense(path: Path) -> None:
    """Raise ConversionError unless the module is a matrix, without a bias and an activation."""
    config = read_object(path)
    activation = str(config.get("activation_function", "torch.nn.modules.activation.Tanh")).rpartition(".")[2]
    if config.get("bias", True) is not False or activation != "Identity":
        raise ConversionError(
            f"{path}: a Dense module with bias {config.get('bias', True)} and the activation {activation}; a GGUF file "
            "can only express one with bias False and Identity"
        )


def _pooling(path: Path) -> int:
    config = read_object(path)
    mode = config.get("pooling_mode")
    if mode is None:
        modes = [name for key, name in _LEGACY.items() if config.get(key)] or ["mean"]
        mode = modes[0] if len(modes) == 1 else modes
    if not isinstance(mode, str) or mode not in _POOLING:
        raise ConversionError(
            f"{path}: the pooling is {mode!r}; a GGUF file can only express: {', '.join(sorted(_POOLING))}",
        )
    return _POOLING[mode]
