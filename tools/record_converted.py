"""Record tiny models as llama.cpp's converter writes them, and transformers' logits: tests/data/llamacpp/.

    python -m tools.record_converted LLAMA_CPP [NAME ...]

LLAMA_CPP is a folder with llama.cpp's source, as in llama-cpp-python's sdist. NAME is one of
tests.support.recorded.MODELS (default: all). Each model has random weights. The program keeps the file that the
converter writes with ``--outtype f32``, and each tensor's type and hash of ``--outtype f16`` in ``f16.json``. Ids and
logits of the text models go to ``expected.npz``.

The converter recognizes a tokenizer by a table of known ones, which does not contain an invented vocabulary: the
program replaces its lookup, which then answers "qwen2", or "default" for BERT. The converter writes the vocabulary of
a SentencePiece model from ``tokenizer.model``, which these folders do not have: this step is replaced by the one for
byte-level vocabularies. Nothing else is changed. XLM-RoBERTa needs the packages sentencepiece and protobuf.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from tests.support.converted import f16_digests
from tests.support.recorded import MODELS, make_recorded

TARGET = Path(__file__).parents[1] / "tests" / "data" / "llamacpp"
IDS = np.random.default_rng(7).integers(2, 250, 24).tolist()

CONVERT = """
import runpy, sys
source = sys.argv[1]
sys.path[:0] = [source, f"{source}/gguf-py"]
from conversion import base, bert, phi
base.TextModel.get_vocab_base_pre = lambda self, tokenizer: "default" if isinstance(self, bert.BertModel) else "qwen2"
base.TextModel._set_vocab_sentencepiece = lambda self, *a, **k: self._set_vocab_gpt2()
phi.Phi3MiniModel.set_vocab = lambda self: self._set_vocab_gpt2()
sys.argv = ["convert", sys.argv[2], "--outtype", sys.argv[3], "--outfile", sys.argv[4]]
runpy.run_path(f"{source}/convert_hf_to_gguf.py", run_name="__main__")
"""


def main(source: str, *names: str) -> int:
    TARGET.mkdir(parents=True, exist_ok=True)
    digests_path, logits_path = TARGET / "f16.json", TARGET / "expected.npz"
    digests = json.loads(digests_path.read_text()) if digests_path.is_file() else {}
    logits = dict(np.load(logits_path)) if logits_path.is_file() else {}
    logits["ids"] = np.array(IDS)
    for name in names or MODELS:
        with tempfile.TemporaryDirectory() as scratch:
            folder = make_recorded(name, Path(scratch) / name)
            if json.loads((folder / "config.json").read_text())["architectures"][0].endswith("ForCausalLM"):
                logits[name] = _logits(folder)
            _convert(source, folder, "f32", TARGET / f"{name}.gguf")
            _convert(source, folder, "f16", Path(scratch) / "f16.gguf")
            digests[name] = f16_digests(Path(scratch) / "f16.gguf")
    digests_path.write_text(json.dumps(digests, indent=1, sort_keys=True) + "\n")
    np.savez_compressed(logits_path, **logits)
    return 0


def _logits(folder: Path) -> np.ndarray:
    import torch
    import transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.no_grad():
        return model(torch.tensor([IDS])).logits[0].numpy()


def _convert(source: str, folder: Path, dtype: str, target: Path) -> None:
    command = [sys.executable, "-c", CONVERT, source, str(folder), dtype, str(target)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{folder.name}: {done.stderr}")


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
