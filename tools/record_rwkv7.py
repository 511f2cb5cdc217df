"""Record what others say of the tiny RWKV-7 of tests/support/tiny_rwkv7.py: tests/data/rwkv7.json and rwkv7.npz.

    python -m tools.record_rwkv7 LLAMA_CPP LLAMA_PYTHON RWKV

LLAMA_CPP and LLAMA_PYTHON are those of record_families. RWKV is a folder with PyPI's package "rwkv", unpacked: its
model gives the expected logits, and its tokenizer the ids.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from hotshoe.convert import convert
from tests.families.recorded import digests, family_keys
from tests.support.tiny_rwkv7 import IDS, TEXTS, make_rwkv7, published

DATA = Path(__file__).parents[1] / "tests" / "data"
LOGITS = """
import json, sys
import llama_cpp, numpy as np
ids = json.loads(sys.argv[3])
model = llama_cpp.Llama(sys.argv[1], n_ctx=128, logits_all=True, verbose=False)
model.eval(ids)
texts = [model.tokenize(text.encode(), add_bos=False, special=False) for text in json.loads(sys.argv[4])]
np.save(sys.argv[2], np.array(model.scores[: len(ids)]))
print(json.dumps(texts))
"""


def main(source: str, python: str, rwkv: str) -> None:
    import torch

    os.environ |= {"RWKV_V7_ON": "1", "RWKV_JIT_ON": "0"}
    sys.path.insert(0, rwkv)
    from rwkv.model import RWKV  # type: ignore[import-not-found]
    from rwkv.rwkv_tokenizer import TRIE_TOKENIZER  # type: ignore[import-not-found]

    with tempfile.TemporaryDirectory() as scratch:
        folder = make_rwkv7(Path(scratch) / "hf")
        torch.save({name: torch.from_numpy(value.copy()) for name, value in published().items()}, f"{scratch}/m.pth")
        logits, _ = RWKV(f"{scratch}/m", "cpu fp32").forward(list(IDS), None, full_output=True)
        tokenizer = TRIE_TOKENIZER(str(folder / "rwkv_vocab_v20230424.txt"))
        record: dict[str, Any] = {"ids": [tokenizer.encode(text) for text in TEXTS]}
        for kind in ("f32", "f16"):
            path = Path(scratch) / f"{kind}.gguf"
            command = [sys.executable, f"{source}/convert_hf_to_gguf.py", str(folder), "--outtype", kind]
            subprocess.run([*command, "--outfile", str(path)], check=True, capture_output=True)
            record |= {kind: digests(path), "keys": family_keys(path)}
        ours = convert(folder, Path(scratch) / "ours.gguf", "f32")
        arguments = [str(ours), f"{scratch}/llamacpp.npy", json.dumps(IDS), json.dumps(TEXTS)]
        done = subprocess.run([python, "-c", LOGITS, *arguments], check=True, capture_output=True, text=True)
        record["llamacpp_ids"] = json.loads(done.stdout)
        (DATA / "rwkv7.json").write_text(json.dumps(record, indent=1) + "\n")
        np.savez(DATA / "rwkv7.npz", rwkv=logits.numpy()[:, ::4], llamacpp=np.load(f"{scratch}/llamacpp.npy")[:, ::4])


if __name__ == "__main__":
    main(*sys.argv[1:])
