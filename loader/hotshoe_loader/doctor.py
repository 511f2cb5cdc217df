"""The doctor: checks this machine and says what to do next. Returns findings, prints nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hotshoe_core.contract.device import Device
from hotshoe_core.errors.install import pip_build
from hotshoe_loader.catalog import CATALOG, CPU
from hotshoe_loader.diagnosis import Diagnosis, Finding, Level
from hotshoe_loader.doctor_gpus import GpuExaminer
from hotshoe_loader.machine import Cpu, Machine
from hotshoe_loader.rank import REFERENCE
from hotshoe_loader.verdict import Outcome, Verdict

__all__ = ["Diagnosis", "Finding", "examine"]


def examine(
    machine: Machine,
    devices: Sequence[Device],
    verdicts: Sequence[Verdict],
    require_error: str | None = None,
    notes: Sequence[str] = (),
) -> Diagnosis:
    """Compare what a registry found with what the machine has.

    Args:
        devices: the devices of the registry.
        verdicts: the verdicts of the registry.
        require_error: the message of load_all's error about HOTSHOE_REQUIRE, if any; then ``devices`` is empty.
        notes: those of the registry's survey, about names and variables that match nothing.
    """
    examiner = _Examiner(machine, devices, verdicts, notes)
    if require_error is not None:
        names = ", ".join(name.strip() for name in machine.environ.get("HOTSHOE_REQUIRE", "").split(","))
        first = require_error.partition("\n")[0]  # the findings about plugins say the rest
        examiner.require = Finding("device", "todo", first, f"unset HOTSHOE_REQUIRE, or install what provides {names}")
    # In the order of repair: Python first, because everything else needs it; then the CPU; then better devices.
    findings = [
        *examiner.python(),
        *examiner.cpu(),
        *examiner.gpus.findings(),
        *examiner.plugins(),
        *examiner.variant(),
        *examiner.memory(),
        *examiner.settings(),
    ]
    return Diagnosis(tuple(findings), tuple(finding for finding in findings if finding.level == "todo"))


class _Examiner:
    """Makes the findings: one method for each subject."""

    def __init__(
        self, machine: Machine, devices: Sequence[Device], verdicts: Sequence[Verdict], notes: Sequence[str]
    ) -> None:
        self._machine = machine
        self._notes = notes
        self._devices = devices
        self._verdicts = verdicts
        self._catalog = [entry for entry in CATALOG if entry.runs_on(machine.platform, machine.machine)]
        self._plugins = [verdict for verdict in verdicts if verdict.kind == "plugin"]
        self.gpus = GpuExaminer(machine, devices, self._plugins, self._catalog)
        self.require: Finding | None = None
        """The finding about HOTSHOE_REQUIRE, if it cannot be met."""

    # -- Python --

    def python(self) -> Iterator[Finding]:
        machine = self._machine
        version = ".".join(map(str, machine.python))
        text = f"{version}, {machine.bits} bits, for {machine.platform} on {machine.machine}"
        if machine.python < (3, 11, 0):
            yield Finding("python", "todo", text, "install Python 3.11 or later, then hotshoe in it")
        elif machine.bits < 64:
            why = "a 32-bit process can use at most 4 GiB, and no plugin is built for 32 bits"
            yield Finding("python", "todo", f"{text}: {why}", "install a 64-bit Python, then hotshoe in it")
        elif machine.rosetta:
            text += ": Rosetta translates it on an Apple processor, so it cannot use the GPU"
            yield Finding("python", "todo", text, "install a Python for arm64, then hotshoe in it")
        else:
            yield Finding("python", "ok", text)
        missing = [name for name in _MODULES_NEEDED if not machine.has_module(name)]
        if missing:
            text = f"hotshoe needs {', '.join(missing)}, which cannot be found: the installation is not complete"
            yield Finding("hotshoe", "todo", text, f"pip install {' '.join(missing)}")

    # -- CPU --

    def cpu(self) -> Iterator[Finding]:
        """Whether there is a device other than the reference."""
        if self.require is not None:
            yield self.require
            return
        used = [device for device in self._devices if device.provider != REFERENCE]
        if used:
            best = _best_instruction_set(self._machine.cpu)
            yield Finding("cpu", "ok", self._machine.cpu.name + (f", with {best}" if best else ""))
            return
        what = "only the reference backend, which is NumPy and slow" if self._devices else "no device"
        yield Finding("cpu", "todo", f"found {what}", self._first_plugin())

    def _first_plugin(self) -> str:
        """How to get a first device: repair what is installed, unblock what is blocked, else install the CPU plugin."""
        candidates = [verdict for verdict in self._plugins if verdict.outcome.broken and verdict.hint]
        candidates += [verdict for verdict in self._plugins if verdict.outcome is Outcome.BLOCKED and verdict.hint]
        for verdict in candidates:
            if verdict.details.get("backend") == "cpu" or len(candidates) == 1:
                self.gpus.explained.add(id(verdict))
                return verdict.hint or ""
        entry = next((entry for entry in self._catalog if entry.name == "cpu"), None)
        return entry.install if entry else "install a plugin"

    def variant(self) -> Iterator[Finding]:
        """Whether the CPU library in use was built for the best instruction set of this CPU."""
        device = next((device for device in self._devices if device.name == "cpu"), None)
        features = str(device.properties.get("features", "")) if device else ""
        wanted = _best_instruction_set(self._machine.cpu)
        if device is None or not features or not wanted:
            return
        native = {name.strip() for name in features.split(",")}
        variant = str(device.properties.get("variant", "")) or "only"
        if any(name == wanted and ggml_name in native for name, _, ggml_name in _INSTRUCTION_SETS):
            yield Finding("cpu library", "ok", f"the {variant} variant uses {wanted}")
        else:
            yield Finding(
                "cpu library",
                "todo",
                f"this CPU has {wanted}, but the {variant} variant in use was built without it",
                pip_build(CPU.distribution),
            )

    # -- what is installed --

    def plugins(self) -> Iterator[Finding]:
        """The verdicts on installed plugins. One that a finding about GPUs has explained is only a note here."""
        for verdict in self._plugins:
            if verdict.outcome is Outcome.NOT_INSTALLED or verdict.candidate == REFERENCE:
                continue
            text = f"{verdict.outcome.value}: {verdict.reason}"
            broken = verdict.outcome.broken or verdict.outcome is Outcome.SHADOWED
            if verdict.outcome.usable:
                # A hint says how to repair a device that failed its test.
                failed: Level = "todo" if verdict.hint and id(verdict) not in self.gpus.explained else "note"
                yield Finding(verdict.candidate, failed if verdict.details.get("dropped") else "ok", text, verdict.hint)
            elif self._lacks_gpu(verdict):
                yield Finding(verdict.candidate, "note", f"{text}. This machine has no GPU that it drives")
            else:
                level: Level = "todo" if broken and id(verdict) not in self.gpus.explained else "note"
                yield Finding(verdict.candidate, level, text, verdict.hint)
        # A library's verdict counts only if its plugin works with another library.
        for verdict in self._verdicts:
            if verdict.kind == "library" and verdict.outcome.broken and not self._explained(verdict):
                yield Finding(verdict.candidate, "todo", f"{verdict.outcome.value}: {verdict.reason}", verdict.hint)

    def _lacks_gpu(self, verdict: Verdict) -> bool:
        """Whether a plugin cannot work because this machine has no GPU of its vendors."""
        entry = next((entry for entry in self._catalog if entry.name == verdict.details.get("backend")), None)
        vendors = {gpu.vendor for gpu in self._machine.gpus}
        lacking = verdict.outcome in (Outcome.NO_DEVICE, Outcome.MISSING_DEPENDENCY)
        return entry is not None and bool(entry.vendors) and lacking and vendors.isdisjoint(entry.vendors)

    def _explained(self, library: Verdict) -> bool:
        provider = library.details.get("provider")
        return any(not v.outcome.usable and v.details.get("provider") == provider for v in self._plugins)

    # -- the rest --

    def memory(self) -> Iterator[Finding]:
        if self._machine.memory is not None:
            total, free = self._machine.memory
            where = f" in this container ({self._machine.container})" if self._machine.container else ""
            yield Finding("memory", "ok", f"{free / 2**30:.1f} of {total / 2**30:.1f} GiB free{where}")

    def settings(self) -> Iterator[Finding]:
        """The environment variables that are set and change what is found; one may be set by mistake."""
        for name in sorted(self._machine.environ):
            if name.startswith("HOTSHOE_") and self._machine.environ[name]:
                yield Finding(name, "note", f"is set to {self._machine.environ[name]!r}")
        for note in self._notes:
            text, _, hint = note.partition("; ")
            yield Finding("settings", "todo", text, hint)


_MODULES_NEEDED = ("numpy", "pluggy", "gguf", "jinja2", "tokenizers")  # their distributions have the same names

# The name to show, the operating system's name and ggml's name; best first. CPU libraries are built for each of them.
_INSTRUCTION_SETS = (
    ("AMX", "amx_int8", "AMX_INT8"),
    ("AVX-512", "avx512f", "AVX512"),
    ("AVX2", "avx2", "AVX2"),
    ("AVX", "avx", "AVX"),
    ("SVE", "sve", "SVE"),
    ("I8MM", "i8mm", "MATMUL_INT8"),
    ("dot products", "asimddp", "DOTPROD"),
)


def _best_instruction_set(cpu: Cpu) -> str:
    """The best instruction set that the operating system enables; "" if it does not say."""
    return next((name for name, feature, _ in _INSTRUCTION_SETS if feature in cpu.features), "")
