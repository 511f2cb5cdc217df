"""Write docs/structure.md: one line for each module, the first of its docstring.

python tools/structure.py            write it
python tools/structure.py --check    fail if it is not what this would write
"""

from __future__ import annotations

import ast
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TARGET = ROOT / "docs" / "structure.md"
ROOMS = {
    "engine/hotshoe": "what a user imports. Imports the loader and core.",
    "loader/hotshoe_loader": "finds, vets, probes and ranks backends. Imports core.",
    "core/hotshoe_core": "the contract between models and backends. Imports nothing of ours.",
    "plugins/ggml-cpu/src/hotshoe_ggml": "the ggml engine, and the CPU. Imports core.",
    "plugins/ggml-rpc/src/hotshoe_ggml_rpc": "devices of other machines, by ggml's RPC. Imports the ggml engine.",
    "plugins/ggml-cuda/src/hotshoe_ggml_cuda": "NVIDIA's GPUs, by ggml's CUDA library. Imports the ggml engine.",
    "plugins/ggml-metal/src/hotshoe_ggml_metal": "Apple's GPUs, by ggml's Metal library. Imports the ggml engine.",
    "plugins/ggml-vulkan/src/hotshoe_ggml_vulkan": "GPUs of any vendor, through Vulkan. Imports the ggml engine.",
    "plugins/mlx/src/hotshoe_mlx": "MLX over core's adapter. Imports core.",
    "benchmarks": "every number in a document comes from one of these.",
    "examples": "programs a newcomer can read.",
    "tools": "for working on this repository.",
}
HEAD = """# The house, module by module

Made by `python tools/structure.py` from the first line of each module's docstring; a test holds the two together.
Arrows run downward only: engine → loader → core ← plugins.
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
