"""Records tiny text models as llama.cpp's converter writes them, and transformers' logits: tests/data/llamacpp/.

    python -m tools.record_converted LLAMA_CPP        (a folder with llama.cpp's source, as in llama-cpp-python's sdist)

Each model is made by tests.support.tiny_text with random weights; ids and logits go to ``expected.npz``. The converter
recognizes a tokenizer by a table of those it has met, where a made-up one cannot be: its lookup is made to answer
"qwen2". It writes the vocabulary of a SentencePiece model from ``tokenizer.model``, which these folders do not have; so
that step is made to write their byte-level one instead. Nothing else of it is touched.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from tests.support.tiny_text import ARCHITECTURES, make_tiny

TARGET = Path(__file__).parents[1] / "tests" / "data" / "llamacpp"
IDS = np.random.default_rng(7).integers(2, 250, 24).tolist()
SMALLER = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
GEMMA = {"num_hidden_layers": 6}  # the last of six is global

CONVERT = """
import runpy, sys
source = sys.argv[1]
sys.path[:0] = [source, f"{source}/gguf-py"]
from conversion import base, phi
base.TextModel.get_vocab_base_pre = lambda self, tokenizer: "qwen2"
base.TextModel._set_vocab_sentencepiece = lambda self, *a, **k: self._set_vocab_gpt2()
phi.Phi3MiniModel.set_vocab = lambda self: self._set_vocab_gpt2()
sys.argv = ["convert", sys.argv[2], "--outtype", "f32", "--outfile", sys.argv[3]]
runpy.run_path(f"{source}/convert_hf_to_gguf.py", run_name="__main__")
"""


def main(source: str) -> int:
    import torch
    import transformers

    TARGET.mkdir(parents=True, exist_ok=True)
    expected = {"ids": np.array(IDS)}
    for architecture in ARCHITECTURES:
        with tempfile.TemporaryDirectory() as scratch:
            changes = SMALLER | (GEMMA if architecture.startswith("Gemma3") else {})
            folder = make_tiny(architecture, Path(scratch) / architecture, **changes)
            model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
            with torch.no_grad():
                expected[architecture] = model(torch.tensor([IDS])).logits[0].numpy()
            target = TARGET / f"{architecture}.gguf"
            command = [sys.executable, "-c", CONVERT, source, str(folder), str(target)]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                sys.exit(f"{architecture}: {done.stderr}")
    np.savez_compressed(TARGET / "expected.npz", **expected)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
