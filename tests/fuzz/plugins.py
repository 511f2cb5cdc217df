"""Hostile plugins next to a healthy one: lying reports, kept probes, manifests, metadata, ELF headers, odd files.

Each is tested in a child process, as a user's plugin is.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest import mock

from hotshoe_core.contract.device import Device
from hotshoe_core.errors import HotshoeError
from hotshoe_loader import Registry, find, load_all
from hotshoe_loader.binary import BadLibrary, read_binary, unresolved
from hotshoe_loader.files import read_bytes
from tests.fuzz.fault import Fault
from tests.fuzz.hostile import (
    ELF_SOURCE,
    mutated_bytes,
    mutated_elf,
    mutated_json,
    put_odd_file,
    random_expression,
    wild_code,
)
from tests.loader.conftest import Site, _forget
from tests.support.fake_plugins import GOOD

__all__ = ["SEEDS", "SHARE", "run", "setup"]

SEEDS = (
    2001088,  # devices() is a range of a milliard
    1000141,  # an empty report, written into the probe's pipe
)
SHARE = 20  # each takes a child process or two
TIMEOUT = 3.0  # seconds of a plugin in its child

HEALTHY = GOOD.replace("{arguments}", "'good', 'good', ('good:0',)")
OTHER = GOOD.replace("{arguments}", "'bad', 'bad', ('bad:0',), properties={'cores': 4, 'arch': 'x'}")
MANIFEST = {
    "format": 1,
    "api": [2, 2],
    "environment": ["ACME_"],
    "ggml": {"version": "0.20.2", "abi": "09ab", "adopts": ["0.20.2", "0.25.1"]},
}
RECORD = "bad/__init__.py,sha256=abc,120\nbad/core.so,sha256=x1_-,7\nbad-1.0.dist-info/METADATA,,\n"
WHEEL = "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"

_folder = Path()
_elf = b""


def setup() -> None:
    """A folder, and a small real library."""
    global _folder, _elf
    _folder = Path(tempfile.mkdtemp(prefix="hotshoe-fuzz-"))
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is not None and sys.platform == "linux":
        source, target = _folder / "small.c", _folder / "small.so"
        source.write_text(ELF_SOURCE)
        flags = ["-shared", "-fPIC", "-Wl,-soname,small.so", "-Wl,-rpath,$ORIGIN/x", "-lm", "-Wl,--no-as-needed"]
        subprocess.run([compiler, source, "-o", target, *flags], check=True)
        _elf = target.read_bytes()


def run(seed: int) -> str:
    """One hostile neighbour of a kind that the seed picks."""
    rng = random.Random(seed)
    kinds: list[tuple[Callable[[random.Random, Case], str], int]] = [
        (lying_device, 24),
        (kept_probe, 24),
        (manifest, 16),
        (metadata, 20),
        (libraries, 14),
        (wild, 2),
    ]
    kind = rng.choices([each for each, _ in kinds], [share for _, share in kinds])[0]
    with _case(seed) as case:
        return kind(rng, case)


class Case:
    """A folder with a healthy plugin, ``good``, and with ``bad``."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder = folder
        path = folder / "site"
        path.mkdir(parents=True)
        self.site = Site(path)
        self.module = f"bad_{seed}"
        self.site.install("good", HEALTHY, value=self.install(f"good_{seed}", HEALTHY))
        self.log: list[str] = []

    def install(self, module: str, code: str) -> str:
        package = self.site.path / module
        package.mkdir()
        (package / "__init__.py").write_text(code)
        self.site.modules.append(module)
        return module

    def bad(self, code: str) -> Path:
        """Installs the hostile one; its dist-info."""
        self.site.install("bad", None, value=self.install(self.module, code))
        return self.site.path / "bad-1.0.dist-info"

    def load(self, **options: object) -> Registry:
        """``load_all``, held against what is promised."""
        _forget()
        options = {"timeout": TIMEOUT, **options}
        registry = load_all(**options)  # type: ignore[arg-type]
        self.check(registry)
        return registry

    def check(self, registry: Registry) -> None:
        names = [device.name for device in registry.devices]
        if "good:0" not in names:
            raise Fault("wrong verdict", f"the neighbour is gone: {registry.verdicts}")
        for device in registry.devices:
            Device.check(device)
        from hotshoe.cli import devices as command
        from hotshoe.cli.tables import show

        printed = io.StringIO()
        for verdict in registry.verdicts:
            json.dumps(verdict.to_json())
        shown = [registry.explain(), registry.explain("bad"), registry.why(), *self.log]
        shown += [f"{each} {each.hint} {each.origin} {each.candidate}" for each in registry.verdicts]
        with contextlib.redirect_stdout(printed):
            show(command._report(registry.devices, registry.verdicts, registry.why(), None, True))
        for text in (*shown, printed.getvalue()):
            for line in text.split("\n"):
                if not line.isprintable():
                    raise Fault("escape", repr(line))

    def outcome(self, registry: Registry) -> str:
        """What became of the hostile one: it must have a verdict. Opens it where it is said to work."""
        about = [each for each in registry.verdicts if each.details.get("plugin") != "good" and each.kind == "plugin"]
        about = [each for each in about if each.outcome.value != "not-installed" and each.candidate != "reference"]
        if not about:
            raise Fault("wrong verdict", f"nothing is said of it: {registry.verdicts}")
        for each in about:
            if not each.outcome.usable and not each.reason:
                raise Fault("wrong verdict", f"{each} has no reason")
        for device in registry.devices:
            if device.name not in ("good:0", "reference"):
                with contextlib.suppress(HotshoeError):
                    registry.open(device.name).close()
        self.check(registry)
        registry.open("good:0").close()
        return "answered" if all(each.outcome.usable for each in about) else "refused"


