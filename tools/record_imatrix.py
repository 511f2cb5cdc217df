"""Record the inputs of each matrix of the King James model in llama.cpp: tests/data/imatrix-llamacpp.npz.

    /tmp/llama/bin/python -m tools.record_imatrix      # the environment of tools/record_quantized.py

llama-cpp-python does not contain llama.cpp's own tool. This program collects the same data in the same place, the
callback that sees each product before and after it is computed: the sums of squares of the second operand's columns
and the number of rows, over the first chunks of a text, each computed without the others.
"""

from __future__ import annotations

import ctypes
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from tests.support.as_f16 import as_f16

ROOT = Path(__file__).resolve().parent.parent
TARGET = ROOT / "tests" / "data" / "imatrix-llamacpp.npz"
CHUNK, N_CHUNKS = 256, 4


class Tensor(ctypes.Structure):
    """``struct ggml_tensor`` in ggml.h of llama-cpp-python 0.3.36."""


Tensor._fields_ = [
    *(("type", ctypes.c_int), ("buffer", ctypes.c_void_p), ("ne", ctypes.c_int64 * 4), ("nb", ctypes.c_size_t * 4)),
    *(("op", ctypes.c_int), ("op_params", ctypes.c_int32 * 16), ("flags", ctypes.c_int32)),
    *(("src", ctypes.POINTER(Tensor) * 10), ("view_src", ctypes.c_void_p), ("view_offs", ctypes.c_size_t)),
    *(("data", ctypes.c_void_p), ("name", ctypes.c_char * 64), ("extra", ctypes.c_void_p)),
    ("padding", ctypes.c_char * 8),
]


def main() -> None:
    """Collect, and write the file."""
    import llama_cpp

    silent = llama_cpp.llama_log_callback(lambda level, text, data: None)
    llama_cpp.llama_log_set(silent, None)
    llama_cpp.llama_backend_init()
    sums: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        path = as_f16(ROOT / "examples" / "models" / "kjv-3m-q8_0.gguf", Path(folder) / "kjv-f16.gguf")
        text = (ROOT / "tests" / "data" / "kjv-held-out.txt").read_text(encoding="utf-8")
        _collect(llama_cpp, path, text, sums)
    np.savez_compressed(TARGET, **{name: values.astype(np.float32) for name, values in sums.items()})


def _collect(llama: Any, path: Path, text: str, sums: dict[str, Any]) -> None:
    """Fill ``sums``: for each matrix of a layer (columns + 1,), with the number of rows at the end."""

    def see(pointer: int, ask: bool, _: object) -> bool:
        node = ctypes.cast(pointer, ctypes.POINTER(Tensor)).contents
        if not (node.src[0] and node.src[1]):
            return False
        weight, x = node.src[0].contents, node.src[1].contents
        name = weight.name.decode()
        if not name.startswith("blk.") or weight.ne[1] == 1 or x.type != 0 or x.ne[0] != weight.ne[0] or x.ne[1] < 16:
            return False
        if not ask:
            rows = np.ctypeslib.as_array(ctypes.cast(x.data, ctypes.POINTER(ctypes.c_float)), (x.ne[1], x.ne[0]))
            found = np.append((rows.astype(np.float64) ** 2).sum(axis=0), len(rows))
            sums[name] = sums.get(name, 0) + found
        return True

    keep = ctypes.CFUNCTYPE(ctypes.c_bool, ctypes.c_void_p, ctypes.c_bool, ctypes.c_void_p)(see)
    model = llama.llama_model_load_from_file(str(path).encode(), llama.llama_model_default_params())
    vocab = llama.llama_model_get_vocab(model)
    raw = text.encode()
    ids = (llama.llama_token * len(raw))()
    n_ids = llama.llama_tokenize(vocab, raw, len(raw), ids, len(raw), True, True)
    params = llama.llama_context_default_params()
    params.n_ctx = params.n_batch = params.n_ubatch = CHUNK
    params.cb_eval = ctypes.cast(keep, dict(llama.llama_context_params._fields_)["cb_eval"])
    context = llama.llama_init_from_model(model, params)
    batch = llama.llama_batch_init(CHUNK, 0, 1)
    for start in range(0, min(n_ids, N_CHUNKS * CHUNK), CHUNK):
        chunk = list(ids[start : start + CHUNK])
        if llama.llama_vocab_get_add_bos(vocab):
            chunk[0] = llama.llama_vocab_bos(vocab)
        llama.llama_memory_clear(llama.llama_get_memory(context), True)
        batch.n_tokens = CHUNK
        for i, token in enumerate(chunk):
            batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.logits[i] = token, i, 1, True
            batch.seq_id[i][0] = 0
        if llama.llama_decode(context, batch):
            raise SystemExit("llama_decode failed")


if __name__ == "__main__":
    main()
