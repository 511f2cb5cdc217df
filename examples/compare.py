"""Run one model on every installed backend; compare the logits with the reference's, and the speed.

    python examples/compare.py                                   the small model in this repository
    python examples/compare.py my-model.gguf "Once upon a time"  your own model and prompt
    python examples/compare.py --device cpu mlx --tokens 128     on two devices, with more tokens

The reference is NumPy in F32: slow, but every backend is measured against it. The table shows the largest difference of
a logit, and the root mean square of all differences, divided by that of the logits. With quantized weights ggml differs
most: it rounds activations to 8 bits.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np

import hotshoe

MODEL = Path(__file__).resolve().parent / "models" / "kjv-3m-q8_0.gguf"
PROMPT = "In the beginning God created"
REFERENCE = "reference"
INSTALL = {
    "ggml-cpu": "pip install ./plugins/ggml-cpu",
    "mlx": "pip install './plugins/mlx[cpu]'   (on a Mac: ./plugins/mlx)",
    "torch": "pip install ./examples/backends/torch",
}


class Answer(NamedTuple):
    """The results of a model on one device."""

    device: str
    logits: np.ndarray  # (n, vocab)
    tokens: list[int]
    tokens_per_second: float


def main() -> int:
    parser = argparse.ArgumentParser(description="Run one model on every backend that is installed, and compare.")
    parser.add_argument("model", nargs="?", default=MODEL, help="a GGUF file of a text model")
    parser.add_argument("prompt", nargs="?", default=PROMPT)
    parser.add_argument("--device", nargs="+", help="names that `hotshoe devices` lists (default: all)")
    parser.add_argument("--tokens", type=int, default=64, help="how many tokens to write")
    args = parser.parse_args()
    try:
        registry = hotshoe.load_all()
        devices = args.device or [d.name for d in registry.devices if d.name != REFERENCE]
        reference = answer(args.model, args.prompt, REFERENCE, args.tokens)
    except hotshoe.HotshoeError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    wide = max(len(name) for name in (REFERENCE, *INSTALL, *devices))
    print(f"{'device':{wide}}  {'max':>8}  {'rel. RMS':>8}  same tokens  tokens/s  what it is")
    show(REFERENCE.ljust(wide), reference, reference)
    failed = 0
    for name in devices:
        try:
            show(name.ljust(wide), answer(args.model, args.prompt, name, args.tokens), reference)
        except Exception as error:  # of any type: go on with the other devices
            print(f"{name:{wide}}  failed: {str(error).splitlines()[0] if str(error) else type(error).__name__}")
            failed += 1
    if args.device is None:
        found = {verdict.candidate: verdict for verdict in registry.verdicts}
        for plugin, command in INSTALL.items():
            if plugin not in found:
                print(f"{plugin:{wide}}  not installed: {command}")
            elif not found[plugin].outcome.usable:
                print(f"{plugin:{wide}}  {found[plugin].outcome.value}: {found[plugin].reason}")
        print(f"\ndefault device: {registry.why()}")
    return 1 if failed else 0


def answer(path, prompt: str, device: str, n_tokens: int) -> Answer:
    """The logits of a prompt, and its most likely continuation. The cache is F32, like the reference's numbers."""
    with hotshoe.load_model(path, device, task="text", kv_dtype="f32") as model:
        logits = model.logits(model.tokenizer.encode(prompt))
        written = model.generate(prompt, temperature=0, max_tokens=n_tokens)
        what = f"{model.device.description} ({model.device.provider})"
        return Answer(what, logits, written.tokens, written.tokens_per_second)


def show(name: str, got: Answer, reference: Answer) -> None:
    """Print the logits' distance from the reference, and the number of equal tokens before the first difference."""
    difference = got.logits.astype(np.float64) - reference.logits
    rms = np.sqrt(np.mean(difference**2) / np.mean(reference.logits.astype(np.float64) ** 2))
    n, same = len(reference.tokens), 0
    while same < min(n, len(got.tokens)) and got.tokens[same] == reference.tokens[same]:
        same += 1
    far = f"{np.abs(difference).max():8.1e}  {rms:8.1e}"
    print(f"{name}  {far}  {f'{same} of {n}':>11}  {got.tokens_per_second:8.0f}  {got.device}")


if __name__ == "__main__":
    sys.exit(main())
