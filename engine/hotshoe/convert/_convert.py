"""``convert``: convert a Hugging Face folder to a GGUF file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from hotshoe import families
from hotshoe.convert._checkpoint import Checkpoint, open_checkpoint
from hotshoe.convert._layout import FileLayout
from hotshoe.convert._write import check_request, write
from hotshoe_core.errors import ModelError, UnknownArchitectureError, similar

__all__ = ["convert", "find_converter"]

_TEXTS = {  # by group, for messages: what has no converter, the page on converters, what they call
    families.CONVERTERS: ("which", "models", "make_layout"),
    families.TOWER_CONVERTERS: ("whose encoder of pictures or sounds", "towers", "make_tower_layout"),
}


def convert(
    source: str | Path,
    destination: str | Path,
    file_type: str = "f16",
    *,
    projector: bool = False,
    progress: Callable[[float], None] | None = None,
    overwrite: bool = False,
) -> Path:
    """Write the model in the Hugging Face folder ``source`` to the GGUF file ``destination``. Return its path.

    file_type: the type of the large weights: "f32", "f16", "bf16", or a mix of ``hotshoe.quantize.FILE_TYPES`` that
    needs no importance matrix, with the same result as writing f32 and then quantizing. Vectors, norms, expert routers,
    and position and token-type embeddings stay f32, as in files of llama.cpp's converter.
    projector: write the encoders of pictures and sounds instead, as a file of its own (mmproj).
    progress: called with a fraction from 0 to 1.
    overwrite: replace the file if it exists.

    The file appears under its name only when it is complete. If the conversion fails, an existing file is unchanged.

    Raises ModelFileError if the folder or one of its files is missing or damaged; UnknownArchitectureError if no
    installed distribution converts the model; ModelError if several distributions claim to; ConversionError if GGUF
    cannot express the checkpoint, or the file cannot be written.
    """
    target, kind = check_request(destination, file_type, overwrite)
    checkpoint = open_checkpoint(source)
    group = families.TOWER_CONVERTERS if projector else families.CONVERTERS
    write(_describe(checkpoint, group), checkpoint, target, kind, progress)
    return target


def find_converter(checkpoint: Checkpoint, group: str = families.CONVERTERS) -> Callable[[Checkpoint], FileLayout]:
    """Return the converter of a checkpoint's architecture. Raises UnknownArchitectureError or ModelError.

    group: the entry point group; that of encoders is ``families.TOWER_CONVERTERS``.
    """
    name = checkpoint.architecture or checkpoint.config.get("model_type")
    known = families.names(group)
    if not isinstance(name, str) or name not in known:
        whose, page, _ = _TEXTS[group]
        what = f"a {name}" if isinstance(name, str) else "a model whose architecture config.json does not name"
        near = similar(str(name), known)
        raise UnknownArchitectureError(
            f"{checkpoint.folder} holds {what}, {whose} no installed package converts",
            hint=(f"did you mean {near!r}?; " if near else "")
            + f"docs/families.md lists what hotshoe converts, docs/{page}.md says how to add one",
        )
    converter: Callable[[Checkpoint], FileLayout] = families.find(group, name)
    return converter


def _describe(checkpoint: Checkpoint, group: str) -> FileLayout:
    layout = find_converter(checkpoint, group)(checkpoint)
    if not isinstance(layout, FileLayout):
        name = checkpoint.architecture or checkpoint.config.get("model_type")
        raise ModelError(
            f"the converter of {name!r} (entry point of {group!r}) returned {type(layout).__name__}; "
            "expected a FileLayout",
            hint=f"end the function with `return {_TEXTS[group][2]}(…)`",
        )
    return layout
