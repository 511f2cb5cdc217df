"""From a folder to a file: the one function that users call."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from hotshoe import families
from hotshoe.convert._checkpoint import Checkpoint, open_checkpoint
from hotshoe.convert._plan import Plan
from hotshoe.convert._write import check_request, write
from hotshoe_core.errors import ModelError, UnknownArchitectureError, did_you_mean

__all__ = ["convert"]


def convert(
    source: str | Path,
    destination: str | Path,
    file_type: str = "f16",
    *,
    progress: Callable[[float], None] | None = None,
    overwrite: bool = False,
) -> Path:
    """Writes the model in the folder ``source`` to the GGUF file ``destination`` and returns its path.

    ``file_type`` says what the large weights become: "f32", "f16", "bf16", or one of the mixes of
    ``hotshoe.quantize.FILE_TYPES`` that need no importance matrix, as if the file were written in f32 and then
    quantized. Vectors, norms, expert routers, and position and token-type embeddings stay f32, as llama.cpp's
    converter leaves them. ``progress`` is called with a fraction from 0 to 1. The file appears under its name only
    when it is complete; until then nothing by that name is touched.

    Raises ModelFileError for a folder or file that is not what it should be, UnknownArchitectureError for a
    model that no installed distribution converts, ModelError where several claim to, ConversionError for a checkpoint
    or request that cannot be met.
    """
    target, kind = check_request(destination, file_type, overwrite)
    checkpoint = open_checkpoint(source)
    write(_plan_of(checkpoint), checkpoint, target, kind, progress)
    return target


def _plan_of(checkpoint: Checkpoint) -> Plan:
    name = checkpoint.architecture or checkpoint.config.get("model_type")
    known = families.names(families.CONVERTERS)
    if not isinstance(name, str) or name not in known:
        what = f"a {name}" if isinstance(name, str) else "a model of no architecture that config.json names"
        # the others are model types, each beside its architecture
        architectures = [other for other in known if other[:1].isupper()]
        raise UnknownArchitectureError(
            f"{checkpoint.folder} holds {what}, which hotshoe cannot convert; it converts: {', '.join(architectures)}",
            hint=did_you_mean(str(name), known),
        )
    plan = families.find(families.CONVERTERS, name)(checkpoint)
    if not isinstance(plan, Plan):
        raise ModelError(
            f"the entry point {name!r} of {families.CONVERTERS!r} gave a {type(plan).__name__}; "
            "expected a function of a Checkpoint that returns a hotshoe.convert.Plan"
        )
    return plan
