"""Keeps the reports of probes in the user's cache folder, so that the next start probes nothing.

A report is valid only while everything it depends on is unchanged: the plugin's RECORD and files, the modules and
native files that its probe used and where they were found, the searched folders, Python, hotshoe, the processor, the
kernel, drivers, GPUs, and their environment variables (see ``machine_state``). A report of a failure is valid for ten
minutes only, and only until something is installed, because its cause may be something that is not compared. That is
long enough that a plugin which hangs does not slow down every start.

Errors here are not fatal: if the folder is not writable or a file is damaged, the plugin is probed again. Files are
replaced as a whole, so several processes can start at the same time.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import platform
import sys
import threading
import time
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import hotshoe_core
import hotshoe_loader
from hotshoe_core.errors.text import printable
from hotshoe_loader.files import file_state, load_json, read_text
from hotshoe_loader.find import GROUP, EntryPoint
from hotshoe_loader.ggml.file_names import backend_files
from hotshoe_loader.report import Job, Report
from hotshoe_loader.used import is_unchanged

__all__ = ["Cache", "machine_state", "reports_folder"]

logger = logging.getLogger("hotshoe.loader")

_FORMAT = 6
_MAX_ENTRY = 16 << 20  # bytes of an entry
MAX_FAILURE_AGE = 600.0  # seconds
_MAX_UNUSED_AGE = 30 * 86400.0  # seconds
_MAX_FILES = 2000  # of a plugin's package that are compared; for larger packages RECORD must suffice

_CODE = tuple(
    os.path.join(os.path.dirname(package.__file__ or ""), part)
    for package, parts in (
        (hotshoe_loader, ("", "ggml")),
        (hotshoe_core, ("", "contract", "eager", "errors", "gguf", "graphs", "ops", "tensors")),
    )
    for part in parts
)
"""Folders of hotshoe's own code. A change there may change a result, and in a checkout the version does not change."""

_VARIABLES = (
    *("CUDA_", "NVIDIA_", "GGML_", "HIP_", "ROCR_", "HSA_", "GPU_DEVICE_ORDINAL", "VK_", "MESA_", "LIBGL_", "GALLIUM_"),
    *("ONEAPI_", "SYCL_", "ZE_", "OMP_", "KMP_", "GOMP_", "MLX_", "JAX_", "XLA_", "METAL_", "MTL_"),
    *("LD_LIBRARY_PATH", "LD_PRELOAD", "DYLD_", "HOTSHOE_GGML_"),
)


def reports_folder(environ: Mapping[str, str] = os.environ) -> Path | None:
    """The folder of the reports; None if HOTSHOE_CACHE_DIR is "off" or no cache folder is known."""
    given = environ.get("HOTSHOE_CACHE_DIR", "").strip()
    if given:
        return None if given.lower() == "off" else Path(os.path.abspath(given)) / "probes"
    if sys.platform == "win32":
        root = environ.get("LOCALAPPDATA", "")
    elif sys.platform == "darwin":
        root = os.path.expanduser("~/Library/Caches")
    else:
        root = environ.get("XDG_CACHE_HOME", "")
        root = root if os.path.isabs(root) else os.path.expanduser("~/.cache")
    return Path(root, "hotshoe", "probes") if os.path.isabs(root) else None