@contextlib.contextmanager
def _case(seed: int) -> Iterator[Case]:
    folder = _folder / str(seed)
    case = Case(folder, seed)
    handler = logging.Handler(logging.DEBUG)
    handler.emit = lambda record: case.log.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("hotshoe")
    before = sys.path[:], dict(os.environ), logger.level, logger.propagate
    clean = {key: value for key, value in os.environ.items() if not key.startswith("HOTSHOE_")}
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    logger.propagate = False
    sys.path.insert(0, str(case.site.path))
    clean["HOTSHOE_CACHE_DIR"] = str(folder / "cache")
    try:
        with (
            mock.patch.dict(os.environ, clean, clear=True),
            mock.patch.object(find, "_search_path", return_value=[str(case.site.path)]),
        ):
            yield case
    finally:
        logger.removeHandler(handler)
        sys.path[:] = before[0]
        logger.setLevel(before[2])
        logger.propagate = before[3]
        _forget()
        for module in case.site.modules:
            sys.modules.pop(module, None)
        shutil.rmtree(folder, ignore_errors=True)


# -- kinds ------------------------------------------------------------------------------------------------------


def lying_device(rng: random.Random, case: Case) -> str:
    """Fields of provider and Device, within and past the constructor."""
    lies = []
    for _ in range(rng.choice([1, 1, 2, 4])):
        field = rng.choice([*Device.__slots__, "type", "name"])
        lies.append(f"        object.__setattr__(d, {field!r}, {random_expression(rng)})\n")
    lists = (
        "    def devices(self, library):\n"
        "        d = Device('bad:0', DeviceType.ACCEL, 'bad', 'bad')\n"
        + "".join(lies if rng.random() < 0.8 else [])
        + rng.choice(["        return [d]\n"] * 6 + [f"        return {random_expression(rng)}\n", "        yield d\n"])
    )
    about = "".join(
        f"    {name} = {random_expression(rng)}\n"
        for name in ("name", "family", "api_version", "native", "open")
        if rng.random() < 0.08
    )
    code = (
        f"{OTHER}\nclass Bad(Provider):\n{lists}{about}\nclass Evil(str):\n    def __repr__(self): raise SystemExit\n"
    )
    answer = random_expression(rng) if rng.random() < 0.05 else "[Bad('bad', 'bad')]"
    case.bad(f"{code}\n@hookimpl\ndef hotshoe_providers():\n    return {answer}\n")
    return case.outcome(case.load())


