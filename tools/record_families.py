"""Record what llama.cpp says of the rows of tests/families: tests/data/families/.

    python -m tools.record_families LLAMA_CPP LLAMA_PYTHON [ROW ...]
    python -m tools.record_families ops [ROW ...]

LLAMA_CPP is a folder with llama.cpp's source, as in llama-cpp-python's sdist. LLAMA_PYTHON is a Python in which
llama-cpp-python of the same version is installed. The first form records, for each row, the tensors and keys that
llama.cpp's converter writes for the row's folder, and llama.cpp's logits for the file of our converter. Both forms
record the ops of the row's graph. Without ROW: all rows.

The converter reads a tokenizer as a model's authors publish it, and recognizes it by a table of known ones. So the
program replaces how it reads text models' vocabularies by one way for all, and the lookup, which then answers "qwen2".
It repairs one converter, of Baichuan, which does not end.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from tests.families.made import Made
from tests.families.recorded import STRIDE, Record, digests, family_keys, ops_of, read_record, write_record
from tests.families.rows import ROWS

CONVERT = """
import json, runpy, sys
source = sys.argv[1]
sys.path[:0] = [source, f"{source}/gguf-py"]
from conversion import base, bert
base.TextModel.get_vocab_base_pre = lambda self, tokenizer: "default" if isinstance(self, bert.BertModel) else "qwen2"
check = base.TextModel.__init_subclass__.__func__
def replace(cls):
    check(cls)
    if "set_vocab" in vars(cls) and not cls.__module__.endswith(".bert"):
        cls.set_vocab = lambda self: self._set_vocab_gpt2()
base.TextModel.__init_subclass__ = classmethod(replace)
from conversion import baichuan
packed = baichuan.BaichuanModel.modify_tensors
def modify(self, data, name, bid):
    # for other tensors, theirs calls itself without end
    modify = packed if name.endswith("W_pack.weight") else base.TextModel.modify_tensors
    yield from modify(self, data, name, bid)
baichuan.BaichuanModel.modify_tensors = modify
load = base.ModelBase.load_hparams
def load_all(folder, is_mistral_format):
    # transformers 5 drops settings that published files have and the converter reads
    return json.loads((folder / "config.json").read_text()) | load(folder, is_mistral_format)
base.ModelBase.load_hparams = staticmethod(load_all)
base.ModelBase.no_mtp = True  # we leave out layers that only draft tokens
sys.argv = ["convert", sys.argv[2], "--outtype", sys.argv[3], "--outfile", sys.argv[4]]
runpy.run_path(f"{source}/convert_hf_to_gguf.py", run_name="__main__")
"""

LOGITS = """
import sys
import numpy
from llama_cpp import Llama
path, ids, stride, target = sys.argv[1], [int(i) for i in sys.argv[2].split()], int(sys.argv[3]), sys.argv[4]
n_ctx = max(64, len(ids))
model = Llama(path, n_ctx=n_ctx, logits_all=True, type_k=0, type_v=0, n_threads=1, flash_attn=False, verbose=False)
model.eval(ids)
numpy.save(target, numpy.asarray(model.scores[: len(ids)], numpy.float32)[:, ::stride])
"""


STATES = """
import sys
import llama_cpp
import numpy
from llama_cpp import Llama
path, ids, stride, target = sys.argv[1], [int(i) for i in sys.argv[2].split()], int(sys.argv[3]), sys.argv[4]
n_ctx, pooling = max(64, len(ids)), int(sys.argv[5])
model = Llama(path, n_ctx=n_ctx, embedding=True, pooling_type=pooling, n_threads=1, flash_attn=False, verbose=False)
model.tokenize = lambda *args, **options: ids
if llama_cpp.llama_model_has_encoder(model.model):  # decode would hide later tokens
    model._ctx.decode = model._ctx.encode
numpy.save(target, numpy.atleast_2d(numpy.float32(model.embed("", normalize=pooling < 0)))[:, ::stride])
"""


def main(*arguments: str) -> int:
    if not arguments or (arguments[0] != "ops" and len(arguments) < 2):
        sys.exit(__doc__)
    only_ops = arguments[0] == "ops"
    for name in arguments[1 if only_ops else 2 :] or ROWS:
        with tempfile.TemporaryDirectory() as scratch:
            made = Made(name, ROWS[name], Path(scratch))
            record = read_record(name) if only_ops else _record(made, *arguments[:2])
            write_record(name, record._replace(ops=ops_of(made.run_once)))
            made.close()
        sys.stdout.write(f"{name}\n")
    return 0


def _record(made: Made, source: str, python: str) -> Record:
    files = {kind: made.scratch / f"theirs-{kind}.gguf" for kind in ("f32", "f16")}
    for kind, path in files.items():
        _run(sys.executable, "-c", CONVERT, source, str(made.folder), kind, str(path))
    logits = np.zeros(0, np.float32)
    target, ids = made.scratch / "logits.npy", " ".join(map(str, made.ids))
    try:
        program = STATES if made.is_encoder else LOGITS
        pooling = -1 if made.row.vector else 0  # as the file says, or none
        _run(python, "-c", program, str(made.file()), ids, str(STRIDE), str(target), str(pooling))
        logits = np.load(target)
    except SystemExit as error:
        if not made.row.llamacpp:
            raise
        sys.stdout.write(f"{made.name}: llama.cpp computes no logits: {str(error)[-300:]}\n")
    keys = family_keys(files["f32"])
    return Record(keys, digests(files["f32"]), digests(files["f16"]), [], logits)


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(command[3:])}\n{done.stderr[-3000:]}")


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
