"""At build time: write ``hotshoe-plugin.json``, which the loader reads before it runs native code of a ggml plugin.

Each plugin whose libraries call ggml-base has this file. It says which ggml they were built from.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def ggml_version(cmake_lists: Path) -> str:
    """Return the version that ggml's CMakeLists.txt sets."""
    text = cmake_lists.read_text(encoding="utf-8")
    parts = []
    for part in ("MAJOR", "MINOR", "PATCH"):
        match = re.search(rf"set\(GGML_VERSION_{part}\s+(\d+)\)", text)
        if match is None:
            raise SystemExit(f"{cmake_lists} does not set GGML_VERSION_{part}: this build does not know that ggml")
        parts.append(match.group(1))
    return ".".join(parts)


def manifest(root: Path, environment: Sequence[str], adopts: Sequence[str] = ()) -> dict[str, Any]:
    """Return the manifest of libraries that are built from the ggml tree ``root``.

    environment: environment variables, or the beginnings of their names, that change what the plugin finds. adopts:
    versions of foreign libraries that the plugin's bindings can drive.
    """
    # By path, not by import: the package is not installed while it is being built.
    abi_file = Path(__file__).parents[1] / "src" / "hotshoe_ggml" / "abi.py"
    spec = importlib.util.spec_from_file_location("abi", abi_file)
    if spec is None or spec.loader is None:
        raise SystemExit(f"{abi_file} cannot be imported: the source tree is incomplete")
    abi = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(abi)
    version = ggml_version(root / "CMakeLists.txt")
    ggml: dict[str, Any] = {"version": version, "abi": abi.fingerprint([root / "include", root / "src"], version)}
    if adopts:
        ggml["adopts"] = [version, *adopts]
    # api: the plugin contract that src/hotshoe_ggml/provider.py is written for
    return {"format": 1, "api": [2, 2], "ggml": ggml, "environment": list(environment)}


def write(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


def main() -> int:
    """Write the file that --output names."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--ggml", type=Path, required=True)
    parser.add_argument("--environment", nargs="*", default=[])
    parser.add_argument("--probe-seconds", type=float)
    parser.add_argument("--output", type=Path, required=True)
    args = parser.parse_args()
    fields = manifest(args.ggml, ["GGML_", *args.environment])
    write(args.output, fields | ({"probe_seconds": args.probe_seconds} if args.probe_seconds else {}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
