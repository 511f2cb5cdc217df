"""The animals: each is a plugin, with what it does and what its verdict must say."""

from __future__ import annotations

from hotshoe_core.errors.install import pip_install
from tests.zoo.species import ALIEN, GGML, OPEN_LIBRARY, OURS, WORKS, Animal, Library, constructor, machine, wrong

__all__ = ["ANIMALS", "BROKEN", "TAME"]

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
        "cowbird",
        "lays a report of its own, which says nothing, into the probe's pipe",
        WORKS,
        before='import os, sys\negg = b\'{"report": {"rejected": null, "providers": [], "matched": [], "missing": [], '
        '"changes": [], "folders": [], "environment": [], "mapped": [], '
        '"modules": {}, "can_drive": false, "elapsed": 0}}\\n\'\n'
        "for nest in range(3, 30) if 'hotshoe_loader.child_main' in sys.modules else ():\n"
        "    try: os.write(nest, egg)\n    except OSError: pass",
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
    Animal(
        "locust",
        "lists devices without end",
        ("incompatible-api",),
        ("more than 1024 devices",),
        after="def _devices(self, library):\n    for i in range(1 << 40):\n"
        "        yield Device(f'locust:{i}', DeviceType.ACCEL, 'locust', 'locust')\nProvider.devices = _devices",
    ),
    Animal(
        "narwhal",
        "reports numbers too large to be written",
        ("incompatible-api",),
        ("Device.memory_total is of type int, and cannot be shown",),
        after="Provider.memory = 10 ** 5000",
    ),
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
        libraries={"liblemming.so": constructor('fprintf(stderr, "off the cliff\\n"); *(volatile int *)8 = 1;')},
    ),
    Animal(
        "platypus",
        "executes an illegal instruction",
        ("crashed",),
        ("SIGILL",),
        before=OPEN_LIBRARY,
        libraries={"libplatypus.so": constructor("__builtin_trap(); raise(SIGILL);")},
    ),
    Animal(
        "possum",
        "aborts, as ggml does on a failed assertion",
        ("crashed",),
        ("SIGABRT", "GGML_ASSERT"),
        before=OPEN_LIBRARY,
        libraries={"libpossum.so": constructor('fprintf(stderr, "GGML_ASSERT(alive) failed\\n"); abort();')},
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
        libraries={"libbeaver.so": constructor("for (;;) (*(volatile int *)&stdout)++, (*(volatile int *)&stdout)--;")},
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
        ("version 99", pip_install("hotshoe", "--upgrade")),
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
        after=wrong("add", "-y"),
    ),
    Animal(
        "weasel",
        "computes numbers that are a little wrong",
        ("wrong-result",),
        ("linear gives [",),
        after=wrong("linear", "y * 1.01"),
    ),
    Animal(
        "ermine",
        "computes NaN",
        ("wrong-result",),
        (),
        after=wrong("linear", "y * float('nan')"),
    ),
    Animal(
        "cuckoo",
        "crashes when it computes",
        ("crashed",),
        ("SIGSEGV",),
        after=wrong("linear", "os.kill(os.getpid(), 11)"),
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
        ("not a shared library", "version "),
        after=GGML,
        files={"libggml-bookworm.so": b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n"},
    ),
    Animal(
        "penguin",
        "has a library for another machine",
        ("abi-mismatch",),
        ("ppc64",),
        after=GGML,
        libraries={"libggml-penguin.so": Library(spoil=machine)},
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
        "has a library whose ggml version is unknown",
        ("untrusted",),
        ("its ggml version is unknown",),
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
        ("'gpu' is reserved", "acme-npu:1"),
        after="Provider.devices = lambda self, library: [Device('gpu', DeviceType.CPU, 'peacock', 'peacock')]",
    ),
    Animal(
        "sphinx",
        "gives a class in place of an instance",
        ("incompatible-api",),
        ("an instance of Provider, as in [Provider()]",),
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
