"""Reports of earlier probes, kept in the user's cache folder: the second start probes nothing.

An entry counts only while everything it depends on is as it was: the installed distributions, the plugin's RECORD and
files, the folders searched, Python, hotshoe, the processor, the kernel, drivers, GPUs, and the variables that steer
them (see ``state``). A failure is kept for ten minutes only, as its cause may be outside of what is compared: long
enough that a plugin that hangs does not slow down every start.

Nothing here can fail: a folder that cannot be written or a damaged file is a probe more. Files are replaced whole, so
processes that start at the same time do not disturb each other.
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
from hotshoe_loader.find import GROUP, PluginCandidate
from hotshoe_loader.ggml.file_names import backend_files
from hotshoe_loader.report import Job, Report

__all__ = ["Cache", "folder", "state"]

logger = logging.getLogger("hotshoe.loader")

_FORMAT = 4
_LARGEST = 16 << 20  # bytes of an entry
FAILURES_KEPT = 600.0  # seconds
_UNUSED_KEPT = 30 * 86400.0
_MOST_FILES = 2000  # of a plugin's package; beyond that, what RECORD says must do

_CODE = tuple(
    os.path.join(os.path.dirname(package.__file__ or ""), part)
    for package, parts in (
        (hotshoe_loader, ("", "ggml")),
        (hotshoe_core, ("", "contract", "eager", "errors", "gguf", "graphs", "ops", "tensors")),
    )
    for part in parts
)
"""hotshoe's own: what failed on an older core may open on this one, and in a checkout the version does not change."""

_VARIABLES = (
    *("CUDA_", "NVIDIA_", "GGML_", "HIP_", "ROCR_", "HSA_", "GPU_DEVICE_ORDINAL", "VK_", "MESA_", "LIBGL_", "GALLIUM_"),
    *("ONEAPI_", "SYCL_", "ZE_", "OMP_", "KMP_", "GOMP_", "MLX_", "JAX_", "XLA_", "METAL_", "MTL_"),
    *("LD_LIBRARY_PATH", "LD_PRELOAD", "DYLD_", "HOTSHOE_GGML_"),
)


def folder(environ: Mapping[str, str] = os.environ) -> Path | None:
    """Where reports are kept; None if HOTSHOE_CACHE_DIR is "off", or there is no home to keep them in."""
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
    """The entries for one state of the machine. ``machine``: what ``state`` returns."""

    def __init__(self, where: Path | None, machine: Any) -> None:
        self._folder = where
        self._machine = machine
        self._pruned = False

    def get(self, job: Job) -> Report | None:
        """The report on the same job, its ``age`` filled in; None if there is none that still counts."""
        key = self._key(job)
        path = self._path(key)
        if path is None or not _private(path.parent):
            return None
        try:
            entry = load_json(read_text(path, _LARGEST))
            report = Report.from_json(entry["report"])
            age = time.time() - entry["time"]
            # By way of JSON, as tuples come back as lists.
            same = entry["key"] == json.loads(json.dumps(key)) and entry["files"] == _files(job.plugin, report)
            same = same and entry["variables"] == _named(report)
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError, LookupError, AttributeError, ArithmeticError) as error:
            logger.debug("cannot use %s: %s", path, printable(str(error), 500))
            return None
        if not same or not 0 <= age < math.inf or (report.failed and age > FAILURES_KEPT):
            return None
        report.age = age
        return report

    def put(self, job: Job, report: Report) -> None:
        key = self._key(job)
        path = self._path(key)
        if path is None:
            return
        entry = {
            "key": key,
            "files": _files(job.plugin, report),
            "variables": _named(report),
            "time": time.time(),
            "report": report.to_json(),
        }
        fresh = path.with_name(f"{path.name}.{os.getpid()}-{threading.get_ident()}.tmp")
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            if not _private(path.parent):
                return
            if not self._pruned:  # once: it looks at every entry, of which there may be thousands
                self._pruned = True
                self._prune(path.parent)
            fresh.write_text(json.dumps(entry), encoding="utf-8")
            os.replace(fresh, path)
        except (OSError, ValueError) as error:  # read-only, full, on Windows open elsewhere
            logger.debug("cannot keep the report on %s: %s", job.plugin.name, error)
            with contextlib.suppress(OSError):
                fresh.unlink(missing_ok=True)

    def drop(self, job: Job) -> None:
        """Forgets a report that turned out to be wrong."""
        path = self._path(self._key(job))
        if path is not None:
            try:
                path.unlink(missing_ok=True)
            except OSError as error:
                logger.debug("cannot remove %s: %s", path, error)

    def _key(self, job: Job) -> dict[str, Any]:
        return {"format": _FORMAT, "machine": self._machine, "job": {**job.to_json(), "skip": {}}}

    def _path(self, key: dict[str, Any]) -> Path | None:
        # The number only keeps entries apart: the key itself is in the file, and compared.
        text = json.dumps(key, sort_keys=True).encode()
        name = f"{zlib.crc32(text):08x}{zlib.adler32(text):08x}.json"
        return None if self._folder is None else self._folder / name

    @staticmethod
    def _prune(where: Path) -> None:
        oldest = time.time() - _UNUSED_KEPT
        for entry in list(os.scandir(where)):
            try:
                if entry.stat().st_mtime < oldest:
                    os.unlink(entry.path)
            except OSError:
                continue


