"""From a GGUF file to a smaller one: the functions that users call."""

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
from hotshoe_core.errors.arguments import described
from hotshoe_core.gguf import GGUFFile
from hotshoe_core.tensors.dtypes import DType

__all__ = ["QuantizationPlan", "plan_quantization", "quantize_model"]

Array = np.ndarray[Any, Any]
Progress = Callable[[float], None]

_FORMAT_VERSION = 2  # of the block formats: GGML_QNT_VERSION
_OF_SPLIT = frozenset({"split.no", "split.count", "split.tensors.count"})
_SLAB = 1 << 23  # bytes copied at once


@dataclass(frozen=True, slots=True)
class QuantizationPlan:
    """What quantizing a file will do. changes: one a tensor, in the order of the file that is written."""

    file_type: FileType
    changes: tuple[Change, ...]

    @property
    def nbytes_old(self) -> int:
        """Of all tensors, before."""
        return sum(change.nbytes_old for change in self.changes)

    @property
    def nbytes_new(self) -> int:
        """Of all tensors, after."""
        return sum(change.nbytes_new for change in self.changes)

    @property
    def bits_per_weight(self) -> float:
        """Of all tensors together, after."""
        return 8 * self.nbytes_new / max(1, sum(prod(change.shape) for change in self.changes))

    @property
    def lacking(self) -> tuple[Change, ...]:
        """Those that need an importance matrix and have none."""
        return tuple(change for change in self.changes if change.lacks_importance)


def plan_quantization(
    source: str | os.PathLike[str], file_type: str = "q4_k_m", params: QuantizeParams | None = None
) -> QuantizationPlan:
    """What ``quantize_model`` would do, by the file's header alone. Raises as that does for an impossible request."""
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
    """Writes the model in a GGUF file to another, smaller one, and returns that one's path.

    ``file_type`` is one of ``FILE_TYPES``: a mix of block formats, the same as llama.cpp's of that name, byte for byte.
    Metadata stay as they are, but for the keys that say how the file was quantized; a model split into several files
    becomes one. n_threads: None for all cores. ``progress`` is called with a fraction from 0 to 1. The file appears
    under its name only when it is complete; until then nothing by that name is touched.

    Raises ConversionError for a request that cannot be met: an unknown type, what is quantized already, weights that
    are no numbers, a type that needs an importance matrix without one, no backend that can, a disk that is full.
    Raises ModelFileError for a file that is not what it should be.
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
    if not isinstance(source, (str, os.PathLike)):
        raise ModelFileError(f"the path of a model is {described(source)}; expected a str or a Path")
    if Path(source).is_dir():
        raise ModelFileError(
            "is a folder; expected a GGUF file",
            path=source,
            hint="hotshoe convert reads Hugging Face folders, and quantizes in one go: --type q4_k_m",
        )
    return GGUFFile(Path(source).expanduser())


def _plan(file: GGUFFile, kind: FileType, params: QuantizeParams, imatrix: ImportanceMatrix | None) -> QuantizationPlan:
    tensors = {name: (info.shape, info.dtype) for name, info in file.tensors.items()}
    if not tensors:
        raise ModelFileError("the file has no tensors, and nothing to quantize", path=file.path)
    return QuantizationPlan(kind, make_plan(tensors, facts_of(file.metadata, tensors), kind, params, imatrix))


def _refuse_same(file: GGUFFile, target: Path) -> None:
    if target.exists() and any(os.path.samefile(path, target) for path in file.paths):
        raise ConversionError(
            f"{target} is the file that is read; a file cannot be quantized onto itself",
            hint="write to another name, and rename it then",
        )


def _require_importance(plan: QuantizationPlan) -> None:
    if lacking := plan.lacking:
        more = f" and {len(lacking) - 1} more tensors" if len(lacking) > 1 else ""
        raise ConversionError(
            f"{plan.file_type.name} needs an importance matrix: {lacking[0].name}{more} would be "
            f"{lacking[0].new.name.lower()}, which without one is garbage",
            hint="hotshoe imatrix MODEL.gguf --text TEXT.txt -o imatrix.gguf, and then --imatrix imatrix.gguf",
        )


def _refuse_requantizing(file: GGUFFile, plan: QuantizationPlan, params: QuantizeParams) -> None:
    again = [c for c in plan.changes if c.old.is_quantized and c.new is not c.old]
    if again and not params.allow_requantize:
        raise ConversionError(
            f"{file.path} is quantized already: {len(again)} of its tensors, such as {again[0].name}, are "
            f"{', '.join(sorted({c.old.name.lower() for c in again}))}",
            hint="quantize the original, in f16, bf16 or f32; or accept the loss: --allow-requantize",
        )


def _entries(file: GGUFFile, kind: FileType, imatrix: ImportanceMatrix | None) -> list[bytes]:
    """The keys of the new file: the old ones, byte for byte, and then those that say how it was made."""
    made = {
        "general.quantization_version": u32_entry("general.quantization_version", _FORMAT_VERSION),
        "general.file_type": u32_entry("general.file_type", kind.number),
    }
    if imatrix is not None:
        prefix = "quantize.imatrix."
        if imatrix.path is not None:
            made[f"{prefix}file"] = string_entry(f"{prefix}file", str(imatrix.path))
        if imatrix.datasets:
            made[f"{prefix}dataset"] = string_entry(f"{prefix}dataset", imatrix.datasets[0])
        made[f"{prefix}entries_count"] = u32_entry(f"{prefix}entries_count", len(imatrix.weights))
        if imatrix.n_chunks > 0:
            made[f"{prefix}chunks_count"] = u32_entry(f"{prefix}chunks_count", imatrix.n_chunks)
    kept = [file.entry(key).tobytes() for key in file.metadata if key not in made and key not in _OF_SPLIT]
    return [*kept, *made.values()]


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
    for start in range(0, len(data), _SLAB):
        piece = data[start : start + _SLAB]
        if not _is_finite(piece, change.old):
            raise ConversionError(
                f"tensor {change.name} holds values that are not numbers (NaN or infinite)",
                hint="the file is damaged, or its training diverged: convert it again from the original",
            )
        yield piece


def _is_finite(data: Array, dtype: DType) -> bool:
    """Whether all are numbers, of a type whose elements are numbers of their own."""
    if dtype is DType.BF16:
        exponents = data.view("<u2") & 0x7F80
        return not (exponents == 0x7F80).any()
    return not dtype.is_float or bool(np.isfinite(data.view(dtype.numpy or np.uint8)).all())
