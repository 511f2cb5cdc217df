"""The UUIDs of GPUs. ggml tells only where a GPU is on the PCI bus; the drivers know the rest."""

from __future__ import annotations

import re
from pathlib import Path

__all__ = ["uuid_of"]


def uuid_of(pci_id: str, root: Path = Path("/")) -> str | None:
    """The UUID of the GPU at a place of the PCI bus, as nvidia-smi and rocminfo print it; None if no driver says it.

    root: for tests, a folder that stands for "/".
    """
    if not re.fullmatch(r"[0-9a-fA-F:.]+", pci_id):
        return None
    place = pci_id.lower()
    nvidia = _read(root / "proc/driver/nvidia/gpus" / place / "information")
    if found := re.search(r"GPU UUID:\s*(GPU-[0-9a-fA-F-]+)", nvidia):
        return found[1]
    amd = _read(root / "sys/bus/pci/devices" / place / "unique_id").strip()
    return f"GPU-{amd}" if re.fullmatch("[0-9a-fA-F]{16}", amd) else None


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
