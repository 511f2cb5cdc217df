"""Writes a plan to a GGUF file: one tensor in memory at a time, under another name until it is complete."""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gguf
import numpy as np

from hotshoe.convert._plan import DTYPES
from hotshoe_core.dtypes import DType
from hotshoe_core.errors import ConversionError, did_you_mean

if TYPE_CHECKING:
    from hotshoe.convert._checkpoint import Checkpoint
    from hotshoe.convert._plan import Plan, PlannedTensor

__all__ = ["check_request", "write"]

logger = logging.getLogger(__name__)

_FILE_TYPES = {
    DType.F32: gguf.LlamaFileType.ALL_F32,
    DType.F16: gguf.LlamaFileType.MOSTLY_F16,
    DType.BF16: gguf.LlamaFileType.MOSTLY_BF16,
    DType.Q8_0: gguf.LlamaFileType.MOSTLY_Q8_0,
    DType.Q4_0: gguf.LlamaFileType.MOSTLY_Q4_0,
}


def check_request(destination: str | Path, dtype: str, overwrite: bool) -> tuple[Path, DType]:
    """The file to write and its element type. Raises ConversionError, before any work is done."""
    if dtype.lower() not in DTYPES:
        raise ConversionError(
            f"dtype is {dtype!r}; a model can be converted to {', '.join(DTYPES)}",
            hint=did_you_mean(dtype.lower(), DTYPES),
        )
    target = Path(destination).expanduser()
    if target.is_dir():
        raise ConversionError(
            f"{target} is a folder; expected the name of the file to write", hint=f"for example {target / 'model.gguf'}"
        )
    if not target.parent.is_dir():
        raise ConversionError(
            f"cannot write {target}: the folder {target.parent} does not exist", hint=f"mkdir -p {target.parent}"
        )
    if target.exists() and not overwrite:
        raise ConversionError(
            f"{target} exists already",
            hint="choose another name, or allow it to be replaced (overwrite=True, --overwrite)",
        )
    return target, DType.parse(dtype)


def write(
    plan: Plan, checkpoint: Checkpoint, target: Path, dtype: DType, progress: Callable[[float], None] | None = None
) -> None:
    """Raises ConversionError where a value does not fit the element type or the file cannot be written."""
    part = target.with_name(f".{target.name}.{secrets.token_hex(4)}.part")
    writer = gguf.GGUFWriter(None, plan.arch)
    try:
        try:
            _write(writer, part, plan, checkpoint, dtype, progress or _ignore)
        finally:
            writer.close()
        os.replace(part, target)
    except OSError as error:
        raise ConversionError(
            f"cannot write {target}: {error.strerror or error}",
            hint="check the free space and the permissions of the folder",
        ) from error
    finally:
        # also on KeyboardInterrupt, and where closing the file fails because the disk is full: nothing stays behind
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)


def _write(
    writer: gguf.GGUFWriter,
    part: Path,
    plan: Plan,
    checkpoint: Checkpoint,
    dtype: DType,
    progress: Callable[[float], None],
) -> None:
    elements = {t.name: _element(t, dtype) for t in plan.tensors}
    for t in plan.tensors:
        element = elements[t.name]
        raw = gguf.GGMLQuantizationType(element.id)
        writer.add_tensor_info(t.name, t.shape, np.dtype(np.float32), element.nbytes(t.shape), raw_dtype=raw)
    _add_general(writer, checkpoint)
    for key, value in plan.metadata.items():
        _add(writer, key, value)
    writer.add_file_type(_FILE_TYPES[dtype])
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)

    writer.write_header_to_file(part)
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    total = sum(elements[t.name].nbytes(t.shape) for t in plan.tensors)
    done = 0
    progress(0.0)
    for t in plan.tensors:
        element = elements[t.name]
        writer.write_tensor_data(_convert(t, checkpoint, element))
        done += element.nbytes(t.shape)
        progress(done / total)


def _element(tensor: PlannedTensor, dtype: DType) -> DType:
    if tensor.full_precision:
        return DType.F32
    if tensor.output and dtype is DType.Q4_0:
        # llama.cpp takes Q6_K here, or Q8_0 for rows that are no multiple of 256; this does not write K-quants
        dtype = DType.Q8_0
    # rows that are not a whole number of blocks cannot be quantized; llama.cpp's converter falls back to f16 too
    return DType.F16 if tensor.shape[-1] % dtype.block_size else dtype


def _convert(tensor: PlannedTensor, checkpoint: Checkpoint, element: DType) -> np.ndarray[Any, Any]:
    values = checkpoint.read(tensor.source) if tensor.make is None else tensor.make()
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
                f"tensor {tensor.source} of {checkpoint.model} reaches {np.abs(values).max():.4g}, "
                "and the largest number of f16 is 65504",
                hint="convert with --dtype f32",
            )
        return half
    with np.errstate(all="ignore"):  # scales that become 0, whatever the user's np.seterr makes of them
        return gguf.quants.quantize(values, gguf.GGMLQuantizationType(element.id))


def _add_general(writer: gguf.GGUFWriter, checkpoint: Checkpoint) -> None:
    """``general.*``: name, authors, licence, … as far as the folder's README and config.json tell them."""
    total, shared, expert, n_experts = writer.get_total_parameter_count()
    writer.add_type(gguf.GGUFType.MODEL)
    # a model card is free text: whatever is wrong with it, the model is not
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
    # numbers are only ever written by code, text comes from the card as YAML had it
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


def _ignore(fraction: float) -> None:
    """The progress callback of a caller that passes none."""