def kept_probe(rng: random.Random, case: Case) -> str:
    """What an earlier start has kept of a good plugin is damaged, or lies."""
    case.bad(OTHER)
    case.load()
    for entry in (case.folder / "cache" / "probes").iterdir():
        text = entry.read_text()
        if "'bad'" in text or '"bad"' in text:
            if rng.random() < 0.1:
                entry.unlink()
                put_odd_file(rng, entry)
            elif rng.random() < 0.2:
                entry.write_bytes(mutated_bytes(rng, text.encode()))
            else:
                entry.write_text(mutated_json(rng, json.loads(text)), errors="surrogatepass")
    return case.outcome(case.load())


def manifest(rng: random.Random, case: Case) -> str:
    case.bad(OTHER)
    path = case.site.path / case.module / "hotshoe-plugin.json"
    if rng.random() < 0.05:
        put_odd_file(rng, path)
    elif rng.random() < 0.2:
        path.write_bytes(mutated_bytes(rng, json.dumps(MANIFEST).encode()))
    else:
        path.write_text(mutated_json(rng, MANIFEST), errors="surrogatepass")
    return case.outcome(case.load())


def metadata(rng: random.Random, case: Case) -> str:
    """entry_points.txt, METADATA, RECORD, WHEEL. A damaged entry point may not be one any more."""
    info = case.bad(OTHER)
    (info / "RECORD").write_text(RECORD)
    (info / "WHEEL").write_text(WHEEL)
    for name in rng.sample(["entry_points.txt", "METADATA", "RECORD", "WHEEL"], rng.choice([1, 1, 2])):
        path = info / name
        data = path.read_bytes()
        path.unlink()
        if rng.random() < 0.15:
            put_odd_file(rng, path)
        elif rng.random() < 0.9:
            path.write_bytes(mutated_bytes(rng, data))
    registry = case.load()
    entries = info / "entry_points.txt"
    if not os.path.lexists(entries):
        return "answered"
    try:
        lines = [line.strip() for line in read_bytes(entries, 1 << 20).decode("utf-8", "replace").splitlines()]
    except OSError:  # what cannot be read is a verdict
        return case.outcome(registry)
    header = lines.index(f"[{find.GROUP}]") if f"[{find.GROUP}]" in lines else len(lines)
    after = next(filter(None, lines[header + 1 :]), "#")
    if after[0] not in "[;#":
        return case.outcome(registry)
    return "answered"


def libraries(rng: random.Random, case: Case) -> str:
    """Damaged libraries in the user's own folder, which no plugin drives: read, not opened."""
    if not _elf:
        return "answered"
    mine = case.folder / "mine"
    mine.mkdir()
    words = set()
    for i in range(12):
        path = mine / f"libggml-small{i}.so"
        if rng.random() < 0.05:
            put_odd_file(rng, path)
        else:
            path.write_bytes(mutated_elf(rng, _elf))
        try:
            binary = read_binary(path)
            unresolved(binary)
            words.add("answered")
        except (BadLibrary, OSError):
            words.add("refused")
    registry = case.load(paths=mine)
    told = {each.candidate for each in registry.verdicts if each.kind == "library"}
    if missing := {f"ggml-small{i}" for i in range(12)} - told:
        raise Fault("wrong verdict", f"nothing is said of {sorted(missing)}")
    return "refused" if "refused" in words else "answered"


def wild(rng: random.Random, case: Case) -> str:
    """Code that ends the probe's process, hangs, floods, or finds its pipe."""
    case.bad(wild_code(rng, OTHER))
    registry = case.load()
    about = [each for each in registry.verdicts if each.details.get("plugin") == "bad"]
    if not about:
        raise Fault("wrong verdict", f"nothing is said of it: {registry.verdicts}")
    return "answered" if all(each.outcome.usable for each in about) else "refused"
