"""Record what llama.cpp's quantizer writes for the models of tests/support/quantized.py: tests/data/quantized.json.

    python3 -m venv /tmp/llama
    /tmp/llama/bin/pip install --no-binary llama-cpp-python llama-cpp-python==0.3.36 gguf
    /tmp/llama/bin/python -m tools.record_quantized

For each model and file type, with an importance matrix and without: the beginning of the file's SHA-256, and the
number of tensors of each type, if the gguf package knows the types. Null if llama.cpp refuses. With an importance
matrix, the metadata has the keys that llama.cpp's command writes.
"""

from __future__ import annotations

import argparse
import collections
import ctypes
import hashlib
import json
import tempfile
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from tests.support.quantized import MODELS, OPTIONS, importance_of, make

ROOT = Path(__file__).resolve().parent.parent
TARGET = ROOT / "tests" / "data" / "quantized.json"
# the values of enum llama_ftype
NUMBERS = """
    f32:0 f16:1 q4_0:2 q4_1:3 q8_0:7 q5_0:8 q5_1:9 q2_k:10 q3_k_s:11 q3_k_m:12 q3_k_l:13 q4_k_s:14 q4_k_m:15 q5_k_s:16
    q5_k_m:17 q6_k:18 iq2_xxs:19 iq2_xs:20 q2_k_s:21 iq3_xs:22 iq3_xxs:23 iq1_s:24 iq4_nl:25 iq3_s:26 iq3_m:27 iq2_s:28
    iq2_m:29 iq4_xs:30 iq1_m:31 bf16:32 tq1_0:36 tq2_0:37 mxfp4_moe:38 q1_0:40 q2_0:41
"""
FILE_TYPES = {name: int(number) for name, _, number in (text.partition(":") for text in NUMBERS.split())}


def main() -> None:
    """Quantize all models, and write the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, default=TARGET)
    args = parser.parse_args()
    import llama_cpp

    silent = llama_cpp.llama_log_callback(lambda level, text, data: None)
    llama_cpp.llama_log_set(silent, None)
    recorded: dict[str, Any] = {"llama_cpp_python": llama_cpp.__version__, "files": {}, "options": {}}
    with tempfile.TemporaryDirectory() as folder:
        for name in MODELS:
            source = make(name, Path(folder) / f"{name}.gguf")
            weights = importance_of(name)
            recorded["files"][name] = {
                f"{kind}{' imatrix' * (given is not None)}": _quantize(llama_cpp, source, number, given, {})
                for kind, number in FILE_TYPES.items()
                for given in (None, weights)
            }
        source = Path(folder) / "dense.gguf"
        for what, options in OPTIONS.items():
            recorded["options"][what] = _quantize(llama_cpp, source, FILE_TYPES["q4_k_m"], None, options)
    args.output.write_text(json.dumps(recorded, indent=1) + "\n", encoding="utf-8")


def _quantize(
    llama: Any, source: Path, number: int, weights: dict[str, np.ndarray[Any, Any]] | None, options: dict[str, Any]
) -> str | None:
    target = source.with_suffix(".out")
    params = llama.llama_model_quantize_default_params()
    params.ftype, params.nthread = number, 1
    params.pure = options.get("pure", False)
    params.quantize_output_tensor = not options.get("leave_output", False)
    if "output_type" in options:
        params.output_tensor_type = gguf.GGMLQuantizationType[options["output_type"].upper()]
    if "token_embedding_type" in options:
        params.token_embedding_type = gguf.GGMLQuantizationType[options["token_embedding_type"].upper()]
    if "tensor_types" in options:
        pairs = [(p.encode(), gguf.GGMLQuantizationType[t.upper()]) for p, t in options["tensor_types"]]
        params.tt_overrides = (llama.llama_model_tensor_override * (len(pairs) + 1))(*pairs)
    if weights is not None:
        array = (llama.llama_model_imatrix_data * (len(weights) + 1))()
        for i, (name, values) in enumerate(weights.items()):
            pointer = values.ctypes.data_as(ctypes.POINTER(ctypes.c_float))
            array[i].name, array[i].data, array[i].size = name.encode(), pointer, values.size
        params.imatrix = array
        params.kv_overrides = _about(llama, len(weights))
    failed = llama.llama_model_quantize(str(source).encode(), str(target).encode(), ctypes.byref(params))
    if failed:
        return None
    digest = hashlib.sha256(target.read_bytes()).hexdigest()[:16]
    try:
        types = collections.Counter(t.tensor_type.name for t in gguf.GGUFReader(target).tensors)
    except ValueError:  # newer than the gguf package
        return digest
    return " ".join([digest, *(f"{name}:{n}" for name, n in sorted(types.items()))])


def _about(llama: Any, n: int) -> Any:
    """The metadata that the command ``llama-quantize --imatrix FILE`` adds."""
    entries: list[tuple[str, Any]] = [
        ("quantize.imatrix.file", b"imatrix.gguf"),
        ("quantize.imatrix.dataset", b"texts.txt"),
        ("quantize.imatrix.entries_count", n),
        ("quantize.imatrix.chunks_count", 3),
    ]
    array = (llama.llama_model_kv_override * (len(entries) + 1))()
    for item, (key, value) in zip(array, entries, strict=False):
        item.key = key.encode()
        item.tag = llama.LLAMA_KV_OVERRIDE_TYPE_STR if isinstance(value, bytes) else llama.LLAMA_KV_OVERRIDE_TYPE_INT
        if isinstance(value, bytes):
            item.value.val_str = value
        else:
            item.value.val_i64 = value
    return array


if __name__ == "__main__":
    main()
