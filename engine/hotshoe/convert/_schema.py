"""``make_layout``: describe a GGUF file by its keys. The model that they describe says which tensors it holds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hotshoe import families
from hotshoe.convert._layout import FileLayout
from hotshoe.convert._match import Rules, match_tensors
from hotshoe.convert._settings import unread_arithmetic
from hotshoe.convert._tokens import tokenizer_metadata
from hotshoe.unread_keys import find_unread
from hotshoe_core.errors import ConversionError, ModelError, ModelFileError
from hotshoe_core.gguf import Metadata

if TYPE_CHECKING:
    from hotshoe.convert._checkpoint import Checkpoint
    from hotshoe.nn import Module

__all__ = ["checked_model", "make_layout", "refuse_unread"]

_OUTPUT = "output.weight"
_WITHOUT_ARCH = ("tokenizer.", "hotshoe.", "xielu.")


def make_layout(
    checkpoint: Checkpoint,
    arch: str,
    keys: Mapping[str, Any],
    rules: Rules | None = None,
    *,
    vocab: int,
    tied: bool = False,
    tokenizer: Callable[[Checkpoint, int], dict[str, Any]] = tokenizer_metadata,
    block: str = "blk.",
) -> FileLayout:
    """Describe the file of a model: the given keys, the tensors that the model declares, and its tokenizer.

    keys: metadata by name, without "<arch>."; names that begin with "tokenizer.", "hotshoe." or "xielu." are whole.
    rules: what differs between the checkpoint's tensors and the model's.
    vocab: the number of tokens, which is the number of rows of the embedding.
    tied: the architecture's default of tie_word_embeddings.
    tokenizer: reads the tokenizer's files.
    block: what the names of layers begin with in the file, before their number.

    Raises ConversionError if tensors are missing, unknown, or of another shape, or if GGUF cannot express the model or
    its tokenizer; ModelFileError if files of the tokenizer are missing or damaged; UnknownArchitectureError if no
    installed distribution has a model for ``arch``; ConversionError if config.json has a setting that changes the
    arithmetic and that no code has read.
    """
    rules = rules or Rules()
    metadata = {key if key.startswith(_WITHOUT_ARCH) else f"{arch}.{key}": value for key, value in keys.items()}
    if "pooling_type" not in keys:  # the keys of a reranker say how it pools
        metadata |= checkpoint.sentence.metadata(arch)
    model = _model(checkpoint, metadata | {"general.architecture": arch})
    required = {*rules.required, *([_OUTPUT] if _needs_output(checkpoint, model, tied) else ())}
    rows = {"token_embd.weight": vocab, _OUTPUT: vocab, **rules.rows}
    tensors = match_tensors(checkpoint, model, replace(rules, required=required, rows=rows), block)
    # after the tensors, because their shapes prove that ``vocab`` is correct
    layout = FileLayout(arch, metadata | tokenizer(checkpoint, vocab), tensors)
    refuse_unread(checkpoint)
    return layout


def refuse_unread(checkpoint: Checkpoint) -> None:
    """Raise ConversionError if a setting that changes the arithmetic was not read."""
    if found := unread_arithmetic(checkpoint.config):
        raise checkpoint.refusal(
            f"{found[0][:200]}, which this converter does not know, so the file would compute something else"
            + "".join(f"; the same holds for {other[:80]}" for other in found[1:4]),
            hint="upgrade hotshoe, or report the model; in a converter of your own, read or expect() the setting",
        )


def _model(checkpoint: Checkpoint, values: dict[str, Any]) -> Module:
    """The model that the metadata describe, without weights."""
    metadata = Metadata(values, {}, Path("the file"))
    model_class = families.find_model(metadata)
    return checked_model(checkpoint, model_class, metadata, f"the converter of {metadata.architecture!r}")


def checked_model(checkpoint: Checkpoint, model_class: type[Module], metadata: Metadata, converter: str) -> Module:
    """Make the model that metadata describe, without weights. ``converter``: who wrote the metadata, for messages.

    Raises ConversionError for metadata of a file that could not be loaded; ModelError for a key that no code reads.
    """
    try:
        config: Any = model_class.config_type().from_metadata(metadata)
        if getattr(config, "n_nextn", 0):
            config = replace(config, n_drafting=1)  # a model that declares the layer gets it
        model = model_class(config)
    except ModelFileError as error:
        raise checkpoint.refusal(
            f"it describes a file that hotshoe cannot load: {error.message}", "check the sizes in config.json"
        ) from error
    for key, value in find_unread(metadata, model).items():
        raise ModelError(
            f"{converter} writes {key} = {value!r}, which {model_class.__module__}.{model_class.__qualname__} does not "
            "read: loading the file would fail",
            hint="read the key in the model's Config, do not write it, or name it in unused_keys",
        )
    return model


def _needs_output(checkpoint: Checkpoint, model: Module, tied: bool) -> bool:
    """True if the checkpoint must have an output matrix of its own. Some have one although it is tied.

    Raises ConversionError if the checkpoint is a text model's without an output matrix: that of an embedding model
    whose pooling is unknown.
    """
    if not any(_OUTPUT in p.names for p in model.parameters()):
        return False
    if (checkpoint.architecture or "").removesuffix("LMHeadModel").endswith("Model"):
        raise ConversionError(
            f"{checkpoint.model} is a {checkpoint.architecture}, a model without an output matrix, but has no "
            "modules.json that says how embeddings are pooled",
            hint="copy modules.json and the folders it names from the sentence-transformers model",
        )
    stated = checkpoint.config.get("tie_word_embeddings")
    return not (tied if stated is None else bool(stated))
