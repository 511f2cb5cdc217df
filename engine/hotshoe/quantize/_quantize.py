"""``quantize_model`` and ``plan_quantization``: make a GGUF file smaller."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from hotshoe.atomic_file import atomic_write, check_target
from hotshoe.quantize._filetypes import FileType, parse_file_type
from hotshoe.quantize._gguf import Row, head, padding, string_entry, u32_entry
from hotshoe.quantize._imatrix import ImportanceMatrix
from hotshoe.quantize._plan import Change, QuantizeParams, facts_of, make_plan
from hotshoe.quantize._rows import RowQuantizer, open_quantizer
from hotshoe_core.errors import ConversionError, ModelFileError
from hotshoe_core.errors.arguments import described, file_path
from hotshoe_core.gguf import GGUFFile
from hotshoe_core.tensors.dtypes import DType

__all__ = ["QuantizationPlan", "plan_quantization", "quantize_model"]

Array = np.ndarray[Any, Any]
Progress = Callable[[float], None]

_FORMAT_VERSION = 2  # version of the block formats: GGML_QNT_VERSION
_SPLIT_KEYS = frozenset({"split.no", "split.count", "split.tensors.count"})
_COPY_BYTES = 1 << 23  # bytes copied at once


@dataclass(frozen=True, slots=True)
class QuantizationPlan:
    """What quantizing a file will do to each tensor."""

    file_type: FileType
    changes: tuple[Change, ...]
    """One for each tensor, in the order of the new file."""

    @property
    def nbytes_old(self) -> int:
        """Bytes of all tensors before."""
        return sum(change.nbytes_old for change in self.changes)

    @property
    def nbytes_new(self) -> int:
        """Bytes of all tensors after."""
        return sum(change.nbytes_new for change in self.changes)

    @property
    def bits_per_weight(self) -> float:
        """The average bits of a weight after, over all tensors."""
        return 8 * self.nbytes_new / max(1, sum(prod(change.shape) for change in self.changes))

    @property
    def lacking(self) -> tuple[Change, ...]:
        """The changes that need an importance matrix, but have no entry in one."""
        return tuple(change for change in self.changes if change.lacks_importance)


def plan_quantization(
    source: str | os.PathLike[str], file_type: str = "q4_k_m", params: QuantizeParams | None = None
) -> QuantizationPlan:
    """Plan what ``quantize_model`` would do. Reads only the header of the file.

    Raises ConversionError if the request is impossible, ModelFileError if a file is damaged.
    """
    kind, params = parse_file_type(file_type), _params(params)
    with _open(source) as file:
        return _plan(file, kind, params, _imatrix(params))


def quantize_model(
    source: str | os.PathLike[str],
    destination: str | os.PathLike[str],
    file_type: str = "q4_k_m",
    params: QuantizeParams | None = None,
    *,
    n_threads: int | None = None,
    progress: Progress | None = None,
    overwrite: bool = False,
) -> Path:
    """Quantize the model in the GGUF file ``source`` to the file ``destination``. Return the path of the new file.

    file_type: one of ``FILE_TYPES``. The result is the same as that of llama.cpp's tool, byte for byte.
    params: options that change the mix of types.
    n_threads: the number of threads; None for all cores.
    progress: called with a fraction from 0 to 1.
    overwrite: replace the file if it exists.

    The metadata is copied, except the keys that say how the file was quantized. A model split into several files
    becomes one file. The file appears under its name only when it is complete; if anything fails, an existing file is
    unchanged.

    Raises ConversionError if the type is unknown or needs an importance matrix, if tensors are quantized already, if
    weights are not numbers, if no installed backend can write the type, or if the file cannot be written.
    Raises ModelFileError if a file is missing or damaged.
    """
    kind, params = parse_file_type(file_type), _params(params)
    target = check_target(destination, overwrite)
    imatrix = _imatrix(params)
    with _open(source) as file:
        _refuse_same(file, target)
        plan = _plan(file, kind, params, imatrix)
        _require_importance(plan)
        _refuse_requantizing(file, plan, params)
        entries = _entries(file, kind, imatrix)
        kinds = {(c.old, c.new, c.importance is not None) for c in plan.changes if c.new is not c.old}
        with open_quantizer(kinds, n_threads) as quantizer, atomic_write(target) as part, open(part, "wb") as out:
            _write(out, file, plan, entries, quantizer, progress)
    return target


def _params(params: Any) -> QuantizeParams:
    if params is not None and not isinstance(params, QuantizeParams):
        raise ConversionError(f"params is {described(params)}; expected QuantizeParams")
    return params or QuantizeParams()


def _imatrix(params: QuantizeParams) -> ImportanceMatrix | None:
    given = params.imatrix
    return given if given is None or isinstance(given, ImportanceMatrix) else ImportanceMatrix.read(given)


def _open(source: Any) -> GGUFFile:
    source = file_path("the path of a model", source, ModelFileError)
    if source.is_dir():
        raise ModelFileError(
            "is a folder; expected a GGUF file",
            path=source,
            hint="hotshoe convert reads Hugging Face folders, and can quantize at once: --type q4_k_m",
        )
    return GGUFFile(source)


def _plan(file: GGUFFile, kind: FileType, params: QuantizeParams, imatrix: ImportanceMatrix | None) -> QuantizationPlan:
    tensors = {name: (info.shape, info.dtype) for name, info in file.tensors.items()}
    if not tensors:
        raise ModelFileError("the file has no tensors to quantize", path=file.path)
    return QuantizationPlan(kind, make_plan(tensors, facts_of(file.metadata, tensors), kind, params, imatrix))


def _refuse_same(file: GGUFFile, target: Path) -> None:
    if target.exists() and any(os.path.samefile(path, target) for path in file.paths):
        raise ConversionError(
            f"{target} is the file to read; a file cannot be quantized onto itself",
            hint="write to another name, and rename the file afterwards",
        )


def _require_importance(plan: QuantizationPlan) -> None:
    if lacking := plan.lacking:
        more = f" and {len(lacking) - 1} more tensors" if len(lacking) > 1 else ""
        raise ConversionError(
            f"{plan.file_type.name} needs an importance matrix: {lacking[0].name}{more} would be "
            f"{lacking[0].new.name.lower()}, which is garbage without one",
            hint="hotshoe imatrix MODEL.gguf --text TEXT.txt -o imatrix.gguf, and then --imatrix imatrix.gguf",
        )


def _refuse_requantizing(file: GGUFFile, plan: QuantizationPlan, params: QuantizeParams) -> None:
    quantized = [c for c in plan.changes if c.old.is_quantized and c.new is not c.old]
    if quantized and not params.allow_requantize:
        raise ConversionError(
            f"{file.path} is quantized already: {len(quantized)} of its tensors, such as {quantized[0].name}, are "
            f"{', '.join(sorted({c.old.name.lower() for c in quantized}))}",
            hint="quantize the original, in f16, bf16 or f32; or accept the loss: allow_requantize=True",
        )


def _entries(file: GGUFFile, kind: FileType, imatrix: ImportanceMatrix | None) -> list[bytes]:
    """The metadata of the new file: the old entries, byte for byte, then those that say how it was quantized."""
    added = {
        "general.quantization_version": u32_entry("general.quantization_version", _FORMAT_VERSION),
        "general.file_type": u32_entry("general.file_type", kind.number),
    }
    if imatrix is not None:
        prefix = "quantize.imatrix."
        if imatrix.path is not None:
            added[f"{prefix}file"] = string_entry(f"{prefix}file", str(imatrix.path))
        if imatrix.datasets:
            added[f"{prefix}dataset"] = string_entry(f"{prefix}dataset", imatrix.datasets[0])
        added[f"{prefix}entries_count"] = u32_entry(f"{prefix}entries_count", len(imatrix.weights))
        if imatrix.n_chunks > 0:
            added[f"{prefix}chunks_count"] = u32_entry(f"{prefix}chunks_count", imatrix.n_chunks)
    kept = [file.entry(key).tobytes() for key in file.metadata if key not in added and key not in _SPLIT_KEYS]
    return [*kept, *added.values()]


def _write(
    out: BinaryIO,
    file: GGUFFile,
    plan: QuantizationPlan,
    entries: list[bytes],
    quantizer: RowQuantizer | None,
    progress: Progress | None,
) -> None:
    rows = [Row(c.name, c.shape, c.new) for c in plan.changes]
    out.write(head(entries, rows, file.alignment))
    total, done = max(1, plan.nbytes_old), 0
    report = progress or (lambda fraction: None)
    report(0.0)
    for change in plan.changes:
        n_new = 0
        for piece in _pieces(file, change, quantizer):
            out.write(piece.data)
            n_new += piece.nbytes
            report((done + change.nbytes_old * n_new / change.nbytes_new) / total)
        out.write(bytes(padding(n_new, file.alignment)))
        done += change.nbytes_old
    out.flush()


def _pieces(file: GGUFFile, change: Change, quantizer: RowQuantizer | None) -> Iterator[Array]:
    data = file.data(change.name)
    if change.new is not change.old:
        assert quantizer is not None
        yield from quantizer.pieces(change.name, data, change.old, change.new, change.shape, change.importance)
        return
    for start in range(0, len(data), _COPY_BYTES):
        piece = data[start : start + _COPY_BYTES]
        if not _is_finite(piece, change.old):
            raise ConversionError(
                f"tensor {change.name} holds values that are not numbers (NaN or infinite)",
                hint="the file is damaged, or its training diverged: convert it again from the original",
            )
        yield piece


def _is_finite(data: Array, dtype: DType) -> bool:
    """False if a float tensor holds NaN or infinity. Always true for block formats, which are not decoded here."""
    if dtype is DType.BF16:
        exponents = data.view("<u2") & 0x7F80
        return not (exponents == 0x7F80).any()
    return not dtype.is_float or bool(np.isfinite(data.view(dtype.numpy or np.uint8)).all())
