"""The f16 twin of a quantized GGUF file, written by the ``gguf`` package: what two engines read is then the same."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np

__all__ = ["as_f16"]


def as_f16(source: Path, target: Path) -> Path:
    """Copies ``source``; its quantized tensors become f16, rounded from what they stand for."""
    reader = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(target, reader.fields["general.architecture"].contents())
    for key, field in reader.fields.items():
        if key.startswith("GGUF.") or key in ("general.architecture", "general.file_type"):
            continue
        value, kind = field.contents(), field.types[0]
        if kind == gguf.GGUFValueType.ARRAY:
            writer.add_array(key, value)
        else:
            writer.add_key_value(key, value, kind)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16)
    for t in reader.tensors:
        values = gguf.dequantize(t.data, t.tensor_type)
        writer.add_tensor(
            t.name, values if t.tensor_type == gguf.GGMLQuantizationType.F32 else values.astype(np.float16)
        )
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return target
