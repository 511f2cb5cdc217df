"""Reads the headers of native libraries (ELF, Mach-O, PE) as files: the system's linker does not open them."""

from __future__ import annotations

import os
import platform
import re
import struct
import sys
from pathlib import Path
from typing import NamedTuple

from hotshoe_loader.files import NotRegularError, open_regular

__all__ = ["BadLibrary", "Binary", "install_hint", "read_binary", "unresolved"]

_MACHINES = {"x86_64": "x86_64", "amd64": "x86_64", "aarch64": "arm64", "arm64": "arm64"}
_ELF = {62: "x86_64", 183: "arm64", 3: "x86 (32 bits)", 40: "arm (32 bits)", 243: "riscv", 21: "ppc64", 22: "s390x"}
_MACH_O = {0x01000007: "x86_64", 0x0100000C: "arm64"}
_PE = {0x8664: "x86_64", 0xAA64: "arm64", 0x014C: "x86 (32 bits)"}


class BadLibrary(Exception):  # noqa: N818 - not an error: vet turns it into a verdict
    """The file's header is not that of a library that can be opened; the message says why."""


class Binary(NamedTuple):
    """The header of a library. The fields after ``machine`` are empty for PE and for files with several machines."""

    format: str
    """The file format: "ELF", "Mach-O" or "PE"."""
    machine: str | None
    """The processor type, such as "x86_64"; None if the file contains several, with this computer's among them."""
    soname: str = ""
    needed: tuple[str, ...] = ()
    """The names of the libraries that it needs."""
    paths: tuple[str, ...] = ()
    """The folders in which it searches for them first. $ORIGIN is replaced by the library's own folder."""

    @property
    def fits(self) -> bool:
        """Whether it is built for this platform and processor."""
        wanted = {"win32": "PE", "darwin": "Mach-O"}.get(sys.platform, "ELF")
        ours = _MACHINES.get(platform.machine().lower())
        return self.format == wanted and (self.machine is None or ours is None or self.machine == ours)

    @property
    def misfit(self) -> str:
        """What it is built for, and what this computer is, in words."""
        wanted = {"win32": "PE", "darwin": "Mach-O"}.get(sys.platform, "ELF")
        ours = _MACHINES.get(platform.machine().lower(), platform.machine())
        return f"built for {self.machine or 'another machine'} ({self.format}); this is {ours} ({wanted})"


