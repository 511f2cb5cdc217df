"""Print the longest Python files, and fail if one is longer than its limit (models 250 lines, others 500)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

LIMIT, MODEL_LIMIT, SHOWN = 500, 250, 5


def main() -> int:
    names = subprocess.run(["git", "ls-files", "-co", "--exclude-standard", "*.py"], capture_output=True, text=True)
    lengths = []
    for name in names.stdout.split():
        path = Path(name)
        if path.exists() and not path.name.startswith("_gen"):
            limit = MODEL_LIMIT if "models" in path.parts else LIMIT
            lengths.append((len(path.read_text(encoding="utf-8").splitlines()), limit, name))
    lengths.sort(reverse=True)
    for n, _, name in lengths[:SHOWN]:
        sys.stdout.write(f"{n:5} {name}\n")
    too_long = [f"{name} has {n} lines; the limit is {limit}" for n, limit, name in lengths if n > limit]
    sys.stderr.writelines(f"{line}\n" for line in too_long)
    return 1 if too_long else 0


if __name__ == "__main__":
    sys.exit(main())
