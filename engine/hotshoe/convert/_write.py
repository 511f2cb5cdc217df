"""Write a FileLayout to a GGUF file, with one tensor in memory at a time."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gguf
import numpy as np

from hotshoe.atomic_file import atomic_write, check_target
from hotshoe.quantize._filetypes import FileType, parse_file_type
from hotshoe.quantize._plan import QuantizeParams, facts_of, make_plan
from hotshoe.quantize._rows import RowQuantizer, open_quantizer
from hotshoe_core.errors import ConversionError
from hotshoe_core.gguf import Metadata
from hotshoe_core.tensors.dtypes import DType

if TYPE_CHECKING:
    from hotshoe.convert._checkpoint import Checkpoint
    from hotshoe.convert._layout import FileLayout, TensorLayout

__all__ = ["check_request", "write"]

_BLOCK_FILES = {DType.MXFP4: 38, DType.NVFP4: 39}  # general.file_type of files with tensors of these types

logger = logging.getLogger(__name__)


def check_request(destination: str | Path, file_type: str, overwrite: bool) -> tuple[Path, FileType]:
    """Check the destination and the type before any work is done. Return them. Raises ConversionError."""
    kind = parse_file_type(file_type)
    return check_target(destination, overwrite), kind


def write(
    layout: FileLayout,
    checkpoint: Checkpoint,
    target: Path,
    kind: FileType,
    progress: Callable[[float], None] | None = None,
) -> None:
    """Write the GGUF file.

    Raises ConversionError if a value does not fit its type, no backend can quantize, or the file cannot be written.
    """
    elements = _elements(layout, kind)
    kinds = {(DType.F32, elements[t.name], False) for t in layout.tensors if t.blocks is None}
    kinds = {(old, new, important) for old, new, important in kinds if new.is_quantized}
    progress = progress or (lambda fraction: None)
    with (
        open_quantizer(kinds) as quantizer,
        atomic_write(target) as part,
        contextlib.closing(gguf.GGUFWriter(None, layout.arch)) as writer,
    ):
        for t in layout.tensors:
            element = elements[t.name]
            raw = gguf.GGMLQuantizationType(element.id)
            writer.add_tensor_info(t.name, t.shape, np.dtype(np.float32), element.nbytes(t.shape), raw_dtype=raw)
        _add_general(writer, checkpoint, layout.arch)
        for key, value in layout.metadata.items():
            _add(writer, key, value)
        blocks = next((t.blocks for t in layout.tensors if t.blocks is not None), None)
        writer.add_file_type(_BLOCK_FILES[blocks] if blocks is not None and kind.is_plain else kind.number)
        writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
        writer.write_header_to_file(part)
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        total, done = sum(elements[t.name].nbytes(t.shape) for t in layout.tensors), 0
        progress(0.0)
        for t in layout.tensors:
            writer.write_tensor_data(_convert(t, checkpoint, elements[t.name], quantizer))
            done += elements[t.name].nbytes(t.shape)
            progress(done / total)


def _elements(layout: FileLayout, kind: FileType) -> dict[str, DType]:
    """The element type of each tensor: the same mix that ``hotshoe quantize`` would apply to the file in f32."""
    if kind.is_plain:
        return {t.name: t.blocks or (DType.F32 if t.full_precision else kind.base) for t in layout.tensors}
    metadata = Metadata(
        {**layout.metadata, "general.architecture": layout.arch}, {}, Path(f"the layout of {layout.arch}")
    )
    tensors = {t.name: (t.shape, DType.F32) for t in layout.tensors}
    changes = {c.name: c for c in make_plan(tensors, facts_of(metadata, tensors), kind, QuantizeParams(), None)}
    kept = {t.name for t in layout.tensors if t.blocks is not None}
    lacking = [c for c in changes.values() if c.lacks_importance and c.name not in kept]
    if lacking:
        raise ConversionError(
            f"{kind.name} needs an importance matrix, which is made from a converted model: {lacking[0].name} would be "
            f"{lacking[0].new.name.lower()}",
            hint="convert with --type f16; then hotshoe imatrix, and hotshoe quantize with --imatrix",
        )
    return {t.name: t.blocks or (DType.F32 if t.full_precision else changes[t.name].new) for t in layout.tensors}


def _convert(
    tensor: TensorLayout, checkpoint: Checkpoint, element: DType, quantizer: RowQuantizer | None
) -> np.ndarray[Any, Any]:
    values = tensor.make()
    if tensor.blocks is not None:
        return values
    if not np.isfinite(values).all():
        raise ConversionError(
            f"tensor {tensor.source} of {checkpoint.model} holds values that are not numbers (NaN or infinite)",
            hint="the checkpoint is damaged, or its training diverged: download it again",
        )
    if element is DType.F32:
        return values
    if element is DType.F16:
        with np.errstate(all="ignore"):
            half = values.astype(np.float16)
        if not np.isfinite(half).all():
            raise ConversionError(
                f"tensor {tensor.source} of {checkpoint.model} has the value {np.abs(values).max():.4g}, "
                "but the largest number of f16 is 65504",
                hint="convert with --type f32",
            )
        return half
    if element.is_quantized:
        assert quantizer is not None
        raw = np.ascontiguousarray(values, np.float32).reshape(-1).view(np.uint8)
        pieces = quantizer.pieces(tensor.name, raw, DType.F32, element, tensor.shape)
        return np.concatenate(list(pieces)).reshape(*tensor.shape[:-1], -1)
    with np.errstate(all="ignore"):
        return gguf.quants.quantize(values, gguf.GGMLQuantizationType(element.id))


def _add_general(writer: gguf.GGUFWriter, checkpoint: Checkpoint, arch: str) -> None:
    """Add the ``general.*`` keys: name, authors, licence, … from the folder's README and config.json."""
    total, shared, expert, n_experts = writer.get_total_parameter_count()
    writer.add_type(gguf.GGUFType.MMPROJ if arch == "clip" else gguf.GGUFType.MODEL)
    # a model card is free text: an error in it must not stop the conversion
    try:
        metadata = gguf.Metadata.load(None, checkpoint.model, None, total)
    except Exception as error:
        logger.warning(
            "%s: the model card is not readable, so the file will name no authors: %s", checkpoint.model, error
        )
        metadata = gguf.Metadata()
    if not isinstance(metadata.name, str):
        metadata.name = checkpoint.folder.resolve().name
    if not isinstance(metadata.size_label, str):
        metadata.size_label = gguf.size_label(total, shared, expert, n_experts)
    try:
        metadata.set_gguf_meta_model(writer)
    except Exception as error:
        logger.warning("%s: the model card is incomplete in the file: %s", checkpoint.model, error)
    entries = writer.kv_data[0]
    for key in [key for key, entry in entries.items() if not _is_well_typed(entry)]:
        logger.warning("%s: the model card's %s is %r, which is not text", checkpoint.model, key, entries[key].value)
        del entries[key]


def _is_well_typed(entry: Any) -> bool:
    # YAML may have parsed a text as another type; numbers come from code and are always correct
    if entry.type == gguf.GGUFValueType.ARRAY:
        return isinstance(entry.value, list) and all(isinstance(v, str) for v in entry.value)
    return bool(isinstance(entry.value, str) == (entry.type == gguf.GGUFValueType.STRING))


def _add(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    else:
        writer.add_array(key, value)
