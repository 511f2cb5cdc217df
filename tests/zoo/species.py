"""How an animal is made: a wheel with a provider that works, and its fault.

Its module is BODY, a provider that works (NumPy under another name), with ``before`` in front of it (what happens when
it is imported) and ``after`` behind it (what is wrong with it). ``{name}`` is its name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

__all__ = [
    "ALIEN",
    "Animal",
    "BODY",
    "GGML",
    "Library",
    "OPEN_LIBRARY",
    "OURS",
    "TIME_LIMIT",
    "WORKS",
    "constructor",
    "machine",
    "wrong",
]

TIME_LIMIT = 8.0
"""Seconds that a probe gets in these tests."""

BODY = """
import os, signal, sys, threading, time
from pathlib import Path
from hotshoe_core.contract.device import API_VERSION, Device, DeviceType
from hotshoe_core.contract.plugin import hookimpl

HERE = Path(__file__).parent

class Provider:
    name = family = "{name}"
    api_version = API_VERSION
    memory = 8 << 30

    def native(self):
        return None

    def devices(self, library):
        return [Device("{name}", DeviceType.ACCEL, self.name, self.family, memory_total=self.memory)]

    def open(self, devices, params):
        from hotshoe_core.eager.reference import open_reference
        backend = open_reference(params)
        backend.devices = tuple(devices)
        return backend

@hookimpl
def hotshoe_providers():
    return [Provider()]
"""

# A provider whose library is the folder's libggml-{name}.so, driven by hotshoe's own ggml engine.
GGML = """
class Provider:
    name, family, api_version = "{name}", "ggml", API_VERSION

    def native(self):
        from hotshoe_ggml.native import base_path
        return {"kind": "ggml", "name": "{name}", "directories": [HERE], "core": base_path()}

    def devices(self, library):
        from hotshoe_ggml.provider import GgmlProvider
        return GgmlProvider("{name}", "{name}", HERE, "{name}").devices(library)

    def open(self, devices, params):
        raise RuntimeError("nobody may get this far")
"""

OPEN_LIBRARY = "import ctypes, pathlib; ctypes.CDLL(str(pathlib.Path(__file__).parent / 'lib{name}.so'))"

# Spoils one function of the reference backend's table: ``y`` is what it should return.
WRONG = """
def _open(self, devices, params):
    import dataclasses
    from hotshoe_core.eager.adapter import EagerBackend
    from hotshoe_core.eager.reference import numpy_library
    library = numpy_library()
    functions = dict(library.functions)
    function = functions["{op}"]
    def spoiled(*arrays, **attributes):
        y = function(*arrays, **attributes)
        return {wrong}
    functions["{op}"] = spoiled
    return EagerBackend(self.name, devices, params, dataclasses.replace(library, functions=functions))
Provider.open = _open
"""


def wrong(op: str, wrong: str) -> str:
    return WRONG.replace("{op}", op).replace("{wrong}", wrong)


@dataclass(frozen=True)
class Library:
    """A shared library in the wheel, compiled from the C code ``source``."""

    source: str = "void *ggml_backend_init(void) { return 0; }"
    needs: str | None = None
    """A library that it is linked to and that will be missing."""
    spoil: Callable[[bytes], bytes] = lambda data: data
    """Changes its bytes before they are packed."""


@dataclass(frozen=True)
class Animal:
    """A plugin of the zoo."""

    name: str
    """The name of its wheel, entry point, provider and device."""
    what: str
    """What it does, in words."""
    outcomes: tuple[str, ...]
    """The outcomes that its verdict may have."""
    says: tuple[str, ...] = ()
    """Texts in the reason, hint or details of its verdict, or its library's, if that has the first of the outcomes."""
    before: str = ""
    after: str = ""
    libraries: Mapping[str, Library] = field(default_factory=dict)
    files: Mapping[str, bytes] = field(default_factory=dict)
    tag: str = "py3-none-any"
    """The platform in the wheel's metadata."""
    entry: str | None = None
    """The entry point's module, if it is not its own."""

    @property
    def hangs(self) -> bool:
        return self.outcomes == ("timed-out",)

    @property
    def distribution(self) -> str:
        return f"zoo-{self.name}"

    @property
    def module(self) -> str:
        return f"zoo_{self.name}"

    @property
    def code(self) -> str:
        code = self.before + "\n" + BODY + self.after
        return code.replace("{name}", self.name).replace("{limit}", str(TIME_LIMIT))


def constructor(body: str) -> Library:
    head = "#include <stdlib.h>\n#include <stdio.h>\n#include <signal.h>\n"
    return Library(head + "__attribute__((constructor)) static void start(void) {" + body + "}")


def machine(data: bytes) -> bytes:
    return data[:18] + (21).to_bytes(2, "little") + data[20:]  # e_machine 21: PowerPC 64


# What an animal says of the ggml that its libraries were built with: hotshoe's own, or another.
OURS = {"hotshoe-plugin.json": b'{"format": 1, "ggml": {"version": "{ggml}"}}'}
ALIEN = {"hotshoe-plugin.json": b'{"format": 1, "ggml": {"version": "0.9.11", "abi": "00000000000000ff"}}'}

WORKS = ("loaded", "available")
