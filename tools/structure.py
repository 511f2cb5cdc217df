"""Write docs/structure.md: one line for each module, the first line of its docstring.

python tools/structure.py            write the page
python tools/structure.py --check    fail if the page is not up to date
"""

from __future__ import annotations

import ast
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TARGET = ROOT / "docs" / "structure.md"
ROOMS = {
    "engine/hotshoe": "what a user imports. It imports the loader and core.",
    "loader/hotshoe_loader": "finds, vets, probes and ranks backends. It imports core.",
    "core/hotshoe_core": "the contract between models and backends. It imports no other package of hotshoe.",
    "plugins/ggml-cpu/src/hotshoe_ggml": "the ggml engine and its CPU. It imports core.",
    "plugins/ggml-rpc/src/hotshoe_ggml_rpc": "devices of other machines, by ggml's RPC. It imports the ggml engine.",
    "plugins/ggml-cuda/src/hotshoe_ggml_cuda": "NVIDIA GPUs, by ggml's CUDA library. It imports the ggml engine.",
    "plugins/ggml-metal/src/hotshoe_ggml_metal": "Apple GPUs, by ggml's Metal library. It imports the ggml engine.",
    "plugins/ggml-vulkan/src/hotshoe_ggml_vulkan": "GPUs of any vendor, through Vulkan. It imports the ggml engine.",
    "plugins/mlx/src/hotshoe_mlx": "MLX, over core's adapter. It imports core.",
    "benchmarks": "the programs behind every number in a document.",
    "examples": "programs a newcomer can read.",
    "tools": "for working on this repository.",
}
HEAD = """# All modules

Made by `python tools/structure.py` from the first line of each module's docstring; a test compares them.
Imports go downward only: engine → loader → core ← plugins.
"""


def structure() -> str:
    lines = [HEAD]
    for room, what in ROOMS.items():
        lines += [f"## {room}", "", f"{what[0].upper()}{what[1:]}", "", "| module | what it is |", "| --- | --- |"]
        for path in sorted((ROOT / room).rglob("*.py"), key=lambda p: (len(p.parts), str(p))):
            name = path.relative_to(ROOT / room).as_posix()
            docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
            if docstring:
                lines.append(f"| `{name}` | {docstring.splitlines()[0]} |".replace("``", "`"))
        lines.append("")
    return "\n".join(lines)


def main() -> int:
    if "--check" not in sys.argv:
        TARGET.write_text(structure(), encoding="utf-8")
        return 0
    if TARGET.exists() and TARGET.read_text(encoding="utf-8") == structure():
        return 0
    sys.stderr.write("docs/structure.md is not up to date: python tools/structure.py\n")
    return 1


if __name__ == "__main__":
    sys.exit(main())
