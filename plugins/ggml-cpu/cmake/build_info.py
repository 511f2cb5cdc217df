"""Build-time: writes `_build_info.json`, for the plugin itself, and beside it `hotshoe-plugin.json`, for the loader.

The loader reads the latter before it lets any native code run.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import re
import sys
from pathlib import Path


def ggml_version(cmake_lists: Path) -> str:
    """The version ggml's CMakeLists.txt sets."""
    text = cmake_lists.read_text(encoding="utf-8")
    parts = []
    for part in ("MAJOR", "MINOR", "PATCH"):
        match = re.search(rf"set\(GGML_VERSION_{part}\s+(\d+)\)", text)
        if match is None:
            raise SystemExit(f"{cmake_lists} sets no GGML_VERSION_{part}: not a ggml this build knows")
        parts.append(match.group(1))
    return ".".join(parts)


def main() -> int:
    """Writes the file named by --output."""
    parser = argparse.ArgumentParser()
    for option in ("ggml", "variants", "openmp", "compiler", "system", "output"):
        parser.add_argument(f"--{option}", required=True)
    args = parser.parse_args()

    # By path, not by import: the package is not installed while it is being built.
    abi_file = Path(__file__).parents[1] / "src" / "hotshoe_ggml" / "_abi.py"
    spec = importlib.util.spec_from_file_location("_abi", abi_file)
    if spec is None or spec.loader is None:
        raise SystemExit(f"{abi_file} cannot be imported: the source tree is incomplete")
    abi = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(abi)

    root = Path(args.ggml)
    version = ggml_version(root / "CMakeLists.txt")
    api = re.search(r"#define GGML_BACKEND_API_VERSION (\d+)", (root / "src" / "ggml-backend-impl.h").read_text())
    last_sync = root / "scripts" / "sync-llama.last"  # the llama.cpp commit this tree was last synced from
    info = {
        "ggml_version": version,
        "llama_cpp_commit": last_sync.read_text().strip() if last_sync.is_file() else None,
        "backend_api_version": int(api.group(1)) if api else None,
        "abi_fingerprint": abi.fingerprint([root / "include", root / "src"], version),
        "variants": [name for name in args.variants.split(";") if name],
        "openmp": args.openmp.upper() in ("ON", "TRUE", "1", "YES"),
        "compiler": args.compiler,
        "system": args.system,
    }
    manifest = {
        "format": 1,
        "api": [1, 1],  # the plugin contract that src/hotshoe_ggml/provider.py is written for
        # adopts: the bindings pass `HOTSHOE_GGML=folder pytest tests/ggml/test_conformance.py` with both of these.
        "ggml": {"version": version, "abi": info["abi_fingerprint"], "adopts": [version, "0.25.1"]},
        "environment": ["GGML_", "HOTSHOE_GGML_"],
    }
    output = Path(args.output)
    output.write_text(json.dumps(info, indent=2) + "\n", encoding="utf-8")
    output.with_name("hotshoe-plugin.json").write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