class Cache:
    """The reports for one state of the machine.

    machine: the result of ``machine_state``. installed: the version of every distribution.
    """

    def __init__(self, folder: Path | None, machine: Any, installed: Mapping[str, str]) -> None:
        self._folder = folder
        self._machine = json.dumps(machine, sort_keys=True)  # once, because each report has it in its key
        self._installed = zlib.crc32(repr(sorted(installed.items())).encode())
        self._pruned = False

    def get(self, job: Job) -> Report | None:
        """The kept report on ``job`` with its ``age``; None if there is no valid report."""
        key = self._key(job)
        path = self._path(key)
        if path is None or not _is_private(path.parent):
            return None
        try:
            entry = load_json(read_text(path, _MAX_ENTRY))
            report = Report.from_json(entry["report"])
            age = time.time() - entry["time"]
            # As JSON, because tuples are read back as lists.
            same = _text(entry["key"]) == _text(key) and is_unchanged(report.modules, report.missing)
            same = same and entry["files"] == _files(job.plugin, report)
            same = same and entry["variables"] == _manifest_variables(report)
            same = same and (entry["installed"] == self._installed or not report.failed)
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError, LookupError, AttributeError, ArithmeticError) as error:
            logger.debug("cannot use %s: %s", path, printable(str(error), 500))
            return None
        if not same or not 0 <= age < math.inf or (report.failed and age > MAX_FAILURE_AGE):
            return None
        report.age = age
        return report

    def put(self, job: Job, report: Report) -> None:
        """Keep a report. If that is impossible, log it at DEBUG."""
        key = self._key(job)
        path = self._path(key)
        if path is None:
            return
        entry = {
            "key": key,
            "files": _files(job.plugin, report),
            "variables": _manifest_variables(report),
            "installed": self._installed,
            "time": time.time(),
            "report": report.to_json(),
        }
        fresh = path.with_name(f"{path.name}.{os.getpid()}-{threading.get_ident()}.tmp")
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            if not _is_private(path.parent):
                return
            if not self._pruned:  # once for each start, because there may be thousands of files
                self._pruned = True
                self._prune(path.parent)
            fresh.write_text(json.dumps(entry), encoding="utf-8")
            os.replace(fresh, path)
        except (OSError, ValueError) as error:  # read-only, full, or opened by another process on Windows
            logger.debug("cannot keep the report on %s: %s", job.plugin.name, error)
            with contextlib.suppress(OSError):
                fresh.unlink(missing_ok=True)

    def drop(self, job: Job) -> None:
        """Remove a report that is wrong."""
        path = self._path(self._key(job))
        if path is not None:
            try:
                path.unlink(missing_ok=True)
            except OSError as error:
                logger.debug("cannot remove %s: %s", path, error)

    def _key(self, job: Job) -> dict[str, Any]:
        # A probe fills in ``skip``, so it is not part of the key.
        return {"format": _FORMAT, "machine": self._machine, "job": {**job.to_json(), "skip": {}}}

    def _path(self, key: dict[str, Any]) -> Path | None:
        # The checksums only make distinct names: the key itself is in the file and is compared.
        text = _text(key).encode()
        name = f"{zlib.crc32(text):08x}{zlib.adler32(text):08x}.json"
        return None if self._folder is None else self._folder / name

    @staticmethod
    def _prune(folder: Path) -> None:
        """Remove files that were not written for 30 days."""
        oldest = time.time() - _MAX_UNUSED_AGE
        for entry in list(os.scandir(folder)):
            try:
                if entry.stat().st_mtime < oldest:
                    os.unlink(entry.path)
            except OSError:
                continue


def _text(key: Any) -> str:
    return json.dumps(key, sort_keys=True)


def _is_private(folder: Path) -> bool:
    """Whether only this user can write to the folder. A report names a library that is opened."""
    try:
        found = os.stat(folder)
    except OSError:
        return False
    if not hasattr(os, "geteuid"):
        return True
    if found.st_uid in (0, os.geteuid()) and not found.st_mode & 0o022:
        return True
    logger.debug("reports are not kept in %s: other users can write to it", folder)
    return False


def _files(plugin: EntryPoint, report: Report) -> dict[str, Any]:
    """Size and time of every file on which the report depends."""
    found: dict[str, Any] = {}
    record = os.path.join(plugin.info, "RECORD") if plugin.info else ""
    for path in (record, *_package(plugin, report), *report.modules.values(), *report.mapped):
        if path:
            found[path] = _stat(path)
    for name in report.folders:
        found[name] = {file.path.name: _stat(str(file.path)) for file in backend_files(Path(name))}
    for provider in report.providers:
        for path in (provider.core, *(library.path for library in provider.libraries)):
            if path:
                found[path] = _stat(path)
    return found


