"""At build time: write ``_build_info.json`` for the plugin itself, and ``hotshoe-plugin.json`` for the loader."""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

from manifest import manifest, write  # type: ignore[import-not-found,unused-ignore]  # the script next to this one

# Versions with which the bindings pass `HOTSHOE_GGML=folder pytest tests/ggml/test_conformance.py`, besides their own.
ADOPTS = ("0.25.3",)


def main() -> int:
    """Write the file that --output names."""
    parser = argparse.ArgumentParser()
    for option in ("ggml", "variants", "openmp", "compiler", "system", "output"):
        parser.add_argument(f"--{option}", required=True)
    args = parser.parse_args()
    root = Path(args.ggml)
    api = re.search(r"#define GGML_BACKEND_API_VERSION (\d+)", (root / "src" / "ggml-backend-impl.h").read_text())
    last_sync = root / "scripts" / "sync-llama.last"  # the llama.cpp commit this tree was last synced from
    loader_manifest = manifest(root, ["GGML_", "HOTSHOE_GGML_"], ADOPTS)
    info = {
        "ggml_version": loader_manifest["ggml"]["version"],
        "llama_cpp_commit": last_sync.read_text().strip() if last_sync.is_file() else None,
        "backend_api_version": int(api.group(1)) if api else None,
        "abi_fingerprint": loader_manifest["ggml"]["abi"],
        "variants": [name for name in args.variants.split(";") if name],
        "openmp": args.openmp.upper() in ("ON", "TRUE", "1", "YES"),
        "compiler": args.compiler,
        "system": args.system,
    }
    output = Path(args.output)
    write(output, info)
    write(output.with_name("hotshoe-plugin.json"), loader_manifest)
    return 0


if __name__ == "__main__":
    sys.exit(main())
