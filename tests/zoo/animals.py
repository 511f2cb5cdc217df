"""The animals: one entry each, with what it does and what has to be said of it.

An animal is a wheel. Its module is BODY, a provider that works (NumPy under another name), with ``before`` in front
of it (what happens when it is imported) and ``after`` behind it (what is wrong with it). ``{name}`` is its name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

__all__ = ["ANIMALS", "BODY", "BROKEN", "GGML", "TAME", "TIME_LIMIT", "WORKS", "Animal", "Library"]

TIME_LIMIT = 8.0
"""Seconds that a probe gets in these tests."""

BODY = """
import os, signal, sys, threading, time
from pathlib import Path
from hotshoe_core.device import API_VERSION, Device, DeviceType
from hotshoe_core.plugin import hookimpl

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
        from hotshoe_core.reference import open_reference
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
        from hotshoe_ggml._native import base_path
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
def _open(self, devices, params, right=Provider.open):
    import dataclasses
    backend = right(self, devices, params)
    functions = dict(backend.library.functions)
    function = functions["{op}"]
    def spoiled(*arrays, **attributes):
        y = function(*arrays, **attributes)
        return {wrong}
    functions["{op}"] = spoiled
    backend.library = dataclasses.replace(backend.library, functions=functions)
    return backend
Provider.open = _open
"""


def _wrong(op: str, wrong: str) -> str:
    return WRONG.replace("{op}", op).replace("{wrong}", wrong)


@dataclass(frozen=True)
class Library:
    """A shared library in the wheel, of C ``source``. needs: one it is linked to, and which will not be there.

    spoil: what becomes of its bytes before they are packed.
    """

    source: str = "void *ggml_backend_init(void) { return 0; }"
    needs: str | None = None
    spoil: Callable[[bytes], bytes] = lambda data: data


@dataclass(frozen=True)
class Animal:
    """name: of wheel, entry point, provider and device. what: the words for it.

    outcomes: what it may be called. says: words in the reason, hint or details of its verdict, or of its library's,
    where it is called by the first of the outcomes.
    entry: the entry point's module, where that is not its own. tag: the platform that the wheel says it is for.
    """

    name: str
    what: str
    outcomes: tuple[str, ...]
    says: tuple[str, ...] = ()
    before: str = ""
    after: str = ""
    libraries: Mapping[str, Library] = field(default_factory=dict)
    files: Mapping[str, bytes] = field(default_factory=dict)
    tag: str = "py3-none-any"
    entry: str | None = None

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


def _constructor(body: str) -> Library:
    head = "#include <stdlib.h>\n#include <stdio.h>\n#include <signal.h>\n"
    return Library(head + "__attribute__((constructor)) static void start(void) {" + body + "}")


def _machine(data: bytes) -> bytes:
    return data[:18] + (21).to_bytes(2, "little") + data[20:]  # e_machine 21: PowerPC 64


# What an animal says of the ggml that its libraries were built with: hotshoe's own, or another.
OURS = {"hotshoe-plugin.json": b'{"format": 1, "ggml": {"version": "{ggml}"}}'}
ALIEN = {"hotshoe-plugin.json": b'{"format": 1, "ggml": {"version": "0.9.11", "abi": "00000000000000ff"}}'}

WORKS = ("loaded", "available")

TAME = (
    Animal("dog", "a good one", WORKS),
    Animal(
        "parrot",
        "prints a megabyte on stdout and on stderr, from Python and past it",
        WORKS,
        before="import os, sys\nfor i in range(64):\n"
        "    print('{\"ok\": true}' * 1365); print('x' * 16384, file=sys.stderr)\n"
        "sys.stdout.flush()\nos.write(1, b'o' * (1 << 20)); os.write(2, b'e' * (1 << 20))",
    ),
    Animal(
        "magpie",
        "changes the environment, the signal handlers, the umask and the directory",
        WORKS,
        before="import os, signal\nos.environ['ZOO_MAGPIE'] = 'was here'; os.environ.pop('ZOO_TOKEN', None)\n"
        "os.environ['PATH'] = '/magpie'\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\n"
        "signal.signal(signal.SIGUSR1, lambda *a: None)\nsignal.signal(signal.SIGCHLD, signal.SIG_IGN)\n"
        "signal.setitimer(signal.ITIMER_REAL, 3600)\nos.umask(0); os.chdir('/')",
    ),
    Animal(
        "spider",
        "starts a thread for which Python waits at its end",
        WORKS,
        before="import threading, time\nthreading.Thread(target=lambda: time.sleep(2 + {limit})).start()",
    ),
    Animal(
        "rabbit",
        "starts a process that stays, and keeps its output open",
        WORKS,
        before="import subprocess\nchild = subprocess.Popen(['sleep', '600'])",
    ),
    Animal(
        "amoeba",
        "divides: from its import on there are two of it",
        WORKS,
        before="import os; os.fork()",
    ),
    Animal(
        "pelican",
        "reads standard input to its end",
        WORKS,
        before="import sys; sys.stdin.read()",
    ),
    Animal(
        "mole",
        "leaves files in its directory and in the folder for temporary ones, and means to remove them at exit",
        WORKS,
        before="import atexit, os, shutil, tempfile\nhole = tempfile.mkdtemp(); atexit.register(shutil.rmtree, hole)\n"
        "open('mole.txt', 'w').close()",
    ),
    Animal(
        "hare",
        "starts a process that leaves its session, its output and its directory, as daemons do",
        WORKS,
        before="import subprocess\nnull = subprocess.DEVNULL\n"
        "subprocess.Popen(['sleep', '600'], stdin=null, stdout=null, stderr=null, cwd='/', start_new_session=True)",
    ),
)

BROKEN = (
    Animal("adder", "raises on import", ("import-error",), ("ValueError", "hiss"), before="raise ValueError('hiss')"),
    Animal("swift", "calls sys.exit", ("import-error", "crashed"), ("SystemExit", "3"), before="raise SystemExit(3)"),
    Animal("salmon", "raises KeyboardInterrupt", ("crashed", "import-error"), before="raise KeyboardInterrupt"),
    Animal("eel", "calls os._exit", ("crashed",), ("7",), before="import os; os._exit(7)"),
    Animal(
        "moth",
        "exits as if all were well",
        ("crashed",),
        before="import os; os._exit(0)",
    ),
    Animal(
        "lemming",
        "dies of SIGSEGV in a library's constructor",
        ("crashed",),
        ("SIGSEGV", "off the cliff"),
        before=OPEN_LIBRARY,
        libraries={"liblemming.so": _constructor('fprintf(stderr, "off the cliff\\n"); *(volatile int *)8 = 1;')},
    ),
    Animal(
        "platypus",
        "executes an illegal instruction",
        ("crashed",),
        ("SIGILL",),
        before=OPEN_LIBRARY,
        libraries={"libplatypus.so": _constructor("__builtin_trap(); raise(SIGILL);")},
    ),
    Animal(
        "possum",
        "aborts, as ggml does on a failed assertion",
        ("crashed",),
        ("SIGABRT", "GGML_ASSERT"),
        before=OPEN_LIBRARY,
        libraries={"libpossum.so": _constructor('fprintf(stderr, "GGML_ASSERT(alive) failed\\n"); abort();')},
    ),
    Animal("sloth", "hangs", ("timed-out",), (), before="import time\nwhile True: time.sleep(60)"),
    Animal(
        "tortoise",
        "hangs, and ignores SIGTERM and SIGINT",
        ("timed-out",),
        before="import signal, time\nfor s in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP): "
        "signal.signal(s, signal.SIG_IGN)\nwhile True:\n    try: time.sleep(60)\n    except BaseException: pass",
    ),
    Animal(
        "beaver",
        "hangs in C, without letting go of the interpreter",
        ("timed-out",),
        before=OPEN_LIBRARY,
        libraries={
            "libbeaver.so": _constructor("for (;;) (*(volatile int *)&stdout)++, (*(volatile int *)&stdout)--;")
        },
    ),
    Animal(
        "whale",
        "allocates without end",
        ("crashed", "timed-out"),  # the latter where the others leave it too little of the processor
        ("memory",),
        # The end that it does have is for the machine that the tests run on.
        before="eaten = []\nwhile len(eaten) < 160: eaten.append(b'\\1' * (64 << 20))\nraise SystemExit('ate 10 GiB')",
    ),
    Animal(
        "crab",
        "closes every file that is open",
        ("crashed", "loaded", "available"),
        before="import os; os.closerange(0, 4096)",
    ),
    Animal(
        "ghost",
        "returns None in place of providers",
        ("no-device",),
        ("no provider",),
        after="@hookimpl\ndef hotshoe_providers(): return None",
    ),
    Animal(
        "void",
        "has a library whose ggml_backend_init returns NULL",
        ("incompatible-api", "import-error", "crashed", "no-device"),
        ("ggml_backend_init", "NULL"),
        after=GGML,
        libraries={"libggml-void.so": Library()},
        files=OURS,
    ),
    Animal(
        "mayfly",
        "is written for another version of the contract",
        ("incompatible-api",),
        ("version 99", "pip install --upgrade hotshoe"),
        after="Provider.api_version = 99",
    ),
    Animal(
        "toad",
        "reports absurd memory",
        ("incompatible-api", "wrong-result"),
        ("memory",),
        after="Provider.memory = 1 << 80",
    ),
    Animal(
        "imp",
        "reports less memory than nothing",
        ("incompatible-api", "wrong-result"),
        ("memory",),
        after="Provider.memory = -1",
    ),
    Animal(
        "fox",
        "computes wrong numbers",
        ("wrong-result",),
        ("add gives [",),
        after=_wrong("add", "-y"),
    ),
    Animal(
        "weasel",
        "computes numbers that are a little wrong",
        ("wrong-result",),
        ("linear gives [",),
        after=_wrong("linear", "y * 1.01"),
    ),
    Animal(
        "ermine",
        "computes what is no number",
        ("wrong-result",),
        (),
        after=_wrong("linear", "y * float('nan')"),
    ),
    Animal(
        "cuckoo",
        "crashes when it computes",
        ("crashed",),
        ("SIGSEGV",),
        after=_wrong("linear", "os.kill(os.getpid(), 11)"),
    ),
    Animal(
        "snail",
        "needs a library that is not there",
        ("missing-dependency",),
        ("libshell_nowhere.so.1",),
        before=OPEN_LIBRARY,
        libraries={"libsnail.so": Library("int x;", needs="libshell_nowhere.so.1")},
    ),
    Animal(
        "hermit",
        "has a ggml library that needs a library that is not there",
        ("missing-dependency",),
        ("libshell_nowhere.so.1",),
        after=GGML,
        libraries={"libggml-hermit.so": Library(needs="libshell_nowhere.so.1")},
        files=OURS,
    ),
    Animal(
        "orphan",
        "needs a module that is not there",
        ("missing-dependency",),
        ("zoo_nowhere", "pip install zoo_nowhere"),
        before="import zoo_nowhere",
    ),
    Animal(
        "lizard",
        "has a truncated library",
        ("import-error",),
        ("libggml-lizard.so",),
        after=GGML,
        libraries={"libggml-lizard.so": Library(spoil=lambda data: data[: len(data) // 3])},
    ),
    Animal(
        "bookworm",
        "has a library that is text",
        ("import-error",),
        ("no shared library", "version "),
        after=GGML,
        files={"libggml-bookworm.so": b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n"},
    ),
    Animal(
        "penguin",
        "has a library for another machine",
        ("abi-mismatch",),
        ("ppc64",),
        after=GGML,
        libraries={"libggml-penguin.so": Library(spoil=_machine)},
    ),
    Animal(
        "alien",
        "has a library that was built with another ggml",
        ("abi-mismatch",),
        ("0.9.11",),
        after=GGML,
        libraries={"libggml-alien.so": Library()},
        files=ALIEN,
    ),
    Animal(
        "immigrant",
        "brings the ggml it was built with, which is another",
        ("abi-mismatch",),
        ("0.9.11",),
        after=GGML,
        libraries={
            "libggml-base.so.0": Library('const char version[] = "0.9.11";'),
            "libggml-immigrant.so": Library(),
        },
    ),
    Animal(
        "foundling",
        "has a library of which nothing says with which ggml it was built",
        ("untrusted",),
        ("nothing says",),
        after=GGML,
        libraries={"libggml-foundling.so": Library()},
    ),
    Animal(
        "tampered",
        "has a file that was changed after it was installed",
        ("untrusted",),
        ("libggml-tampered.so", "not the file that pip installed"),
        after=GGML,
        libraries={"libggml-tampered.so": Library()},
        files=OURS,
    ),
    Animal("twin_a", "has the provider name of the other twin", WORKS, after="Provider.name = 'twin'"),
    Animal(
        "twin_b", "has the provider name of the other twin", ("shadowed",), ("'twin'",), after="Provider.name = 'twin'"
    ),
    Animal(
        "camel",
        "is a wheel for another platform",
        ("abi-mismatch", "incompatible-api", "import-error"),
        ("win_amd64",),
        tag="py3-none-win_amd64",
        after=GGML,
        files={"ggml-camel.dll": b"MZ" + bytes(58) + b"\x40\0\0\0PE\0\0\x64\x86"},
    ),
    Animal(
        "ouroboros",
        "calls load_all while it is loaded",
        ("import-error",),
        ("load_all()",),
        before="import hotshoe_loader; hotshoe_loader.load_all()",
    ),
    Animal(
        "hyena",
        "calls its provider as hotshoe's own is called",
        ("shadowed",),
        ("'ggml-cpu', which is the name of hotshoe-ggml-cpu", "another name"),
        after="Provider.name = 'ggml-cpu'",
    ),
    Animal(
        "jackal",
        "calls its device as hotshoe's own is called",
        ("shadowed",),
        ("the name 'cpu' is taken by", "hotshoe-ggml-cpu"),
        after="Provider.devices = lambda self, library: [Device('cpu', DeviceType.CPU, 'jackal', 'jackal')]",
    ),
    Animal(
        "peacock",
        "calls its device by the word for all of the best",
        ("incompatible-api",),
        ("'gpu' is a word with a meaning of its own", "acme-npu:1"),
        after="Provider.devices = lambda self, library: [Device('gpu', DeviceType.CPU, 'peacock', 'peacock')]",
    ),
    Animal(
        "sphinx",
        "gives a class in place of an instance",
        ("incompatible-api",),
        ("an instance, as in [Provider()]",),
        after="@hookimpl\ndef hotshoe_providers(): return [Provider]",
    ),
    Animal(
        "mule",
        "lists None in place of devices",
        ("incompatible-api",),
        ("its devices() returned None; expected a list of Devices",),
        after="Provider.devices = lambda self, library: None",
    ),
    Animal(
        "squid",
        "lies about a device past its constructor",
        ("incompatible-api",),
        ("Device.pci_id is 5",),
        after="def _devices(self, library, right=Provider.devices):\n    (device,) = right(self, library)\n"
        "    object.__setattr__(device, 'pci_id', 5)\n    return [device]\nProvider.devices = _devices",
    ),
    Animal(
        "chameleon",
        "paints the terminal with its words",
        ("import-error",),
        ("\\x1b[31mred", "report it"),
        before="import os; os.write(2, b'\\x1b[2J\\n'); raise RuntimeError('\\x1b[31mred\\x1b[0m \\u202e')",
    ),
    Animal(
        "owl",
        "knows what it lacks, and says how to get it",
        ("import-error",),
        ("'apt install libowl3'",),
        before="raise ImportError('needs libowl 3: apt install libowl3')",
    ),
    Animal(
        "centipede",
        "has more entry points than anybody needs",
        ("import-error",),
        ("it has 200 entry points", "at most 32"),
        entry="\n".join(["zoo_centipede", *(f"centipede{i} = zoo_centipede" for i in range(199))]),
    ),
    Animal("stray", "names a module that is not there", ("import-error",), ("zoo_nothing",), entry="zoo_nothing"),
)

ANIMALS = TAME + BROKEN