def _package(plugin: EntryPoint, report: Report) -> Iterator[str]:
    """The files of the package or module that an entry point names: the one that was imported, else found by name."""
    top = plugin.module.partition(".")[0]
    imported, file = os.path.split(report.modules.get(top, ""))
    if file.startswith("__init__."):
        imported = os.path.dirname(imported)
    for entry in dict.fromkeys([imported, plugin.location, *sys.path]) if top else ():
        if not isinstance(entry, str) or not os.path.isabs(entry):
            continue
        if os.path.isfile(os.path.join(entry, f"{top}.py")):
            yield os.path.join(entry, f"{top}.py")
            return
        if os.path.isdir(os.path.join(entry, top)):
            left = _MAX_FILES
            for folder, folders, names in os.walk(os.path.join(entry, top)):
                folders[:] = sorted(name for name in folders if name not in ("__pycache__", "include"))
                yield from (os.path.join(folder, name) for name in sorted(names)[:left])
                left -= min(left, len(names))
                if not left:
                    return
            return


def _stat(path: str) -> list[int] | None:
    state = file_state(path)
    return None if state is None else list(state)


def _manifest_variables(report: Report) -> dict[str, str]:
    """The environment variables that the plugin's manifest names, with their values."""
    return _variables(tuple(report.environment)) if report.environment else {}


def _variables(starts: tuple[str, ...]) -> dict[str, str]:
    return {name: value for name, value in sorted(os.environ.items()) if name.startswith(starts)}


def _code(installed: Mapping[str, str]) -> list[Any]:
    """The state of hotshoe's own code: pip's RECORD of it, or every file, if it runs from a checkout."""
    site = os.path.dirname(os.path.dirname(hotshoe_loader.__file__ or ""))
    record = _stat(os.path.join(site, f"hotshoe_core-{installed.get('hotshoe-core')}.dist-info", "RECORD"))
    if record is not None:
        return record
    return [_stat(os.path.join(folder, name)) for folder in _CODE for name in _names(folder) if name.endswith(".py")]


def machine_state(installed: Mapping[str, str]) -> dict[str, Any]:
    """The state on which every report depends. ``installed``: the version of every distribution."""
    return {
        "hotshoe": _code(installed),
        "group": GROUP,
        "python": [sys.executable, sys.version, sys.implementation.cache_tag],
        "variables": _variables(_VARIABLES),
        "machine": [platform.machine(), os.cpu_count(), _memory(), _processor(), _read("/etc/machine-id")],
        "kernel": list(os.uname()[:1] + os.uname()[2:]) if hasattr(os, "uname") else list(sys.getwindowsversion()),  # type: ignore[attr-defined]
        "drivers": [_read("/proc/driver/nvidia/version"), _read("/sys/module/amdgpu/version")],
        "devices": [
            *(f"/dev/{name}" for name in _names("/dev") if name.startswith(("nvidia", "kfd", "dxg", "accel"))),
            *(f"/dev/dri/{name} {_link(f'/sys/class/drm/{name}/device')}" for name in _names("/dev/dri")),
            *_names("/proc/driver/nvidia/gpus"),
        ],
        "icd": [f"{path}/{name}" for path in _ICD for name in _names(path)],
    }


_ICD = ("/etc/vulkan/icd.d", "/usr/share/vulkan/icd.d", "/etc/OpenCL/vendors")


def _memory() -> int:
    return os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else 0


def _processor() -> str:
    """The model and the flags of the first processor."""
    if sys.platform.startswith("linux"):
        text = _read("/proc/cpuinfo").partition("\n\n")[0]
        lines = [line for line in text.splitlines() if line.startswith(("model name", "flags", "Features", "CPU part"))]
        return "\n".join(lines)
    return os.environ.get("PROCESSOR_IDENTIFIER", "") or platform.processor()


def _read(path: str) -> str:
    """The first 8 KiB of a file; "" if it cannot be read."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(8192)
    except OSError:
        return ""


def _names(path: str) -> list[str]:
    try:
        return sorted(os.listdir(path))
    except OSError:
        return []


def _link(path: str) -> str:
    try:
        return os.path.basename(os.readlink(path))
    except OSError:
        return ""
