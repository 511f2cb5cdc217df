"""Which GPUs a CUDA library has code for: its machine code and PTX, by compute capability.

nvcc stores them in the section .nv_fatbin as containers: a magic number, the sizes of header and content, and the
entries, each of kind 1 (PTX) or 2 (machine code, an ELF file). The layout was found with nvcc and cuobjdump: NVIDIA
documents only the magic number, in fatbinary_section.h and fatBinaryCtl.h.
"""

from __future__ import annotations

import mmap
import struct
from pathlib import Path
from typing import NamedTuple

__all__ = ["GpuCode", "gpu_code"]

_MAGIC = struct.pack("<I", 0xBA55ED50)
_CONTAINER = struct.Struct("<IHHQ")  # magic, version, bytes of this header, bytes of the entries
_ENTRY = struct.Struct("<HHIQIIHHI")  # kind, …, bytes of this header, bytes of the content, …, compute capability
_PTX, _MACHINE_CODE = 1, 2


class GpuCode(NamedTuple):
    """Compute capabilities as NVIDIA writes them: 90 for 9.0."""

    machine: frozenset[int]
    ptx: frozenset[int]


def gpu_code(path: Path) -> GpuCode:
    """The code in a library. Raises ValueError for a container that is cut off."""
    found: dict[int, set[int]] = {_PTX: set(), _MACHINE_CODE: set()}
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        at = data.find(_MAGIC)
        while at >= 0:
            if at % 8 or at + _CONTAINER.size > len(data):
                at = data.find(_MAGIC, at + 1)
                continue
            _, version, header, size = _CONTAINER.unpack_from(data, at)
            if version != 1 or header != _CONTAINER.size:  # the same four bytes elsewhere, as in the runtime's own code
                at = data.find(_MAGIC, at + 1)
                continue
            entry, end = at + header, at + header + size
            if end > len(data):
                raise ValueError(f"{path.name}: a container of GPU code is cut off")
            while entry < end:
                kind, _, entry_header, content, _, _, _, _, capability = _ENTRY.unpack_from(data, entry)
                found.setdefault(kind, set()).add(capability)
                entry += entry_header + content
            at = data.find(_MAGIC, end)
    return GpuCode(frozenset(found[_MACHINE_CODE]), frozenset(found[_PTX]))
