"""Record what llama.cpp makes of the rows of tests/towers: the converter's files, rows and tokens. tests/data/towers/.

    python -m tools.record_towers LLAMA_CPP PYTHON [ROW ...]

LLAMA_CPP is a folder with llama.cpp's source; PYTHON has llama-cpp-python 0.3.36. Without ROW: all rows.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from tests.families.recorded import digests, family_keys
from tests.support.rewrite import rewrite
from tests.towers.made import MadeTower
from tests.towers.recorded import N_TOKENS, Recorded, Seen, prompt_around, write_recorded
from tests.towers.rows import ROWS
from tests.towers.sounds import SOUNDS, MadeSound

CONVERT = """
import runpy, sys
source = sys.argv[1]
sys.path[:0] = [source, f"{source}/gguf-py"]
import gguf
names_of = gguf.get_tensor_name_map
# the layers of projectors are numbered too, and tiny encoders have fewer blocks than these
gguf.get_tensor_name_map = lambda arch, n: names_of(arch, max(n, 8))
sys.argv = ["convert", sys.argv[2], "--mmproj", "--outtype", sys.argv[3], "--outfile", sys.argv[4]]
runpy.run_path(f"{source}/convert_hf_to_gguf.py", run_name="__main__")
"""

SEE = """
import ctypes, json, sys
import numpy as np
from llama_cpp import llama_cpp as l, mtmd_cpp as m
text_file, projector, source, prompt, n_tokens, target = sys.argv[1:]
source = np.load(source)
l.llama_backend_init()
params = l.llama_model_default_params()
params.n_gpu_layers = 0
model = l.llama_model_load_from_file(text_file.encode(), params)
params = l.llama_context_default_params()
params.n_ctx, params.n_batch, params.n_ubatch, params.n_threads, params.n_threads_batch = 1024, 1024, 1024, 1, 1
params.flash_attn_type, params.type_k, params.type_v = 0, 0, 0
context = l.llama_init_from_model(model, params)
params = m.mtmd_context_params_default()
params.use_gpu, params.n_threads, params.flash_attn_type, params.warmup = False, 1, 0, False
tower = m.mtmd_init_from_file(projector.encode(), model, params)
if source.ndim == 1:
    bitmap = m.mtmd_bitmap_init_from_audio(len(source), source.ctypes.data_as(ctypes.POINTER(ctypes.c_float)))
else:
    height, width = source.shape[:2]
    bitmap = m.mtmd_bitmap_init(width, height, source.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8)))
prompt = prompt.replace("<SOURCE>", m.mtmd_default_marker().decode()).encode()
chunks = m.mtmd_input_chunks_init()
text = m.mtmd_input_text(prompt, len(prompt), False, True)
if m.mtmd_tokenize(tower, chunks, ctypes.byref(text), (m.mtmd_bitmap_p_ctypes * 1)(bitmap), 1):
    sys.exit("mtmd_tokenize failed")
n_embd, ids, rows, past = l.llama_model_n_embd_inp(model), [], [], l.llama_pos(0)
for i in range(m.mtmd_input_chunks_size(chunks)):
    chunk, n = m.mtmd_input_chunks_get(chunks, i), ctypes.c_size_t()
    if m.mtmd_input_chunk_get_type(chunk) == 0:
        found = m.mtmd_input_chunk_get_tokens_text(chunk, ctypes.byref(n))
        ids += [int(found[j]) for j in range(n.value)]
        continue
    count = m.mtmd_input_chunk_get_n_tokens(chunk)
    ids += [-1] * count
    if m.mtmd_encode_chunk(tower, chunk):
        sys.exit("mtmd_encode_chunk failed")
    rows.append(np.ctypeslib.as_array(m.mtmd_get_output_embd(tower), (count, n_embd)).copy())
if m.mtmd_helper_eval_chunks(tower, context, chunks, 0, 0, 1024, True, ctypes.byref(past)):
    sys.exit("mtmd_helper_eval_chunks failed")
n_vocab, tokens, margins = l.llama_vocab_n_tokens(l.llama_model_get_vocab(model)), [], []
for at in range(int(n_tokens)):
    logits = np.ctypeslib.as_array(l.llama_get_logits_ith(context, -1), (n_vocab,))
    second, best = np.argsort(logits)[-2:]
    tokens.append(int(best))
    margins.append(float((logits[best] - logits[second]) / np.abs(logits).max()))
    batch = l.llama_batch_init(1, 0, 1)
    batch.n_tokens, batch.token[0], batch.pos[0], batch.n_seq_id[0] = 1, tokens[-1], past.value + at, 1
    batch.seq_id[0][0], batch.logits[0] = 0, 1
    if l.llama_decode(context, batch):
        sys.exit("llama_decode failed")
np.save(target, np.concatenate(rows))
print("FOUND" + json.dumps({"ids": ids, "tokens": tokens, "least_margin": min(margins)}))
"""


def main(*arguments: str) -> int:
    if len(arguments) < 2:
        sys.exit(__doc__)
    source, python = arguments[:2]
    chosen = [name for name, row in (ROWS | SOUNDS).items() if row.seen_size or not row.unrecorded]
    for name in arguments[2:] or chosen:
        with tempfile.TemporaryDirectory() as scratch:
            folder = Path(scratch)
            made = MadeSound(name, SOUNDS[name], folder) if name in SOUNDS else MadeTower(name, ROWS[name], folder)
            keys, *tensors = _converted(made, source, folder)
            seen = None if made.seen_source is None else _see(made, python, folder)
            write_recorded(name, Recorded(keys, *tensors, seen))
        sys.stdout.write(f"{name}\n")
    return 0


def _converted(made: MadeTower, source: str, scratch: Path) -> tuple[dict[str, Any], dict[str, str], dict[str, str]]:
    """The keys that llama.cpp's converter writes, and its tensors in f32 and f16."""
    if made.row.unrecorded:
        return {}, {}, {}
    files = {kind: scratch / f"theirs-{kind}.gguf" for kind in ("f32", "f16")}
    for kind, path in files.items():
        _run(made.name, sys.executable, "-c", CONVERT, source, str(made.published), kind, str(path))
    return family_keys(files["f32"]), digests(files["f32"]), digests(files["f16"])


def _see(made: MadeTower, python: str, scratch: Path) -> Seen:
    """What llama.cpp's mtmd computes from our files of a prompt with a picture or a sound."""
    given, target = scratch / "source.npy", scratch / "rows.npy"
    source = made.seen_source
    # the end of a sound is silent; from one sample more on, llama.cpp reads a second window, of silence
    np.save(given, source[0][:479_839] if isinstance(source, tuple) else source)
    projector = made.file()
    if made.row.for_llamacpp is not None:
        projector = rewrite(projector, scratch / "changed.gguf", edit=made.row.for_llamacpp)
    files = str(made.path), str(projector)
    out = _run(made.name, python, "-c", SEE, *files, str(given), prompt_around("<SOURCE>"), str(N_TOKENS), str(target))
    return Seen.of(np.load(target), **json.loads(out.rpartition("FOUND")[2]))


def _run(name: str, *command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{name}\n{done.stderr[-3000:]}")
    return done.stdout


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
