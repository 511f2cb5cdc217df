"""Record the files that llama.cpp's converter makes of the rows of tests/towers: tests/data/towers/.

    python -m tools.record_towers LLAMA_CPP [ROW ...]

LLAMA_CPP is a folder with llama.cpp's source. Without ROW: all rows.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from tests.families.recorded import digests, family_keys
from tests.towers.made import MadeTower
from tests.towers.recorded import Recorded, write_recorded
from tests.towers.rows import ROWS

CONVERT = """
import runpy, sys
source = sys.argv[1]
sys.path[:0] = [source, f"{source}/gguf-py"]
import gguf
names_of = gguf.get_tensor_name_map
# the layers of projectors are numbered too, and tiny encoders have fewer blocks than these
gguf.get_tensor_name_map = lambda arch, n: names_of(arch, max(n, 8))
sys.argv = ["convert", sys.argv[2], "--mmproj", "--outtype", sys.argv[3], "--outfile", sys.argv[4]]
runpy.run_path(f"{source}/convert_hf_to_gguf.py", run_name="__main__")
"""


def main(*arguments: str) -> int:
    if not arguments:
        sys.exit(__doc__)
    source = arguments[0]
    for name in arguments[1:] or [name for name, row in ROWS.items() if not row.unrecorded]:
        with tempfile.TemporaryDirectory() as scratch:
            made = MadeTower(name, ROWS[name], Path(scratch))
            files = {kind: Path(scratch) / f"theirs-{kind}.gguf" for kind in ("f32", "f16")}
            for kind, path in files.items():
                command = [sys.executable, "-c", CONVERT, source, str(made.folder), kind, str(path)]
                done = subprocess.run(command, capture_output=True, text=True, check=False)
                if done.returncode:
                    sys.exit(f"{name}\n{done.stderr[-3000:]}")
            record = Recorded(family_keys(files["f32"]), digests(files["f32"]), digests(files["f16"]))
            write_recorded(name, record)
        sys.stdout.write(f"{name}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