def _private(where: Path) -> bool:
    """Whether nobody else can write there: a report names the library that is opened."""
    try:
        found = os.stat(where)
    except OSError:
        return False
    if not hasattr(os, "geteuid"):
        return True
    if found.st_uid in (0, os.geteuid()) and not found.st_mode & 0o022:
        return True
    logger.debug("probes are not kept in %s: others can write there", where)
    return False


def _files(plugin: PluginCandidate, report: Report) -> dict[str, Any]:
    """Size and time of every file the report depends on."""
    found: dict[str, Any] = {}
    record = os.path.join(plugin.info, "RECORD") if plugin.info else ""
    for path in (record, *_package(plugin)):
        if path:
            found[path] = _stat(path)
    for name in report.folders:
        found[name] = {each.path.name: _stat(str(each.path)) for each in backend_files(Path(name))}
    for provider in report.providers:
        for path in (provider.core, *(library.path for library in provider.libraries)):
            if path:
                found[path] = _stat(path)
    return found


def _package(plugin: PluginCandidate) -> Iterator[str]:
    """The files of the package (or the one file) an entry point names, as far as they can be found by name."""
    top = plugin.module.partition(".")[0]
    for entry in dict.fromkeys([plugin.location, *sys.path]) if top else ():
        if not os.path.isabs(entry):
            continue
        if os.path.isfile(os.path.join(entry, f"{top}.py")):
            yield os.path.join(entry, f"{top}.py")
            return
        if os.path.isdir(os.path.join(entry, top)):
            left = _MOST_FILES
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


def _named(report: Report) -> dict[str, str]:
    """Variables that the plugin's own manifest names."""
    return _variables(tuple(report.environment)) if report.environment else {}


def _variables(starts: tuple[str, ...]) -> dict[str, str]:
    return {name: value for name, value in sorted(os.environ.items()) if name.startswith(starts)}


def state(installed: Mapping[str, str]) -> dict[str, Any]:
    """What every entry depends on. ``installed``: version of every distribution."""
    return {
        "hotshoe": [
            installed.get("hotshoe"),
            *(_stat(os.path.join(folder, name)) for folder in _CODE for name in _names(folder) if name.endswith(".py")),
        ],
        "group": GROUP,
        "python": [sys.executable, sys.version, sys.implementation.cache_tag],
        "installed": zlib.crc32(repr(sorted(installed.items())).encode()),
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
    """Model and flags of the first processor."""
    if sys.platform.startswith("linux"):
        text = _read("/proc/cpuinfo").partition("\n\n")[0]
        lines = [line for line in text.splitlines() if line.startswith(("model name", "flags", "Features", "CPU part"))]
        return "\n".join(lines)
    return os.environ.get("PROCESSOR_IDENTIFIER", "") or platform.processor()


def _read(path: str) -> str:
    """The beginning of a small file; "" if there is none."""
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
