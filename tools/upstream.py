"""List what a newer llama.cpp has that hotshoe does not know.

    python -m tools.upstream LLAMA_CPP            # exit status 1 if there is something new
    python -m tools.upstream LLAMA_CPP --accept   # remember it in tools/upstream.json as seen

LLAMA_CPP is a folder with llama.cpp's source. The program compares architectures, metadata keys, pre-tokenizers,
tokenizer models, projectors of pictures and sound, and types of tensors. An architecture is known if it has a model or
a reason in ``hotshoe.refused_families``; the others are known if hotshoe has them, or if tools/upstream.json lists them
as seen.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable
from pathlib import Path

from hotshoe.families import MODELS, TOKENIZERS, names
from hotshoe.refused_families import REFUSED
from hotshoe.tokenizers._pretokenizers import PRE_TOKENIZERS
from hotshoe_core import DType

ROOT = Path(__file__).parents[1]
SEEN = ROOT / "tools" / "upstream.json"

# what it is called here: the file in llama.cpp, and a pattern whose first group is a name
PLACES = {
    "architectures": ("gguf-py/gguf/constants.py", r'^    MODEL_ARCH\.\w+: *"([\w.-]+)"'),
    "metadata keys": ("gguf-py/gguf/constants.py", r'^        \w+ *= "\{arch\}\.([\w.{}-]+)"'),
    "pre-tokenizers": ("src/llama-vocab.cpp", r'tokenizer_pre == "([^"]+)"'),
    "tokenizer models": ("src/llama-vocab.cpp", r'tokenizer_model == "([^"]+)"'),
    "projectors": ("tools/mtmd/clip-impl.h", r'\{ *PROJECTOR_TYPE_\w+, *"([^"]+)"'),
    "tensor types": ("ggml/include/ggml.h", r"^ *GGML_TYPE_(?!COUNT)(\w+) *= *\d+"),
}


def main(*arguments: str) -> int:
    folders = [a for a in arguments if a != "--accept"]
    if len(folders) != 1:
        sys.exit(__doc__)
    unknown = {kind: sorted(found - known(kind)) for kind, found in upstream(Path(folders[0])).items()}
    if "--accept" in arguments:
        if unknown["architectures"]:
            sys.exit(f"give a reason in refused_families.py for: {', '.join(unknown['architectures'])}")
        SEEN.write_text(json.dumps(unknown, indent=1) + "\n", encoding="utf-8")
        return 0
    seen = json.loads(SEEN.read_text(encoding="utf-8")) if SEEN.exists() else {}
    new = {kind: [name for name in found if name not in seen.get(kind, ())] for kind, found in unknown.items()}
    for kind, found in new.items():
        if found:
            sys.stdout.write(f"{len(found)} {kind}: {', '.join(found)}\n")
    return int(any(new.values()))


def upstream(folder: Path) -> dict[str, set[str]]:
    """The names in llama.cpp's source. Ends the program if a file is missing or has none: it was moved or rewritten."""
    found = {}
    for kind, (path, pattern) in PLACES.items():
        if not (folder / path).is_file():
            sys.exit(f"{folder / path} is missing; it should name the {kind}")
        found[kind] = set(re.findall(pattern, (folder / path).read_text(encoding="utf-8"), re.MULTILINE))
        if not found[kind]:
            sys.exit(f"{folder / path} names no {kind}; correct the pattern in tools/upstream.py")
    return found


def known(kind: str) -> set[str]:
    """The names that hotshoe has."""
    if kind == "architectures":
        return {*names(MODELS), *REFUSED}
    if kind == "pre-tokenizers":
        return set(PRE_TOKENIZERS)
    if kind == "tokenizer models":
        return set(names(TOKENIZERS))
    if kind == "tensor types":
        return {t.name for t in DType}
    if kind == "projectors":
        return set()  # a file with one is refused
    return _literals((ROOT / "engine").rglob("*.py"))


def _literals(paths: Iterable[Path]) -> set[str]:
    """The string literals of these programs; a converter may name a key with the architecture."""
    found = {text for path in paths for text in re.findall(r'"([\w.{}-]+)"', path.read_text(encoding="utf-8"))}
    return found | {text.partition("}.")[2] for text in found if "}." in text}


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
