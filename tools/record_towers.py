"""Record the tensors and keys that llama.cpp's converter writes for the rows of tests/towers: tests/data/towers/.

    python -m tools.record_towers LLAMA_CPP [ROW ...]

LLAMA_CPP is a folder with llama.cpp's source, as in llama-cpp-python's sdist. Without ROW: all rows.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from tests.families.recorded import digests, family_keys
from tests.towers.recorded import TowerRecord, write_record
from tests.towers.row import make_tower_folder
from tests.towers.rows import ROWS


def main(*arguments: str) -> int:
    if not arguments:
        sys.exit(__doc__)
    for name in arguments[1:] or [name for name, row in ROWS.items() if not row.unrecorded]:
        with tempfile.TemporaryDirectory() as scratch:
            folder = make_tower_folder(ROWS[name], Path(scratch, "hf"))
            files = [Path(scratch, f"{kind}.gguf") for kind in ("f32", "f16")]
            for file in files:
                _convert(arguments[0], folder, file)
            write_record(name, TowerRecord(family_keys(files[0]), *map(digests, files)))
        sys.stdout.write(f"{name}\n")
    return 0


def _convert(source: str, folder: Path, file: Path) -> None:
    program = f"{source}/convert_hf_to_gguf.py"
    options = ["--mmproj", "--outtype", file.stem, "--outfile", str(file)]
    done = subprocess.run([sys.executable, program, str(folder), *options], capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{folder}\n{done.stderr[-3000:]}")


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