def read_binary(path: Path) -> Binary:
    """Read the header of a library. Raise BadLibrary if it is invalid, OSError if the file cannot be read."""
    try:
        descriptor, size = open_regular(path)
    except NotRegularError as error:
        raise BadLibrary(str(error)) from error
    try:
        head = os.read(descriptor, 4096)
        if head[:4] == b"\x7fELF" and len(head) >= 64:
            try:
                return _elf(descriptor, head, size, path.parent)
            except (struct.error, IndexError, ValueError) as error:
                raise BadLibrary(f"its ELF header is damaged: {error}") from error
        if head[:4] == b"\xcf\xfa\xed\xfe" and len(head) >= 32:
            try:
                return _mach_o(descriptor, head, size, path.parent)
            except (struct.error, ValueError) as error:
                raise BadLibrary(f"its Mach-O header is damaged: {error}") from error
    finally:
        os.close(descriptor)
    if head[:4] == b"\xca\xfe\xba\xbe" and len(head) >= 8:  # a universal file with several machines
        count = min(struct.unpack_from(">I", head, 4)[0], (len(head) - 8) // 20)
        machines = [_MACH_O.get(struct.unpack_from(">I", head, 8 + 20 * i)[0]) for i in range(count)]
        ours = _MACHINES.get(platform.machine().lower())
        return Binary("Mach-O", None if ours in machines else " and ".join(filter(None, machines)) or None)
    if head[:2] == b"MZ" and len(head) >= 64:
        offset = struct.unpack_from("<I", head, 60)[0]
        if head[offset : offset + 4] == b"PE\0\0" and len(head) >= offset + 6:
            number = struct.unpack_from("<H", head, offset + 4)[0]
            return Binary("PE", _PE.get(number, f"machine {number:#x}"))
    raise BadLibrary(f"it is not a shared library: it starts with {head[:8]!r}, which is not ELF, Mach-O or PE")


_DYN = 3  # e_type of a shared library
_LOAD, _DYNAMIC = 1, 2  # p_type
_NEEDED, _STRTAB, _STRSZ, _SONAME, _RPATH, _RUNPATH = 1, 5, 10, 14, 15, 29  # d_tag
# Limits that no real library reaches: a damaged length or count must not make us read the whole file.
_MAX_TABLE = 1 << 20  # bytes
_MAX_NAMES, _MAX_NAME_LENGTH = 1024, 4096


def _elf(fd: int, head: bytes, size: int, origin: Path) -> Binary:
    order = "<" if head[5] == 1 else ">"
    kind, number = struct.unpack_from(f"{order}HH", head, 16)
    machine = _ELF.get(number, f"machine {number}")
    if head[4] != 2:
        return Binary("ELF", machine if "32" in machine else f"{machine}, 32 bits")
    if kind != _DYN:
        raise BadLibrary(f"it is an ELF file of type {kind}; expected a shared library (3)")
    table, _, _, _, entry_size, count = struct.unpack_from(f"{order}QQIHHH", head, 32)
    segments = [
        struct.unpack_from(f"{order}IIQQQQQQ", _read(fd, table + i * entry_size, 56, size), 0) for i in range(count)
    ]
    end = max((offset + length for kind, _, offset, _, _, length, _, _ in segments if kind == _LOAD), default=0)
    if end > size:
        raise BadLibrary(f"it is truncated: its header says {end} bytes, but it has {size}")
    entries: list[tuple[int, int]] = []
    for kind, _, offset, _, _, length, _, _ in segments:
        if kind == _DYNAMIC:
            data = _read(fd, offset, min(length, _MAX_TABLE), size)
            entries = [struct.unpack_from(f"{order}qQ", data, i) for i in range(0, len(data) - 15, 16)]
    tags = dict(entries)
    text = b""
    if _STRTAB in tags:
        for kind, _, offset, address, _, length, _, _ in segments:
            if kind == _LOAD and address <= tags[_STRTAB] < address + length:
                start = offset + tags[_STRTAB] - address
                text = _read(fd, start, min(tags.get(_STRSZ, 0), _MAX_TABLE, size - start), size)

    def name(start: int) -> str:
        return text[start : text.index(b"\0", start, start + _MAX_NAME_LENGTH)].decode("utf-8", "replace")

    if sum(tag in (_NEEDED, _RPATH, _RUNPATH) for tag, _ in entries) > _MAX_NAMES:
        raise BadLibrary(f"its ELF header is damaged: it names more than {_MAX_NAMES} libraries and folders")
    paths = [name(value) for tag, value in entries if tag in (_RPATH, _RUNPATH)]
    folders = [part for path in paths for part in path.split(":") if part]
    return Binary(
        "ELF",
        machine,
        soname=name(tags[_SONAME]) if _SONAME in tags else "",
        needed=tuple(name(value) for tag, value in entries if tag == _NEEDED),
        paths=tuple(part.replace("$ORIGIN", str(origin)).replace("${ORIGIN}", str(origin)) for part in folders),
    )


_LIBRARY, _BUNDLE = 6, 8  # filetype: a library to link to, and one that can only be opened
_SEGMENT, _LOAD_DYLIB, _LOAD_WEAK, _REEXPORT, _RPATH_COMMAND = 0x19, 0x0C, 0x80000018, 0x8000001F, 0x8000001C  # cmd


def _mach_o(fd: int, head: bytes, size: int, origin: Path) -> Binary:
    """The header of a 64-bit, little-endian Mach-O file. Layout: mach-o/loader.h."""
    number, _, kind, count, length = struct.unpack_from("<IIIII", head, 4)
    if kind not in (_LIBRARY, _BUNDLE):
        raise BadLibrary(f"it is a Mach-O file of type {kind}; expected a library (6) or a bundle (8)")
    data = _read(fd, 32, min(length, _MAX_TABLE), size)
    end, position = 32 + length, 0
    needed: list[str] = []
    paths: list[str] = []
    for _ in range(min(count, len(data) // 8)):
        command, step = struct.unpack_from("<II", data, position)
        if command == _SEGMENT:
            offset, length = struct.unpack_from("<QQ", data, position + 40)
            end = max(end, offset + length)
        elif command in (_LOAD_DYLIB, _LOAD_WEAK, _REEXPORT, _RPATH_COMMAND):
            start = position + struct.unpack_from("<I", data, position + 8)[0]
            text = data[start : data.index(b"\0", start, position + step)].decode("utf-8", "replace")
            (paths if command == _RPATH_COMMAND else needed).append(text[:_MAX_NAME_LENGTH])
        if step < 8:
            raise ValueError(f"a command has {step} bytes")
        position += step
    if len(needed) + len(paths) > _MAX_NAMES:
        raise BadLibrary(f"its Mach-O header is damaged: it names more than {_MAX_NAMES} libraries and folders")
    if end > size:
        raise BadLibrary(f"it is truncated: its header says {end} bytes, but it has {size}")
    machine = _MACH_O.get(number, f"cpu type {number}")
    folders = tuple(path.replace("@loader_path", str(origin)) for path in paths)
    return Binary("Mach-O", machine, needed=tuple(needed), paths=folders)


def _read(fd: int, offset: int, length: int, size: int) -> bytes:
    if offset < 0 or offset + length > size:
        raise BadLibrary(f"it is truncated: its header refers to byte {offset + length}, but it has {size}")
    os.lseek(fd, offset, os.SEEK_SET)
    return os.read(fd, length)


def unresolved(binary: Binary) -> list[str]:
    """The needed libraries that are in no folder that glibc's linker searches; [] if that is unknown.

    Use it to explain why a library could not be opened, but not to refuse one: a program may have its own search
    paths, as programs of conda and Nix have.
    """
    try:
        with open("/etc/ld.so.cache", "rb") as file:
            known = file.read()
        with open("/proc/self/maps", "rb") as file:  # the libraries that the plugin has already opened
            known += file.read().replace(b"/", b"\0").replace(b"\n", b"\0")
    except OSError:
        return []
    triplet = f"{platform.machine()}-linux-gnu"
    system = [f"{root}{part}" for root in ("/lib", "/usr/lib") for part in ("", "64", f"/{triplet}")]
    folders = [*binary.paths, *os.environ.get("LD_LIBRARY_PATH", "").split(":"), *system]
    return [
        name
        for name in binary.needed
        if b"\0" + name.encode() + b"\0" not in known
        and not any(folder and os.path.exists(os.path.join(folder, name)) for folder in folders)
    ]


_COMMANDS = (
    ("libcuda.so", "NVIDIA's driver (Debian and Ubuntu: nvidia-driver; in a container: run it with --gpus all)"),
    ("libcudart.so", "pip install nvidia-cuda-runtime"),
    ("libcublas.so", "pip install nvidia-cublas"),
    ("libcublasLt.so", "pip install nvidia-cublas"),
    ("libvulkan.so", "apt install libvulkan1, or dnf install vulkan-loader"),
    ("libgomp.so", "apt install libgomp1, or dnf install libgomp"),
    ("libomp.so", "apt install libomp5, or dnf install libomp"),
    ("libOpenCL.so", "apt install ocl-icd-libopencl1, or dnf install ocl-icd"),
    ("libhipblas.so", "ROCm: apt install hipblas"),
    ("librocblas.so", "ROCm: apt install rocblas"),
    ("libamdhip64.so", "ROCm: apt install hip-runtime-amd"),
    ("libopenblas.so", "apt install libopenblas0, or dnf install openblas"),
    ("libmkl_", "pip install mkl"),
    ("libsycl.so", "pip install dpcpp-cpp-rt"),
    ("libze_loader.so", "apt install libze1"),
    ("libstdc++.so", "apt install libstdc++6, or dnf install libstdc++"),
    ("libc.musl", "it is built for musl (Alpine Linux): install the build for glibc (manylinux)"),
)


def install_hint(soname: str) -> str | None:
    """The command that installs a library; None if it is unknown."""
    name = os.path.basename(soname)
    # The names of NVIDIA's wheels contain the CUDA version up to 12; from 13 on they do not.
    cuda = re.fullmatch(r"lib(cudart|cublas|cublasLt)\.so\.(1[12])(\..*)?", name)
    command = next((command for start, command in _COMMANDS if name.startswith(start)), None)
    return f"{command}-cu{cuda[2]}" if command and cuda else command
